"""How wide the intervals must be, learned from this run's own past forecasts.

At points that grow geometrically the estimator forecasts the time of a window as long as half of
what it has seen. When the window is over, the miss in units of the forecast's half-width is a
score. The factor is the conformal quantile of the scores (Vovk, Gammerman and Shafer 2005),
blended with those of a right interval so that a few scores cannot narrow or widen it at will.
"""

import math
from statistics import NormalDist

import msgspec

KEEP = 24
FACTOR_LOW, FACTOR_HIGH = 0.5, 4.0
POINT_RATIO = 1.25
WINDOW_SHARE = 0.5
FIRST_POINT = 12
PRIOR_SCORES = 20


class Window(msgspec.Struct, kw_only=True):
    """A forecast of the time from one step to another, waiting for the truth."""

    stop: int
    due_s: float  # elapsed time at which it should be over
    half_s: float


class Hindsight(msgspec.Struct, kw_only=True):
    """Open windows and scores. ``elapsed_s`` counts this estimator's steps and phases."""

    elapsed_s: float = 0.0
    next_point: int = FIRST_POINT
    windows: list[Window] = []
    scores: list[float] = []

    def settle(self, walls_s: list[float], first_step: int) -> None:
        """Lets time pass by steps; closes the windows that end among them."""
        end = first_step + len(walls_s)
        for window in [w for w in self.windows if w.stop <= end]:
            inside = sum(walls_s[: max(window.stop - first_step, 0)])
            miss = abs(self.elapsed_s + inside - window.due_s)
            self.scores = [*self.scores[1 - KEEP :], miss / max(window.half_s, 1e-9)]
        self.windows = [w for w in self.windows if w.stop > end]
        self.elapsed_s += sum(walls_s)

    def pass_phase(self, duration_s: float, *, is_new_kind: bool) -> None:
        """Lets a phase pass; a kind never seen before is no fault of the open windows."""
        self.elapsed_s += duration_s
        if is_new_kind:
            for window in self.windows:
                window.due_s += duration_s

    def forget(self) -> None:
        """Much more is known than before: how earlier forecasts fared says nothing any more."""
        self.windows, self.scores = [], []

    def is_point(self, num_steps: int) -> bool:
        """Whether a new window should be opened after so many steps."""
        return num_steps >= self.next_point

    def open(self, step: int, num_steps: int, mean_s: float, half_s: float) -> None:
        """Takes a forecast to be scored later."""
        stop = step + window_steps(num_steps)
        self.windows.append(Window(stop=stop, due_s=self.elapsed_s + mean_s, half_s=half_s))
        self.next_point = math.ceil(num_steps * POINT_RATIO)

    def factor(self, level: float) -> float:
        """What half-widths are multiplied with so that they hold with probability ``level``."""
        normal = NormalDist()
        unit = normal.inv_cdf((1 + level) / 2)
        prior = [
            normal.inv_cdf((1 + (i + 0.5) / PRIOR_SCORES) / 2) / unit for i in range(PRIOR_SCORES)
        ]
        scores = sorted([*self.scores, *prior])
        place = min(level * (len(scores) + 1), float(len(scores))) - 1
        low = int(place)
        high = min(low + 1, len(scores) - 1)
        value = scores[low] + (place - low) * (scores[high] - scores[low])
        return min(max(value, FACTOR_LOW), FACTOR_HIGH)


def window_steps(num_steps: int) -> int:
    """Length of the window forecast after ``num_steps``."""
    return max(round(WINDOW_SHARE * num_steps), 4)
