"""A job that never ran: its step from the layers of the model and the device's data sheet alone.

ScaleDL 2025 (arXiv 2511.04162) tells a step as ``alpha T_sum + beta T_comm``. Before the first step
nothing of it was measured; here it is put into the form of a measurement on one GPU, from which the
step model goes on to other counts. All that follows is a prior, and as wide as such a one is.
"""

import math
from collections.abc import Sequence

from scaledl.predictor.layer_work import UNKNOWN_BYTES_PER_S
from scaledl.records import ClusterSpec, Holdings, LayerGraph, Measurement, ParallelPlan, StepParts

UPDATE_PASSES = 7
"""Numbers that AdamW moves for each parameter: four read, three written."""
DOUBT_LOG_SIGMA = 0.36
"""log-sd of a step told from layers on a GPU that nobody measured: see ``estimate_accuracy.py``,
which leaves out the model and the GPU; more for what its steps lack (optimizer, Python)."""
DOUBT_CASES = 4
"""What this counts against each step that was told and then measured."""
FORWARD_SHARE = 1 / 3


def doubt_of(log_errors: Sequence[float]) -> float:
    """Log-sd of what was told before, about 0: its bias is part of the doubt."""
    if not log_errors:
        return DOUBT_LOG_SIGMA
    return math.sqrt(sum(e * e for e in log_errors) / len(log_errors))


def doubt_after(log_errors: Sequence[float]) -> float:
    """The same, starting from ``DOUBT_LOG_SIGMA`` where only a few were told.

    The root of the mean square, the start counted as ``DOUBT_CASES`` cases.
    """
    squares = sum(e * e for e in log_errors) + DOUBT_CASES * DOUBT_LOG_SIGMA**2
    return math.sqrt(squares / (len(log_errors) + DOUBT_CASES))


def untried(
    graph: LayerGraph,
    cluster: ClusterSpec,
    plan: ParallelPlan,
    *,
    step_s: float,
    host_slots: int | None = None,
    is_cpu: bool = False,
) -> Measurement:
    """The measurement that one GPU would give.

    Args:
        graph: The model with one micro-batch.
        cluster: One GPU of the kind, and the links to others.
        plan: ``single``, with the batch.
        step_s: The whole step as told.
        host_slots: Processes that a host's cores carry, of CPU processes.
        is_cpu: Whether the device is the host.
    """
    nodes = graph.nodes
    param_bytes = sum(node.param_bytes for node in nodes)
    bandwidth = cluster.gpu.memory_bytes_per_s or UNKNOWN_BYTES_PER_S
    optimizer_s = 0.0 if is_cpu else min(0.3 * step_s, UPDATE_PASSES * param_bytes / bandwidth)
    compute_s = step_s - optimizer_s
    forward, backward = (
        sum(getattr(node, name) for node in nodes) for name in ("flops_forward", "flops_backward")
    )
    share = forward / (forward + backward) if forward + backward > 0 else FORWARD_SHARE
    return Measurement(
        cluster=cluster,
        plan=plan,
        step_s=step_s,
        parts=StepParts(
            compute_s=compute_s,
            comm_exposed_s=0.0,
            input_wait_s=0.0,
            optimizer_s=optimizer_s,
            other_s=0.0,
        ),
        num_steps=1,
        forward_s=share * compute_s,
        backward_s=(1 - share) * compute_s,
        num_layers=sum(node.kind != "outside" for node in nodes),
        param_bytes=param_bytes,
        signature=graph.signature,
        host_shared=is_cpu,
        host_slots=host_slots,
        holdings=Holdings(
            param_bytes=float(param_bytes),
            trainable_bytes=float(param_bytes),
            state_bytes=2.0 * param_bytes,
            optimizer="AdamW",
            activation_bytes=float(sum(node.activation_bytes for node in nodes)),
        ),
    )
