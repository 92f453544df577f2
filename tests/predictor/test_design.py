from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scaledl.errors import UsageError
from scaledl.predictor.design import choose

FloatArray = NDArray[np.float64]


def log_det(rows: FloatArray) -> float:
    return float(np.linalg.slogdet(rows.T @ rows)[1])


def best_by_exhaustion(
    rows: FloatArray, costs: FloatArray, budget: float, measured: FloatArray
) -> float:
    best = -np.inf
    for size in range(len(rows) + 1):
        for picked in combinations(range(len(rows)), size):
            if costs[list(picked)].sum() <= budget:
                both = np.vstack([measured, rows[list(picked)]])
                if len(both) >= rows.shape[1]:
                    best = max(best, log_det(both))
    return best


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), size=st.integers(3, 7))
def test_without_costs_it_finds_what_exhaustive_search_finds(seed: int, size: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(11, 3))
    best = best_by_exhaustion(rows, np.ones(11), size, np.zeros((0, 3)))
    assert choose(rows, count=size).log_det == pytest.approx(best, abs=1e-6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), budget=st.floats(6.0, 14.0))
def test_with_costs_and_measured_points_it_finds_what_exhaustive_search_finds(
    seed: int, budget: float
) -> None:
    rng = np.random.default_rng(seed)
    rows, measured = rng.normal(size=(10, 3)), rng.normal(size=(3, 3))
    costs = rng.uniform(1.0, 5.0, size=10)
    found = choose(rows, budget=budget, costs=costs, measured=measured)
    assert found.log_det == pytest.approx(
        best_by_exhaustion(rows, costs, budget, measured), abs=1e-6
    )
    assert found.cost <= budget * (1 + 1e-9)


def fedorov_restart(rows: FloatArray, count: int, rng: np.random.Generator) -> float:
    """One plain restart, written from the definition: try pairs, keep the best, until none helps.

    Determinants are of the matrix itself, so it shares no formula with what it checks.
    """
    chosen = list(rng.choice(len(rows), count, replace=False))
    best = log_det(rows[chosen])
    while True:
        trials = [
            [*chosen[:i], j, *chosen[i + 1 :]]
            for i in range(count)
            for j in range(len(rows))
            if j not in chosen
        ]
        picked = rows[np.array(trials)]
        dets = np.linalg.slogdet(np.swapaxes(picked, 1, 2) @ picked)[1]
        if dets.max() <= best + 1e-9:
            return best
        chosen, best = trials[int(np.argmax(dets))], float(dets.max())


def test_determinant_is_at_least_99_percent_of_the_best_of_100_restarts() -> None:
    rng = np.random.default_rng(5)
    rows = np.column_stack([np.ones(40), rng.uniform(-1, 1, size=(40, 3))])
    best = max(fedorov_restart(rows, 10, rng) for _ in range(100))
    assert np.exp(choose(rows, count=10).log_det - best) >= 0.99


def test_units_of_the_features_do_not_change_the_choice() -> None:
    rows = np.random.default_rng(1).normal(size=(60, 4))
    plain = choose(rows, count=12)
    other_units = choose(rows * [1e-9, 1.0, 1e6, 1e12], count=12)
    assert sorted(plain.chosen) == sorted(other_units.chosen)


def test_what_is_measured_is_not_asked_again() -> None:
    rows = np.eye(4)
    measured = np.repeat(np.eye(4)[:2], 5, axis=0)
    assert sorted(choose(rows, count=2, measured=measured).chosen) == [2, 3]


def test_the_next_gpu_count_is_the_one_that_settles_an_open_term() -> None:
    def row(n: int) -> list[float]:  # step = compute + bytes term + hop term (ScaleDL eq. 15)
        return [1.0, 2 * (n - 1) / n, 2.0 * (n - 1)]

    counts = [1, 2, 4, 8, 16]
    jacobian = np.array([row(n) for n in counts])
    found = choose(jacobian, budget=24.0, costs=counts, measured=[row(4)] * 10, starts=2)
    assert {counts[i] for i in found.chosen} == {1, 2, 4, 16}


def test_chosen_starts_with_what_teaches_most() -> None:
    rows = np.diag([1.0, 100.0, 10.0])
    assert choose(rows, count=3, measured=np.eye(3)).chosen == (1, 2, 0)


def test_fewer_rows_than_columns_still_span_as_much_as_they_can() -> None:
    rows = np.array([[1.0, 0, 0], [1.0, 1e-4, 0], [0, 1.0, 0], [1.0, 0, 1e-4]])
    found = choose(rows, count=2)
    assert 2 in found.chosen
    assert found.log_det == -np.inf


def test_two_cheap_rows_are_taken_for_one_dear_row() -> None:
    rows = np.array([[1.1, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = choose(rows, budget=2.0, costs=[2.0, 1.0, 1.0])
    assert sorted(found.chosen) == [1, 2]
    assert found.cost == 2.0


def test_nothing_affordable_is_an_empty_design() -> None:
    found = choose(np.eye(2), budget=0.5)
    assert found.chosen == ()
    assert found.cost == 0.0


def test_equal_arguments_give_equal_designs() -> None:
    rows = np.random.default_rng(3).normal(size=(50, 5))
    assert choose(rows, count=9, seed=4) == choose(rows, count=9, seed=4)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"candidates": np.eye(2)}, "neither count nor budget"),
        ({"candidates": np.ones(3), "count": 1}, r"\(3,\)"),
        ({"candidates": [[1.0, np.nan]], "count": 1}, "row 0"),
        ({"candidates": np.eye(2), "count": 1, "costs": [1.0]}, r"\(1,\)"),
        ({"candidates": np.eye(2), "count": 1, "costs": [1.0, 0.0]}, "0.0"),
        ({"candidates": np.eye(2), "count": 1, "measured": np.eye(3)}, "3 columns"),
        ({"candidates": np.eye(2), "count": -1}, "-1"),
        ({"candidates": np.eye(2), "budget": np.inf}, "inf"),
    ],
)
def test_wrong_arguments_are_told_with_the_value(arguments: dict[str, object], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        choose(**arguments)  # type: ignore[arg-type]
