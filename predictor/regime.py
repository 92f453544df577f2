"""From single steps to one measurement: the steady regime of a job, robust to the odd slow step."""

from collections.abc import Sequence

import numpy as np

from scaledl.intervals import total
from scaledl.means import mean_parts
from scaledl.records import (
    BucketTiming,
    ClusterSpec,
    LayerGraph,
    Measurement,
    ParallelPlan,
    ProfileWindow,
    StepParts,
    StepRecord,
)

MIN_STEPS = 5
# Steps beyond this many inter-quartile ranges above the upper quartile are pauses (checkpoints,
# stalls), which belong to the ETA and not to what a step costs (Tukey 1977, the far-out fence).
_FENCE = 3.0


def steady(steps: Sequence[StepRecord], *, skip: int = 3) -> list[StepRecord]:
    """The ordinary steps: not sampled, past the warm-up, without far-out pauses.

    Args:
        steps: Steps of one regime in time order.
        skip: How many steps at the front are warm-up (compilation, caches), if enough follow.
    """
    rest = list(steps[skip:]) if len(steps) >= skip + MIN_STEPS else list(steps)
    ordinary = [s for s in rest if not s.tags] or rest
    if len(ordinary) < MIN_STEPS:
        return ordinary
    walls = np.array([s.wall_s for s in ordinary])
    low, high = np.quantile(walls, [0.25, 0.75])
    fence = high + _FENCE * max(high - low, 0.02 * high)
    kept = [s for s in ordinary if s.wall_s <= fence]
    return kept if len(kept) >= MIN_STEPS else ordinary


def measure(
    steps: Sequence[StepRecord],
    windows: Sequence[ProfileWindow],
    *,
    cluster: ClusterSpec,
    plan: ParallelPlan,
    graph: LayerGraph | None = None,
    rank_times_s: Sequence[float] = (),
    host_shared: bool = False,
    host_slots: int | None = None,
    at_s: float = 0.0,
    skip: int = 3,
    watched: Sequence[StepRecord] = (),
) -> Measurement | None:
    """The regime's mean step and its parts; ``None`` with fewer than ``MIN_STEPS`` steady steps.

    Where the host does not see the device's times (CUDA), forward, backward and exposed
    communication come from the sampled steps.

    Args:
        steps: Steps of the regime.
        windows: Sampled steps of the regime.
        cluster: Where it ran.
        plan: How it was spread.
        graph: The layer graph, for its signature and sizes.
        rank_times_s: Own time of a step by rank, waiting for others excluded; this rank's first.
        host_shared: Whether the ranks share one CPU machine.
        host_slots: How many processes with this number of threads its cores carry.
        at_s: Time stamp.
        skip: Warm-up steps at the front.
        watched: Earlier steps of the job with their backward, for where ``steps`` holds none.
    """
    kept = steady(steps, skip=skip)
    if len(kept) < MIN_STEPS:
        return None
    walls = np.array([s.wall_s for s in kept])
    step_s = float(walls.mean())
    means = mean_parts(kept, watched)
    forward_s, backward_s, exposed_s = means.forward_s, means.backward_s, means.comm_exposed_s
    if forward_s is None:
        forward_s = _median([w.forward_s for w in windows if w.layers])
        backward_s = _median([w.backward_s for w in windows if w.layers])
    inside_s = 0.0
    if exposed_s is None:
        # A profiled step is slower than others; its share of waiting is what carries over.
        shares = [
            w.comm_exposed_s / w.step_s
            for w in windows
            if w.comm and w.comm_exposed_s is not None and w.step_s > 0
        ]
        exposed_s = float(np.median(shares)) * step_s if shares else None
        inside_s = exposed_s or 0.0  # these waits lie inside forward and backward
    parts = _parts(
        step_s,
        input_wait_s=means.input_wait_s,
        optimizer_s=means.optimizer_s,
        # Without either one, all that is left is taken for compute.
        compute_s=None
        if forward_s is None or backward_s is None
        else max(0.0, forward_s + backward_s - inside_s),
        exposed_s=exposed_s or 0.0,
        hidden_s=_hidden_s(windows),
    )
    layers = [n for n in graph.nodes if n.kind != "outside"] if graph is not None else []
    return Measurement(
        cluster=cluster,
        plan=plan,
        step_s=step_s,
        parts=parts,
        num_steps=len(kept),
        stall_s=_stall_s(steps, kept, skip),
        step_sigma_s=float(walls.std(ddof=1)),
        rank_sigma_s=float(np.std(rank_times_s, ddof=1)) if len(rank_times_s) > 1 else None,
        waiting_s=min(parts.comm_exposed_s, max(rank_times_s) - rank_times_s[0])
        if len(rank_times_s) > 1
        else None,
        forward_s=forward_s,
        backward_s=backward_s,
        buckets=_buckets(windows),
        num_layers=len(layers) or None,
        param_bytes=sum(n.param_bytes for n in layers) or None,
        signature=graph.signature if graph is not None else "",
        host_shared=host_shared,
        host_slots=host_slots,
        at_s=at_s,
    )


def _stall_s(steps: Sequence[StepRecord], kept: Sequence[StepRecord], skip: int) -> float:
    """Time a step that the far-out steps took beyond the kept ones' mean."""
    rest = [s.wall_s for s in steps[skip:] if not s.tags]
    if len(rest) <= len(kept):
        return 0.0
    return max(0.0, float(np.mean(rest)) - float(np.mean([s.wall_s for s in kept])))


def _parts(
    step_s: float,
    *,
    input_wait_s: float,
    optimizer_s: float,
    compute_s: float | None,
    exposed_s: float,
    hidden_s: float,
) -> StepParts:
    """Parts that sum to the step exactly: what is left over is ``other``.

    Where trailing calls of one iteration were booked to the next, the parts can exceed the step by
    a little; they are then scaled to it.
    """
    known = input_wait_s + optimizer_s + exposed_s
    if compute_s is None:
        compute_s = max(0.0, step_s - known)
    sum_s = known + compute_s
    factor = min(1.0, step_s / sum_s) if sum_s > 0 else 1.0
    scaled = [v * factor for v in (compute_s, exposed_s, input_wait_s, optimizer_s)]
    return StepParts(
        compute_s=scaled[0],
        comm_exposed_s=scaled[1],
        input_wait_s=scaled[2],
        optimizer_s=scaled[3],
        other_s=max(0.0, step_s - sum(scaled)),
        comm_hidden_s=hidden_s,
    )


def _hidden_s(windows: Sequence[ProfileWindow]) -> float:
    """Time a step in which communication ran beside computation, whatever ran beside itself."""
    totals = [
        total((e.start_s, e.start_s + e.duration_s) for e in w.comm) * (w.overlap_fraction or 0.0)
        for w in windows
        if w.comm
    ]
    return float(np.median(totals)) if totals else 0.0


def _buckets(windows: Sequence[ProfileWindow]) -> tuple[BucketTiming, ...]:
    """Median timings over the windows that show the last seen bucket sizes."""
    seen = [w.buckets for w in windows if w.buckets]
    if not seen:
        return ()
    sizes = [b.num_bytes for b in seen[-1]]
    alike = [b for b in seen if [x.num_bytes for x in b] == sizes]
    merged = []
    for index, size in enumerate(sizes):
        merged.append(
            BucketTiming(
                num_bytes=size,
                ready_s=float(np.median([w[index].ready_s for w in alike])),
                duration_s=_median([w[index].duration_s for w in alike]),
            )
        )
    return tuple(merged)


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.median(known)) if known else None
