"""The steady step time: a level with long memory, change points, drift; outliers go elsewhere.

Memory is constant: the last 256 steps as they are, and blocks over everything since the last
lasting change.
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np

from scaledl.predictor.blocks import Blocks
from scaledl.predictor.level import (
    MAD_TO_SD,
    Floats,
    Level,
    change_point,
    level_of,
    num_start_up,
)
from scaledl.predictor.pauses import PauseBook
from scaledl.predictor.shift import Shift, fresh_shift

WARM_STEPS = 8  # first steps of a process, looked at together for start-up and compiling
RECENT = 256
REFERENCE = 64  # steps whose median says what an outlier is
# Shares of the recent steps that are searched: an earlier change hides a later one. The parts only
# while there are few steps, where changes lie close.
SCANNED, SCANNED_FEW = (1.0, 0.5, 0.25), 128
SHIFT_RUN = 4  # so many outliers in a row are a new level, not pauses
OUTLIER_RATIO, OUTLIER_MADS = 1.5, 6.0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting change of the step time: ``ratio`` is new to old."""

    step: int
    ratio: float


class StepSeries(msgspec.Struct, kw_only=True):
    """Wall times of steps in, steady level and pauses out."""

    origin: int = 0
    next_step: int = 0
    num_steps: int = 0  # all that this estimator saw
    warm_s: list[float] = []
    recent_s: list[float] = []
    reference_s: list[float] = []
    held: list[tuple[int, float]] = []
    blocks: Blocks = msgspec.field(default_factory=Blocks)
    pauses: PauseBook = msgspec.field(default_factory=PauseBook)
    epoch_starts: PauseBook = msgspec.field(default_factory=PauseBook)
    one_off_s: float = 0.0
    one_off_steps: int = 0
    total_s: float = 0.0
    change: Change | None = None
    num_changes: int = 0
    unscanned: int = 0
    cost: float = 1.0  # planned, of the last steps

    # --- taking in ----------------------------------------------------------------------------

    def add(
        self,
        walls_s: Floats,
        first_step: int,
        *,
        opens_epoch: bool,
        costs: Floats | None = None,
    ) -> None:
        """Takes in consecutive steps; ``opens_epoch``: the first of them opens a later epoch.

        ``costs`` are their planned relative costs. The level is that of a step of cost 1; pauses
        stay in seconds.
        """
        if not self.num_steps:
            self.origin = first_step
            self.pauses.watched = 0
        self.num_steps += len(walls_s)
        self.next_step = first_step + len(walls_s)
        self.total_s += float(walls_s.sum())
        if costs is not None:
            walls_s, self.cost = walls_s / costs, float(costs.mean())
        if self.is_warming:
            taken = min(WARM_STEPS - len(self.warm_s), len(walls_s))
            self.warm_s = [*self.warm_s, *walls_s[:taken].tolist()]
            walls_s, first_step = walls_s[taken:], first_step + taken
            if len(self.warm_s) < WARM_STEPS:
                return
            self._leave_warm_up(first_step)
            opens_epoch = opens_epoch and taken == 0
        for i in range(0, len(walls_s), REFERENCE):
            self._classify(walls_s[i : i + REFERENCE], first_step + i, opens_epoch and i == 0)
        if self.unscanned >= 4:
            self._scan()

    @property
    def is_warming(self) -> bool:
        """Whether the first steps of this process are still being looked at together."""
        return len(self.warm_s) < WARM_STEPS

    def restart(self) -> None:
        """Expects start-up costs again: the steps to come are those of a new process."""
        if not self.is_warming:
            self.warm_s = []

    def rescale(self, costs: Callable[[int, int], Floats | None], *, inverse: bool = False) -> None:
        """Counts the steps kept as seconds again, or by a plan's costs (``inverse``).

        Only the last steps stand alone, so that the level restarts from them.
        """
        num_warm = len(self.warm_s) if self.is_warming else 0
        num_recent, num_held = len(self.recent_s), len(self.held)
        count = num_recent + num_held + num_warm
        found = costs(max(self.next_step - count, 0), count) if count else None
        if found is None:
            return
        factors = 1 / found if inverse else found
        recent = np.asarray(self.recent_s) * factors[:num_recent]
        held = factors[num_recent : num_recent + num_held].tolist()
        self.held = [(step, wall * f) for (step, wall), f in zip(self.held, held, strict=True)]
        if num_warm:
            self.warm_s = (np.asarray(self.warm_s) * factors[count - num_warm :]).tolist()
        self.recent_s = []
        self.blocks.clear()
        self.reference_s = recent[-REFERENCE:].tolist()
        self._push(recent.tolist())
        self.unscanned = 0

    def _leave_warm_up(self, next_step: int) -> None:
        first = next_step - WARM_STEPS
        walls = np.asarray(self.warm_s)
        one_offs = num_start_up(walls)
        self.one_off_steps += one_offs
        self.one_off_s += float(walls[:one_offs].sum())
        if not self.reference_s:
            self.reference_s = walls[one_offs:].tolist()
        self._classify(walls[one_offs:], first + one_offs, False)

    def _classify(self, walls_s: Floats, first_step: int, opens_epoch: bool) -> None:
        seen = np.concatenate([np.asarray(self.reference_s), walls_s])
        middle = float(np.median(seen))
        mad = float(np.median(np.abs(seen - middle))) * MAD_TO_SD
        limit = max(OUTLIER_RATIO * middle, middle + OUTLIER_MADS * mad)
        is_out = walls_s > limit
        self.pauses.watched += len(walls_s)
        self.reference_s = seen[-REFERENCE:].tolist()
        if not is_out.any() and not self.held:
            self._push(walls_s.tolist())
            return
        for i, (wall, out) in enumerate(zip(walls_s.tolist(), is_out.tolist(), strict=True)):
            step = first_step + i
            if not out:
                self._settle_held(wall)
                self._push([wall])
            elif opens_epoch and i == 0:
                self._book(self.epoch_starts, step, wall)
            else:
                self._hold(step, wall)

    def _hold(self, step: int, wall_s: float) -> None:
        self.held.append((step, wall_s))
        if len(self.held) >= SHIFT_RUN:
            walls = [wall for _, wall in self.held]
            self.held = []
            self.reference_s = walls
            self._push(walls)

    def _settle_held(self, next_s: float) -> None:
        """Books what was held as pauses, unless the step after it is more like them."""
        if not self.held:
            return
        slow_s = sum(wall for _, wall in self.held) / len(self.held)
        if next_s > math.sqrt(self._base_s() * slow_s):
            self._push([wall for _, wall in self.held])
            self.held = []
        for step, wall in self.held:
            self._book(self.pauses, step, wall)
        self.held = []

    def _base_s(self) -> float:
        near = self.recent_s[-REFERENCE:] or self.reference_s
        return sum(near) / len(near)

    def _book(self, book: PauseBook, step: int, wall_s: float) -> None:
        base = min(self._base_s(), wall_s)
        self._push([base])
        if wall_s > base:
            book.add(step, (wall_s - base) * self.cost, self.origin)

    def _push(self, walls_s: list[float]) -> None:
        self.recent_s = [*self.recent_s, *walls_s][-RECENT:]
        self.unscanned += len(walls_s)
        self.blocks.add(walls_s)

    def _scan(self) -> None:
        self.unscanned = 0
        recent = np.asarray(self.recent_s)
        for share in SCANNED if len(recent) <= SCANNED_FEW else SCANNED[:1]:
            tail = recent[len(recent) - int(share * len(recent)) :]
            if (found := change_point(tail)) is not None:
                break
        else:
            return
        split, ratio = found
        kept = tail[split:].tolist()
        unsettled = len(self.held)
        self.num_changes += 1
        self.change = Change(step=self.next_step - unsettled - len(kept), ratio=ratio)
        self.recent_s = []
        self.blocks.clear()
        self.reference_s = kept[-REFERENCE:]
        self._push(kept)
        self.unscanned = 0

    # --- giving out -----------------------------------------------------------------------------

    def shift(self, total_steps: int) -> Shift | None:
        """A new level that the last steps hint at, in a run of so many steps."""
        walls = np.asarray([*self.recent_s, *(wall for _, wall in self.held)])
        num_pauses = sum(kind.count for kind in self.pauses.kinds)
        return fresh_shift(walls, total_steps=total_steps, num_pauses=num_pauses)

    def level(self) -> Level | None:
        """The steady step time as known now; ``None`` before the first step."""
        if not self.blocks.items:
            return self._warm_level()
        steps, means = self.blocks.means()
        if self.is_warming and self.warm_s:  # a resumed process that just began
            walls = np.asarray(self.warm_s[num_start_up(np.asarray(self.warm_s)) :])
            steps, means = np.append(steps, len(walls)), np.append(means, walls.mean())
        return level_of(steps, means)

    def _warm_level(self) -> Level | None:
        if not self.warm_s:
            return None
        walls = np.asarray(self.warm_s)
        walls = walls[num_start_up(walls) :]
        return level_of(np.ones(len(walls)), walls)
