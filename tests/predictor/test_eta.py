import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import START_S, Moment, Stream, play, progress_of

from scaledl.predictor.ahead import STATE_VERSION
from scaledl.predictor.eta import EtaEstimator
from scaledl.records import Eta, Interval, PhaseRecord, Progress


def eta_at(moment: Moment) -> Eta:
    return moment.estimator.estimate(moment.progress, moment.now_s)


def error_at(moment: Moment) -> float:
    eta = eta_at(moment)
    assert eta.remaining_s is not None
    return eta.remaining_s.mean / moment.left_s - 1


# --- resume -------------------------------------------------------------------------------------


def test_E01_after_a_resume_only_own_steps_count():
    estimator = EtaEstimator()
    estimator.on_steps([6.0] * 10, 900, 0)
    place = Progress(step=910, epoch=0, step_in_epoch=910, first_step=900, total_steps=1000)
    eta = estimator.estimate(place, START_S + 60)
    naive_s = 60 / 910 * 90
    assert eta.remaining_s.mean == pytest.approx(540)
    assert naive_s < 6.0
    assert eta.step_s.mean == pytest.approx(6.0)


def test_E01_nothing_is_shown_after_a_resume_until_a_step_is_seen():
    place = Progress(step=900, epoch=0, step_in_epoch=900, first_step=900, total_steps=1000)
    eta = EtaEstimator().estimate(place, START_S)
    assert (eta.remaining_s, eta.step_s, eta.finish_at) == (None, None, None)


def test_E04_pace_and_time_left_come_from_the_same_session():
    stream = Stream(noise=0.02)
    moment = next(play(stream, {1500}, first_step=1400))
    eta = eta_at(moment)
    pace_s = sum(moment.times_s) / len(moment.times_s)
    assert len(moment.times_s) == 100
    assert eta.step_s.mean == pytest.approx(pace_s, rel=0.02)
    assert eta.remaining_s.mean == pytest.approx(500 * eta.step_s.mean, rel=0.01)


def test_a_resumed_process_starts_from_what_it_knew_and_expects_start_up_again():
    stream = Stream(eval_s=8)
    before = next(play(stream, {1000}))
    saved = json.loads(json.dumps(before.estimator.state_dict()))
    resumed = EtaEstimator()
    resumed.load_state_dict(saved)
    slow_start = replace(stream, seed=3)
    walls = slow_start.walls_s()[1000:1005].tolist()
    resumed.on_steps([30.0, *walls[1:]], 1000, 5)
    eta = resumed.estimate(progress_of(stream, 1005, 1000), START_S + 9e3)
    truth_s = before.left_s - 0.5
    assert eta.remaining_s.mean == pytest.approx(truth_s, rel=0.03)  # with its five evaluations
    fresh = EtaEstimator()
    fresh.on_steps([30.0, *walls[1:]], 1000, 5)
    without = fresh.estimate(progress_of(stream, 1005, 1000), START_S + 9e3)
    assert without.remaining_s.mean < 0.8 * truth_s


# --- counts and ends ----------------------------------------------------------------------------


def test_E05_time_left_counts_optimizer_steps_and_reaches_zero_once():
    estimator = EtaEstimator()
    left = []
    for step in range(1, 101):
        estimator.on_steps([0.4], step - 1, 0)  # four micro-batches of 0.1 s
        place = Progress(step=step, epoch=0, step_in_epoch=step, total_steps=100)
        left.append(estimator.estimate(place, START_S + 0.4 * step).remaining_s.mean)
    assert left[:3] == pytest.approx([39.6, 39.2, 38.8])
    assert [i for i, value in enumerate(left) if value == 0] == [99]


def test_E10_an_unknown_total_gives_pace_and_no_nonsense():
    estimator = EtaEstimator()
    estimator.on_steps([0.1] * 50, 0, 0)
    eta = estimator.estimate(Progress(step=50, epoch=0, step_in_epoch=50), START_S)
    assert (eta.remaining_s, eta.epoch_remaining_s, eta.finish_at) == (None, None, None)
    assert eta.step_s.mean == pytest.approx(0.1)


