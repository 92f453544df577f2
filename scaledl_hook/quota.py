"""A planned end in samples or tokens, in steps: for batches that grow, no count of steps is known.

What the steps of this rank trained, times the ranks, is what the job trained. The steps still to
come are counted by the latest batches: where larger ones follow, fewer steps will do.
"""

import math
from collections import deque
from collections.abc import Sequence

import msgspec

from scaledl.records import EndName, Progress, StepRecord

_RECENT, _LATEST = 64, 8


class Quota:
    """How much this process has to train, over all ranks, and how much it did.

    Args:
        name: ``total_samples`` or ``total_tokens``; tokens are elements of the batches.
        total: Samples or tokens from the block's start to the planned end.
        num_ranks: Ranks that train as much as this one.
    """

    def __init__(self, name: EndName, total: int, num_ranks: int) -> None:
        self.name = name
        self._total, self._num_ranks = total, num_ranks
        self._done = 0
        self._step = 0
        self._end: int | None = None  # the step that reached it
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self.is_blind = False

    def add(self, steps: Sequence[StepRecord]) -> None:
        """Steps that ended since the last call."""
        for step in steps:
            self._add(step)

    def _add(self, step: StepRecord) -> None:
        seen = step.num_samples if self.name == "total_samples" else step.num_elements
        self._step = step.step
        if not seen:
            self.is_blind = True
            return
        self._done += seen * self._num_ranks
        self._recent.append(seen * self._num_ranks)
        if self._end is None and self._done >= self._total:
            self._end = step.step

    def limit(self, progress: Progress) -> Progress:
        """Where the run stands, with this end where it comes first; steps without sizes end it."""
        end = self._end_step()
        total = progress.total_steps
        if end is None or (total is not None and total <= end):
            return progress
        return msgspec.structs.replace(progress, total_steps=end, limited_by=self.name)

    def _end_step(self) -> int | None:
        if self._end is not None or self.is_blind or not self._recent:
            return self._end
        latest = list(self._recent)[-_LATEST:]
        if min(latest) < max(latest):  # they differ: the mean of more of them
            latest = list(self._recent)
        return self._step + math.ceil((self._total - self._done) * len(latest) / sum(latest))


def quotas_of(
    total_samples: int | None, total_tokens: int | None, num_ranks: int
) -> tuple[Quota, ...]:
    """The planned ends that were given in samples or in tokens."""
    given: tuple[tuple[EndName, int | None], ...] = (
        ("total_samples", total_samples),
        ("total_tokens", total_tokens),
    )
    return tuple(Quota(name, total, num_ranks) for name, total in given if total is not None)
