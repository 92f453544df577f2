"""Steps that cost by the size of their batch: what is learned, what is foretold, what is said."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledl.predictor.eta import EtaEstimator
from scaledl.predictor.size_course import SizeCourse
from scaledl.predictor.sizes import Bin, share_of
from scaledl.records import EpochRecord, Eta, Progress

EPOCH, EPOCHS = 200, 10
TOTAL = EPOCH * EPOCHS
PLACES = np.arange(EPOCH) / EPOCH
DOWN, UP = 4096 * 30**-PLACES, 4096 * 30 ** (PLACES - 1)


def shuffled(sizes: np.ndarray) -> np.ndarray:
    """Each epoch in an order of its own. Shapes: result [TOTAL]."""
    rng = np.random.default_rng(5)
    return np.concatenate([rng.permutation(sizes) for _ in range(EPOCHS)])


def buckets() -> np.ndarray:
    return shuffled(4096 * np.exp(np.random.default_rng(6).normal(0, 0.5, EPOCH)))


def walls_of(sizes: np.ndarray, share: float = 0.8, noise: float = 0.05, seed: int = 0):
    """Step times of a fixed part and a part in proportion. Shapes: result [steps]."""
    rng = np.random.default_rng(seed)
    costs = 1 - share + share * sizes / sizes.mean()
    return 0.5 * costs * np.exp(rng.normal(0, noise, len(sizes)))


def place(step: int, per_epoch: int = EPOCH) -> Progress:
    return Progress(
        step=step,
        epoch=step // per_epoch,
        step_in_epoch=step % per_epoch,
        total_steps=TOTAL,
        steps_per_epoch=per_epoch,
        num_epochs=TOTAL // per_epoch,
    )


def closed(epoch: int, num_steps: int) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        rank=0,
        first_step=epoch * num_steps,
        num_steps=num_steps,
        num_batches=num_steps,
        duration_s=1.0,
        train_s=1.0,
        at_s=0.0,
    )


def fed(
    sizes: np.ndarray, walls: np.ndarray, step: int, per_epoch: int = EPOCH, *, told: bool = True
) -> EtaEstimator:
    """An estimator that saw the first steps, and their sizes where ``told``."""
    estimator = EtaEstimator()
    for i in range(step):
        known = [float(sizes[i])] if told else []
        estimator.on_steps([float(walls[i])], i, i // per_epoch, known)
        if (i + 1) % per_epoch == 0:
            estimator.on_epoch(closed(i // per_epoch, per_epoch))
        if i % 50 == 0:
            estimator.estimate(place(i, per_epoch), float(walls[:i].sum()))
    return estimator


def eta_after(sizes, walls, step: int, per_epoch: int = EPOCH, *, told: bool = True) -> Eta:
    estimator = fed(sizes, walls, step, per_epoch, told=told)
    return estimator.estimate(place(step, per_epoch), float(walls[:step].sum()))


# --- sorted, bucketed, shuffled -------------------------------------------------------------------


@pytest.mark.parametrize("order", [DOWN, UP])
@pytest.mark.parametrize("step", [240, 500, 900])
def test_E24_inputs_sorted_in_each_epoch_are_right_once_an_epoch_was_seen(order, step):
    sizes = np.tile(order, EPOCHS)
    walls = walls_of(sizes)
    told = eta_after(sizes, walls, step).remaining_s
    blind = eta_after(sizes, walls, step, told=False).remaining_s
    truth_s = walls[step:].sum()
    assert told.mean == pytest.approx(truth_s, rel=0.05)
    assert truth_s in told
    assert abs(told.mean / truth_s - 1) < 0.3 * abs(blind.mean / truth_s - 1)


def test_E24_half_way_through_a_first_sorted_epoch_the_later_ones_are_taken_to_be_like_it():
    sizes = np.tile(DOWN, EPOCHS)
    walls = walls_of(sizes)
    eta = eta_after(sizes, walls, 100)
    blind = eta_after(sizes, walls, 100, told=False).remaining_s
    truth_s = walls[100:].sum()
    assert eta.remaining_s.mean == pytest.approx(truth_s, rel=0.1)
    assert truth_s in eta.remaining_s
    assert eta.basis == "extrapolated"
    assert blind.mean < 0.5 * truth_s


def test_E24_inputs_sorted_in_the_first_epoch_only_keep_the_epochs_total():
    sizes = np.concatenate([DOWN, shuffled(DOWN)[: TOTAL - EPOCH]])
    walls = walls_of(sizes)
    for step in (260, 500, 1100):
        left = eta_after(sizes, walls, step).remaining_s
        assert left.mean == pytest.approx(walls[step:].sum(), rel=0.05)
        assert walls[step:].sum() in left


def test_E22_buckets_in_random_order_are_no_noise_and_no_trend():
    sizes = buckets()
    walls = walls_of(sizes)
    for step in (250, 700, 1300):
        eta = eta_after(sizes, walls, step)
        assert eta.remaining_s.mean == pytest.approx(walls[step:].sum(), rel=0.05)
        assert walls[step:].sum() in eta.remaining_s
        assert eta.changed_because == ""


def test_E22_attention_that_grows_with_the_square_of_the_length_is_followed():
    sizes = np.tile(4096 * 4**-PLACES, EPOCHS)
    x = sizes / sizes.mean()
    walls = 0.3 * (0.1 + x + x**2) * np.exp(np.random.default_rng(0).normal(0, 0.05, TOTAL))
    for step in (300, 900):
        left = eta_after(sizes, walls, step).remaining_s
        assert left.mean == pytest.approx(walls[step:].sum(), rel=0.05)


# --- changes for good -----------------------------------------------------------------------------


def test_E22_a_larger_batch_is_followed_told_by_name_and_may_not_be_the_last():
    sizes = np.where(np.arange(TOTAL) < 1000, 512.0, 2048.0)
    walls = walls_of(sizes)
    told = eta_after(sizes, walls, 1020, TOTAL)
    blind = eta_after(sizes, walls, 1020, TOTAL, told=False)
    assert told.remaining_s.mean == pytest.approx(walls[1020:].sum(), rel=0.05)
    assert told.changed_because == "batches 300 % larger since step 1000"
    assert told.step_s.mean == pytest.approx(walls[1000:].mean(), rel=0.05)
    width, plain = (e.remaining_s.high - e.remaining_s.low for e in (told, blind))
    assert width > 2 * plain


def test_a_slower_machine_is_no_larger_batch():
    sizes = buckets()
    walls = walls_of(sizes)
    walls[1000:] *= 1.5
    eta = eta_after(sizes, walls, 1100)
    assert eta.remaining_s.mean == pytest.approx(walls[1100:].sum(), rel=0.05)
    assert " % slower since step " in eta_after(sizes, walls, 1040).changed_because


def test_epochs_that_grow_are_told_and_widen_the_interval():
    sizes = np.repeat(1000.0 + 300 * np.arange(EPOCHS), EPOCH)
    walls = walls_of(sizes)
    eta = eta_after(sizes, walls, 2 * EPOCH + 40)
    blind = eta_after(sizes, walls, 2 * EPOCH + 40, told=False)
    assert "larger since step 400" in eta.changed_because
    width, plain = (e.remaining_s.high - e.remaining_s.low for e in (eta, blind))
    assert width > plain


def test_E25_epochs_that_grow_steadily_are_followed_once_three_of_them_told_so():
    sizes = np.repeat(1000.0 + 200 * np.arange(EPOCHS), EPOCH)
    walls = walls_of(sizes)
    for step in (3 * EPOCH + 50, 5 * EPOCH + 50):
        told, blind = (eta_after(sizes, walls, step, told=t).remaining_s for t in (True, False))
        truth_s = walls[step:].sum()
        assert truth_s in told
        assert told.mean == pytest.approx(truth_s, rel=0.1)
        assert abs(told.mean - truth_s) < 0.5 * abs(blind.mean - truth_s)


# --- where sizes do not matter --------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [np.full(TOTAL, 512.0), buckets(), np.tile(DOWN, EPOCHS)])
def test_sizes_that_cost_nothing_change_nothing(sizes):
    walls = 0.5 * np.exp(np.random.default_rng(1).normal(0, 0.05, TOTAL))
    for step in (250, 900):
        told, blind = (eta_after(sizes, walls, step, told=t).remaining_s for t in (True, False))
        assert told.mean == pytest.approx(blind.mean, rel=1e-9)
        assert told.high == pytest.approx(blind.high, rel=1e-9)


def test_a_plan_of_the_users_goes_before_the_sizes():
    sizes = np.tile(DOWN, EPOCHS)
    walls = walls_of(sizes)

    def cost(done: float) -> float:
        return float(sizes[int(done * TOTAL)])

    planned = [EtaEstimator(), EtaEstimator()]
    for estimator, told in zip(planned, (True, False), strict=True):
        estimator.plan(cost, TOTAL)
        for i in range(500):
            estimator.on_steps([float(walls[i])], i, 0, [float(sizes[i])] if told else [])
    with_sizes, without = (e.estimate(place(500), 0.0).remaining_s for e in planned)
    assert with_sizes.mean == pytest.approx(without.mean)


def test_one_step_of_unknown_size_is_left_out_and_no_more():
    sizes = np.tile(UP, EPOCHS)
    walls = walls_of(sizes)
    sizes = np.where(np.arange(TOTAL) % 100 == 50, 0.0, sizes)
    left = eta_after(sizes, walls, 650).remaining_s
    assert 0 < left.mean < float("inf")


# --- state ----------------------------------------------------------------------------------------


def test_a_resumed_process_knows_what_a_size_costs_and_what_is_still_to_come():
    sizes = np.tile(DOWN, EPOCHS)
    walls = walls_of(sizes)
    saved = json.loads(json.dumps(fed(sizes, walls, 600).state_dict()))
    resumed = EtaEstimator()
    resumed.load_state_dict(saved)
    for i in range(600, 640):
        resumed.on_steps([float(walls[i])], i, i // EPOCH, [float(sizes[i])])
    left = resumed.estimate(place(640), 0.0).remaining_s
    assert left.mean == pytest.approx(walls[640:].sum(), rel=0.05)


def test_a_resume_inside_an_epoch_takes_its_end_for_no_epoch():
    sizes = np.tile(DOWN, EPOCHS)
    walls = walls_of(sizes)
    estimator = EtaEstimator()
    for i in range(150, EPOCH):
        estimator.on_steps([float(walls[i])], i, 0, [float(sizes[i])])
    record = closed(0, EPOCH)
    cut = EpochRecord(
        **{f: getattr(record, f) for f in ("epoch", "rank", "duration_s", "train_s", "at_s")},
        first_step=150,
        num_steps=50,
        num_batches=50,
    )
    estimator.on_epoch(cut)
    assert estimator._state.sizes.course.last is None


def test_memory_is_constant_whatever_sizes_come():
    estimator, rng, told = EtaEstimator(), np.random.default_rng(0), []
    for i in range(30):
        sizes = np.exp(rng.uniform(0, 20, 1000)).round() + 1
        estimator.on_steps((0.1 + 1e-9 * sizes).tolist(), 1000 * i, 0, sizes.tolist())
        told.append(len(json.dumps(estimator.state_dict())))
    assert max(told[10:]) < 1.2 * told[8]


# --- the parts ------------------------------------------------------------------------------------


@given(
    share=st.floats(0.05, 0.95),
    power=st.sampled_from([0.5, 1.0, 1.5, 2.0]),
    sizes=st.lists(st.integers(1, 400), min_size=6, max_size=30, unique=True),
)
@settings(max_examples=50, deadline=None)
def test_the_costs_of_a_fixed_part_and_a_power_of_the_size_are_found_again(share, power, sizes):
    x = np.asarray(sizes, dtype=float)
    walls = 1 - share + share * x**power / np.mean(x**power)
    bins = [
        Bin(place=i, size=s, count=5, walls_s=[w] * 5)
        for i, (s, w) in enumerate(zip(x.tolist(), walls.tolist(), strict=True))
    ]
    found = share_of(bins, power)
    if found is None:
        assert max(sizes) < 1.1 * min(sizes)
        return
    ratios = found.costs(x) / walls
    assert ratios.max() == pytest.approx(ratios.min(), rel=1e-6)


@given(
    sizes=st.lists(st.floats(0.1, 100), min_size=2, max_size=120),
    growth=st.floats(0.9, 1.3),
    stops=st.lists(st.integers(0, 400), min_size=3, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_sizes_ahead_are_positive_add_up_over_epochs_and_have_a_spread(sizes, growth, stops):
    course, epoch = SizeCourse(), np.asarray(sizes)
    for number in range(4):
        course.add(number * len(epoch), epoch * growth**number)
        course.close_epoch(len(epoch))
    start = 4 * len(epoch)
    a, b, c = sorted(start + stop for stop in stops)
    parts = course.ahead(a, b)[0] + course.ahead(b, c)[0]
    total, sd = course.ahead(a, c)
    assert total == pytest.approx(parts)
    assert total >= -1e-9
    assert sd >= 0
    again = course.ahead(start, start + len(epoch))[0]
    assert again == pytest.approx(growth**3 * epoch.sum(), rel=1e-6)