def test_E10_a_known_epoch_length_gives_the_epochs_end():
    estimator = EtaEstimator()
    estimator.on_steps([0.1] * 50, 0, 0)
    place = Progress(step=50, epoch=0, step_in_epoch=50, steps_per_epoch=80)
    eta = estimator.estimate(place, START_S)
    assert eta.remaining_s is None
    assert eta.epoch_remaining_s.mean == pytest.approx(3.0)


@pytest.mark.parametrize(("limited_by", "expected_s"), [("total_steps", 4.0), (None, 4.0)])
def test_E12_the_earlier_end_rules(limited_by, expected_s):
    estimator = EtaEstimator()
    estimator.on_steps([0.1] * 10, 0, 0)
    place = Progress(
        step=10,
        epoch=0,
        step_in_epoch=10,
        total_steps=50,
        num_epochs=20,
        steps_per_epoch=100,
        limited_by=limited_by,
    )
    eta = estimator.estimate(place, START_S)
    assert eta.remaining_s.mean == pytest.approx(expected_s)
    assert eta.epoch_remaining_s.mean == pytest.approx(expected_s)


def test_E12_epochs_rule_where_they_end_first():
    estimator = EtaEstimator()
    estimator.on_steps([0.1] * 10, 0, 0)
    place = Progress(
        step=10, epoch=0, step_in_epoch=10, total_steps=500, num_epochs=2, steps_per_epoch=100
    )
    assert estimator.estimate(place, START_S).remaining_s.mean == pytest.approx(19.0)


def test_E13_the_estimate_is_for_the_planned_end_whatever_ends_the_run():
    estimator = EtaEstimator()
    estimator.on_steps([0.1] * 30, 0, 0)
    place = Progress(step=30, epoch=0, step_in_epoch=30, total_steps=100)
    assert estimator.estimate(place, START_S).remaining_s.mean == pytest.approx(7.0)


def test_E14_past_the_planned_end_there_is_no_time_left_to_tell():
    estimator = EtaEstimator()
    estimator.on_steps([0.1] * 130, 0, 0)
    at_end = Progress(step=100, epoch=0, step_in_epoch=100, total_steps=100)
    past = Progress(step=130, epoch=0, step_in_epoch=130, total_steps=100)
    assert estimator.estimate(at_end, START_S).remaining_s.mean == 0
    eta = estimator.estimate(past, START_S)
    assert (eta.remaining_s, eta.finish_at) == (None, None)
    assert eta.step_s.mean == pytest.approx(0.1)


# --- prior --------------------------------------------------------------------------------------


def test_a_prior_leads_before_the_first_step_and_fades_within_twenty():
    estimator = EtaEstimator()
    estimator.prior(Interval(mean=0.2, low=0.1, high=0.4))
    place = Progress(step=0, epoch=0, step_in_epoch=0, total_steps=1000)
    first = estimator.estimate(place, START_S)
    assert first.basis == "prior"
    assert first.remaining_s.mean == pytest.approx(200)
    assert first.remaining_s.low <= 130
    shown = []
    for step in range(1, 31):
        estimator.on_steps([0.1], step - 1, 0)
        eta = estimator.estimate(msgspec_step(place, step), START_S + step)
        shown.append(eta.step_s.mean)
        assert (eta.basis == "prior") == (step < 20)
    assert all(a >= b - 1e-9 for a, b in pairwise(shown))
    assert shown[19:] == pytest.approx([0.1] * 11)


def msgspec_step(place: Progress, step: int) -> Progress:
    return Progress(step=step, epoch=0, step_in_epoch=step, total_steps=place.total_steps)


# --- intervals ----------------------------------------------------------------------------------


