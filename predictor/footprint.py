"""Bytes that one rank needs at its peak, under another count, batch or strategy.

Held for the whole step, for a model of P parameter bytes, G gradient bytes and S optimizer bytes
(Rajbhandari et al. 2020, "ZeRO", section 3; Adam in float32: P + G + S = 16 bytes a parameter):

    single, DDP    P + G + S          DDP has its buckets beside the gradients: G more
    FSDP (ZeRO-3)  (P + G + S) / n    and whole units: two gathered ones (the running and the next),
                                      two of gradients (being made, being scattered)
    ZeRO-2         P + (P + G + S) / n, and the two units of gradients
    HSDP           as FSDP over its shard group

Activations A shrink in the backward pass while gradients grow, so a step without accumulation
peaks at max(A, G) beside P and S; with accumulation the gradients are there already: A + G. A grows
with the micro-batch; checkpointing and what no layer shows are not counted. So a measured peak
corrects the sum: what it has beyond, or below, is carried on, and may or may not grow with the
batch; the interval holds both.
"""

import math

import msgspec

from scaledl.memory_records import Footprint, Holdings
from scaledl.predictor.anchor import is_sharded
from scaledl.records import ClusterSpec, Measurement, ParallelPlan

UNITS_AHEAD = 2
"""Units gathered, and units of gradients, at one time: FSDP's limiter lets one wait beside the
running one (Zhao et al. 2023, "PyTorch FSDP", section 3.4)."""
CONTEXT_BYTES = (0.3e9, 0.7e9, 1.5e9)
"""Driver, kernels and libraries of one process on a GPU: low, expected, high (assumed; NVML shows
0.3 to 0.6 GB for a bare context, and NCCL's channels come on top)."""
ACTIVATION_FACTOR = (0.5, 1.0, 1.7)
"""Activations over the outputs of all layers where no peak was measured: half of them are never
kept (in-place, recomputed), or sums and masks between the layers come on top (assumed)."""
FRAGMENTS = (0.0, 0.05, 0.15)
"""What the caching allocator cannot give out, over the activations (assumed)."""
PEAK_DOUBT = 0.02
"""How far a peak differs between two runs of one job."""
CARRIED_DOUBT = 0.25
"""How wrong the counted change of memory from the measured plan to another may be."""
USABLE = 0.98
"""Share of a GPU's memory that a process can get; the driver keeps a little."""


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What is counted without a measured peak."""

    params: float
    gradients: float
    states: float
    buffers: float
    outputs: float  # of all layers, for the asked micro-batch

    @property
    def fixed(self) -> float:
        """All that does not grow with the batch."""
        return self.params + self.gradients + self.states + self.buffers

    def at_peak(self, outputs: float, grad_accum: int) -> float:
        """What the activations add beyond the gradients: A with accumulation, else max(0, A - G).

        DDP's buckets and FSDP's units are buffers, so only the rank's own gradients count.
        """
        return outputs if grad_accum > 1 else max(0.0, outputs - self.gradients)


def footprint(base: Measurement, plan: ParallelPlan, cluster: ClusterSpec) -> Footprint | None:
    """Peak bytes of one rank of ``plan`` on ``cluster``; ``None`` where nothing was counted.

    Args:
        base: the measured regime, with its ``holdings``.
        plan: how the job would be spread.
        cluster: where; a catalogued GPU tells its own capacity.
    """
    own = base.holdings
    if own is None or own.param_bytes <= 0:
        return None
    asked = _count(own, plan, cluster.num_gpus, _batch_ratio(base, plan))
    capacity = capacity_bytes(base, cluster)
    if own.peak_bytes is None:
        return _unmeasured(asked, plan, capacity, on_gpu=not base.host_shared)
    here = _count(own, base.plan, base.cluster.num_gpus, 1.0)
    return _corrected(own.peak_bytes, here, asked, base, plan, capacity)


def capacity_bytes(base: Measurement, cluster: ClusterSpec) -> float | None:
    """Memory of one rank: the GPU's, or an equal part of the host's on a CPU run."""
    seen = None if base.holdings is None else base.holdings.capacity_bytes
    if base.host_shared:
        ranks = -(-cluster.num_gpus // cluster.num_nodes)
        return None if seen is None else seen / ranks
    same_gpu = base.cluster.gpu.name == cluster.gpu.name
    whole = seen if same_gpu and seen is not None else cluster.gpu.memory_bytes
    return None if whole is None else USABLE * whole


def _batch_ratio(base: Measurement, plan: ParallelPlan) -> float:
    if base.plan.batch_per_gpu is None or plan.batch_per_gpu is None:
        return 1.0
    return plan.batch_per_gpu / max(1, base.plan.batch_per_gpu)


def _count(own: Holdings, plan: ParallelPlan, num_gpus: int, ratio: float) -> _Counted:
    params, gradients, states = own.param_bytes, own.trainable_bytes, own.state_bytes
    outputs = ratio * (own.activation_bytes or 0.0)
    if not is_sharded(plan):
        has_buckets = plan.strategy == "ddp" and num_gpus > 1 and not own.buckets_are_gradients
        buffers = gradients if has_buckets else 0.0
        return _Counted(
            params=params, gradients=gradients, states=states, buffers=buffers, outputs=outputs
        )
    n = plan.shard
    unit = own.largest_unit_bytes or params
    whole = params if own.keeps_gathered else min(params, UNITS_AHEAD * unit)
    scattered = min(gradients, UNITS_AHEAD * unit * gradients / params)
    return _Counted(
        params=params / n,
        gradients=gradients / n,
        states=states / n,
        buffers=(whole + scattered) if n > 1 else 0.0,
        outputs=outputs,
    )


def _unmeasured(
    asked: _Counted, plan: ParallelPlan, capacity: float | None, *, on_gpu: bool
) -> Footprint:
    low, mid, high = (
        asked.at_peak(factor * asked.outputs, plan.grad_accum) for factor in ACTIVATION_FACTOR
    )
    extra = [
        share * at_peak + (context if on_gpu else 0.0)
        for share, at_peak, context in zip(FRAGMENTS, (low, mid, high), CONTEXT_BYTES, strict=True)
    ]
    return Footprint(
        params=asked.params,
        gradients=asked.gradients,
        states=asked.states,
        activations=mid,
        buffers=asked.buffers,
        other=extra[1],
        low=asked.fixed + low + extra[0],
        high=asked.fixed + high + extra[2],
        capacity=capacity,
    )


def _corrected(
    peak: float,
    here: _Counted,
    asked: _Counted,
    base: Measurement,
    plan: ParallelPlan,
    capacity: float | None,
) -> Footprint:
    """The measured peak, moved by what counting says of the change.

    Below the count, the layers' outputs are not all kept: their share is cut to what is left.
    Above it, the rest is unexplained: it stays as it is, or grows with the batch.
    """
    seen = here.at_peak(here.outputs, base.plan.grad_accum)
    rest = peak - here.fixed - seen
    kept = 1.0
    if rest < 0 and here.outputs > 0:
        room = max(0.0, peak - here.fixed)
        held_by_then = 0.0 if base.plan.grad_accum > 1 else here.gradients
        kept = min(1.0, (room + held_by_then) / here.outputs)
        rest = peak - here.fixed - here.at_peak(kept * here.outputs, base.plan.grad_accum)
    activations = asked.at_peak(kept * asked.outputs, plan.grad_accum)
    ratio = asked.outputs / here.outputs if here.outputs > 0 else _batch_ratio(base, plan)
    grown = sorted((rest, rest * ratio))
    context = (0.0,) * 3 if base.host_shared else CONTEXT_BYTES  # an allocator's peak is without
    growth = 1.0 if base.host_shared else math.sqrt(ratio)  # on a host it is mostly libraries
    other = max(0.0, growth * rest) + context[1]
    change = abs(asked.fixed + activations - here.fixed - seen)
    doubt = PEAK_DOUBT * peak + CARRIED_DOUBT * change
    counted = asked.fixed + activations
    return Footprint(
        params=asked.params,
        gradients=asked.gradients,
        states=asked.states,
        activations=activations,
        buffers=asked.buffers,
        other=other,
        low=max(0.0, counted + grown[0] + context[0] - doubt),
        high=counted + max(other, grown[1] + context[2]) + doubt,
        capacity=capacity,
    )


def what_would_fit(base: Measurement, plan: ParallelPlan, cluster: ClusterSpec) -> str:
    """What makes a plan fit that does not, in one sentence; empty where it fits or nothing does."""
    asked = footprint(base, plan, cluster)
    if asked is None or asked.fits is not False:
        return ""
    said = [
        text
        for text in (
            _smaller_batch(base, plan, cluster),
            _checkpointing(base, asked),
            _sharding(base, plan, cluster),
        )
        if text
    ]
    return f"It fits {', or '.join(said)}." if said else ""


def _fits(base: Measurement, plan: ParallelPlan, cluster: ClusterSpec) -> bool:
    found = footprint(base, plan, cluster)
    return found is not None and found.total <= (found.capacity or 0.0)


def _smaller_batch(base: Measurement, plan: ParallelPlan, cluster: ClusterSpec) -> str:
    """The largest divisor of the micro-batch that fits, its rest accumulated."""
    batch = plan.batch_per_gpu or 1
    for parts in (n for n in range(2, min(batch, 4096) + 1) if batch % n == 0):
        accum = plan.grad_accum * parts
        smaller = msgspec.structs.replace(plan, batch_per_gpu=batch // parts, grad_accum=accum)
        if _fits(base, smaller, cluster):
            return f"with micro-batches of {batch // parts}, {accum} of them accumulated"
    return ""


def _checkpointing(base: Measurement, asked: Footprint) -> str:
    """Keeping one activation in sqrt(n) layers (Chen et al. 2016, "Sublinear Memory Cost")."""
    saved = asked.activations * (1 - 2 / math.sqrt(max(4, base.num_layers or 4)))
    fits = asked.capacity is not None and saved > 0 and asked.total - saved <= asked.capacity
    return "with activation checkpointing" if fits else ""


def _sharding(base: Measurement, plan: ParallelPlan, cluster: ClusterSpec) -> str:
    """The smallest count, doubled from the asked one, over which FSDP fits."""
    if is_sharded(plan) and plan.replicate == 1:
        first = 2 * cluster.num_gpus
    else:
        first = max(2, cluster.num_gpus)
    for count in (first, 2 * first, 4 * first, 8 * first):
        sharded = msgspec.structs.replace(plan, strategy="fsdp", replicate=1, shard=count)
        if _fits(base, sharded, cluster.with_num_gpus(count)):
            return f"with FSDP over {count} {'processes' if base.host_shared else 'GPUs'}"
    return ""
