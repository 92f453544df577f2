"""Rows of the what-if table: the same job on a list of counts."""

import math

import msgspec

from scaledl.errors import UsageError
from scaledl.predictor.candidates import Candidate, candidate
from scaledl.predictor.epochs import steps_per_epoch
from scaledl.predictor.forecaster import Forecaster
from scaledl.records import Interval, Measurement, ScalingRow, StepForecast, Strategy, WhatIfQuery

IDLE_POWER_SHARE = 0.4
"""Power of a GPU that waits, over that of one that computes. Not idle at the desktop (0.15 of the
board limit): NCCL's kernels spin while they wait. A rough value; it only moves the energy column
by the change in the busy share."""

__all__ = ["answer_rows", "scaling_rows", "steps_per_epoch"]


def scaling_rows(
    forecaster: Forecaster, base: Measurement, query: WhatIfQuery
) -> tuple[ScalingRow, ...]:
    """One row a count, ascending; the base's own count is always among them.

    Args:
        forecaster: what is known; it is not changed.
        base: the running regime, against which speed is given.
        query: counts, batch rule, prices and the size of an epoch.

    Raises:
        UsageError: no count, a count below 1, a negative price or power, a wrong size of epoch.
    """
    return answer_rows(forecaster, base, msgspec.structs.replace(query, strategies=()))[0]


def answer_rows(
    forecaster: Forecaster, base: Measurement, query: WhatIfQuery
) -> tuple[tuple[ScalingRow, ...], tuple[ScalingRow, ...]]:
    """The rows, and the strategies of the query side by side.

    Of the latter there is a row at each count for each strategy that has a sense there. Speed and
    efficiency are against the running count under its own strategy. A strategy that was never run
    has the basis "prior" or "extrapolated" and the doubt of its exchange.

    Raises:
        UsageError: as ``scaling_rows``.
    """
    _check(query)
    knowing = forecaster.knowing(base)
    counts = sorted({*query.gpus, base.cluster.num_gpus})
    found = [candidate(knowing, base, query, count) for count in counts]
    own = [each for each in found if each is not None]
    measured = next(c for c in own if c.num_gpus == base.cluster.num_gpus)
    others = [
        _under(strategy, each, knowing, base, query)
        for each in own
        for strategy in query.strategies
    ]
    rows = tuple(_row(each, own[0], measured, query) for each in own)
    compared = tuple(_row(each, own[0], measured, query) for each in others if each is not None)
    return rows, compared


def _under(
    strategy: Strategy,
    own: Candidate,
    forecaster: Forecaster,
    base: Measurement,
    query: WhatIfQuery,
) -> Candidate | None:
    if own.forecast.plan.strategy == strategy and own.num_gpus > 1:
        return own
    return candidate(forecaster, base, query, own.num_gpus, strategy)


def _check(query: WhatIfQuery) -> None:
    if not query.gpus:
        raise UsageError("no GPU count to compare, got an empty list. Give for example 1,2,4,8.")
    for name in (
        "num_samples",
        "usd_per_gpu_hour",
        "power_w",
        "remaining_epochs",
        "remaining_steps",
    ):
        value = getattr(query, name)
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise UsageError(f"{name} must not be negative, got {value}. Leave it out if unknown.")
    positive: list[tuple[str, int | None]] = [("num_gpus", count) for count in query.gpus]
    positive += [("gpus_per_node", query.gpus_per_node), ("steps_per_epoch", query.steps_per_epoch)]
    for name, count in positive:
        if count is not None and count < 1:
            raise UsageError(f"{name} must be at least 1, got {count}.")
    if not 0 < query.level < 1:
        raise UsageError(f"level must be between 0 and 1, got {query.level}. Give 0.9.")


def _time_ratio(one: Candidate, other: Candidate) -> float | None:
    """Time of ``one`` over that of ``other`` for the same work: an epoch, else a sample."""
    if one.epoch_s is not None and other.epoch_s is not None:
        return one.epoch_s.mean / other.epoch_s.mean
    if one.steps == 0 or other.steps == 0:
        return None  # an epoch without a step is no work to compare
    return one.time_s / other.time_s


def _busy_fraction(forecast: StepForecast) -> float:
    parts = forecast.parts
    busy_s = parts.compute_s + parts.optimizer_s
    return min(1.0, busy_s / parts.total_s) if parts.total_s > 0 else 1.0


def _energy_j(
    row: Candidate, measured: Candidate, power_w: float | None, span: Interval | None
) -> float | None:
    """Energy of a time: the measured power, scaled by how much of the step a GPU computes.

    P = P_measured * (i + (1 - i) busy) / (i + (1 - i) busy_measured),  i = IDLE_POWER_SHARE
    """
    if power_w is None or span is None:
        return None
    draw, measured_draw = (
        IDLE_POWER_SHARE + (1 - IDLE_POWER_SHARE) * _busy_fraction(c.forecast)
        for c in (row, measured)
    )
    return power_w * draw / measured_draw * row.num_gpus * span.mean


def _cost_usd(row: Candidate, span: Interval | None) -> float | None:
    price = row.forecast.cluster.usd_per_gpu_hour
    if price is None or span is None:
        return None
    return span.mean * row.num_gpus / 3600 * price


def _row(
    row: Candidate, smallest: Candidate, measured: Candidate, query: WhatIfQuery
) -> ScalingRow:
    """The row with everything that is relative to the measured and to the smallest count."""
    forecast, epoch_s, left_s = row.forecast, row.epoch_s, row.remaining_s
    cheaper = _time_ratio(smallest, row)
    return ScalingRow(
        num_gpus=row.num_gpus,
        gpus_per_node=forecast.cluster.gpus_per_node,
        basis=forecast.basis,
        step_s=forecast.step_s,
        parts_s=forecast.parts,
        limited_by=forecast.bottleneck,
        limited_fraction=forecast.bottleneck_fraction,
        batch_per_gpu=forecast.plan.batch_per_gpu,
        steps_per_epoch=row.steps,
        epoch_s=epoch_s,
        remaining_s=left_s,
        speedup=_time_ratio(measured, row),
        efficiency_fraction=(
            cheaper * smallest.num_gpus / row.num_gpus if cheaper is not None else None
        ),
        cost_usd=_cost_usd(row, epoch_s),
        energy_j=_energy_j(row, measured, query.power_w, epoch_s),
        gpu_hours=epoch_s.mean * row.num_gpus / 3600 if epoch_s is not None else None,
        remaining_usd=_cost_usd(row, left_s),
        remaining_j=_energy_j(row, measured, query.power_w, left_s),
        strategy=forecast.plan.strategy,
        grad_accum=forecast.plan.grad_accum,
        memory=row.memory,
        fits=forecast.fits,
        remedy=row.remedy,
        caveats=row.caveats,
    )
