"""A plan of the user's: what a step costs beside other steps, as a function of progress.

Batch ramps, growing sequences or images and sorted inputs change the step time by a plan that no
clock can foretell. Step times are divided by their planned cost before the level is learned, and
the steps to come are counted by what they cost.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scaledl.errors import UsageError

StepCost = Callable[[float], float]
CELLS = 4096  # the function is read at so many places at most to count the steps to come


def check_step_cost(step_cost: object) -> None:
    """Refuse what cannot be a plan before the run begins.

    Raises:
        UsageError: no function, one that raises, or a cost that is no positive finite number.
    """
    if not callable(step_cost):
        raise UsageError(
            f"step_cost must be a function of the share of the run done, got {step_cost!r:.80}. "
            "For example: lambda done: 1 if done < 0.5 else 4."
        )
    for place in (0.0, 0.5, 0.999):
        try:
            positive_cost(step_cost, place)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"step_cost raised {error!r:.120} at {place} of the run. "
                "It must take any share from 0 to 1."
            ) from None


def positive_cost(step_cost: StepCost, place: float) -> float:
    """The cost at ``place`` of the run.

    Raises:
        UsageError: it is no positive finite number.
    """
    value = float(step_cost(place))
    if not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"step_cost must give a positive number, got {value} at {place:.3f} of the run. "
            "Give the cost of a step beside the others, such as its tokens."
        )
    return value


class Plan:
    """Relative costs of steps. ``step_cost`` takes the share of the run that is done, 0 to 1.

    Only ratios matter: a function and its double are the same plan.

    Raises:
        UsageError: a total below 1, or a cost that is no positive finite number.
    """

    def __init__(self, step_cost: StepCost, total_steps: int) -> None:
        if total_steps < 1:
            raise UsageError(
                f"step_cost needs the number of steps, got {total_steps}. "
                "Give total_steps or epochs of at least 1."
            )
        self._step_cost = step_cost
        self.total_steps = total_steps
        num_cells = min(total_steps, CELLS)
        self._width = total_steps / num_cells
        read = [self.cost(math.floor(i * self._width)) for i in range(num_cells)]
        self._last = read[-1]
        self._sums = np.concatenate([[0.0], np.cumsum(read)]) * self._width

    def cost(self, step: int) -> float:
        """Relative cost of the step after ``step`` ones; past the end that of the last one."""
        place = min(step, self.total_steps - 1) / self.total_steps
        return positive_cost(self._step_cost, place)

    def costs(self, first_step: int, count: int) -> NDArray[np.float64]:
        """Relative costs of consecutive steps. Shapes: result [count]."""
        return np.array([self.cost(first_step + i) for i in range(count)])

    def work(self, start: int, stop: int) -> float:
        """Summed cost of the steps from ``start`` to ``stop``."""
        return self._until(stop) - self._until(start)

    def _until(self, step: int) -> float:
        beyond = max(step - self.total_steps, 0) * self._last
        cells = min(step, self.total_steps) / self._width
        places = np.arange(len(self._sums))
        return float(np.interp(cells, places, self._sums)) + beyond
