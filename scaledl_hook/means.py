"""Mean parts of many steps, of which only some had their backward timed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scaledl.records import StepRecord


class MeanParts(NamedTuple):
    """Seconds a step; ``None`` where no step tells. Together at most the mean wall time."""

    input_wait_s: float
    optimizer_s: float
    forward_s: float | None
    backward_s: float | None
    comm_exposed_s: float | None


def mean_parts(steps: Sequence[StepRecord], watched: Sequence[StepRecord] = ()) -> MeanParts:
    """Means over all ``steps``.

    Of short steps only one in many has its backward timed, and its time is not that of the others.
    What carries over is its share of what the step had left beside forward, input and optimizer, a
    ratio estimate (Cochran, Sampling Techniques, 1977, chapter 6): so parts never exceed the wall.

    Args:
        steps: At least one step.
        watched: Other steps of the job to take the share from, where ``steps`` has none.
    """
    timed = [s for s in steps if s.backward_s is not None]
    left_s = float(np.mean([_left_s(s) for s in steps]))
    if len(timed) < len(steps):
        timed = timed or [s for s in watched if s.backward_s is not None]
    sum_left_s = sum(_left_s(s) for s in timed)
    scale = left_s / sum_left_s if sum_left_s > 0 else 0.0
    exposed = [s.comm_exposed_s for s in timed if s.comm_exposed_s is not None]
    forward = [s.forward_s for s in steps if s.forward_s is not None]
    return MeanParts(
        input_wait_s=float(np.mean([s.input_wait_s for s in steps])),
        optimizer_s=float(np.mean([s.optimizer_s for s in steps])),
        forward_s=sum(forward) / len(steps) if forward else None,
        backward_s=sum(s.backward_s or 0.0 for s in timed) * scale if timed else None,
        comm_exposed_s=sum(exposed) * scale if exposed else None,
    )


def _left_s(step: StepRecord) -> float:
    return max(0.0, step.wall_s - step.input_wait_s - step.optimizer_s - (step.forward_s or 0.0))
