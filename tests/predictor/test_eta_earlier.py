"""An earlier run of the same job: leads before the first steps, foretells its course, yields."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledl.predictor.earlier import Earlier, earlier_of, pauses_ahead
from scaledl.predictor.eta import EtaEstimator
from scaledl.records import Eta, Interval, PhaseRecord, Progress, StepBlock

TOTAL = 2000
BLOCK = 50
STEP_S = 0.1


def four_at_half(done: float) -> float:
    return 4.0 if done >= 0.5 else 1.0


def batch_ramp(done: float) -> float:
    return 1.0 + min(int(16 * done), 8)


def image_sizes(done: float) -> float:
    return 1.0 if done < 0.4 else (2.2 if done < 0.8 else 3.5)


def sorted_inputs(done: float) -> float:
    return float(30**-done)


def steady(done: float) -> float:
    return 1.0


def walls_of(step_cost, seed: int, pace_s: float = STEP_S) -> np.ndarray:
    """Step times that follow a schedule. Shapes: result [TOTAL]."""
    rng = np.random.default_rng(seed)
    costs = np.array([step_cost(i / TOTAL) for i in range(TOTAL)])
    return pace_s * costs * np.exp(rng.normal(0, 0.05, TOTAL))


def blocks_of(walls: np.ndarray) -> list[StepBlock]:
    return [
        StepBlock(
            first_step=first,
            num_steps=len(part),
            epoch=0,
            at_s=0.0,
            mean_s=float(part.mean()),
            p50_s=float(np.median(part)),
            p95_s=float(np.quantile(part, 0.95)),
            input_wait_s=0.0,
            optimizer_s=0.0,
        )
        for first in range(0, len(walls), BLOCK)
        if len(part := walls[first : first + BLOCK])
    ]


def evaluation(after_step: int, duration_s: float) -> PhaseRecord:
    return PhaseRecord(kind="eval", at_s=0.0, duration_s=duration_s, after_step=after_step, epoch=0)


def earlier_run(walls: np.ndarray, phases: list[PhaseRecord] | None = None) -> Earlier:
    found = earlier_of(blocks_of(walls), phases or [], TOTAL)
    assert found is not None
    return found


def place(step: int, total: int = TOTAL) -> Progress:
    return Progress(step=step, epoch=0, step_in_epoch=step, total_steps=total)


def eta_after(
    walls: np.ndarray, step: int, earlier: Earlier | None, phases: list[PhaseRecord] | None = None
) -> Eta:
    estimator = EtaEstimator()
    if earlier is not None:
        estimator.expect(earlier, len(walls))
    for first in range(0, step, 5):
        estimator.on_steps(walls[first : min(first + 5, step)].tolist(), first, 0)
        for phase in phases or []:
            if first < phase.after_step <= first + 5:
                estimator.on_phase(phase)
    return estimator.estimate(place(step), float(walls[:step].sum()))


@pytest.mark.parametrize("step_cost", [four_at_half, batch_ramp, image_sizes, sorted_inputs])
def test_E22_E24_a_schedule_seen_in_an_earlier_run_is_right_within_5_percent_at_10(step_cost):
    earlier = earlier_run(walls_of(step_cost, seed=1))
    walls = walls_of(step_cost, seed=2, pace_s=1.3 * STEP_S)  # another machine is slower
    told = eta_after(walls, 200, earlier).remaining_s
    truth_s = walls[200:].sum()
    assert told.mean == pytest.approx(truth_s, rel=0.05)
    assert truth_s in told


@pytest.mark.parametrize("now", [steady, lambda done: 4.0 if done < 0.5 else 1.0])
def test_an_earlier_run_is_left_once_this_one_goes_another_way(now):
    earlier, walls = earlier_run(walls_of(batch_ramp, seed=1)), walls_of(now, seed=2)
    for step in (500, 1200):
        eta, plain = eta_after(walls, step, earlier), eta_after(walls, step, None)
        assert eta.remaining_s.mean == pytest.approx(plain.remaining_s.mean, rel=0.05)
    steps = eta_after(walls, 400, earlier).changed_because
    assert steps == "steps do not follow the earlier run"


def test_a_plan_of_the_users_is_left_once_the_steps_do_not_follow_it():
    estimator, walls = EtaEstimator(), walls_of(steady, seed=2)
    estimator.plan(batch_ramp, TOTAL)
    for first in range(0, 500, 5):
        estimator.on_steps(walls[first : first + 5].tolist(), first, 0)
    eta = estimator.estimate(place(500), 50.0)
    assert eta.remaining_s.mean == pytest.approx(walls[500:].sum(), rel=0.03)
    assert eta.changed_because == "steps do not follow step_cost"


def test_until_a_course_is_confirmed_the_interval_reaches_towards_none():
    earlier, walls = earlier_run(walls_of(four_at_half, seed=1)), walls_of(four_at_half, seed=2)
    before, after = eta_after(walls, 400, earlier), eta_after(walls, 1200, earlier)
    flat_s = STEP_S * (TOTAL - 400)
    assert before.basis == "extrapolated"
    assert before.remaining_s.low < (before.remaining_s.mean + flat_s) / 2 * 1.05
    assert after.basis == "measured"
    width = after.remaining_s.high - after.remaining_s.low
    assert width < 0.2 * after.remaining_s.mean


def test_evaluations_of_an_earlier_run_count_before_the_first_one_here():
    walls = walls_of(steady, seed=2)
    phases = [evaluation(step, 20.0) for step in range(500, TOTAL + 1, 500)]
    earlier = earlier_run(walls_of(steady, seed=1), phases)
    told = eta_after(walls, 100, earlier, phases)
    truth_s = walls[100:].sum() + 80.0
    assert told.remaining_s.mean == pytest.approx(truth_s, rel=0.03)
    assert truth_s in told.remaining_s
    assert told.basis == "measured"
    slower = [evaluation(step, 40.0) for step in range(500, TOTAL + 1, 500)]
    after_one = eta_after(walls, 600, earlier, slower).remaining_s
    assert after_one.mean == pytest.approx(walls[600:].sum() + 120.0, rel=0.03)


def test_an_evaluation_that_does_not_come_is_expected_no_longer():
    walls = walls_of(steady, seed=2)
    earlier = earlier_run(walls, [evaluation(step, 20.0) for step in range(200, TOTAL + 1, 200)])
    told = eta_after(walls, 600, earlier)
    assert told.remaining_s.mean == pytest.approx(walls[600:].sum(), rel=0.03)


def test_checkpoints_inside_steps_count_before_the_first_one_here():
    walls = walls_of(steady, seed=1)
    walls[399::400] += 30.0
    earlier = earlier_run(walls)
    told = eta_after(walls, 200, earlier).remaining_s
    assert told.mean == pytest.approx(walls[200:].sum(), rel=0.05)
    quiet = walls_of(steady, seed=2)
    late = eta_after(quiet, 1000, earlier).remaining_s
    assert late.mean < quiet[1000:].sum() + 0.3 * 90.0


def test_an_earlier_run_that_got_nowhere_or_began_late_tells_nothing():
    walls = walls_of(steady, seed=1)
    assert earlier_of(blocks_of(walls[:500]), [], TOTAL) is None
    assert earlier_of(blocks_of(walls)[10:], [], TOTAL) is None
    assert earlier_of([], [], TOTAL) is None


def test_a_run_of_another_length_is_another_job():
    earlier, walls = earlier_run(walls_of(four_at_half, seed=1)), walls_of(steady, seed=2)
    estimator = EtaEstimator()
    estimator.expect(earlier, 2 * TOTAL)
    estimator.on_steps(walls[:200].tolist(), 0, 0)
    eta = estimator.estimate(place(200, 2 * TOTAL), 0.0)
    assert eta.remaining_s.mean == pytest.approx(STEP_S * (2 * TOTAL - 200), rel=0.03)


def test_before_the_first_step_an_earlier_run_leads_with_a_wide_interval():
    earlier, estimator = earlier_run(walls_of(image_sizes, seed=1)), EtaEstimator()
    estimator.prior(Interval(mean=earlier.step_s, low=earlier.step_s / 2, high=2 * earlier.step_s))
    estimator.expect(earlier, TOTAL)
    walls = walls_of(image_sizes, seed=2)
    told = estimator.estimate(place(0), 0.0)
    assert told.basis == "prior"
    assert told.remaining_s.mean == pytest.approx(walls.sum(), rel=0.05)
    assert told.remaining_s.low < 0.6 * walls.sum()
    means = [told.remaining_s.mean]
    slower = 1.5 * walls
    for step in range(1, 30):
        estimator.on_steps(slower[step - 1 : step].tolist(), step - 1, 0)
        left = estimator.estimate(place(step), float(slower[:step].sum())).remaining_s
        means.append(left.mean)
    assert max(abs(np.diff(np.log(means)))) < 0.3  # no step of the way is the whole way
    assert means[-1] == pytest.approx(slower[29:].sum(), rel=0.05)


@given(step=st.integers(0, TOTAL), schedule=st.sampled_from([four_at_half, batch_ramp, steady]))
@settings(max_examples=25, deadline=None)
def test_a_state_says_the_same_whatever_plan_was_in_force(step, schedule):
    walls = walls_of(schedule, seed=3)
    earlier = earlier_run(walls_of(schedule, seed=1))
    first, second = EtaEstimator(), EtaEstimator()
    first.expect(earlier, TOTAL)
    for at in range(0, step, 8):
        first.on_steps(walls[at : min(at + 8, step)].tolist(), at, 0)
    second.load_state_dict(first.state_dict())
    second.expect(earlier, TOTAL)
    told, again = (e.estimate(place(step), 0.0).remaining_s for e in (first, second))
    assert (told is None) == (again is None)
    if told is not None:
        assert again.mean == pytest.approx(told.mean, rel=0.1, abs=1e-6)


@given(
    pauses=st.lists(st.floats(0, 100), min_size=1, max_size=20),
    booked=st.floats(0, 1000),
    places=st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_pauses_ahead_are_never_negative_and_none_are_left_at_the_end(pauses, booked, places):
    earlier = Earlier(total_steps=10, covered=1.0, step_s=1.0, pauses_s=tuple(pauses))
    origin, start, stop = sorted(places)
    assert pauses_ahead(earlier, booked, origin, start, stop).mean_s >= 0
    assert pauses_ahead(earlier, booked, origin, 1.0, 1.0).mean_s == pytest.approx(0)
