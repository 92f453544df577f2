"""Which counts to probe, what that takes, and what it will tell; no torch, runs nothing."""

from collections.abc import Iterable

import msgspec

from scaledl.errors import UsageError
from scaledl.predictor.candidates import Candidate, candidate
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.probes import imagined, most_telling
from scaledl.probe_records import Narrowing, ProbePlan, ProbePoint
from scaledl.query import build_query
from scaledl.records import BatchRule, Measurement, StepForecast
from scaledl.units import MOST_COUNTS

START_S = 20.0
"""Seconds assumed from the command to its first step: Python, torch, data, the ranks' meeting."""
FEW_STEPS, MANY_STEPS, LEAST_SPAN_S = 30, 300, 5.0
"""Steps at a count unless the user says: short ones are many, since beside the start they cost
little, and a second of them tells more of the moment than of the job."""
MOST_CHOSEN = 2
"""Where neither counts nor a budget are given. More at once would not know what the first told."""

Known = tuple[Forecaster, Measurement]
"""What is known of a job, and its running regime: its cluster holds the links as known."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. ``most_gpus``: the largest count to choose from without ``gpus``."""

    gpus: tuple[int, ...] = ()
    budget_gpu_s: float | None = None
    num_steps: int | None = None
    batch_rule: BatchRule = "fixed-per-gpu"
    gpus_per_node: int | None = None
    most_gpus: int = 1


def make_plan(run: str, forecaster: Forecaster, base: Measurement, wish: Wish) -> ProbePlan:
    """The probes, the most telling first, and the intervals expected after them.

    Args:
        run: Id of the run that is asked about.
        forecaster: What is known; it is not changed.
        base: The running regime.
        wish: Counts or a budget, steps, and how the script's batch follows the count.

    Raises:
        UsageError: nothing is left to choose, or nothing fits the budget.
    """
    query = build_query(
        wish.gpus or None,
        base.cluster.num_gpus,
        batch_rule=wish.batch_rule,
        gpus_per_node=wish.gpus_per_node,
    )
    counts = wish.gpus or tuple(_worth_running(forecaster, base, wish))
    found = [candidate(forecaster, base, query, count) for count in counts]
    ways = [each for each in found if each is not None]
    if not wish.gpus:
        ways = [way for way in ways if way.forecast.fits is not False and _is_open(way)]
    if not ways:
        raise UsageError(
            f"no count up to {wish.most_gpus} is left to probe: each was measured or does not fit. "
            "Name one with --gpus."
        )
    points = [_point(way, base, wish) for way in ways]
    chosen = _chosen(forecaster, ways, points, wish)
    after = forecaster
    for place in chosen:
        after = after.knowing(imagined(base, ways[place].forecast, points[place].num_steps))
    return ProbePlan(
        run=run,
        cpu_run=base.host_shared,
        batch_rule=wish.batch_rule,
        points=tuple(points[place] for place in chosen),
        expected=narrowed(
            (forecaster, base), (after, base), wish, [points[i].num_gpus for i in chosen]
        ),
    )


def _worth_running(forecaster: Forecaster, base: Measurement, wish: Wish) -> Iterable[int]:
    """Powers of two up to the largest count, and that count itself."""
    powers = {2**i for i in range(wish.most_gpus.bit_length())}
    return sorted({*powers, wish.most_gpus} - {base.cluster.num_gpus})


def _is_open(way: Candidate) -> bool:
    return way.forecast.basis != "measured"


def _point(way: Candidate, base: Measurement, wish: Wish) -> ProbePoint:
    told = way.forecast
    num_steps = wish.num_steps or steps_for(told.step_s.mean)
    wall_s = START_S + num_steps * way.whole_s.mean
    gpu_s = wall_s * way.num_gpus
    price = base.cluster.usd_per_gpu_hour
    return ProbePoint(
        num_gpus=way.num_gpus,
        gpus_per_node=told.cluster.gpus_per_node,
        batch_per_gpu=told.plan.batch_per_gpu,
        num_steps=num_steps,
        step_s=told.step_s,
        wall_s=wall_s,
        gpu_s=gpu_s,
        cost_usd=None if price is None else price * gpu_s / 3600,
    )


def steps_for(step_s: float) -> int:
    """Steps that a probe makes by itself.

    >>> steps_for(0.5), steps_for(0.05), steps_for(0.001)
    (30, 100, 300)
    """
    return min(MANY_STEPS, max(FEW_STEPS, round(LEAST_SPAN_S / step_s)))


def _chosen(
    forecaster: Forecaster, ways: list[Candidate], points: list[ProbePoint], wish: Wish
) -> tuple[int, ...]:
    """Places of the chosen points. Counts that were named are all run, cheapest first."""
    if wish.gpus and wish.budget_gpu_s is None:
        return tuple(sorted(range(len(points)), key=lambda place: points[place].gpu_s))
    draws = [forecaster.step_draws(way.forecast.cluster, way.forecast.plan) for way in ways]
    found = most_telling(
        draws,
        [point.gpu_s for point in points],
        count=MOST_CHOSEN if wish.budget_gpu_s is None else MOST_COUNTS,
        budget_gpu_s=wish.budget_gpu_s,
    )
    if not found.chosen:
        cheapest = min(point.gpu_s for point in points)
        raise UsageError(
            f"no probe fits {(wish.budget_gpu_s or 0) / 60:.3g} GPU minutes: the cheapest takes "
            f"about {cheapest / 60:.3g}. Raise --budget-min or take fewer --steps."
        )
    return found.chosen


def narrowed(
    before: Known, after: Known, wish: Wish, probed: Iterable[int] = ()
) -> tuple[Narrowing, ...]:
    """The steps of the what-if by what is known before and after; the running count is left out.

    With the same global batch, as ``scaledl what-if`` shows them, at its usual counts and at those
    that were probed.
    """
    running = before[1].cluster.num_gpus
    usual = build_query(None, running, gpus_per_node=wish.gpus_per_node)
    found = []
    for count in sorted({*usual.gpus, *probed} - {running}):
        told = [_told(*known, wish, count) for known in (before, after)]
        if told[0] is None or told[1] is None:
            continue
        found.append(Narrowing(num_gpus=count, before=told[0].step_s, after=told[1].step_s))
    return tuple(found)


def _told(forecaster: Forecaster, base: Measurement, wish: Wish, count: int) -> StepForecast | None:
    query = build_query([count], base.cluster.num_gpus, gpus_per_node=wish.gpus_per_node)
    found = candidate(forecaster, base, query, count)
    return None if found is None else found.forecast
