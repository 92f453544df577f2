"""How long a step of a trace took, and which collectives belong to which step."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from scaledl.records import TraceCollective, TraceMark, TraceSummary

Source = Literal["optimizer", "profiler", "gpu", ""]


def step_times(
    steps: Sequence[TraceMark], gpu_steps: Sequence[TraceMark], optimizers_s: Sequence[float]
) -> tuple[tuple[float, ...], Source]:
    """Durations of the steps in seconds and where they are from; empty if no step can be told.

    From optimizer to optimizer where there is one optimizer a step: the host may run ahead of the
    GPU within one mark, but not for long. Else the ranges that the profiler marked on the host,
    else those on the GPU.
    """
    periods = tuple(b - a for a, b in pairwise(optimizers_s))
    one_a_step = not steps or abs(len(optimizers_s) - len(steps)) <= 1
    if len(periods) >= 2 and one_a_step and min(periods) > 0:
        return periods, "optimizer"
    for marks, source in ((steps, "profiler"), (gpu_steps, "gpu")):
        times = tuple(mark.duration_s for mark in marks if mark.duration_s > 0)
        if times:
            return times, "profiler" if source == "profiler" else "gpu"
    return (periods, "optimizer") if periods and min(periods) > 0 else ((), "")


def num_steps(trace: TraceSummary) -> int:
    """How many steps the whole trace holds: the marks, else the optimizer's calls."""
    marks = trace.steps or trace.gpu_steps
    return len(marks) or len(trace.optimizer_starts_s)


def by_step(
    trace: TraceSummary, collectives: Sequence[TraceCollective]
) -> tuple[tuple[TraceCollective, ...], ...]:
    """The collectives of each step, by their middles; what ran before the first step is left out.

    A step ends where the next begins. Marks of the GPU are used where there are some; those of the
    host come earlier than the kernels, so that a step's last kernels may count to the next.
    """
    starts = [mark.start_s for mark in trace.gpu_steps or trace.steps]
    starts = starts or list(trace.optimizer_starts_s)
    found: list[list[TraceCollective]] = [[] for _ in starts]
    for each in collectives:
        index = bisect_right(starts, each.middle_s) - 1
        if index >= 0:
            found[index].append(each)
    return tuple(tuple(each) for each in found)
