"""What the estimator learns from its own past: memory, rhythms seen once, allowances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledl.predictor.doubt import again_share, alone_share, late_s, unseen_share, wander_share
from scaledl.predictor.eta import EtaEstimator
from scaledl.predictor.level import change_point, num_start_up
from scaledl.predictor.memory import MEMORIES, blended, trust
from scaledl.predictor.recurring import Recurring, phase_cost
from scaledl.predictor.shift import Shift, fresh_shift
from scaledl.records import Progress

blocks = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=64)


def cost_of(seen: Recurring, start: int, stop: int) -> float:
    return phase_cost(seen, start, stop, steps_per_epoch=None, opens=False, final=True).mean_s


@given(means=blocks, scale=st.floats(0.1, 10.0))
@settings(max_examples=60, deadline=None)
def test_the_level_lies_within_what_was_seen_and_scales_with_it(means, scale):
    values, steps = np.array(means), np.ones(len(means))
    level = blended(steps, values)
    assert min(means) * (1 - 1e-9) <= level <= max(means) * (1 + 1e-9)
    assert blended(steps, scale * values) == pytest.approx(scale * level, rel=1e-6)
    weights = trust(values)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()


def test_steady_noise_earns_a_long_memory_and_drift_a_short_one():
    rng = np.random.default_rng(0)
    steady = trust(1 + rng.normal(0, 0.05, 60))
    drifting = trust(np.linspace(1, 2, 60) + rng.normal(0, 0.01, 60))
    shortest = MEMORIES.index(min(MEMORIES))
    assert steady[shortest] < 0.05
    assert drifting[shortest] > 0.9


def test_an_evaluation_overdue_is_no_rhythm():
    seen = Recurring(origin=0)
    seen.add(1, 10.0)
    at_once = cost_of(seen, 1, 101)
    later = [cost_of(seen, step, 101) for step in (4, 10, 50)]
    assert at_once > 900
    assert all(a > b for a, b in zip([at_once, *later], later, strict=False))
    assert later[-1] < 15


def test_a_slow_first_evaluation_is_left_out_once_others_are_known():
    seen = Recurring(origin=0)
    for i, cost_s in enumerate([30.0, 10.0, 10.0]):
        seen.add(100 * (i + 1), cost_s)
    assert cost_of(seen, 300, 1000) == pytest.approx(70.0)


def test_a_first_step_unlike_the_others_is_set_apart_either_way():
    later = [1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 0.99]
    assert num_start_up(np.array([1.1, *later])) == 1
    assert num_start_up(np.array([0.9, *later])) == 1
    assert num_start_up(np.array([1.01, *later])) == 0
    assert num_start_up(np.array([9.0, 4.0, *later])) == 2


def test_few_clean_steps_show_a_change_and_few_noisy_ones_do_not():
    rng = np.random.default_rng(1)
    clean = np.concatenate([np.full(14, 1.0), np.full(6, 1.6)]) + rng.normal(0, 0.005, 20)
    found = change_point(clean)
    assert found is not None
    assert found[0] == 14
    assert found[1] == pytest.approx(1.6, rel=0.02)
    for seed in range(50):
        noisy = np.exp(np.random.default_rng(seed).normal(0, 0.2, 20))
        assert change_point(noisy) is None


def test_one_change_is_an_event_and_two_are_a_schedule():
    assert again_share(1, 2.0) == 0
    assert 0 < again_share(2, 1.2) < again_share(2, 2.0) < again_share(4, 2.0) <= 1
    assert again_share(3, 0.5) == pytest.approx(again_share(3, 2.0))


@given(seen=st.integers(0, 10**6), left=st.integers(0, 10**6), has_epochs=st.booleans())
def test_allowances_are_bounded_and_fade_as_the_run_goes_on(seen, left, has_epochs):
    assert 0 <= wander_share(left, seen) <= 0.025
    assert 0 <= alone_share(seen, left) <= 0.9
    assert 0 <= late_s(seen, left) <= 0.12 * left
    share = unseen_share(seen, left, has_epochs=has_epochs)
    assert share >= unseen_share(seen + left, 0, has_epochs=has_epochs) == 0
    assert wander_share(left, seen + 10) <= wander_share(left, seen)
    assert alone_share(seen, left) <= alone_share(seen, left + 1)
    assert alone_share(seen + 2, left) <= alone_share(seen + 1, left)
    if 2 * seen >= seen + left:
        assert share == 0


def hint(walls_s: list[float], total: int = 36, pauses: int = 0) -> Shift | None:
    return fresh_shift(np.array(walls_s), total_steps=total, num_pauses=pauses)


def test_the_last_steps_of_a_short_run_hint_at_a_new_level_before_it_is_proven():
    before = [1.0, 1.01, 0.99, 1.0, 1.01]
    one, two, three = (hint([*before, *[2.0] * n]) for n in (1, 2, 3))
    assert one is not None
    assert two is not None
    assert three is not None
    assert 0 < one.chance < two.chance < three.chance < 1
    assert three.level_s == pytest.approx(2.0)
    assert hint([*before, 1.02]) is None
    assert hint([*before, 2.0], total=10_000) is None
    many = hint([*before, 2.0], pauses=3)
    assert many is not None
    assert many.chance < one.chance


@given(walls_s=st.lists(st.floats(1e-3, 1e3), max_size=40), total=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_a_hint_lies_within_the_last_steps_and_is_no_certainty(walls_s, total):
    found = hint(walls_s, total)
    if found is not None:
        last = walls_s[-3:]
        assert min(last) * (1 - 1e-9) <= found.level_s <= max(last) * (1 + 1e-9)
        assert 0 < found.chance <= 0.9


def test_a_few_long_steps_of_a_new_kind_are_followed_at_once_and_a_pause_is_not():
    coarse, fine = EtaEstimator(), EtaEstimator()
    for estimator in (coarse, fine):
        estimator.on_steps([1.0, 1.01, 0.99, 1.0] * 4 + [2.0, 2.0, 2.0], 0, 0)
    place = Progress(step=19, epoch=0, step_in_epoch=19, total_steps=30)
    left = coarse.estimate(place, 22.0).remaining_s
    assert left is not None
    assert 17 < left.mean < 22
    assert left.high > 22
    far = Progress(step=19, epoch=0, step_in_epoch=19, total_steps=5019)
    assert fine.estimate(far, 22.0).remaining_s.mean == pytest.approx(5000, rel=0.02)


def test_slow_steps_whose_follower_is_like_them_are_a_level_and_no_pauses():
    estimator = EtaEstimator()
    estimator.on_steps([1.0] * 40 + [1.9, 1.9, 1.45] + [1.45] * 37, 0, 0)
    steps = estimator._state.steps
    place = Progress(step=80, epoch=0, step_in_epoch=80, total_steps=180)
    left = estimator.estimate(place, 100.0).remaining_s
    assert steps.pauses.kinds == []
    assert left.mean == pytest.approx(145, rel=0.05)
