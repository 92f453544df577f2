"""Step costs that follow a plan: with it, and what is said without it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledl.errors import UsageError
from scaledl.predictor.eta import EtaEstimator
from scaledl.predictor.plan import CELLS, Plan
from scaledl.records import Eta, Progress

TOTAL = 2000


def walls_of(step_cost, total: int = TOTAL, noise: float = 0.05) -> np.ndarray:
    """Step times that follow a plan. Shapes: result [total]."""
    rng = np.random.default_rng(0)
    return (
        0.1
        * np.array([step_cost(i / total) for i in range(total)])
        * np.exp(rng.normal(0, noise, total))
    )


def eta_after(walls: np.ndarray, step: int, step_cost=None) -> tuple[Eta, float]:
    """The estimate after ``step`` steps, and the truth."""
    estimator = EtaEstimator()
    if step_cost is not None:
        estimator.plan(step_cost, len(walls))
    for first in range(0, step, 5):
        estimator.on_steps(walls[first : min(first + 5, step)].tolist(), first, 0)
    place = Progress(step=step, epoch=0, step_in_epoch=step, total_steps=len(walls))
    return estimator.estimate(place, float(walls[:step].sum())), float(walls[step:].sum())


def four_at_half(done: float) -> float:
    return 4.0 if done >= 0.5 else 1.0


def batch_ramp(done: float) -> float:
    return 1.0 + min(int(16 * done), 8)


def image_sizes(done: float) -> float:
    return 1.0 if done < 0.4 else (2.2 if done < 0.8 else 3.5)


def sorted_inputs(done: float) -> float:
    return float(30**-done)


@pytest.mark.parametrize("step_cost", [four_at_half, batch_ramp, image_sizes])
def test_E22_a_planned_schedule_is_right_within_5_percent_at_10(step_cost):
    walls = walls_of(step_cost)
    eta, truth_s = eta_after(walls, 200, step_cost)
    naive_s = walls[:200].mean() * 1800
    assert eta.remaining_s.mean == pytest.approx(truth_s, rel=0.05)
    assert truth_s in eta.remaining_s
    assert abs(naive_s / truth_s - 1) > 0.4


def test_E22_a_schedule_without_a_plan_is_followed_once_it_is_seen_and_told():
    eta, truth_s = eta_after(walls_of(four_at_half), 1040)
    assert eta.remaining_s.mean == pytest.approx(truth_s, rel=0.1)
    assert "slower since step 100" in eta.changed_because or "since step 99" in eta.changed_because


def test_E22_few_long_epochs_of_growing_images_are_followed():
    walls = walls_of(image_sizes, 36, noise=0.01)
    for step in (20, 34):
        eta, truth_s = eta_after(walls, step)
        pace_s = walls[step - 1]
        assert eta.remaining_s.mean == pytest.approx(pace_s * (36 - step), rel=0.05)
    assert eta.remaining_s.mean == pytest.approx(truth_s, rel=0.05)


def test_E24_inputs_sorted_long_to_short_are_right_with_a_plan():
    walls = walls_of(sorted_inputs)
    for step in (100, 200, 500, 1000):
        eta, truth_s = eta_after(walls, step, sorted_inputs)
        assert eta.remaining_s.mean == pytest.approx(truth_s, rel=0.05)


def test_E24_without_a_plan_the_trend_is_told_and_a_range_shown():
    walls = walls_of(sorted_inputs)
    for step in (200, 500, 1000):
        eta, truth_s = eta_after(walls, step)
        naive_s = walls[:step].mean() * (TOTAL - step)
        assert truth_s in eta.remaining_s
        assert abs(eta.remaining_s.mean / truth_s - 1) < 0.3 * abs(naive_s / truth_s - 1)
    assert "steps get steadily faster" in eta.changed_because


def test_pauses_stay_in_seconds_under_a_plan():
    walls = walls_of(four_at_half)
    walls[49::50] += 3.0
    eta, truth_s = eta_after(walls, 400, four_at_half)
    assert eta.remaining_s.mean == pytest.approx(truth_s, rel=0.05)


def test_the_shown_step_time_is_that_of_the_planned_next_step():
    walls = walls_of(four_at_half, noise=0.0)
    assert eta_after(walls, 999, four_at_half)[0].step_s.mean == pytest.approx(0.1)
    assert eta_after(walls, 1000, four_at_half)[0].step_s.mean == pytest.approx(0.4)


costs = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8)


@given(costs=costs, total=st.integers(1, 3 * CELLS), data=st.data())
@settings(max_examples=50, deadline=None)
def test_work_adds_up_and_only_ratios_matter(costs, total, data):
    def step_cost(done: float) -> float:
        return costs[int(done * len(costs))]

    places = sorted(data.draw(st.lists(st.integers(0, total + 50), min_size=3, max_size=3)))
    plan, double = Plan(step_cost, total), Plan(lambda done: 2 * step_cost(done), total)
    whole = plan.work(places[0], places[2])
    assert whole == pytest.approx(sum(plan.work(a, b) for a, b in pairwise(places)), abs=1e-6)
    assert double.work(places[0], places[2]) == pytest.approx(2 * whole)
    assert whole >= (places[2] - places[0]) * min(costs) * (1 - 1e-9) - 1e-6
    if total <= CELLS:
        counted = sum(plan.costs(places[0], places[2] - places[0]))
        assert whole == pytest.approx(counted, abs=1e-6)


def test_a_constant_plan_changes_nothing():
    walls = walls_of(lambda done: 1.0)
    plain, planned = eta_after(walls, 300)[0], eta_after(walls, 300, lambda done: 7.0)[0]
    assert planned.remaining_s.mean == pytest.approx(plain.remaining_s.mean)
    assert planned.remaining_s.high == pytest.approx(plain.remaining_s.high)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cost_that_is_no_positive_number_is_refused_with_its_place(value):
    with pytest.raises(UsageError, match=r"positive number, got .* at 0\.500"):
        EtaEstimator().plan(lambda done: value if done >= 0.5 else 1.0, 10)


def test_a_plan_without_steps_is_refused():
    with pytest.raises(UsageError, match="got 0"):
        EtaEstimator().plan(lambda done: 1.0, 0)