def random_stream(seed: int) -> Stream:
    rng = np.random.default_rng(1000 + seed)
    return Stream(
        steps_per_epoch=int(rng.integers(60, 300)),
        num_epochs=int(rng.integers(4, 12)),
        noise=float(rng.uniform(0.02, 0.3)),
        wander=float(rng.choice([0.0, 0.0005, 0.001])),
        first_step_s=float(rng.choice([0.0, 3.0, 30.0])),
        eval_s=float(rng.choice([0.0, 2.0, 8.0])),
        save_every=int(rng.choice([0, 50, 100])),
        save_s=1.0,
        stall_share=float(rng.choice([0.0, 0.01])),
        stall_s=2.0,
        cold_factor=float(rng.choice([1.0, 1.0, 1.3])),
        seed=seed,
    )


def test_interval_covers_its_nominal_share_over_many_streams():
    held: dict[float, list[bool]] = {0.1: [], 0.3: [], 0.6: [], 0.9: []}
    widths: dict[float, list[float]] = {share: [] for share in held}
    for seed in range(60):
        stream = random_stream(seed)
        steps = {int(share * stream.total): share for share in held}
        for moment in play(stream, set(steps), batch=25):
            share, left = steps[moment.progress.step], eta_at(moment).remaining_s
            held[share].append(moment.left_s in left)
            widths[share].append((left.high - left.low) / moment.left_s)
    everything = [held_one for share in held.values() for held_one in share]
    assert 0.80 <= np.mean(everything) <= 0.98
    for share, values in held.items():
        assert np.mean(values) >= 0.75, share
    assert np.median(widths[0.6]) < 0.5


walls = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=80)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(walls, min_size=1, max_size=5),
    phase_s=st.lists(st.floats(0, 1e4), max_size=5),
    total=st.integers(1, 1000),
    per_epoch=st.none() | st.integers(1, 50),
    late_s=st.floats(0, 1e5),
)
def test_nothing_is_negative_and_the_saved_state_says_the_same(
    batches, phase_s, total, per_epoch, late_s
):
    estimator, step = EtaEstimator(), 0
    for i, batch in enumerate(batches):
        epoch = step // per_epoch if per_epoch else 0
        estimator.on_steps(batch, step, epoch)
        step += len(batch)
        if i < len(phase_s):
            estimator.on_phase(
                PhaseRecord(
                    kind="eval", at_s=START_S, duration_s=phase_s[i], after_step=step, epoch=epoch
                )
            )
    place = Progress(
        step=step,
        epoch=step // per_epoch if per_epoch else 0,
        step_in_epoch=step % per_epoch if per_epoch else step,
        total_steps=total,
        steps_per_epoch=per_epoch,
    )
    saved = json.loads(json.dumps(estimator.state_dict()))
    eta = estimator.estimate(place, START_S + late_s)
    assert eta.step_s.low >= 0
    for interval in (eta.remaining_s, eta.epoch_remaining_s):
        if interval is not None:
            assert 0 <= interval.low <= interval.mean <= interval.high < float("inf")
    assert (eta.remaining_s is None) == (step > total)
    other = EtaEstimator()
    other.load_state_dict(saved)
    assert other.estimate(place, START_S + late_s) == eta


def test_a_foreign_state_is_refused_with_a_reason():
    with pytest.raises(ValueError, match="version None"):
        EtaEstimator().load_state_dict({})
    with pytest.raises(ValueError, match="damaged"):
        EtaEstimator().load_state_dict({"version": STATE_VERSION, "steps": 3})


def test_memory_is_constant():
    estimator = EtaEstimator()
    rng = np.random.default_rng(0)
    sizes = []
    for i in range(40):
        block = np.exp(rng.normal(0, 0.3, 1000)) + (rng.random(1000) < 0.02) * 30
        estimator.on_steps(block.tolist(), i * 1000, 0)
        sizes.append(len(json.dumps(estimator.state_dict())))
    assert max(sizes[10:]) < 1.2 * sizes[5]


def test_batching_of_steps_changes_little():
    stream = Stream(save_every=50, save_s=1, eval_s=4)
    left = []
    for batch in (1, 13, 200):
        moment = next(play(stream, {1250}, batch=batch))
        left.append(eta_at(moment).remaining_s.mean)
    assert max(left) < 1.01 * min(left)
