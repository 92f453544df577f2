"""The cause that limits a step, from its parts."""

from scaledl.predictor.anchor import is_sharded
from scaledl.records import Cause, ClusterSpec, ParallelPlan, StepParts

WORTH_NAMING = 0.1
"""A part below a tenth of the step is no limit: nothing is gained by removing it."""


def find_cause(
    parts: StepParts,
    fixed_s: float,
    wait_s: float,
    cluster: ClusterSpec,
    plan: ParallelPlan,
    measured_plan: ParallelPlan,
) -> tuple[Cause, float]:
    """The largest part other than useful compute and its share of the step, else ``compute``.

    Waiting for a late rank is inside the exposed communication and is named apart. The fixed
    launch cost counts once it is more than half of the compute; it is called ``small-batch`` where
    the asked batch is below the measured one, since then the batch is the reason.

    Args:
        parts: the step.
        fixed_s: the part of compute that does not shrink with the batch.
        wait_s: expected wait for the slowest rank.
        cluster: where it runs.
        plan: the asked plan.
        measured_plan: the plan of the measurement behind it.
    """
    step_s = parts.total_s
    if step_s <= 0:
        return "compute", 1.0
    exchange: Cause = "all-reduce-inter" if cluster.crosses_nodes else "all-reduce-intra"
    if is_sharded(plan):
        exchange = "all-gather"
    wait_s = min(wait_s, parts.comm_exposed_s)
    shares: dict[Cause, float] = {
        exchange: parts.comm_exposed_s - wait_s,
        "straggler": wait_s,
        "input": parts.input_wait_s,
        "optimizer": parts.optimizer_s,
    }
    launch_s = parts.other_s
    if fixed_s > 0.5 * parts.compute_s:
        shrunk = (plan.batch_per_gpu or 0) < (measured_plan.batch_per_gpu or 0)
        shares["small-batch" if shrunk else "launch"] = fixed_s
    shares["launch"] = shares.get("launch", 0.0) + launch_s
    cause = max(shares, key=lambda name: shares[name])
    if shares[cause] < WORTH_NAMING * step_s:
        return "compute", parts.compute_s / step_s
    return cause, min(1.0, shares[cause] / step_s)
