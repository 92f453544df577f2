"""What an earlier run of the same job tells of this one: its course, laid over this run's length.

A clock cannot foretell that steps get four times as long at half of the run, or that an evaluation
follows each epoch. A run of the same job that went before can. It is believed until this run
contradicts it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.recurring import OVERDUE, Expected, Recurring
from scaledl.records import PhaseRecord, StepBlock

Floats = NDArray[np.float64]

MAX_CELLS = 256
FEWEST_BLOCKS = 4
FLAT_RATIO = 1.08  # a course that varies by less is none; the same as a change of the level
LEAST_COVERED = 0.3  # an earlier run that got less far tells nothing of the rest
LATEST_START = 0.05  # nor does a process that went on with an older one
# An earlier pause is one that makes the mean longer than the median by more than skewed noise does.
SKEW_SHARE = 0.1
DOUBT = 0.3  # of a cost known from another run alone; not set on any run
MOST_PAUSES = 3.0  # times those of the earlier run
PAUSES_FEW = 3  # from so many pauses of its own on, a run's own count
LENGTH_RATIO = 1.05  # a run planned longer or shorter than that is another job


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of the earlier run: after which share of it, and how long."""

    share: float
    duration_s: float


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """The course of an earlier run. Cells are equal parts of its length, as far as it got.

    ``costs``: step time of each cell beside the mean one, empty where it hardly varied.
    ``pauses_s``: seconds of pauses inside the steps of each cell.
    """

    total_steps: int
    covered: float
    step_s: float
    costs: tuple[float, ...] = ()
    pauses_s: tuple[float, ...] = ()
    phases: dict[str, tuple[Occurrence, ...]] = {}

    def fits(self, total_steps: int) -> bool:
        """Whether a run of so many steps is the same job."""
        return 1 / LENGTH_RATIO <= total_steps / self.total_steps <= LENGTH_RATIO

    def step_cost(self, done: float) -> float:
        """Cost of a step beside the mean one, after that share of the run."""
        return self.costs[self._cell(done, len(self.costs))]

    def _cell(self, done: float, count: int) -> int:
        return min(int(done / self.covered * count + 1e-9), count - 1)

    def pauses_until(self, done: float) -> float:
        """Seconds of pauses inside the steps up to that share; beyond what was seen as before."""
        if not self.pauses_s:
            return 0.0
        sums = np.concatenate([[0.0], np.cumsum(self.pauses_s)])
        places = np.linspace(0.0, self.covered, len(sums))
        inside = float(np.interp(done, places, sums))
        return inside + float(sums[-1]) * max(done - self.covered, 0.0) / self.covered


def earlier_of(
    blocks: Sequence[StepBlock], phases: Sequence[PhaseRecord], total_steps: int
) -> Earlier | None:
    """The course of a run from its records; ``None`` where it got less than a third of its way.

    Args:
        blocks: Its steps, in order.
        phases: Evaluations and named phases.
        total_steps: Its planned length.
    """
    plain = [b for b in blocks if b.num_steps > 0 and b.p50_s > 0]
    if len(plain) < FEWEST_BLOCKS or total_steps < 1:
        return None
    covered = min((plain[-1].first_step + plain[-1].num_steps) / total_steps, 1.0)
    if covered < LEAST_COVERED or plain[0].first_step > LATEST_START * total_steps:
        return None
    course = _course(plain, covered * total_steps)
    step_s = float(course.medians_s.mean())
    low, high = np.quantile(_smoothed(course.medians_s), [0.05, 0.95])
    found: dict[str, list[Occurrence]] = {}
    for phase in phases:
        place = Occurrence(share=phase.after_step / total_steps, duration_s=phase.duration_s)
        found.setdefault(phase.kind, []).append(place)
    return Earlier(
        total_steps=total_steps,
        covered=covered,
        step_s=step_s,
        costs=tuple((course.medians_s / step_s).tolist()) if high > FLAT_RATIO * low else (),
        pauses_s=tuple(course.pauses_s.tolist()),
        phases={kind: tuple(places) for kind, places in found.items()},
    )


class _Course(NamedTuple):
    """Median step time and seconds of pauses of each cell. Shapes: both [cells]."""

    medians_s: Floats
    pauses_s: Floats


def _course(blocks: Sequence[StepBlock], length: float) -> _Course:
    count = min(MAX_CELLS, len(blocks))
    starts = np.array([b.first_step for b in blocks], dtype=float)
    ends = starts + np.array([b.num_steps for b in blocks])
    centres = (np.arange(count) + 0.5) * length / count
    nearest = np.clip(np.searchsorted(ends, centres, side="right"), 0, len(blocks) - 1)
    excess_s = np.array([_pause_s(b) for b in blocks])
    excess_s[0] = 0.0  # start-up, which this run has behind it or books by itself
    cells = np.clip(((starts + ends) / 2 / length * count).astype(int), 0, count - 1)
    return _Course(
        medians_s=np.array([b.p50_s for b in blocks])[nearest],
        pauses_s=np.bincount(cells, weights=excess_s, minlength=count).astype(np.float64),
    )


def _smoothed(values: Floats) -> Floats:
    """Median of each value and its neighbours: one odd block is no course."""
    padded = np.pad(values, 1, mode="edge")
    found: Floats = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    return found


def _pause_s(block: StepBlock) -> float:
    """Seconds by which a few slow steps lengthen a block; what skewed noise does is left out."""
    each = block.mean_s - block.p50_s - SKEW_SHARE * (block.p95_s - block.p50_s)
    return max(each, 0.0) * block.num_steps


def phase_ahead(
    places: Sequence[Occurrence], seen: Recurring | None, start: float, stop: float
) -> Expected | None:
    """What one kind of phase will cost between two shares of the run, as in the earlier one.

    ``None`` where this run contradicts: the phase is overdue, came elsewhere, or has a rhythm of
    its own by now.
    """
    if seen is not None and seen.count > 1:
        return None
    past = [p for p in places if p.share <= start]
    ahead = [p.duration_s for p in places if start < p.share <= stop + 1e-9]
    scale, doubt = 1.0, DOUBT
    if seen is None:
        gap = places[0].share
        due = [p for p in past if p.share > 0]
        if due and start > OVERDUE * gap + 1e-9:
            return None
        ahead += [p.duration_s for p in due[-1:]]  # due now and not yet over
    elif past and past[-1].duration_s > 0:
        scale, doubt = seen.costs_s[-1] / past[-1].duration_s, DOUBT / 2
    total = scale * math.fsum(ahead)
    return Expected(mean_s=total, variance=(doubt * total) ** 2)


def pauses_ahead(
    earlier: Earlier, booked_s: float, origin: float, start: float, stop: float
) -> Expected:
    """What pauses inside the steps will cost between two shares of the run.

    ``booked_s`` is what they cost since ``origin``: beside the earlier run's cost up to the same
    place it tells how far that holds. A tenth of the earlier run counts as seen and alike.
    """
    whole_s = earlier.pauses_until(1.0)
    alike_s = 0.1 * whole_s
    seen_s = earlier.pauses_until(start) - earlier.pauses_until(origin)
    if alike_s < 1e-9:
        return Expected()
    ratio = min((booked_s + alike_s) / (seen_s + alike_s), MOST_PAUSES)
    total = ratio * (earlier.pauses_until(stop) - earlier.pauses_until(start))
    return Expected(mean_s=total, variance=(DOUBT * total) ** 2)
