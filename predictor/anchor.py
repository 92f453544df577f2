"""A measurement as the step model reads it: per micro-batch times and a bucket timeline."""

import msgspec

from scaledl.predictor.overlap import Timeline, measured_timeline, synthetic_timeline
from scaledl.records import Measurement, ParallelPlan, StepParts

FORWARD_SHARE = 1 / 3
"""Forward share of compute when unmeasured: the backward pass has two products a layer where the
forward has one (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1)."""
UNKNOWN_PARAM_BYTES = 1e8
"""Gradient bytes assumed when neither buckets nor parameters are known: 25 M float32 parameters,
a ResNet-50. Only bytes over bandwidth matters, so a measured exchange calibrates it away."""
LAYERS_PER_UNIT = 10
"""Leaf modules in one FSDP unit: a transformer block has 8 to 14."""
UNKNOWN_UNITS = 12


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """What a forecast hangs on: one measured count. Its parts sum to its step."""

    measurement: Measurement
    parts: StepParts
    micro_s: float  # forward and backward of one micro-batch
    forward_s: float  # of one micro-batch
    timeline: Timeline
    bytes_known: bool

    @property
    def num_gpus(self) -> int:
        """The measured count."""
        return self.measurement.cluster.num_gpus

    @property
    def batch(self) -> float | None:
        """Samples of one micro-batch on one rank."""
        return self.measurement.plan.batch_per_gpu

    @property
    def backward_s(self) -> float:
        """Backward pass of one micro-batch, waiting for the network not included."""
        return self.micro_s - self.forward_s

    @property
    def ranks_per_node(self) -> int:
        """Ranks on the fullest machine of an even placement."""
        cluster = self.measurement.cluster
        return -(-cluster.num_gpus // cluster.num_nodes)

    @property
    def is_cpu(self) -> bool:
        """Whether the ranks are CPU processes."""
        cluster = self.measurement.cluster
        return (
            self.measurement.host_shared
            or cluster.intra.kind == "loopback"
            or "cpu" in cluster.gpu.name.lower()
        )

    @property
    def num_units(self) -> int:
        """How many FSDP units the model is assumed to be cut into."""
        layers = self.measurement.num_layers
        return min(64, max(1, layers // LAYERS_PER_UNIT)) if layers else UNKNOWN_UNITS


def is_sharded(plan: ParallelPlan) -> bool:
    """Whether parameters are gathered layer by layer instead of kept whole."""
    return plan.strategy in ("fsdp", "hsdp")


def _scaled_parts(parts: StepParts, step_s: float) -> StepParts:
    """The parts stretched to sum to the step: they may be means over other steps than it is."""
    factor = step_s / parts.total_s if parts.total_s > 0 else 0.0
    if factor == 0.0:
        return StepParts(
            compute_s=step_s, comm_exposed_s=0.0, input_wait_s=0.0, optimizer_s=0.0, other_s=0.0
        )
    return StepParts(
        compute_s=parts.compute_s * factor,
        comm_exposed_s=parts.comm_exposed_s * factor,
        input_wait_s=parts.input_wait_s * factor,
        optimizer_s=parts.optimizer_s * factor,
        other_s=parts.other_s * factor,
        comm_hidden_s=parts.comm_hidden_s,
    )


def build_anchor(measurement: Measurement) -> Anchor:
    """The anchor of a measurement. ``forward_s`` there is the sum over its micro-batches."""
    parts = _scaled_parts(measurement.parts, measurement.step_s)
    micro_s = parts.compute_s / measurement.plan.grad_accum
    forward_s = micro_s * FORWARD_SHARE
    if measurement.forward_s is not None and measurement.parts.compute_s > 0:
        share = measurement.forward_s / measurement.parts.compute_s
        if 0.05 < share < 0.9:  # else it was taken under other conditions than the parts
            forward_s = micro_s * share
    if measurement.buckets:
        timeline = measured_timeline(measurement.buckets, micro_s - forward_s)
    else:
        total = measurement.param_bytes or sum(measurement.plan.bucket_bytes)
        timeline = synthetic_timeline(float(total or UNKNOWN_PARAM_BYTES))
    return Anchor(
        measurement=measurement,
        parts=parts,
        micro_s=micro_s,
        forward_s=forward_s,
        timeline=timeline,
        bytes_known=bool(
            measurement.buckets or measurement.param_bytes or measurement.plan.bucket_bytes
        ),
    )
