"""Rows of the what-if table: the same job on a list of counts."""

import math

import msgspec

from scaledl.errors import UsageError
from scaledl.predictor.epochs import steps_per_epoch
from scaledl.predictor.forecaster import Forecaster
from scaledl.records import (
    ClusterSpec,
    Interval,
    Measurement,
    ParallelPlan,
    ScalingRow,
    StepForecast,
    WhatIfQuery,
)

IDLE_POWER_SHARE = 0.4
"""Power of a GPU that waits, over that of one that computes. Not idle at the desktop (0.15 of the
board limit): NCCL's kernels spin while they wait. A rough value; it only moves the energy column
by the change in the busy share."""

__all__ = ["scaling_rows", "steps_per_epoch"]


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One count: where and how it would run, and how many steps an epoch takes."""

    forecast: StepForecast
    steps: int | None
    samples_per_step: float  # in the base's own unit where the batch is unknown
    caveats: tuple[str, ...]
    stall_s: float = 0.0  # a step, the same on every count: nothing is known of its cause

    @property
    def num_gpus(self) -> int:
        return self.forecast.cluster.num_gpus

    @property
    def time_s(self) -> float:
        """Seconds a sample; the epoch's rounding of steps is in ``epoch_s``."""
        return (self.forecast.step_s.mean + self.stall_s) / self.samples_per_step

    @property
    def epoch_s(self) -> Interval | None:
        if not self.steps:
            return None
        span = self.forecast.step_s
        with_stalls = Interval(
            mean=span.mean + self.stall_s,
            low=span.low + self.stall_s,
            high=span.high + self.stall_s,
            level=span.level,
        )
        return with_stalls.scaled(self.steps)


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
    _check(query)
    knowing = forecaster.knowing(base)
    counts = sorted({*query.gpus, base.cluster.num_gpus})
    candidates = [_candidate(knowing, base, query, count) for count in counts]
    measured = next(c for c in candidates if c.num_gpus == base.cluster.num_gpus)
    return tuple(_row(c, candidates[0], measured, query) for c in candidates)


def _check(query: WhatIfQuery) -> None:
    if not query.gpus:
        raise UsageError("no GPU count to compare, got an empty list. Give for example 1,2,4,8.")
    for name in ("usd_per_gpu_hour", "power_w", "remaining_epochs", "num_samples"):
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


def _cluster(base: Measurement, query: WhatIfQuery, count: int) -> ClusterSpec:
    """The base's machines with another count.

    CPU processes of one machine stay on it unless the query says how many a machine has. The
    running count keeps its own layout: it is what was measured.
    """
    own = base.cluster
    price = query.usd_per_gpu_hour
    changes: dict[str, object] = {
        "num_gpus": count,
        "usd_per_gpu_hour": own.usd_per_gpu_hour if price is None else price,
    }
    if count != own.num_gpus:
        per_node = own.gpus_per_node
        if base.host_shared and not own.crosses_nodes:
            per_node = max(per_node, count)
        changes["gpus_per_node"] = query.gpus_per_node or per_node
        changes["inter"] = query.inter or own.inter
    return msgspec.structs.replace(own, **changes)


