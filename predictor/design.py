"""What to measure next: D-optimal choice of rows by Fedorov exchange, with costs and a budget.

A candidate is a row ``a_i``: the features of a configuration, of a layer that could be timed in the
next window, or the Jacobian row of the step model at a GPU count. What a choice teaches is the
information matrix, and the best choice has the largest determinant:

    M(lambda) = M_measured + sum_i lambda_i a_i a_i^T,  lambda_i in {0, 1}        (1)
    max det M(lambda)  subject to  sum_i lambda_i <= count,  sum_i lambda_i c_i <= budget

Each candidate is taken once; one that may be repeated is given twice.

References:
    ScaleDL 2025 (arXiv 2511.04162), section on D-optimal data collection.
    Fedorov 1972, Theory of Optimal Experiments, chapter 3: the determinant after an exchange.
    Leskovec et al. 2007, "Cost-effective outbreak detection", section 3.1: with costs, the better
    of greedy by gain and greedy by gain a cost.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaledl.errors import UsageError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

RIDGE = 1e-9
"""Added to (1) once the columns have a mean square of 1: gives a matrix of too few rows a
determinant to compare by, and moves no other choice."""
LEAST_GAIN = 1e-9
"""An exchange must raise the determinant by more than rounding does."""
SMALL = 100
"""Up to so many candidates more starts are tried and every one is regrouped: there it is cheap."""


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. ``chosen`` starts with what teaches most, so that a part of it serves too.

    ``log_det`` is that of (1) in the caller's units, measured rows included; -inf while the rows
    do not settle all columns. ``cost`` is the sum of the chosen costs.
    """

    chosen: tuple[int, ...]
    log_det: float
    cost: float


