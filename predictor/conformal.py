"""Intervals corrected by how earlier ones fared: split conformal prediction.

References:
    Papadopoulos, Proedrou, Vovk, Gammerman 2002, "Inductive Confidence Machines for Regression"
    (normalised scores); Lei et al. 2018, "Distribution-Free Predictive Inference for Regression",
    section 2.2 (the finite-sample rank ceil((n+1) * level)).
"""

import math
from collections import deque
from collections.abc import Iterable

from scaledl.records import Coverage, Interval

MAX_SCORES = 200
"""Older scores are forgotten, so that a changed machine is followed."""
MIN_SCORES = 10
"""Below this many scores the rank of a 90 % level is the largest score or beyond: only widen."""
MIN_FACTOR = 0.3
MAX_FACTOR = 10.0


class ConformalScale:
    """One factor on the log-width of intervals, from the scores of intervals that came true.

    score = |log(truth / mean)| / half-width, the half-width being log(high / mean) above the mean
    and log(mean / low) below it: 1 is the edge of the interval.
    """

    def __init__(self, scores: Iterable[float] = (), num_held: int = 0, num_seen: int = 0) -> None:
        self._scores = deque(scores, maxlen=MAX_SCORES)
        self._num_held = num_held
        self._num_seen = num_seen

    @property
    def scores(self) -> tuple[float, ...]:
        """Scores against the intervals before adjustment, oldest first."""
        return tuple(self._scores)

    @property
    def num_held(self) -> int:
        """How many issued intervals held their truth."""
        return self._num_held

    @property
    def num_seen(self) -> int:
        """How many issued intervals were compared with their truth."""
        return self._num_seen

    def factor(self, level: float) -> float:
        """What log-widths are multiplied by at this level; 1 while nothing was seen.

        The k-th smallest of n scores with k = ceil((n+1) * level); the largest if k exceeds n.
        """
        n = len(self._scores)
        if n == 0:
            return 1.0
        rank = min(n, math.ceil((n + 1) * level - 1e-9))
        value = sorted(self._scores)[rank - 1]
        floor = 1.0 if n < MIN_SCORES else MIN_FACTOR
        return min(MAX_FACTOR, max(floor, value))

    def adjust(self, interval: Interval) -> Interval:
        """The interval with its log-width scaled about the mean."""
        factor = self.factor(interval.level)
        if factor == 1.0 or interval.low <= 0:
            return interval
        return Interval(
            mean=interval.mean,
            low=min(interval.mean, interval.mean * (interval.low / interval.mean) ** factor),
            high=max(interval.mean, interval.mean * (interval.high / interval.mean) ** factor),
            level=interval.level,
        )

    def record(self, interval: Interval, truth: float) -> None:
        """Take in an issued interval (as ``adjust`` returned it) and what came true.

        The score is put back on the scale before adjustment with the factor of now, which is the
        one it was issued with unless another truth came in between.
        """
        if not (truth > 0 and interval.low > 0):
            return
        self._num_seen += 1
        self._num_held += truth in interval
        edge = interval.high if truth >= interval.mean else interval.low
        half_width = abs(math.log(edge / interval.mean))
        error = abs(math.log(truth / interval.mean))
        adjusted_score = error / half_width if half_width > 1e-12 else MAX_FACTOR * (error > 1e-12)
        self._scores.append(adjusted_score * self.factor(interval.level))

    def coverage(self, nominal: float = 0.9) -> Coverage:
        """How often issued intervals held; ``seen`` is ``None`` while none was compared."""
        seen = self._num_held / self._num_seen if self._num_seen else None
        return Coverage(nominal=nominal, seen=seen, n=self._num_seen)
