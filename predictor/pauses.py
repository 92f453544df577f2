"""Pauses inside step times: checkpoints, loader refills, every-n-th-step work, stalls.

Each outlier's excess over the steady level is booked, so that level plus excess sums to what was
measured. Outliers of like size are one kind: a checkpoint keeps its own rhythm beside a stall.
"""

import math

import msgspec

from scaledl.predictor.recurring import Expected, Recurring, pause_cost

MAX_KINDS = 6
SAME_KIND = math.log(2.0)


class PauseBook(msgspec.Struct, kw_only=True):
    """The kinds of pauses seen. ``watched`` counts the steps in which one could have been seen."""

    kinds: list[Recurring] = []
    watched: int = 0
    booked_s: float = 0.0

    def add(self, step: int, excess_s: float, origin: int) -> None:
        """Books one pause in ``step``."""
        self.booked_s += excess_s
        near = min(self.kinds, key=lambda kind: self._distance(kind, excess_s), default=None)
        is_new = near is None or self._distance(near, excess_s) > SAME_KIND
        if is_new and len(self.kinds) < MAX_KINDS:
            near = Recurring(origin=origin)
            self.kinds.append(near)
        assert near is not None
        near.add(step, excess_s)

    @staticmethod
    def _distance(kind: Recurring, excess_s: float) -> float:
        return abs(math.log(max(excess_s, 1e-9) / max(kind.cost.mean, 1e-9)))

    def cost(self, start: int, stop: int, level_s: float) -> Expected:
        """What the pauses will cost from ``start`` to ``stop``."""
        total = Expected()
        for kind in self.kinds:
            total += pause_cost(kind, start, stop, watched=self.watched, cap_s=0.5 * level_s)
        return total