class _Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The task in scaled columns. Shapes: rows [n, p], costs [n], base [p, p]."""

    rows: FloatArray
    costs: FloatArray
    base: FloatArray
    count: int
    budget: float

    def inverse(self, chosen: Sequence[int]) -> FloatArray:
        """Inverse of (1). Computed anew each time: p is small, and nothing can drift."""
        picked = self.rows[list(chosen)]
        return np.asarray(np.linalg.inv(self.base + picked.T @ picked))

    def log_det(self, chosen: Sequence[int]) -> float:
        picked = self.rows[list(chosen)]
        return float(np.linalg.slogdet(self.base + picked.T @ picked)[1])

    def slack(self, chosen: Sequence[int]) -> float:
        """Budget that is left; a hair more, so that a sum that meets it exactly is within."""
        return self.budget * (1 + 1e-12) - float(self.costs[list(chosen)].sum())

    def others(self, chosen: Sequence[int]) -> IntArray:
        left = np.ones(len(self.rows), dtype=bool)
        left[list(chosen)] = False
        return np.flatnonzero(left)


def _spread(rows: FloatArray, inverse: FloatArray) -> FloatArray:
    """d_i = a_i^T M^-1 a_i: how uncertain the fit is at each row. Shapes: [n, p], [p, p] to [n]."""
    return np.asarray(((rows @ inverse) * rows).sum(axis=1))


def _filled(problem: _Problem, start: Sequence[int], *, per_cost: bool) -> list[int]:
    """The start, with rows added greedily: det grows by the factor 1 + d_j."""
    chosen = list(start)
    while len(chosen) < problem.count:
        others = problem.others(chosen)
        others = others[problem.costs[others] <= problem.slack(chosen)]
        if not len(others):
            break
        gain = np.log1p(_spread(problem.rows[others], problem.inverse(chosen)))
        if per_cost:
            gain = gain / problem.costs[others]
        chosen.append(int(others[np.argmax(gain)]))
    return chosen


def _random_start(problem: _Problem, rng: np.random.Generator) -> list[int]:
    """Rows in random order as long as they fit."""
    chosen: list[int] = []
    slack = problem.slack(chosen)
    for i in rng.permutation(len(problem.rows)):
        if len(chosen) == problem.count:
            break
        if problem.costs[i] <= slack:
            chosen.append(int(i))
            slack -= problem.costs[i]
    return chosen


def _exchanged(problem: _Problem, start: Sequence[int]) -> list[int]:
    """Swap the best pair until no swap that the budget allows raises the determinant.

    det after a_i left and a_j came, over det before (Fedorov 1972):
    (1 + d_j)(1 - d_i) + (a_i^T M^-1 a_j)^2
    """
    chosen, log_det = list(start), problem.log_det(start)
    others = problem.others(chosen)
    while chosen and len(others):
        inverse = problem.inverse(chosen)
        out, into = problem.rows[chosen], problem.rows[others]
        cross = out @ inverse @ into.T
        ratio = (1 - _spread(out, inverse))[:, None] * (1 + _spread(into, inverse)) + cross**2
        fits = problem.costs[others] <= problem.slack(chosen) + problem.costs[chosen][:, None]
        ratio[~fits] = 0.0
        i, j = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        if ratio[i, j] <= 1 + LEAST_GAIN:
            break
        swapped = [*chosen[:i], int(others[j]), *chosen[i + 1 :]]
        # 1 - d_i loses its digits where M is nearly singular: the gain is checked, not believed
        after = problem.log_det(swapped)
        if after <= log_det:
            break
        others[j] = chosen[i]
        chosen, log_det = swapped, after
    return chosen


def _regrouped(problem: _Problem, start: list[int]) -> list[int]:
    """With unequal costs: give one row up and fill anew, until nothing is won.

    A swap of one for one cannot trade a dear row for two cheap ones; this can.
    """
    best, log_det = start, problem.log_det(start)
    tried_in_vain = 0
    while best and tried_in_vain < len(best):
        rest = best[1:]
        trials = [_filled(problem, rest, per_cost=per_cost) for per_cost in (True, False)]
        trial = max(trials, key=problem.log_det)
        after = problem.log_det(trial)
        if after > log_det + LEAST_GAIN:
            best, log_det, tried_in_vain = trial, after, 0
        else:
            best, tried_in_vain = [*rest, best[0]], tried_in_vain + 1  # to the back of the queue
    return best


def _best_design(problem: _Problem, starts: int, rng: np.random.Generator) -> list[int]:
    uneven = bool(np.ptp(problem.costs) > 0) if len(problem.costs) else False
    begun = [_filled(problem, (), per_cost=per_cost) for per_cost in ([False, True][: 1 + uneven])]
    begun += [_random_start(problem, rng) for _ in range(starts)]
    ended = [_exchanged(problem, start) for start in begun]
    if uneven:
        ended.sort(key=problem.log_det, reverse=True)
        small = len(problem.rows) <= SMALL
        ended = [_regrouped(problem, chosen) for chosen in (ended if small else ended[:1])]
        ended = [_exchanged(problem, chosen) for chosen in ended]
    return max(ended, key=problem.log_det)


def _by_worth(problem: _Problem, chosen: list[int]) -> list[int]:
    """The chosen rows, each next one that which adds most to those before it."""
    ordered: list[int] = []
    left = list(chosen)
    while left:
        gain = _spread(problem.rows[left], problem.inverse(ordered))
        ordered.append(left.pop(int(np.argmax(gain))))
    return ordered


def _true_log_det(rows: FloatArray) -> float:
    """Log det of rows^T rows; -inf where they leave a direction open."""
    if np.linalg.matrix_rank(rows) < rows.shape[1]:
        return -math.inf
    return float(np.linalg.slogdet(rows.T @ rows)[1])


def choose(
    candidates: ArrayLike,
    *,
    count: int | None = None,
    budget: float | None = None,
    costs: ArrayLike | None = None,
    measured: ArrayLike | None = None,
    starts: int | None = None,
    seed: int = 0,
) -> Design:
    """The rows to measure, of those that the count and the budget allow.

    The result is a local optimum of exchange, the best of a greedy start and ``starts`` random
    ones; it is the same for the same arguments. With nothing within the budget it is empty.

    Args:
        candidates: Rows a_i. Shape: [n, p]. Units do not matter: det ranks choices alike in any.
        count: At most so many.
        budget: At most so much, in the unit of ``costs``.
        costs: What each candidate costs, above 0; 1 each by default. Shape: [n].
        measured: Rows that are known already. Shape: [m, p].
        starts: Random starts beside the greedy one; 8 for up to 100 candidates, else 3.
        seed: Of the random starts.

    Raises:
        UsageError: neither ``count`` nor ``budget``, shapes that do not match, a number that is not
            finite, or a cost that is not above 0.
    """
    rows = _checked_rows(candidates, "candidates")
    known = (
        np.zeros((0, rows.shape[1])) if measured is None else _checked_rows(measured, "measured")
    )
    if known.shape[1] != rows.shape[1]:
        raise UsageError(
            f"measured rows have {known.shape[1]} columns, candidates {rows.shape[1]}. Describe "
            "both by the same features."
        )
    prices = _checked_costs(costs, len(rows))
    if count is None and budget is None:
        raise UsageError("choose() got neither count nor budget. Give one of them, or both.")
    if (count is not None and count < 0) or (budget is not None and not 0 <= budget < math.inf):
        raise UsageError(f"count {count} and budget {budget} must be finite and not below 0.")
    everything = np.vstack([known, rows])
    scale = np.sqrt(np.mean(everything**2, axis=0)) if len(everything) else 1.0
    scale = np.where(scale > 0, scale, 1.0)
    known_scaled = known / scale
    problem = _Problem(
        rows=rows / scale,
        costs=prices,
        base=RIDGE * np.eye(rows.shape[1]) + known_scaled.T @ known_scaled,
        count=len(rows) if count is None else min(count, len(rows)),
        budget=float(prices.sum()) if budget is None else budget,
    )
    if starts is None:
        starts = 8 if len(rows) <= SMALL else 3
    chosen = _by_worth(problem, _best_design(problem, starts, np.random.default_rng(seed)))
    return Design(
        chosen=tuple(chosen),
        log_det=_true_log_det(np.vstack([known, rows[chosen]])),
        cost=float(prices[chosen].sum()),
    )


def _checked_rows(values: ArrayLike, what: str) -> FloatArray:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise UsageError(
            f"{what} have the shape {rows.shape}. Give each a row, and each feature a column."
        )
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise UsageError(f"{what} row {bad} is not finite: {rows[bad]}. Leave it out or repair it.")
    return rows


def _checked_costs(costs: ArrayLike | None, num_rows: int) -> FloatArray:
    prices = np.ones(num_rows) if costs is None else np.asarray(costs, dtype=np.float64)
    if prices.shape != (num_rows,):
        raise UsageError(f"costs have the shape {prices.shape}. Give one for each of {num_rows}.")
    if not (np.isfinite(prices).all() and (prices > 0).all()):
        raise UsageError(f"costs must be finite and above 0, the least seen is {prices.min()}.")
    return prices
