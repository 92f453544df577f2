"""What is foretold of the steps to come: by a plan, an earlier run or the sizes of batches.

The sizes count where there is neither a plan of the user's nor an earlier run of the job.
The first two are believed until the run contradicts them: where steps were foretold to differ and
their times do not follow, or move the other way.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.earlier import Earlier
from scaledl.predictor.plan import Plan, StepCost
from scaledl.predictor.sizes import Sizes

Floats = NDArray[np.float64]

FEWEST_POINTS = 6
LEAST_SPREAD = 0.05  # of the foretold costs' logarithms: with less nothing is shown either way
SLOPE_LOW, SLOPE_HIGH, SLOPE_T = 0.5, 2.0, 3.0
LEAST_CELLS, LEAST_PATIENCE = 100, 16
WHOLE = 0.95  # share of its way after which an earlier run counts as one that ended
UNTOLD_SHARE = 0.5  # how much of the way to a forecast without it the interval reaches


class Agreement(msgspec.Struct):
    """Whether step times follow the costs foretold: slope of their logarithms, 1 where they do."""

    n: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def add(self, cost: float, wall_s: float) -> None:
        """Takes in the middle of a few steps: foretold and measured."""
        if cost <= 0 or wall_s <= 0:
            return
        x, y = math.log(cost), math.log(wall_s)
        self.n += 1
        dx, dy = x - self.x, y - self.y
        self.x += dx / self.n
        self.y += dy / self.n
        self.xx += dx * (x - self.x)
        self.yy += dy * (y - self.y)
        self.xy += dx * (y - self.y)

    def _slope(self) -> tuple[float, float] | None:
        """Slope and its standard error; ``None`` while too little was foretold to differ."""
        if self.n < FEWEST_POINTS or self.xx / self.n < LEAST_SPREAD**2:
            return None
        slope = self.xy / self.xx
        rest = max(self.yy - slope * self.xy, 0.0) / (self.n - 2)
        return slope, math.sqrt(rest / self.xx)

    @property
    def holds(self) -> bool:
        """Whether the times were seen to follow."""
        found = self._slope()
        return found is not None and SLOPE_LOW <= found[0] <= SLOPE_HIGH

    @property
    def fails(self) -> bool:
        """Whether the times were seen not to follow."""
        found = self._slope()
        if found is None:
            return False
        slope, error = found
        return not SLOPE_LOW <= slope <= SLOPE_HIGH and abs(slope - 1) > SLOPE_T * error


class Foretold:
    """The plan in force and the earlier run, with what the run says to them.

    Args:
        sizes: What the run's own batches tell; they count where no plan is in force.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.plan: Plan | None = None
        self.earlier: Earlier | None = None
        self.total_steps = 0
        self._by_user = False
        self._is_refuted = False
        self._agreement = Agreement()
        self._failing_since: int | None = None

    def lay(self, step_cost: StepCost, total_steps: int, *, by_user: bool) -> None:
        """Takes a plan in; what was refuted stays away.

        Raises:
            UsageError: a total below 1, or a cost that is no positive finite number.
        """
        plan = Plan(step_cost, total_steps)
        if not self._is_refuted:
            self.plan, self._by_user, self.total_steps = plan, by_user, total_steps

    def expect(self, earlier: Earlier, total_steps: int) -> None:
        """Takes the course of an earlier run, if it is as long; a plan of the user's goes first."""
        self.earlier = earlier if earlier.fits(total_steps) else None
        self.total_steps = total_steps
        if self._by_user:
            return
        self.plan = None
        if self.earlier is not None and earlier.costs:
            self.lay(earlier.step_cost, total_steps, by_user=False)

    def costs(self, first_step: int, count: int) -> Floats | None:
        """Costs of consecutive steps, ``None`` where all are alike. Shapes: result [count]."""
        source = self.sizes if self.plan is None else self.plan
        return source.costs(first_step, count)

    def work(self, start: int, stop: int) -> float:
        """Steps from ``start`` to ``stop``, each counted by its cost."""
        return (self.sizes if self.plan is None else self.plan).work(start, stop)

    def doubt(self, start: int, stop: int) -> float:
        """Standard deviation of that work; a plan has none."""
        return self.sizes.doubt(start, stop) if self.plan is None else 0.0

    @property
    def is_by_size(self) -> bool:
        """Whether it is the sizes of the batches that tell the costs."""
        return self.plan is None and self.sizes.matters

    def mean_cost(self) -> float:
        """Planned cost of the mean step of the run."""
        return self.work(0, self.total_steps) / self.total_steps if self.plan is not None else 1.0

    def note(self, first_step: int, costs: Floats, walls_s: Floats) -> bool:
        """Takes in steps; whether they refute the plan: for so long that it is no mere delay.

        What was learned from the steps themselves is corrected elsewhere, and never refuted.
        """
        if self.plan is None:
            return False
        self._agreement.add(float(np.median(costs)), float(np.median(walls_s)))
        if not self._agreement.fails:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = first_step
        since = first_step if self._failing_since is None else self._failing_since
        return first_step - since >= self._patience()

    def _patience(self) -> float:
        """Steps by which a plan may come early or late: two cells of an earlier run."""
        earlier = None if self._by_user else self.earlier
        cells = LEAST_CELLS if earlier is None else len(earlier.costs)
        return max(2 * self.total_steps / cells, LEAST_PATIENCE)

    def give_up(self) -> str:
        """Leaves the plan, for good; says which it was."""
        self.plan, self._is_refuted = None, True
        return "step_cost" if self._by_user else "the earlier run"

    @property
    def is_unconfirmed(self) -> bool:
        """Whether an earlier run alone foretells steps that differ, and none was seen to.

        Or sizes change that no whole epoch has shown. A plan of the user's is taken at its word.
        """
        if self.plan is None:
            return self.sizes.is_open
        return not self._by_user and not self._agreement.holds

    @property
    def is_whole(self) -> bool:
        """Whether an earlier run shows which phases there are, to the end."""
        return self.earlier is not None and self.earlier.covered >= WHOLE

    def untold(self, start: int, stop: int) -> float:
        """How much work more a forecast without the earlier run's course would count.

        In steps of cost 1, half of the way; 0 once it is confirmed, negative where it is less.
        """
        if self.plan is None or not self.is_unconfirmed:
            return 0.0
        plain = (stop - start) * self.plan.cost(start)
        return UNTOLD_SHARE * (plain - self.work(start, stop))