def _spread_plan(plan: ParallelPlan, base_gpus: int, count: int) -> ParallelPlan:
    """The base's strategy on another count; batch untouched."""
    if count == base_gpus:
        return plan
    match plan.strategy:
        case "fsdp":
            return msgspec.structs.replace(plan, replicate=1, shard=count)
        case "hsdp":
            shard = math.gcd(count, plan.shard)
            return msgspec.structs.replace(plan, replicate=count // shard, shard=shard)
        case _:
            strategy = "ddp" if count > 1 else plan.strategy
            return msgspec.structs.replace(plan, strategy=strategy, replicate=count, shard=1)


def _batch_plan(
    plan: ParallelPlan, own: ParallelPlan, base_gpus: int, rule: str
) -> tuple[ParallelPlan, tuple[str, ...]]:
    """The plan with its batch by the rule, and what must be said about it.

    fixed-global keeps batch_per_gpu * grad_accum * num_gpus. Accumulation stays while every rank
    still gets a sample in each micro-batch, then shrinks; with more GPUs than samples in the global
    batch each rank gets one and the global batch grows.
    """
    count = plan.replicate * plan.shard if plan.strategy != "single" else 1
    if own.batch_per_gpu is None or rule == "fixed-per-gpu" or count == base_gpus:
        return plan, ()
    total = own.batch_per_gpu * own.grad_accum * base_gpus
    accum = max(1, min(own.grad_accum, total // count))
    batch = -(-total // (accum * count))
    changed = msgspec.structs.replace(plan, batch_per_gpu=batch, grad_accum=accum)
    caveats = {
        "more-gpus-than-samples": count > total,
        "uneven-batch": count <= total and batch * accum * count != total,
        "memory-not-checked": batch > own.batch_per_gpu,
    }
    return changed, tuple(key for key, holds in caveats.items() if holds)


def _steps(
    plan: ParallelPlan, samples: float, base_samples: float, count: int, query: WhatIfQuery
) -> int | None:
    """Optimizer steps of an epoch, from the samples or from the steps seen at the base."""
    if query.num_samples is not None and plan.batch_per_gpu is not None:
        return steps_per_epoch(
            query.num_samples, plan.batch_per_gpu, count, query.drop_last, plan.grad_accum
        )
    if query.steps_per_epoch is None:
        return None
    exact = query.steps_per_epoch * base_samples / samples
    return max(1, math.ceil(exact - 1e-9))


def _candidate(
    forecaster: Forecaster, base: Measurement, query: WhatIfQuery, count: int
) -> _Candidate:
    base_gpus = base.cluster.num_gpus
    plan, caveats = _batch_plan(
        _spread_plan(base.plan, base_gpus, count), base.plan, base_gpus, query.batch_rule
    )
    samples = (plan.batch_per_gpu or 1) * plan.grad_accum * count
    base_samples = (base.plan.batch_per_gpu or 1) * base.plan.grad_accum * base_gpus
    steps = _steps(plan, samples, base_samples, count, query)
    forecast = forecaster.predict(_cluster(base, query, count), plan, query.level)
    if steps == 0:
        caveats = (*caveats, "no-full-batch")
    return _Candidate(
        forecast=forecast,
        steps=steps,
        samples_per_step=float(samples),
        caveats=(*forecast.caveats, *caveats),
        stall_s=base.stall_s,
    )


def _time_ratio(one: _Candidate, other: _Candidate) -> float | None:
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


def _energy_j(row: _Candidate, measured: _Candidate, power_w: float | None) -> float | None:
    """Energy of an epoch: the measured power, scaled by how much of the step a GPU computes.

    P = P_measured * (i + (1 - i) busy) / (i + (1 - i) busy_measured),  i = IDLE_POWER_SHARE
    """
    if power_w is None or row.epoch_s is None:
        return None
    draw, measured_draw = (
        IDLE_POWER_SHARE + (1 - IDLE_POWER_SHARE) * _busy_fraction(c.forecast)
        for c in (row, measured)
    )
    return power_w * draw / measured_draw * row.num_gpus * row.epoch_s.mean


def _row(
    row: _Candidate, smallest: _Candidate, measured: _Candidate, query: WhatIfQuery
) -> ScalingRow:
    """The row with everything that is relative to the measured and to the smallest count."""
    forecast, epoch_s = row.forecast, row.epoch_s
    slower = _time_ratio(measured, row)
    cheaper = _time_ratio(smallest, row)
    gpu_hours = epoch_s.mean * row.num_gpus / 3600 if epoch_s is not None else None
    price = forecast.cluster.usd_per_gpu_hour
    left = query.remaining_epochs
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
        remaining_s=epoch_s.scaled(left) if epoch_s is not None and left is not None else None,
        speedup=slower,
        efficiency_fraction=(
            cheaper * smallest.num_gpus / row.num_gpus if cheaper is not None else None
        ),
        cost_usd=gpu_hours * price if gpu_hours is not None and price is not None else None,
        energy_j=_energy_j(row, measured, query.power_w),
        gpu_hours=gpu_hours,
        fits=forecast.fits,
        caveats=row.caveats,
    )
