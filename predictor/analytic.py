"""The step model: one optimizer step on another count, batch or link, with its doubt.

The terms are in ``step_parts``. Each is evaluated for the median parameters (draw 0) and for 256
draws of them; the spread of the draws is the interval. A forecast hangs on the measured counts
next to the asked one, reproduces each of them, and is blended between two by log2 of the count.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scaledl.errors import UsageError
from scaledl.predictor.anchor import Anchor, build_anchor, is_sharded
from scaledl.predictor.batch import BatchCurve
from scaledl.predictor.bottleneck import find_cause
from scaledl.predictor.draws import normal_draws, normal_quantile
from scaledl.predictor.fit import fit_fixed_s, fit_links
from scaledl.predictor.host import fit_host
from scaledl.predictor.step_parts import (
    NUM_DIMS,
    RUN_TO_RUN_LOG_SIGMA,
    DrawnParts,
    Knowledge,
    batch_ratio,
    between_jobs_log_sigma,
    draw_parts,
    fixed_prior_s,
    median_parts,
    median_wait_s,
    regime,
)
from scaledl.records import (
    Basis,
    ClusterSpec,
    Interval,
    Measurement,
    ParallelPlan,
    StepForecast,
    StepParts,
)

FloatArray = NDArray[np.float64]
FAR = 4
"""Beyond this multiple of the largest seen count the forecast is called a guess."""


def forecast(
    measurements: Sequence[Measurement],
    cluster: ClusterSpec,
    plan: ParallelPlan,
    level: float = 0.9,
    curve: BatchCurve | None = None,
) -> StepForecast:
    """The step of one job on ``cluster`` under ``plan``.

    Args:
        measurements: regimes of one model; several counts and batches sharpen the forecast. Of two
            with equal count and batch the later one in the sequence counts.
        cluster: where the step is asked for.
        plan: how it would be spread there.
        level: probability the interval should hold.
        curve: compute by the batch, where the model's layers are known.

    Raises:
        UsageError: nothing was measured, or the plan does not fit the cluster.
    """
    if not measurements:
        raise UsageError("no measurement to forecast from, got none. Run some steps first.")
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, got {level}. Give for example 0.9.")
    _check_plan(cluster, plan)
    anchors = tuple(build_anchor(m) for m in measurements if m.step_s > 0)
    if not anchors:
        raise UsageError("every measured step took 0 s. Measure again over more steps.")
    seen = _seen(anchors, cluster, plan)
    if seen is not None:
        now = anchors[-1].num_gpus == seen.num_gpus
        return _measured(seen, cluster, plan, level, now=now)
    return _modelled(anchors, cluster, plan, level, curve)


def step_draws(
    measurements: Sequence[Measurement],
    cluster: ClusterSpec,
    plan: ParallelPlan,
    curve: BatchCurve | None = None,
) -> FloatArray:
    """Seconds of the step for every row of ``normal_draws(NUM_DIMS)``. Shape: [1 + NUM_DRAWS]."""
    anchors = tuple(build_anchor(m) for m in measurements if m.step_s > 0)
    return _sum_s(_drawn(anchors, cluster, plan, curve))


def _check_plan(cluster: ClusterSpec, plan: ParallelPlan) -> None:
    n = cluster.num_gpus
    if plan.strategy not in ("single", "ddp", "fsdp", "hsdp"):
        raise UsageError(
            f"strategy {plan.strategy!r} is not modelled. Use single, ddp, fsdp or hsdp."
        )
    if plan.strategy == "single" and n > 1:
        raise UsageError(f"strategy 'single' runs on 1 GPU, got {n}. Use ddp or fsdp.")
    if is_sharded(plan) and plan.shard * plan.replicate != n:
        raise UsageError(
            f"{plan.strategy} with shard={plan.shard} and replicate={plan.replicate} needs "
            f"{plan.shard * plan.replicate} GPUs, got {n}. Make shard * replicate equal num_gpus."
        )
    if plan.grad_accum < 1 or (plan.batch_per_gpu is not None and plan.batch_per_gpu < 1):
        raise UsageError(
            f"batch_per_gpu and grad_accum must be at least 1, got {plan.batch_per_gpu} and "
            f"{plan.grad_accum}. Raise them."
        )


def _seen(anchors: tuple[Anchor, ...], cluster: ClusterSpec, plan: ParallelPlan) -> Anchor | None:
    """The newest anchor of exactly this regime."""
    for anchor in reversed(anchors):
        own, own_plan = anchor.measurement.cluster, anchor.measurement.plan
        same_place = (own.num_gpus, own.num_nodes, own.gpu.name) == (
            cluster.num_gpus,
            cluster.num_nodes,
            cluster.gpu.name,
        ) and (not cluster.crosses_nodes or own.inter.kind == cluster.inter.kind)
        same_plan = (
            own_plan.batch_per_gpu,
            own_plan.grad_accum,
            regime(own_plan, own.num_gpus),
        ) == (plan.batch_per_gpu, plan.grad_accum, regime(plan, cluster.num_gpus))
        if same_place and same_plan:
            return anchor
    return None


def _measured(
    anchor: Anchor, cluster: ClusterSpec, plan: ParallelPlan, level: float, *, now: bool
) -> StepForecast:
    """The measurement itself, with the spread of its mean and the run-to-run floor.

    One that is not of the count measured last is of another time, perhaps of another load: two such
    differ as two jobs do.
    """
    m, parts = anchor.measurement, anchor.parts
    relative = m.step_sigma_s / math.sqrt(max(1, m.num_steps)) / m.step_s
    floor = RUN_TO_RUN_LOG_SIGMA if now else math.sqrt(2) * between_jobs_log_sigma(anchor)
    spread = math.exp(normal_quantile(level) * math.hypot(relative, floor))
    fixed = fixed_prior_s(anchor) * plan.grad_accum
    wait_s = min(parts.comm_exposed_s, median_wait_s(anchor, cluster.num_gpus, parts.compute_s))
    cause, fraction = find_cause(parts, fixed, wait_s, cluster, plan, m.plan)
    return StepForecast(
        cluster=cluster,
        plan=plan,
        step_s=Interval(mean=m.step_s, low=m.step_s / spread, high=m.step_s * spread, level=level),
        parts=parts,
        basis="measured",
        bottleneck=cause,
        bottleneck_fraction=fraction,
        caveats=() if now else ("measured-earlier",),
    )


def _modelled(
    anchors: tuple[Anchor, ...],
    cluster: ClusterSpec,
    plan: ParallelPlan,
    level: float,
    curve: BatchCurve | None,
) -> StepForecast:
    drawn = _drawn(anchors, cluster, plan, curve)
    step_s = _sum_s(drawn)
    tail = (1 - level) / 2
    low_s, high_s = np.quantile(step_s[1:], [tail, 1 - tail])
    parts = _blend([(weight, median_parts(p)) for weight, _, p in drawn])
    mean_s = parts.total_s
    fixed_s = sum(w * float(p.fixed_s[0]) for w, _, p in drawn)
    wait_s = sum(w * float(p.wait_s[0]) for w, _, p in drawn)
    nearest = max(drawn, key=lambda each: each[0])[1]
    cause, fraction = find_cause(parts, fixed_s, wait_s, cluster, plan, nearest.measurement.plan)
    return StepForecast(
        cluster=cluster,
        plan=plan,
        step_s=Interval(
            mean=mean_s,
            low=min(mean_s, float(low_s)),
            high=max(mean_s, float(high_s)),
            level=level,
        ),
        parts=parts,
        basis=_basis(anchors, cluster, plan),
        bottleneck=cause,
        bottleneck_fraction=fraction,
        caveats=_caveats(anchors, nearest, parts, cluster, plan),
    )


def _drawn(
    anchors: tuple[Anchor, ...],
    cluster: ClusterSpec,
    plan: ParallelPlan,
    curve: BatchCurve | None,
) -> list[tuple[float, Anchor, DrawnParts]]:
    """The parts hung on the neighbouring anchors, with the weight of each."""
    normals = normal_draws(NUM_DIMS)
    knowledge = Knowledge(
        anchors=anchors,
        normals=normals,
        links=fit_links(anchors, cluster).draws(normals[:, NUM_DIMS - 4 :]),
        fixed=fit_fixed_s(anchors),
        host=fit_host(anchors),
        curve=curve,
    )
    return [
        (weight, anchor, draw_parts(anchor, knowledge, cluster, plan))
        for weight, anchor in _neighbours(anchors, cluster, plan)
    ]


def _sum_s(drawn: list[tuple[float, Anchor, DrawnParts]]) -> FloatArray:
    return np.asarray(sum(weight * parts.step_s for weight, _, parts in drawn))


def _neighbours(
    anchors: tuple[Anchor, ...], cluster: ClusterSpec, plan: ParallelPlan
) -> list[tuple[float, Anchor]]:
    """One or two anchors with their weights: the counts next to the asked one.

    Anchors on the asked side of the node border go first where they exist at the asked count or
    below: within a node and between nodes are two curves. Among anchors of one count the number of
    nodes nearest to the asked one is taken, then the nearest batch, then the newest.
    """
    n = cluster.num_gpus
    alike = [a for a in anchors if _crosses(a) == cluster.crosses_nodes]
    if any(1 < a.num_gpus <= n for a in alike):
        anchors = tuple(alike)

    def distance(anchor: Anchor) -> tuple[float, float]:
        nodes = anchor.measurement.cluster.num_nodes
        return abs(math.log(nodes / cluster.num_nodes)), abs(math.log(batch_ratio(anchor, plan)))

    def pick(count: int) -> Anchor:
        return min(reversed([a for a in anchors if a.num_gpus == count]), key=distance)

    below = max((a.num_gpus for a in anchors if a.num_gpus <= n), default=None)
    above = min((a.num_gpus for a in anchors if a.num_gpus >= n), default=None)
    if below is None or above is None or below == above:
        return [(1.0, pick(below or above or n))]
    weight = math.log(n / below) / math.log(above / below)
    return [(1 - weight, pick(below)), (weight, pick(above))]


def _crosses(anchor: Anchor) -> bool:
    return anchor.measurement.cluster.crosses_nodes


def _blend(weighted: list[tuple[float, StepParts]]) -> StepParts:
    names = StepParts.__struct_fields__
    return StepParts(**{n: sum(w * getattr(p, n) for w, p in weighted) for n in names})


def _basis(anchors: tuple[Anchor, ...], cluster: ClusterSpec, plan: ParallelPlan) -> Basis:
    n = cluster.num_gpus
    counts = [a.num_gpus for a in anchors]
    exchanged = any(
        a.num_gpus > 1 and is_sharded(a.measurement.plan) == is_sharded(plan) for a in anchors
    )
    if n > 1 and not exchanged:
        return "prior"
    if min(counts) < n < max(counts):
        return "interpolated"
    batches = [a.batch for a in anchors if a.num_gpus == n and a.batch is not None]
    batch = plan.batch_per_gpu
    if batch is not None and batches and min(batches) < batch < max(batches):
        return "interpolated"
    return "extrapolated"


def _caveats(
    anchors: tuple[Anchor, ...],
    nearest: Anchor,
    parts: StepParts,
    cluster: ClusterSpec,
    plan: ParallelPlan,
) -> tuple[str, ...]:
    """Stable keys of what the reader should know about this row."""
    n = cluster.num_gpus
    clusters = [a.measurement.cluster for a in anchors]
    largest = max(c.num_gpus for c in clusters)
    crossed = any(c.crosses_nodes for c in clusters) or cluster.inter.measured
    keys = {
        "no-multi-node-data": cluster.crosses_nodes and not crossed,
        "no-communication-data": n > 1 and largest == 1,
        "host-shared": nearest.measurement.host_shared and n > 1,
        "far-extrapolation": n > FAR * largest,
        "size-unknown": n > 1 and not nearest.bytes_known,
        "other-gpu": nearest.measurement.cluster.gpu.name != cluster.gpu.name,
        "batch-unknown": nearest.batch is None or plan.batch_per_gpu is None,
        "input-may-not-scale": parts.input_wait_s > 0.1 * parts.total_s,
    }
    return tuple(key for key, holds in keys.items() if holds)
