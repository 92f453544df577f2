"""What a step costs by the size of its batch, learned from the steps of a run.

The size is what the loader yields: the elements of a step's batches, which is tokens for text and
pixels for images. A step of size s costs ``1 - share + share * s / ref`` times one of size ref: a
fixed part and a part for each element. Walls are divided by that cost before the level is learned,
as under a plan of the user's. Where the time grows faster than the size (attention), a power of it
stands in its place.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.level import MAD_TO_SD
from scaledl.predictor.size_course import SizeCourse

Floats = NDArray[np.float64]

BINS_AN_OCTAVE, MAX_BINS = 8, 96
BIN_KEEPS, BIN_FEWEST = 15, 3
LEAST_RATIO = 1.1  # sizes that differ by less teach nothing
SURE = 4.0  # standard errors from what is in force
POWERS = (0.5, 1.0, 1.5, 2.0)
BENT, BENT_BINS = 2.0, 4  # misfit, and how much better another power must do; bins that show it
LEAST_EFFECT = 0.02  # of a step's cost, below which nothing is changed
LEAST_SPREAD = 0.02  # of single steps of one size, before they tell their own
MEDIAN_ERROR = 1.25  # of a median beside a mean, normal distribution
LEAST_COST = 0.01
POINT_RATIO = 1.25  # more steps before a share that holds is looked at again
KEPT = 320  # no less than a series of steps keeps as they are


class Bin(msgspec.Struct, kw_only=True):
    """Steps of about one size: their mean size, their number, the last walls."""

    place: int
    size: float = 0.0
    count: int = 0
    walls_s: list[float] = []

    def add(self, sizes: Floats, walls_s: Floats) -> None:
        """Takes in steps of this size. Shapes: both [steps]."""
        self.count += len(sizes)
        self.size += float((sizes - self.size).sum()) / self.count
        self.walls_s = [*self.walls_s, *walls_s.tolist()][-BIN_KEEPS:]

    def joined(self, other: "Bin") -> "Bin":
        """Both as one."""
        count = self.count + other.count
        return Bin(
            place=self.place,
            size=(self.size * self.count + other.size * other.count) / count,
            count=count,
            walls_s=[*self.walls_s, *other.walls_s],
        )


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a step of ``s`` units: ``1 - share + share * s**power / ref``. ``sd`` is of share.

    ``misfit`` is the mean square of what the line leaves, in its own errors.
    """

    share: float = 0.0
    sd: float = 0.0
    ref: float = 1.0
    power: float = 1.0
    misfit: float = 1.0

    def costs(self, sizes: Floats) -> Floats:
        """Costs of steps of these sizes. Shapes: both [steps]."""
        found: Floats = np.maximum(1 + self.share * (sizes**self.power / self.ref - 1), LEAST_COST)
        return found


