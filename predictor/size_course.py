"""Which sizes of batches are still to come: as in the last whole epoch, else as they went so far.

Batches may be sorted by length, drawn from buckets, or grow along the run. Within an epoch the last
one tells the order; where sizes now stand beside it, and what they do where none was seen, is
followed like a step time: with a memory, change points and a bounded trend.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.blocks import Blocks
from scaledl.predictor.doubt import wander_share
from scaledl.predictor.horizon import trend_cost
from scaledl.predictor.level import Level, change_point, level_of
from scaledl.predictor.steps import Change

Floats = NDArray[np.float64]

KEPT = 256
AS_BEFORE = 12  # steps for which an epoch is taken to begin like the one before
OTHER_SIZE = 0.08  # in logarithms: an epoch that differs by less is the same again
EPOCHS_KEPT, FEWEST_EPOCHS, GROWTH_T = 8, 3, 4.0
CHANCE = 2.0  # standard errors that an epoch may be off by chance
ORDERED = 0.7  # of the spread of neighbours in random order
# Not set on any run: sizes that changed for good may change again as often, by a quarter of it.
AGAIN_SHARE, AGAIN_MAX = 0.25, 1.0
UNKNOWN = Level(mean_s=1.0, se_s=0.0, num_steps=0)


class SizeCourse(msgspec.Struct, kw_only=True):
    """Sizes step by step; ``ratios`` are beside the last epoch's at the same place, once known."""

    epoch: Blocks = msgspec.field(default_factory=Blocks)
    epoch_first: int = 0
    per_epoch: int | None = None  # its length as the loader tells, where more epochs follow
    last: Blocks | None = None
    means: list[float] = []  # of whole epochs
    ratios: Blocks = msgspec.field(default_factory=Blocks)
    recent: list[float] = []
    change: Change | None = None
    num_changes: int = 0
    miss: float = 0.0  # squared, of the last epoch's order
    miss_flat: float = 0.0  # and of its mean alone

    def add(self, first_step: int, sizes: Floats) -> None:
        """Takes in the sizes of consecutive steps. Shapes: sizes [steps]."""
        if not self.epoch.items:
            self.epoch_first = first_step
        ratios = sizes / self._before(first_step, len(sizes))
        self._compare_order(sizes, ratios)
        self.epoch.add(sizes.tolist())
        self.ratios.add(ratios.tolist())
        self.recent = [*self.recent, *ratios.tolist()][-KEPT:]
        found = change_point(np.asarray(self.recent))
        if found is not None:
            split, ratio = found
            kept = self.recent[split:]
            self._note(first_step + len(sizes) - len(kept), ratio)
            self._restart(kept)

    def close_epoch(self, num_steps: int | None) -> None:
        """An epoch is over; it tells the next one's sizes if all of its steps were seen.

        ``num_steps`` is ``None`` where it was not whole.
        """
        ended, self.epoch = self.epoch, Blocks()
        before, self.miss, self.miss_flat = self.last, 0.0, 0.0
        self.epoch_first += ended.length
        if ended.length != num_steps:
            self._restart([] if before is None else [1.0] * AS_BEFORE)
            return
        if before is not None:
            ratio = ended.total / before.total * before.length / ended.length
            began = self.epoch_first - num_steps
            is_told = self.change is not None and self.change.step >= began
            if abs(math.log(ratio)) > OTHER_SIZE and not is_told:
                self._note(began, ratio)
        else:
            self.num_changes = 0  # what went on inside the epoch is its order
        if not _is_ordered(ended):
            ended.flatten()
        self.last = ended
        self.means = [*self.means[1 - EPOCHS_KEPT :], ended.total / ended.length]
        self._restart([1.0] * AS_BEFORE)

    def _note(self, step: int, ratio: float) -> None:
        self.change = Change(step=step, ratio=ratio)
        self.num_changes += 1

    def _restart(self, ratios: list[float]) -> None:
        self.recent = ratios
        self.ratios = Blocks()
        self.ratios.add(ratios)

    def _compare_order(self, sizes: Floats, ratios: Floats) -> None:
        """Forgets the last epoch's order where its mean alone tells more (sorted only once)."""
        if self.last is None:
            return
        mean = self.last.total / self.last.length
        self.miss += float((np.log(ratios) ** 2).sum())
        self.miss_flat += float((np.log(sizes / mean) ** 2).sum())
        if self.epoch.length >= AS_BEFORE and self.miss_flat < self.miss / 2:
            self.last.flatten()
            self.miss = self.miss_flat = 0.0
            self._restart([1.0] * AS_BEFORE)

    def _before(self, first_step: int, count: int) -> Floats:
        """Sizes of these steps by the last whole epoch, 1 where none was seen. Shapes: [count]."""
        if self.last is None:
            return np.ones(count)
        return np.diff([self._until(self.last, first_step + i) for i in range(count + 1)])

    def _until(self, last: Blocks, step: int) -> float:
        epochs, place = divmod(step - self.epoch_first, last.length)
        return epochs * last.total + last.until(place)

    def _level(self) -> Level:
        """Sizes now; beside the last epoch they are the same while chance explains the rest."""
        if not self.ratios.items:
            return UNKNOWN
        level = level_of(*self.ratios.means())
        apart = level.mean_s - 1
        if self.last is None or not apart:
            return level
        sure = max(1 - (CHANCE * level.se_s / apart) ** 2, 0.0)
        return msgspec.structs.replace(level, mean_s=1 + sure * apart)

    def ahead(self, start: int, stop: int) -> tuple[float, float]:
        """Summed size of the steps from ``start`` to ``stop``, and its standard deviation."""
        steps, level = stop - start, self._level()
        if self.last is None:
            total, drift = self._first_epoch(level, start, stop)
        else:
            total = level.mean_s * (self._until(self.last, stop) - self._until(self.last, start))
            per_epoch = self.last.length
            drift = self._growth(per_epoch, stop) - self._growth(per_epoch, start)
            total += drift
        known = level.se_s / level.mean_s if level.mean_s else 0.0
        again = self._again_share(steps, start)
        share = math.hypot(known, wander_share(steps, level.num_steps), again)
        return total, math.hypot(share * total, 0.5 * drift)

    def _first_epoch(self, level: Level, start: int, stop: int) -> tuple[float, float]:
        """Summed size of steps to come, and what a trend has in it.

        The trend goes on to the epoch's end; the epochs after it are as this one then was.
        """
        end = stop if self.per_epoch is None else self.epoch_first + self.per_epoch
        inside = max(min(stop, end) - start, 0)
        drift = trend_cost(level, inside)
        total = inside * level.mean_s + drift
        later = stop - start - inside
        if not later or self.per_epoch is None or not self.epoch.items:
            return total + later * level.mean_s, drift
        left = max(end - self.epoch_first - self.epoch.length, 0)
        rest = trend_cost(level, left)
        epochs = later / (self.epoch.length + left)
        whole = self.epoch.total + left * level.mean_s + rest
        return total + epochs * whole, drift + epochs * rest

    def _growth(self, per_epoch: int, stop: int) -> float:
        """What epochs that grow steadily add after the running one, bounded as a trend is."""
        later = stop - self.epoch_first - per_epoch
        n = len(self.means)
        if n < FEWEST_EPOCHS or later <= 0:
            return 0.0
        x = np.arange(n) - (n - 1) / 2
        values = np.asarray(self.means)
        slope = float(x @ values) / float(x @ x)
        rest = values - values.mean() - slope * x
        error = math.sqrt(float(rest @ rest) / (n - 2) / float(x @ x))
        if abs(slope) < max(GROWTH_T * error, OTHER_SIZE * self.means[-1] / n):
            return 0.0
        seen = n * per_epoch
        trend = Level(mean_s=self.means[-1], se_s=0.0, num_steps=seen, slope_s=slope / per_epoch)
        return later * slope / 2 + trend_cost(trend, later)

    def _again_share(self, steps: int, seen: int) -> float:
        """Spread of sizes that changed for good before: as often again, no more than so far."""
        if self.change is None or not self.num_changes:
            return 0.0
        times = self.num_changes * min(steps / max(seen, 1), 1.0)
        return min(AGAIN_SHARE * abs(math.log(self.change.ratio)) * math.sqrt(times), AGAIN_MAX)

    def raise_to(self, power: float) -> None:
        """Counts a power of what was counted as size so far."""
        for blocks in (self.epoch, self.last, self.ratios):
            if blocks is not None:
                blocks.raise_to(power)
        self.recent = [value**power for value in self.recent]
        self.means = [value**power for value in self.means]


def _is_ordered(epoch: Blocks) -> bool:
    """Whether neighbours in an epoch are alike: von Neumann's ratio (1941), 1 for random order."""
    _, means = epoch.means()
    spread = float(((means - means.mean()) ** 2).mean())
    if len(means) < 4 or spread <= 0:
        return False
    return float((np.diff(means) ** 2).mean()) / 2 < ORDERED * spread
