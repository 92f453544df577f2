"""What is seen before a forecast: the few numbers experience knows a situation by."""

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from scaledl.predictor.analytic import forecast
from scaledl.records import Measurement, StepForecast

_EXPOSED_UNIT, _MODEL_UNIT, _GROWTH_UNIT, _COUNT_UNIT = 0.35, 0.25, 0.12, 0.7
"""About the spread of each feature over the public cases, so that one ridge suits all."""
_MAX_EXPOSED = 0.95
_LEAST_EXPOSED = 0.02


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """One forecast for more GPUs than any seen, and what it hangs on.

    ``features`` (for the mean): exposed communication at the largest count and in the forecast, as
    -log(1 - share); log(model / hold); growth of the step a doubling so far; doublings asked.
    ``doubts`` (for the width): log of the exposed communication, doublings asked.
    """

    group: str
    hold_s: float
    log_model: float
    features: tuple[float, float, float, float, float]
    doubts: tuple[float, float]


def look(measurements: Sequence[Measurement], told: StepForecast) -> Sight | None:
    """The sight of a forecast; ``None`` where experience has no say.

    That is where the count was seen or lies below one that was, on CPU processes, for sharded
    models and for other GPUs than the measured ones: nothing of the kind was in the public cases.
    """
    n = told.cluster.num_gpus
    counts = {m.cluster.num_gpus for m in measurements}
    gpus = {m.cluster.gpu.name for m in measurements} | {told.cluster.gpu.name}
    plans = {m.plan.strategy for m in measurements} | {told.plan.strategy}
    shared = any(m.host_shared for m in measurements)
    if not counts or max(counts) >= n or len(gpus) > 1 or shared or not plans <= {"single", "ddp"}:
        return None
    top = max(counts)
    at_top = _at(measurements, top, told, crosses=told.cluster.crosses_nodes)
    hold_s = fmean(f.step_s.mean for f in at_top)
    exposed = fmean(_exposed_share(f) for f in at_top)
    if not hold_s > 0:
        return None
    doublings = math.log2(n / top)
    log_model = math.log(told.step_s.mean / hold_s)
    return Sight(
        group=_group(measurements, told),
        hold_s=hold_s,
        log_model=log_model,
        features=(
            -math.log(1 - exposed) / _EXPOSED_UNIT,
            -math.log(1 - _exposed_share(told)) / _EXPOSED_UNIT,
            log_model / _MODEL_UNIT,
            _growth(measurements, told, top, hold_s) / _GROWTH_UNIT,
            doublings / _COUNT_UNIT,
        ),
        doubts=(math.log(_LEAST_EXPOSED - math.log(1 - exposed)), doublings),
    )


def _at(
    measurements: Sequence[Measurement], count: int, told: StepForecast, *, crosses: bool
) -> list[StepForecast]:
    """The steps of one count at the asked batch; those on the asked side of the border first."""
    mates = [m for m in measurements if m.cluster.num_gpus == count]
    alike = [m for m in mates if m.cluster.crosses_nodes == crosses] or mates
    plan = told.plan
    changed = {"batch_per_gpu": plan.batch_per_gpu, "grad_accum": plan.grad_accum}
    return [
        forecast(
            measurements, m.cluster, msgspec.structs.replace(m.plan, **changed), told.step_s.level
        )
        for m in alike
    ]


def _exposed_share(told: StepForecast) -> float:
    total_s = told.parts.total_s
    return min(_MAX_EXPOSED, told.parts.comm_exposed_s / total_s) if total_s > 0 else 0.0


def _growth(
    measurements: Sequence[Measurement], told: StepForecast, top: int, hold_s: float
) -> float:
    """Log of the step's growth a doubling, from the count before the largest one; else 0."""
    below = [m.cluster.num_gpus for m in measurements if m.cluster.num_gpus < top]
    if not below:
        return 0.0
    last = max(below)
    before = _at(measurements, last, told, crosses=told.cluster.crosses_nodes)
    return math.log(hold_s / fmean(f.step_s.mean for f in before)) / math.log2(top / last)


def _group(measurements: Sequence[Measurement], told: StepForecast) -> str:
    cluster = told.cluster
    counts = "one count" if len({m.cluster.num_gpus for m in measurements}) == 1 else "more counts"
    if not cluster.crosses_nodes:
        return f"within a node, {counts}"
    if any(m.cluster.crosses_nodes for m in measurements):
        return f"nodes crossed, {counts}"
    known = cluster.inter.measured or cluster.inter.kind != "unknown"
    return f"first crossing, link {'known' if known else 'unknown'}, {counts}"