class Sizes(msgspec.Struct, kw_only=True):
    """Sizes that were seen, in units of the first; ``share`` is 0 until the steps are sure of it.

    ``course`` is of powers of sizes, so that work ahead is a straight line of it.
    """

    unit: float = 0.0
    share: Share = msgspec.field(default_factory=Share)
    bins: list[Bin] = []
    course: SizeCourse = msgspec.field(default_factory=SizeCourse)
    recent: list[float] = []
    next_step: int = 0
    looked_at: int = 0  # steps in the bins when the share was last looked at
    num_ready: int = 0

    # --- taking in ------------------------------------------------------------------------------

    def add(self, first_step: int, elements: Floats, walls_s: Floats | None) -> None:
        """Takes in consecutive steps, whose sizes are positive. Shapes: both [steps].

        ``walls_s`` is ``None`` where they hold start-up costs.
        """
        self.unit = self.unit or float(elements[0])
        sizes = elements / self.unit
        if first_step != self.next_step:
            self.recent = []
        self.recent = [*self.recent, *sizes.tolist()][-(KEPT + len(sizes)) :]
        self.next_step = first_step + len(sizes)
        self.course.add(first_step, sizes**self.share.power)
        if walls_s is not None:
            self._sort_in(sizes, walls_s)

    def _sort_in(self, sizes: Floats, walls_s: Floats) -> None:
        places = np.round(BINS_AN_OCTAVE * np.log2(sizes)).astype(int)
        for place in np.unique(places).tolist():
            inside = places == place
            found = next((b for b in self.bins if b.place == place), None)
            if found is None:
                found = Bin(place=place)
                self.bins = [*self.bins[1 - MAX_BINS :], found]
            found.add(sizes[inside], walls_s[inside])

    def forget_times(self, step: int) -> None:
        """The pace changed for good after ``step``: what steps took before says nothing any more.

        Not so where the sizes changed with it: then it is the share that is off.
        """
        cut = max(step - (self.next_step - len(self.recent)), 0)
        before, after = self.recent[:cut], self.recent[cut:]
        if before and after:
            ratio = sum(before) * len(after) / (sum(after) * len(before))
            if max(ratio, 1 / ratio) > LEAST_RATIO:
                return
        self.bins, self.looked_at, self.num_ready = [], 0, 0

    # --- the share ------------------------------------------------------------------------------

    def news(self) -> Share | None:
        """Another share than the one in force, where the steps are sure of it."""
        count = sum(b.count for b in self.bins)
        num_ready = len(_grouped(self.bins)) + sum(len(b.walls_s) == BIN_KEEPS for b in self.bins)
        if count < POINT_RATIO * self.looked_at and num_ready == self.num_ready:
            return None
        self.looked_at, self.num_ready = count, num_ready
        found, now = share_of(self.bins, self.share.power), self.share
        if found is None:
            return None
        scale = found.ref / now.ref
        as_now = now.share * scale / (1 - now.share + now.share * scale)
        if found.power == now.power and abs(found.share - as_now) < SURE * found.sd:
            return None
        sizes = np.array([b.size for b in self.bins])
        weights = np.array([b.count for b in self.bins]) / count
        ratios = found.costs(sizes) / now.costs(sizes)
        ratios /= weights @ ratios
        return found if math.sqrt(float(weights @ (ratios - 1) ** 2)) > LEAST_EFFECT else None

    def adopt(self, found: Share) -> None:
        """Counts steps by another share from here on."""
        if found.power != self.share.power:
            self.course.raise_to(found.power / self.share.power)
        self.share = found

    # --- giving out -----------------------------------------------------------------------------

    @property
    def matters(self) -> bool:
        """Whether steps are known to cost by their size."""
        return self.share.share > 0

    @property
    def is_open(self) -> bool:
        """Whether they do and no whole epoch tells the sizes to come."""
        return self.matters and self.course.last is None

    def costs(self, first_step: int, count: int) -> Floats | None:
        """Costs of consecutive steps that were seen; others count 1.

        ``None`` while the size does not matter. Shapes: result [count].
        """
        if not self.matters:
            return None
        found = np.ones(count)
        start = self.next_step - len(self.recent)
        first, stop = max(first_step, start), min(first_step + count, self.next_step)
        if first < stop:
            seen = np.array(self.recent[first - start : stop - start])
            found[first - first_step : stop - first_step] = self.share.costs(seen)
        return found

    def work(self, start: int, stop: int) -> float:
        """Expected cost of the steps from ``start`` to ``stop``."""
        steps = float(stop - start)
        if not self.matters:
            return steps
        total, _ = self.course.ahead(start, stop)
        return steps + self.share.share * (total / self.share.ref - steps)

    def doubt(self, start: int, stop: int) -> float:
        """Standard deviation of that: of the sizes to come, and of the share."""
        if not self.matters:
            return 0.0
        total, sd = self.course.ahead(start, stop)
        apart = total / self.share.ref - (stop - start)
        return math.hypot(self.share.share * sd / self.share.ref, self.share.sd * apart)


def share_of(bins: list[Bin], power: float = 1.0) -> Share | None:
    """The share by a line through the median times of the bins; ``None`` where they tell none.

    Weighted least squares of relative errors. Where the line of ``power`` misses the bins by more
    than single steps explain, the power with the least misfit is taken; what misfit is left widens
    the standard error (Birge's ratio).
    """
    ready = _grouped(bins)
    if len(ready) < 2 or max(b.size for b in ready) < LEAST_RATIO * min(b.size for b in ready):
        return None
    found = _line(ready, power)
    if len(ready) >= BENT_BINS and (found is None or found.misfit > BENT):
        others = [f for p in POWERS if (f := _line(ready, p)) is not None]
        best = min(others, key=lambda f: f.misfit, default=None)
        if best is not None and (found is None or best.misfit < found.misfit / BENT):
            return best
    return found


def _grouped(bins: list[Bin]) -> list[Bin]:
    """The bins in order of size; neighbours together where one alone has too few steps."""
    found: list[Bin] = []
    for b in sorted(bins, key=lambda b: b.size):
        if found and len(found[-1].walls_s) < BIN_FEWEST:
            found[-1] = found[-1].joined(b)
        else:
            found.append(b)
    return [b for b in found if len(b.walls_s) >= BIN_FEWEST]


def _line(bins: list[Bin], power: float) -> Share | None:
    x = np.array([b.size for b in bins]) ** power
    walls = [np.asarray(b.walls_s) for b in bins]
    y = np.array([np.median(w) for w in walls])
    spreads = [float(np.median(np.abs(w / np.median(w) - 1))) * MAD_TO_SD for w in walls]
    spread = max(float(np.median(spreads)), LEAST_SPREAD)
    weights = np.array([len(w) for w in walls]) / (MEDIAN_ERROR * spread * y) ** 2
    x_mean, y_mean = float(np.average(x, weights=weights)), float(np.average(y, weights=weights))
    sxx = float(weights @ (x - x_mean) ** 2)
    slope = float(weights @ ((x - x_mean) * (y - y_mean))) / sxx
    rest = y - y_mean - slope * (x - x_mean)
    misfit = float(weights @ rest**2) / max(len(x) - 2, 1)
    ref = float(np.average(x, weights=[b.count for b in bins]))
    at_ref = y_mean + slope * (ref - x_mean)
    if at_ref <= 0:
        return None
    share = slope * ref / at_ref
    sd = math.sqrt(max(misfit, 1.0) / sxx) * ref / at_ref
    if share > 1 + SURE * sd:
        misfit *= BENT**2  # a line that needs less than nothing at size 0 is no cost
    return Share(share=min(max(share, 0.0), 1.0), sd=sd, ref=ref, power=power, misfit=misfit)
