import numpy as np
import pytest
from streams import START_S, Moment, Stream, errors, play, progress_of

from scaledl.predictor.eta import EtaEstimator
from scaledl.records import Eta, PhaseRecord, Progress


def eta_at(moment: Moment) -> Eta:
    return moment.estimator.estimate(moment.progress, moment.now_s)


def error_at(moment: Moment) -> float:
    eta = eta_at(moment)
    assert eta.remaining_s is not None
    return eta.remaining_s.mean / moment.left_s - 1


def worst(values: list[float]) -> float:
    return max(abs(v) for v in values)


def test_a_slow_first_step_is_no_rate():
    found = errors(Stream(first_step_s=60), {10, 30, 100, 500})
    assert worst(found["ours"]) < 0.05
    assert worst(found["mean"]) > 10
    assert worst(found["ema"]) > 5


def test_E17_a_cold_first_epoch_is_left_behind_and_told():
    stream = Stream(cold_factor=2.0)
    found = errors(stream, {240, 400, 1000})
    assert worst(found["ours"]) < 0.02
    assert worst(found["mean"]) > 0.5
    told = {eta_at(moment).changed_because for moment in play(stream, lambda step: step > 190)}
    assert told == {"", "steps 50 % faster since step 200 (the first epoch was slower)"}


def test_E19_checkpoints_are_pauses_with_their_own_rhythm():
    stream = Stream(save_every=20, save_s=0.5)
    places = set(range(203, 1999, 97))
    found = errors(stream, places)
    assert worst(found["ours"]) < 0.03
    assert worst(found["ema"]) > 0.15
    for moment in play(stream, places):
        assert eta_at(moment).step_s.mean == pytest.approx(0.1, rel=0.03)


def test_A7_a_loader_stall_each_20_steps_moves_nothing():
    found = errors(Stream(stall_every=20, stall_s=2.4), set(range(203, 1900, 61)))
    assert worst(found["ours"]) < 0.03
    assert worst(found["ema"]) > 0.5
    assert worst(found["median"]) > 0.4


def test_E20_two_evaluation_loaders_add_time_and_no_steps():
    stream = Stream(eval_s=4.0, more_eval_s=(2.5,))
    found = errors(stream, {400, 450, 1000, 1350, 1999, 2000 - 200})
    assert worst(found["ours"]) < 0.03
    assert worst(found["mean"]) > 0.05
    moment = next(play(stream, {450}))
    assert moment.estimator.estimate(moment.progress, moment.now_s).epoch_remaining_s.mean == (
        pytest.approx(moment.epoch_left_s, rel=0.03)
    )


def test_evaluations_and_checkpoints_are_right_after_the_first_epoch():
    stream = Stream(eval_s=8, save_every=100, save_s=2, first_step_s=3, noise=0.08)
    found = errors(stream, set(range(210, 1990, 40)))
    assert np.mean(np.abs(found["ours"])) < 0.01
    assert np.mean(np.abs(found["ours"])) < 0.3 * np.mean(np.abs(found["mean"]))


def test_before_the_first_evaluation_the_interval_reaches_up_and_says_so():
    stream = Stream(eval_s=8)
    moments = play(stream, {100, 450})
    early = next(moments)
    eta = eta_at(early)
    assert eta.basis == "extrapolated"
    left = eta.remaining_s
    assert early.left_s in left
    assert left.high - left.mean > 2 * (left.mean - left.low)
    assert eta_at(next(moments)).basis == "measured"


def test_time_left_runs_down_during_an_evaluation():
    stream = Stream(eval_s=10)
    moment = next(play(stream, {599}))
    moment.estimator.on_steps([0.1], 599, 2)
    place, now_s = progress_of(stream, 600), moment.now_s + 0.1
    finish = {
        round(moment.estimator.estimate(place, now_s + waited).finish_at, 3) for waited in range(9)
    }
    assert len(finish) == 1


def test_E25_growing_steps_are_extrapolated_with_a_bound():
    stream = Stream(drift=0.5)
    found = errors(stream, {800, 1000, 1300, 1600})
    assert worst(found["ours"]) < 0.05
    assert min(abs(e) for e in found["mean"]) > 0.15
    steep = next(play(Stream(drift=20.0, num_epochs=2), {100}))
    eta = eta_at(steep)
    assert eta.remaining_s.mean <= 2.05 * 300 * max(steep.times_s)


