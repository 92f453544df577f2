"""Estimators of other tools, a few lines each, written from their published rules.

Each takes events one by one and says the remaining seconds; ``None`` where the tool shows nothing.
A process that resumes starts its clock and its count at ``start_s`` and ``start``.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of a recording."""

    at_s: float
    kind: str
    done: float | None


class Baseline:
    """Keeps the first and the last observation; a rule adds what it needs."""

    def __init__(self, total: float, start_s: float = 0.0, start: float = 0.0) -> None:
        self.total = total
        self.start_s = self.at_s = start_s
        self.start = self.done = start

    def on_event(self, event: Event) -> None:
        """Takes in the next event; only progress counts here."""
        if event.kind != "progress" or event.done is None:
            return
        passed_s, moved = event.at_s - self.at_s, event.done - self.done
        self.at_s, self.done = event.at_s, event.done
        self.observe(passed_s, moved)

    def observe(self, passed_s: float, moved: float) -> None:
        """Takes in that ``moved`` units were done in ``passed_s``."""

    def pace_s(self) -> float | None:
        """Seconds a unit."""
        raise NotImplementedError

    def left_s(self) -> float | None:
        """Seconds to the end."""
        pace_s = self.pace_s()
        return None if pace_s is None else pace_s * (self.total - self.done)


class CumulativeMean(Baseline):
    """Time passed over units done: HF Trainer's notebook, MMEngine, many hand-written loops."""

    def pace_s(self) -> float | None:
        moved = self.done - self.start
        return (self.at_s - self.start_s) / moved if moved > 0 else None


class Ema(Baseline):
    """Smoothed time and smoothed count apart, both bias-corrected (as tqdm does)."""

    smoothing = 0.3
    time_s = count = 0.0

    def observe(self, passed_s: float, moved: float) -> None:
        self.time_s += self.smoothing * (passed_s - self.time_s)
        self.count += self.smoothing * (moved - self.count)

    def pace_s(self) -> float | None:
        return self.time_s / self.count if self.count > 0 else None


class Window(Baseline):
    """The last 30 seconds, from an observation on (as rich does); at least the last interval."""

    window_s = 30.0

    def __init__(self, total: float, start_s: float = 0.0, start: float = 0.0) -> None:
        super().__init__(total, start_s, start)
        self.seen: deque[tuple[float, float]] = deque()

    def observe(self, passed_s: float, moved: float) -> None:
        self.seen.append((self.at_s, self.done))
        while len(self.seen) > 2 and self.at_s - self.seen[0][0] > self.window_s:
            self.seen.popleft()

    def pace_s(self) -> float | None:
        if not self.seen:
            return None
        at_s, done = self.seen[0] if len(self.seen) > 1 else (self.start_s, self.start)
        return (self.at_s - at_s) / (self.done - done) if self.done > done else None


class Median(Baseline):
    """Median of the last 1000 (as Detectron2 does)."""

    def __init__(self, total: float, start_s: float = 0.0, start: float = 0.0) -> None:
        super().__init__(total, start_s, start)
        self.paces_s: deque[float] = deque(maxlen=1000)

    def observe(self, passed_s: float, moved: float) -> None:
        if moved > 0:
            self.paces_s.append(passed_s / moved)

    def pace_s(self) -> float | None:
        return statistics.median(self.paces_s) if self.paces_s else None


class DoubleSmoothed(Baseline):
    """Exponentially weighted in time, twice; 15 s carry 90 % of the weight (as indicatif does)."""

    smoothed = twice = passed_s = 0.0

    def observe(self, passed_s: float, moved: float) -> None:
        if passed_s <= 0:
            return
        self.passed_s += passed_s
        weight = 0.1 ** (passed_s / 15.0)
        self.smoothed = self.smoothed * weight + moved / passed_s * (1 - weight)
        total_weight = 1 - 0.1 ** (self.passed_s / 15.0)
        self.twice = self.twice * weight + self.smoothed / total_weight * (1 - weight)

    def pace_s(self) -> float | None:
        if self.passed_s <= 0 or self.twice <= 0:
            return None
        return (1 - 0.1 ** (self.passed_s / 15.0)) / self.twice


class Composer(Baseline):
    """Mean pace without evaluations and the first observation, plus evaluations to come.

    As Composer's RuntimeEstimator: the first evaluation is dropped from the mean cost where there
    is another one, and they go on at the share of the run at which they came so far.
    """

    def __init__(self, total: float, start_s: float = 0.0, start: float = 0.0) -> None:
        super().__init__(total, start_s, start)
        self.began: tuple[float, float] | None = None
        self.eval_start_s: float | None = None
        self.eval_s = 0.0  # since the clock began
        self.evals_s: list[float] = []

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if event.kind == "eval_start":
            self.eval_start_s = event.at_s
        elif event.kind == "progress":
            self.eval_start_s = None  # it runs beside training
        elif event.kind == "eval_end" and self.eval_start_s is not None:
            self.evals_s.append(event.at_s - self.eval_start_s)
            self.eval_s += self.evals_s[-1] if self.began else 0.0
            self.eval_start_s = None

    def observe(self, passed_s: float, moved: float) -> None:
        if self.began is None and moved > 0:
            self.began = self.at_s, self.done

    def left_s(self) -> float | None:
        if self.began is None or self.done <= self.began[1]:
            return None
        pace_s = (self.at_s - self.began[0] - self.eval_s) / (self.done - self.began[1])
        left_s = pace_s * (self.total - self.done)
        if self.evals_s:
            counted = self.evals_s[1:] or self.evals_s
            share = (self.done - self.start) / (self.total - self.start)
            left = max(len(self.evals_s) / share - len(self.evals_s), 0.0)
            left_s += statistics.fmean(counted) * left
        return left_s if math.isfinite(left_s) else None


BASELINES: dict[str, type[Baseline]] = {
    "cumulative-mean": CumulativeMean,
    "ema-0.3": Ema,
    "window-30s": Window,
    "median-1000": Median,
    "double-smoothed": DoubleSmoothed,
    "composer": Composer,
}
