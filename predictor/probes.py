"""Which counts tell most about the step model when each is run for a few steps.

Every parameter z_j of the step model is standard normal (``draws``). About their medians the log of
a step is nearly linear in them,

    log step(N) = c + sum_j a_j(N) z_j + noise                                   (1)

so a probe at N adds a a^T / sigma^2 to what is known, which before it is the identity. The counts
are chosen by the determinant of the sum: Bayesian D-optimality (Chaloner and Verdinelli 1995,
"Bayesian Experimental Design: A Review", section 2.2).
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.design import Design, choose
from scaledl.predictor.draws import normal_draws
from scaledl.predictor.step_parts import NUM_DIMS, RUN, RUN_TO_RUN_LOG_SIGMA
from scaledl.records import Measurement, StepForecast

FloatArray = NDArray[np.float64]


def sensitivity(step_s: FloatArray) -> FloatArray:
    """The row a / sigma of (1) from draws of the step, by least squares.

    The parameter that stands for chance between runs is the noise sigma: no probe narrows it.

    Shapes: ``step_s`` [1 + NUM_DRAWS] as of ``step_draws``, result [NUM_DIMS - 1].
    """
    normals = normal_draws(NUM_DIMS)[1:]
    design = np.column_stack([np.ones(len(normals)), normals])
    solved, *_ = np.linalg.lstsq(design, np.log(step_s[1:]), rcond=None)
    slopes = solved[1:]
    noise = max(RUN_TO_RUN_LOG_SIGMA, abs(float(slopes[RUN])))
    return np.asarray(np.delete(slopes, RUN) / noise)


def most_telling(
    step_draws: Sequence[FloatArray],
    gpu_s: Sequence[float],
    *,
    count: int | None = None,
    budget_gpu_s: float | None = None,
) -> Design:
    """The probes to make, the most telling first; none where none is within the budget.

    Args:
        step_draws: Of each candidate, seconds of the step by draw. Shape: [1 + NUM_DRAWS] each.
        gpu_s: What each costs, GPU seconds.
        count: At most so many.
        budget_gpu_s: At most so much in all.

    Raises:
        UsageError: neither ``count`` nor ``budget_gpu_s``, or numbers that cannot be.
    """
    rows = np.stack([sensitivity(each) for each in step_draws])
    known = np.eye(rows.shape[1])
    return choose(rows, costs=list(gpu_s), count=count, budget=budget_gpu_s, measured=known)


def imagined(base: Measurement, told: StepForecast, num_steps: int) -> Measurement:
    """The measurement of a probe that comes out just as told.

    It holds what a probe is sure to see: step and parts, not the duration of single buckets.
    """
    own_s = base.parts.compute_s
    scale = told.parts.compute_s / own_s if own_s > 0 else 1.0
    buckets = [
        msgspec.structs.replace(bucket, ready_s=bucket.ready_s * scale, duration_s=None)
        for bucket in base.buckets
    ]
    return msgspec.structs.replace(
        base,
        cluster=told.cluster,
        plan=told.plan,
        step_s=told.step_s.mean,
        parts=told.parts,
        num_steps=num_steps,
        forward_s=None if base.forward_s is None else base.forward_s * scale,
        backward_s=None if base.backward_s is None else base.backward_s * scale,
        buckets=tuple(buckets),
        waiting_s=None,
        holdings=None,
    )