def test_E27_growing_phases_are_extrapolated_with_a_wide_interval():
    stream = Stream(eval_s=5, eval_growth=0.1, num_epochs=20, steps_per_epoch=50)
    moment = next(play(stream, {510}))
    eta = eta_at(moment)
    assert abs(error_at(moment)) < 0.1
    assert moment.mean_left_s / moment.left_s - 1 < -0.2
    assert eta.remaining_s.high - eta.remaining_s.low > 0.3 * eta.remaining_s.mean


def test_E28_an_epoch_of_five_steps_has_an_estimate():
    stream = Stream(steps_per_epoch=5, num_epochs=6, eval_s=1)
    found = errors(stream, {6, 11, 17, 23})
    assert worst(found["ours"]) < 0.05


def test_E30_the_parts_sum_to_the_time_that_was_measured():
    stream = Stream(
        first_step_s=5,
        save_every=50,
        save_s=1,
        stall_share=0.01,
        stall_s=3,
        noise=0.1,
        num_epochs=2,
    )
    moment = next(play(stream, {397}))
    steps = moment.estimator._state.steps
    moment.estimator.state_dict()  # takes in what waits
    booked_s = (
        sum(total for _, total in steps.blocks.items)
        + steps.pauses.booked_s
        + steps.epoch_starts.booked_s
        + steps.one_off_s
        + sum(wall for _, wall in steps.held)
    )
    assert booked_s == pytest.approx(sum(moment.times_s), rel=1e-9)


def test_E32_a_second_estimator_inherits_nothing():
    first = next(play(Stream(), {500}))
    eta_at(first)
    fast = Stream(step_s=0.01)
    second = next(play(fast, {50}))
    assert abs(error_at(second)) < 0.05


def test_D17_rare_long_stalls_are_inside_the_interval():
    held, naive = [], []
    for seed in range(12):
        stream = Stream(stall_share=0.01, stall_s=29.9, seed=seed)
        for moment in play(stream, {500, 1000}):
            held.append(moment.left_s in eta_at(moment).remaining_s)
            naive.append(abs(moment.median_left_s / moment.left_s - 1))
            assert eta_at(moment).step_s.mean == pytest.approx(0.1, rel=0.05)
    assert np.mean(held) >= 0.8
    assert np.mean(naive) > 0.5


@pytest.mark.parametrize("ratio", [0.5, 0.75, 1.25, 2.0, 3.0])
def test_a_lasting_change_is_followed_after_30_steps_and_told(ratio):
    stream = Stream(change_at=700, change_ratio=ratio)
    moment = next(play(stream, {730}))
    eta = eta_at(moment)
    assert abs(error_at(moment)) < 0.1
    word = "slower" if ratio > 1 else "faster"
    assert f" % {word} since step 7" in eta.changed_because or "since step 69" in (
        eta.changed_because
    )
    later = moment.estimator.estimate(moment.progress, moment.now_s + 60)
    assert later.changed_because == ""


def test_a_slower_evaluation_is_told():
    estimator = EtaEstimator()
    for epoch in range(8):
        estimator.on_steps([0.1] * 50, epoch * 50, epoch)
        estimator.on_phase(
            PhaseRecord(
                kind="eval",
                at_s=START_S,
                duration_s=3.0 if epoch < 6 else 6.0,
                after_step=epoch * 50 + 50,
                epoch=epoch,
            )
        )
    place = Progress(step=400, epoch=8, step_in_epoch=0, steps_per_epoch=50, total_steps=600)
    eta = estimator.estimate(place, START_S)
    assert eta.changed_because == "evaluation 100 % slower since step 400"
    assert eta.remaining_s.mean == pytest.approx(20 + 4 * 6, rel=0.02)


@pytest.mark.parametrize("wander", [0.0, 0.0002])
def test_a_steady_run_tells_of_no_change(wander):
    for seed in range(10):
        stream = Stream(noise=0.15, wander=wander, seed=seed)
        for moment in play(stream, set(range(50, 2000, 50))):
            assert eta_at(moment).changed_because == ""


def test_a_single_pause_is_a_one_off_and_a_second_one_a_rhythm():
    estimator = EtaEstimator()
    left = []
    for step in (50, 100, 150):
        estimator.on_steps([0.1] * 50, step - 50, 0)
        pause = PhaseRecord(kind="paused", at_s=START_S, duration_s=60, after_step=step, epoch=0)
        estimator.on_phase(pause)
        place = Progress(step=step, epoch=0, step_in_epoch=step, total_steps=1000)
        left.append(estimator.estimate(place, START_S + 60).remaining_s.mean)
    assert left == pytest.approx([95, 90 + 18 * 60, 85 + 17 * 60], rel=0.01)
