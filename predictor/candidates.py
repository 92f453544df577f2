"""One count of the what-if: where and how the job would run there, and how many steps it takes."""

import math

import msgspec

from scaledl.predictor.epochs import steps_per_epoch
from scaledl.predictor.footprint import footprint, what_would_fit
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.strategies import batch_plan, other_strategy, spread_plan
from scaledl.records import (
    ClusterSpec,
    Footprint,
    Interval,
    Measurement,
    ParallelPlan,
    StepForecast,
    Strategy,
    WhatIfQuery,
)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One count: where and how it would run, and how many steps an epoch takes."""

    forecast: StepForecast
    steps: int | None
    samples_per_step: float  # in the base's own unit where the batch is unknown
    caveats: tuple[str, ...]
    stall_s: float = 0.0  # a step, the same on every count: nothing is known of its cause
    steps_left: float | None = None  # of this count
    memory: Footprint | None = None
    remedy: str = ""

    @property
    def num_gpus(self) -> int:
        return self.forecast.cluster.num_gpus

    @property
    def time_s(self) -> float:
        """Seconds a sample; the epoch's rounding of steps is in ``epoch_s``."""
        return (self.forecast.step_s.mean + self.stall_s) / self.samples_per_step

    @property
    def whole_s(self) -> Interval:
        """A step with its share of the far-out ones."""
        span = self.forecast.step_s
        return Interval(
            mean=span.mean + self.stall_s,
            low=span.low + self.stall_s,
            high=span.high + self.stall_s,
            level=span.level,
        )

    @property
    def epoch_s(self) -> Interval | None:
        return self.whole_s.scaled(self.steps) if self.steps else None

    @property
    def remaining_s(self) -> Interval | None:
        return None if self.steps_left is None else self.whole_s.scaled(self.steps_left)


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


def candidate(
    forecaster: Forecaster,
    base: Measurement,
    query: WhatIfQuery,
    count: int,
    strategy: Strategy | None = None,
) -> Candidate | None:
    """The job on ``count``, its own strategy or another; ``None`` where that has no sense there."""
    base_gpus = base.cluster.num_gpus
    cluster = _cluster(base, query, count)
    plan, caveats = batch_plan(
        spread_plan(base.plan, base_gpus, count), base.plan, base_gpus, query.batch_rule
    )
    if strategy is not None:
        other = other_strategy(plan, strategy, cluster)
        if other is None:
            return None
        plan = other
    samples = (plan.batch_per_gpu or 1) * plan.grad_accum * count
    base_samples = (base.plan.batch_per_gpu or 1) * base.plan.grad_accum * base_gpus
    steps = _steps(plan, samples, base_samples, count, query)
    forecast = forecaster.predict(cluster, plan, query.level)
    memory = footprint(base, plan, cluster)
    fits = memory.fits if memory is not None else None
    if forecast.basis == "measured":
        fits = True if memory is not None else None
    return Candidate(
        forecast=msgspec.structs.replace(
            forecast, memory_bytes=memory.total if memory is not None else None, fits=fits
        ),
        steps=steps,
        samples_per_step=float(samples),
        caveats=(
            *forecast.caveats,
            *caveats,
            *(["no-full-batch"] if steps == 0 else []),
            *_memory_caveats(base, plan, memory, fits),
            *_loader_caveats(base, cluster, query),
        ),
        stall_s=base.stall_s,
        steps_left=_steps_left(steps, base_samples / samples, query),
        memory=memory,
        remedy=what_would_fit(base, plan, cluster) if fits is False else "",
    )


def _steps_left(steps: int | None, ratio: float, query: WhatIfQuery) -> float | None:
    """Steps to the planned end; ``ratio`` is the base's samples a step over this count's.

    From epochs where their length is known, else from the steps left at the running count.
    """
    if query.remaining_epochs is not None and steps:
        return query.remaining_epochs * steps
    if query.remaining_steps is not None and steps != 0:
        return query.remaining_steps * ratio
    return None


def _memory_caveats(
    base: Measurement, plan: ParallelPlan, memory: Footprint | None, fits: bool | None
) -> list[str]:
    """What is not known of the memory; nothing where it fits or does not."""
    if fits is not None:
        return []
    if memory is not None and memory.capacity is not None:
        return ["may-not-fit"]
    grown = (plan.batch_per_gpu or 1) > (base.plan.batch_per_gpu or 1)
    return ["memory-not-checked"] if grown else []


def _loader_caveats(base: Measurement, cluster: ClusterSpec, query: WhatIfQuery) -> list[str]:
    """Whether a node's loaders would need more cores than it has, and more than they do now."""
    if not query.loader_workers or not query.cores_per_node:
        return []

    def wanted(at: ClusterSpec) -> int:
        return (query.loader_workers or 0) * -(-at.num_gpus // at.num_nodes)

    short = wanted(cluster) > max(query.cores_per_node, wanted(base.cluster))
    return ["loader-cores"] if short else []
