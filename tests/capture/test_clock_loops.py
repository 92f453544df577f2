"""Ordinary and odd training loops: what is a step, an epoch, a phase."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import (
    BACKWARD_S,
    FETCH_S,
    FORWARD_S,
    OPTIMIZER_S,
    STEP_S,
    Collate,
    Points,
    SlowNet,
    Stream,
    VirtualTime,
    Watched,
    batches,
    evaluate,
    sgd,
    slow,
    train_step,
)
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.utils.data import DataLoader


@pytest.fixture(params=["direct", "held"], autouse=True)
def _border(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loop twice: the clock hears of events at once, or of most of them late."""
    monkeypatch.setattr(Watched, "holds", request.param == "held")


def _watched(**options: Any) -> tuple[VirtualTime, SlowNet, Watched]:
    time = VirtualTime()
    net = SlowNet(time)
    return time, net, Watched(net, time, **options)


def test_plain_loop_counts_steps_epochs_and_every_part():
    time, net, seen = _watched()
    loader, optimizer = batches(5, time), sgd(net, time)
    with seen:
        for _ in range(3):
            for x in loader:
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [5, 5, 5]
    assert seen.batches_by_epoch == [5, 5, 5]
    assert [e.complete for e in seen.epochs] == [True] * 3
    assert [e.num_samples for e in seen.epochs] == [10] * 3
    for step in seen.steps:
        assert step.wall_s == pytest.approx(STEP_S)
        assert step.input_wait_s == pytest.approx(FETCH_S)
        assert step.forward_s == pytest.approx(FORWARD_S)
        assert step.backward_s == pytest.approx(BACKWARD_S)
        assert step.optimizer_s == pytest.approx(OPTIMIZER_S)
        assert step.num_samples == 2
    assert [s.epoch for s in seen.steps] == [0] * 5 + [1] * 5 + [2] * 5
    assert seen.accounted_s == pytest.approx(time() - 1000.0)
    assert len([g for g in seen.guesses if g[0] == "epoch"]) >= 1


def test_set_up_before_the_loop_is_no_part_of_the_first_step():
    time, net, seen = _watched()
    with seen:
        loader, optimizer = batches(2, time), sgd(net, time)
        time.spend(77.0)
        for x in loader:
            train_step(net, optimizer, x)
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 2)


# --- accumulation and scaler ---------------------------------------------------------------------


def _accumulate(net: nn.Module, optimizer: Any, loader: Any, every: int) -> None:
    for index, x in enumerate(loader):
        net(x).sum().backward()
        if (index + 1) % every == 0 or index + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def test_E06_uneven_last_group_makes_steps_of_4_4_2():
    time, net, seen = _watched()
    loader, optimizer = batches(10, time), sgd(net, time)
    with seen:
        _accumulate(net, optimizer, loader, 4)
        after_one = seen.clock.progress(3, None)
        _accumulate(net, optimizer, loader, 4)
        _accumulate(net, optimizer, loader, 4)
    assert [s.num_micro_batches for s in seen.steps] == [4, 4, 2] * 3
    assert [s.num_samples for s in seen.steps] == [8, 8, 4] * 3
    assert seen.steps_by_epoch == [3, 3, 3]
    assert seen.batches_by_epoch == [10, 10, 10]
    assert after_one.steps_per_epoch == 3
    assert after_one.total_steps == 9


def test_E05_steps_per_epoch_given_as_len_of_loader_under_accumulation():
    time, net, seen = _watched(steps_per_epoch=20)
    loader, optimizer = batches(20, time), sgd(net, time)
    shares = []
    with seen:
        for _ in range(2):
            for index, x in enumerate(loader):
                net(x).sum().backward()
                if (index + 1) % 5 == 0:
                    optimizer.step()
                    progress = seen.clock.progress(2, None)
                    if progress.total_steps and progress.step > 1:
                        shares.append(progress.step / progress.total_steps)
    assert seen.steps_by_epoch == [4, 4]
    assert seen.clock.progress(2, None).total_steps == 8
    assert shares == sorted(shares)
    assert max(shares) <= 1.0


def test_batches_after_the_last_update_of_an_epoch_are_counted_there():
    time, net, seen = _watched()
    loader, optimizer = batches(10, time), sgd(net, time)
    with seen:
        for _ in range(2):
            for index, x in enumerate(loader):
                net(x).sum().backward()
                if (index + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    assert seen.steps_by_epoch == [2, 2]
    assert seen.batches_by_epoch == [10, 10]


def test_E08_scaler_skips_are_batches_but_no_updates():
    time, net, seen = _watched()
    loader, optimizer = batches(8, time), sgd(net, time)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with seen:
        for index, x in enumerate(loader):
            optimizer.zero_grad()
            scaler.scale(net(x).sum()).backward()
            if index % 2:
                next(net.parameters()).grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
    assert seen.steps_by_epoch == [4]
    assert seen.batches_by_epoch == [8]
    # an iteration without update belongs to the step that follows it
    assert [s.num_micro_batches for s in seen.steps] == [1, 2, 2, 2]
    progress = seen.clock.progress(4, None)
    assert progress.steps_per_epoch == 4


def test_E07_scheduler_called_four_times_counts_nothing():
    time, net, seen = _watched()
    loader, optimizer = batches(6, time), sgd(net, time)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    with seen:
        for x in loader:
            train_step(net, optimizer, x)
            for _ in range(4):
                scheduler.step()
    assert seen.clock.step == 6
    assert seen.clock.progress(2, None).total_steps == 12


# --- several optimizers --------------------------------------------------------------------------


def _gan(time: VirtualTime) -> tuple[SlowNet, SlowNet, Any, Any]:
    g, d = SlowNet(time), SlowNet(time)
    return g, d, sgd(g, time), sgd(d, time)


def _update_d(g: nn.Module, d: nn.Module, d_opt: Any, x: torch.Tensor) -> None:
    d_opt.zero_grad()
    (d(x).sum() - d(g(x).detach()).sum()).backward()
    d_opt.step()


def _update_g(g: nn.Module, d: nn.Module, g_opt: Any, x: torch.Tensor) -> None:
    g_opt.zero_grad()
    (-d(g(x)).sum()).backward()
    g_opt.step()


@pytest.mark.parametrize("tracked", ["list", "g", "d"])
def test_E09_two_optimizers_in_one_iteration_are_one_step(tracked: str):
    time = VirtualTime()
    g, d, g_opt, d_opt = _gan(time)
    model = {"list": nn.ModuleList([g, d]), "g": g, "d": d}[tracked]
    loader = batches(6, time)
    with Watched(model, time) as seen:
        for _ in range(2):
            for x in loader:
                _update_d(g, d, d_opt, x)
                _update_g(g, d, g_opt, x)
    assert seen.steps_by_epoch == [6, 6]
    assert seen.batches_by_epoch == [6, 6]
    assert seen.accounted_s == pytest.approx(seen.clock.boundary_s - 1000.0)


@pytest.mark.parametrize("tracked", ["list", "g", "d"])
def test_E09_five_d_updates_on_one_batch_are_one_step(tracked: str):
    time = VirtualTime()
    g, d, g_opt, d_opt = _gan(time)
    model = {"list": nn.ModuleList([g, d]), "g": g, "d": d}[tracked]
    with Watched(model, time) as seen:
        for _ in range(2):
            for x in batches(4, time):
                for _ in range(5):
                    _update_d(g, d, d_opt, x)
                _update_g(g, d, g_opt, x)
    assert seen.steps_by_epoch == [4, 4]
    assert seen.batches_by_epoch == [4, 4]


@pytest.mark.parametrize("tracked", ["list", "d"])
def test_E09_one_g_update_every_fifth_batch_keeps_a_step_per_batch(tracked: str):
    time = VirtualTime()
    g, d, g_opt, d_opt = _gan(time)
    model = {"list": nn.ModuleList([g, d]), "d": d}[tracked]
    with Watched(model, time) as seen:
        for _ in range(2):
            for index, x in enumerate(batches(10, time)):
                _update_d(g, d, d_opt, x)
                if index % 5 == 4:
                    _update_g(g, d, g_opt, x)
    assert seen.steps_by_epoch == [10, 10]
    assert seen.batches_by_epoch == [10, 10]


def test_E09_generator_alone_steps_at_its_own_updates_after_the_first():
    time = VirtualTime()
    g, d, g_opt, d_opt = _gan(time)
    with Watched(g, time) as seen:
        for _ in range(3):
            for index, x in enumerate(batches(10, time)):
                _update_d(g, d, d_opt, x)
                if index % 5 == 4:
                    _update_g(g, d, g_opt, x)
    assert seen.steps_by_epoch[1:] == [2, 2]
    assert seen.batches_by_epoch == [10, 10, 10]


class _Twice(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class _Zero(torch.optim.Optimizer):
    """Like ZeroRedundancyOptimizer: an optimizer around an optimizer, both with hooks."""

    def __init__(self, inner: torch.optim.Optimizer, time: VirtualTime) -> None:
        self.inner, self.time = inner, time
        super().__init__([p for g in inner.param_groups for p in g["params"]], {})

    def step(self, closure: Any = None) -> None:
        self.time.spend(0.25)
        self.inner.step()
        self.time.spend(0.5)


def test_subclass_that_calls_super_step_counts_once():
    time, net, seen = _watched()
    optimizer = _Twice(net.parameters(), lr=0.01)
    with seen:
        for x in batches(5, time):
            train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [5]


def test_nested_optimizers_count_once_and_their_time_once():
    time, net, seen = _watched()
    optimizer = _Zero(sgd(net, time), time)
    with seen:
        for x in batches(5, time):
            train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [5]
    assert [s.optimizer_s for s in seen.steps] == pytest.approx([1.75] * 5)


@pytest.mark.parametrize("num_layers", [2, 25])
def test_optimizer_in_backward_counts_once_a_step(num_layers: int):
    time = VirtualTime()
    net = SlowNet(time, num_layers=num_layers)
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.001})
    for parameter in net.parameters():
        for optimizer in parameter._in_backward_optimizers:
            slow(optimizer, time, 0.125)
    with Watched(net, time) as seen:
        for _ in range(2):
            for x in batches(4, time):
                net(x).sum().backward()
    assert seen.steps_by_epoch == [4, 4]
    updates_s = 2 * num_layers * 0.125
    for step in seen.steps:
        parts_s = step.input_wait_s + step.forward_s + step.backward_s + step.optimizer_s
        assert parts_s <= step.wall_s + 1e-9
        assert step.wall_s == pytest.approx(FETCH_S + FORWARD_S + BACKWARD_S + updates_s)


def test_lbfgs_closure_counts_once_and_parts_stay_within_the_step():
    time, net, seen = _watched()
    optimizer = slow(torch.optim.LBFGS(net.parameters(), lr=1e-4, max_iter=3), time)
    with seen:
        for x in batches(4, time):

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = net(x).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)
    assert seen.steps_by_epoch == [4]
    for step in seen.steps:
        assert step.num_micro_batches > 1
        parts_s = step.input_wait_s + step.forward_s + step.backward_s + step.optimizer_s
        assert parts_s <= step.wall_s + 1e-9


def test_optimizer_that_raises_leaves_later_steps_right():
    time, net, seen = _watched()
    optimizer = sgd(net, time)

    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("no")

    broken = Broken(net.parameters(), lr=0.1)
    with seen:
        for index, x in enumerate(batches(40, time)):
            if index % 2 == 0:
                with pytest.raises(RuntimeError):
                    broken.step()
            train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [40]
    assert [s.optimizer_s for s in seen.steps] == pytest.approx([OPTIMIZER_S] * 40)


def test_two_models_with_an_optimizer_each_are_counted_apart():
    time = VirtualTime()
    one, two = SlowNet(time), SlowNet(time)
    opt_one, opt_two = sgd(one, time), sgd(two, time)
    loader = batches(4, time)
    with Watched(one, time) as seen_one, Watched(two, time) as seen_two:
        for _ in range(2):
            for index, x in enumerate(loader):
                train_step(one, opt_one, x)
                if index % 2:
                    train_step(two, opt_two, x)
    assert seen_one.steps_by_epoch == [4, 4]
    assert seen_two.steps_by_epoch == [2, 2]
    assert seen_two.batches_by_epoch == [4, 4]


def test_another_models_training_first_is_not_counted():
    time = VirtualTime()
    first, net = SlowNet(time), SlowNet(time)
    first_opt, optimizer = sgd(first, time), sgd(net, time)
    with Watched(net, time) as seen:
        for x in batches(3, time):
            net(x)  # a frozen feature extractor here
            train_step(first, first_opt, x)
        for x in batches(5, time):
            train_step(net, optimizer, x)
    assert sum(seen.steps_by_epoch[-1:]) == 5


def test_fp32_master_copies_still_make_steps():
    time, net, seen = _watched()
    masters = [p.detach().clone() for p in net.parameters()]
    optimizer = slow(torch.optim.SGD(masters, lr=0.01), time)
    with seen:
        for x in batches(4, time):
            net(x).sum().backward()
            for master, p in zip(masters, net.parameters(), strict=True):
                master.grad, p.grad = p.grad, None
            optimizer.step()
    assert seen.steps_by_epoch == [4]


# --- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("says", [None, 5, 13])
def test_E10_E11_iterable_of_no_or_lying_length_learns_from_the_first_epoch(says: int | None):
    time, net, seen = _watched()
    loader = DataLoader(Stream(26, says), batch_size=2, collate_fn=Collate(time))
    optimizer = sgd(net, time)
    before = []
    with seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the lie itself
        for epoch in range(2):
            for x in loader:
                train_step(net, optimizer, x)
                if epoch == 0:
                    before.append(seen.clock.progress(2, None).total_steps)
    assert seen.steps_by_epoch == [13, 13]
    assert seen.clock.progress(2, None).total_steps == 26
    if says is None:
        assert before == [None] * 13
    elif says == 5:
        assert before[-1] is None, "more came than it said: the total is unknown"


def test_E11_length_that_ignores_the_workers_is_corrected():
    time, net, seen = _watched()
    loader = DataLoader(Stream(4, 4), batch_size=1, num_workers=2)
    optimizer = sgd(net, time)
    with seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in loader:
            train_step(net, optimizer, x)
    assert seen.batches_by_epoch == [8]
    assert seen.clock.progress(2, None).total_steps == 16


def test_E12_the_earlier_of_epochs_and_total_steps_rules_and_is_named():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        for x in batches(100, time):
            train_step(net, optimizer, x)
            if seen.clock.step == 5:
                break
        early, late = seen.clock.progress(20, 50), seen.clock.progress(20, 5000)
    assert (early.total_steps, early.limited_by) == (50, "total_steps")
    assert (late.total_steps, late.limited_by) == (2000, "epochs")


@pytest.mark.parametrize("given", [None, 10])
def test_E01_resume_places_the_epoch_with_and_without_a_given_length(given: int | None):
    time, net, seen = _watched(initial_step=25, steps_per_epoch=given)
    loader, optimizer = batches(10, time), sgd(net, time)
    with seen:
        for x in loader:
            train_step(net, optimizer, x)
            if seen.clock.step == 27:
                progress = seen.clock.progress(4, None)
                break
    assert (progress.first_step, progress.step) == (25, 27)
    assert (progress.epoch, progress.step_in_epoch) == (2, 7)
    assert progress.total_steps == 40
    assert [s.step for s in seen.steps] == [26, 27, 28]
    assert [s.epoch for s in seen.steps][1:] == [2, 2]


def test_E01_resume_with_unknown_length_counts_on():
    time, net, seen = _watched(initial_step=900)
    optimizer = sgd(net, time)
    with seen:
        for x in DataLoader(Stream(20), batch_size=2, collate_fn=Collate(time)):
            train_step(net, optimizer, x)
        progress = seen.clock.progress(None, 1000)
    assert (progress.first_step, progress.total_steps) == (900, 1000)
    assert seen.clock.step == 910


def test_E01_resume_believes_the_loader_more_than_a_given_length():
    time, net, seen = _watched(initial_step=10, steps_per_epoch=20)
    loader, optimizer = batches(20, time), sgd(net, time)
    with seen:
        for index, x in enumerate(loader):
            net(x).sum().backward()
            if (index + 1) % 5 == 0:
                optimizer.step()
                optimizer.zero_grad()
        progress = seen.clock.progress(5, None)
    assert (progress.epoch, progress.total_steps) == (2, 20)


def test_steps_per_epoch_below_the_loaders_length_is_believed():
    time, net, seen = _watched(steps_per_epoch=6)
    loader, optimizer = batches(20, time), sgd(net, time)
    totals = []
    with seen:
        for _ in range(3):
            for x in itertools.islice(loader, 6):
                train_step(net, optimizer, x)
                totals.append(seen.clock.progress(3, None).total_steps)
    assert seen.steps_by_epoch == [6, 6, 6]
    assert [e.complete for e in seen.epochs] == [True] * 3
    assert totals[1:] == [18] * 17


def test_steps_per_epoch_without_any_loader_makes_epochs():
    time, net, seen = _watched(steps_per_epoch=4)
    optimizer = sgd(net, time)
    data = [torch.ones(2, 3) for _ in range(8)]
    with seen:
        for x in data:
            train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [4, 4]
    assert [e.complete for e in seen.epochs] == [True, True]
    assert [s.epoch for s in seen.steps] == [0] * 4 + [1] * 4


def test_repeated_breaks_at_one_step_teach_the_length_of_an_epoch():
    time, net, seen = _watched()
    loader, optimizer = batches(50, time), sgd(net, time)
    with seen:
        for _ in range(4):
            for index, x in enumerate(loader):
                train_step(net, optimizer, x)
                if index == 6:
                    break
        assert seen.clock.progress(5, None).total_steps == 35
    assert seen.steps_by_epoch == [7] * 4


# --- evaluation ----------------------------------------------------------------------------------


def test_E20_evaluation_inside_the_epoch_is_a_phase_and_no_slow_step():
    time, net, seen = _watched()
    loader, optimizer = batches(9, time), sgd(net, time)
    held_out = [batches(4, time), batches(2, time)]
    with seen:
        for _ in range(2):
            for index, x in enumerate(loader):
                train_step(net, optimizer, x)
                if index % 3 == 2:
                    for one in held_out:
                        evaluate(net, one)
    assert seen.steps_by_epoch == [9, 9]
    assert seen.batches_by_epoch == [9, 9]
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 18)
    assert {p.kind for p in seen.phases} == {"eval"}
    assert sum(p.duration_s for p in seen.phases) == pytest.approx(6 * 6 * (FETCH_S + FORWARD_S))
    assert seen.accounted_s == pytest.approx(time() - 1000.0)
    assert {p.after_step for p in seen.phases} == {3, 6, 9, 12, 15, 18}


@pytest.mark.parametrize("same", [True, False])
def test_evaluation_after_the_epoch_is_a_phase_also_on_the_training_loader(same: bool):
    time, net, seen = _watched()
    loader, optimizer = batches(5, time), sgd(net, time)
    held_out = loader if same else batches(5, time)
    with seen:
        for _ in range(3):
            for x in loader:
                train_step(net, optimizer, x)
            evaluate(net, held_out)
    assert seen.steps_by_epoch == [5, 5, 5]
    assert seen.batches_by_epoch == [5, 5, 5]
    assert len(seen.phases) == 3
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 15)
    assert [e.train_s for e in seen.epochs] == pytest.approx([5 * STEP_S] * 3)
    assert seen.accounted_s == pytest.approx(time() - 1000.0)


def test_evaluation_before_training_is_a_phase_and_no_epoch():
    time, net, seen = _watched()
    loader, optimizer = batches(5, time), sgd(net, time)
    held_out = batches(3, time)
    with seen:
        evaluate(net, held_out)
        for _ in range(2):
            for x in loader:
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [5, 5]
    assert [p.after_step for p in seen.phases] == [0]
    assert [e.train_s for e in seen.epochs] == pytest.approx([5 * STEP_S] * 2)


def test_evaluation_that_forgets_eval_mode_is_still_a_phase():
    time, net, seen = _watched()
    loader, optimizer = batches(6, time), sgd(net, time)
    held_out = batches(3, time)
    with seen:
        for _ in range(2):
            for index, x in enumerate(loader):
                train_step(net, optimizer, x)
                if index % 2:
                    with torch.no_grad():
                        for y in held_out:
                            net(y)
    assert seen.steps_by_epoch == [6, 6]
    assert seen.batches_by_epoch == [6, 6]
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 12)
    assert sum(p.duration_s for p in seen.phases) == pytest.approx(6 * 3 * (FETCH_S + FORWARD_S))


@pytest.mark.parametrize("ends", ["all", "break"])
@pytest.mark.parametrize("inside", [True, False])
def test_evaluation_of_a_module_inside_a_wrapper_is_a_phase_and_no_slow_step(
    inside: bool, ends: str
):
    time, net, seen = _watched()
    inner = SlowNet(time)  # stands for ``model.module``: no sensor sits on it
    loader, optimizer = batches(6, time), sgd(net, time)
    held_out = batches(5, time)

    def evaluate_inner() -> None:
        with torch.no_grad():
            for index, y in enumerate(held_out):
                if ends == "break" and index == 4:
                    break
                inner(y)

    with seen:
        for _ in range(3):
            for index, x in enumerate(loader):
                train_step(net, optimizer, x)
                if inside and index == 3:
                    evaluate_inner()
            if not inside:
                evaluate_inner()
    assert seen.steps_by_epoch == [6, 6, 6]
    assert seen.batches_by_epoch == [6, 6, 6]
    last = 0 if inside or ends == "all" else 1  # what is broken off last has no end
    assert [p.kind for p in seen.phases] == ["eval"] * (3 - last)
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 18)
    assert [e.train_s for e in seen.epochs] == pytest.approx([6 * STEP_S] * 3)


def test_evaluation_with_the_wrapper_in_training_mode_is_a_phase():
    time, net, seen = _watched()
    loader, optimizer = batches(6, time), sgd(net, time)
    held_out = batches(5, time)
    with seen:
        for _ in range(3):
            for x in loader:
                train_step(net, optimizer, x)
            with torch.no_grad():
                for y in held_out:
                    net(y)
    assert seen.steps_by_epoch == [6, 6, 6]
    assert len(seen.phases) == 3
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 18)


def test_a_second_loader_that_trains_beside_the_first_is_no_evaluation():
    time, net, seen = _watched()
    loader, optimizer, other = batches(6, time), sgd(net, time), batches(6, time)
    with seen:
        for _ in range(2):
            for x, _y in zip(loader, other, strict=True):
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [6, 6]
    assert seen.phases == []


def test_training_in_eval_mode_is_training_and_its_evaluation_a_phase():
    time, net, seen = _watched()
    loader, optimizer = batches(5, time), sgd(net, time)
    held_out = batches(3, time)
    net.eval()
    with seen:
        for _ in range(2):
            for x in loader:
                train_step(net, optimizer, x)
            with torch.no_grad():
                for x in held_out:
                    net(x)
    assert seen.steps_by_epoch == [5, 5]
    assert seen.batches_by_epoch == [5, 5]
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 10)
    assert [s.backward_s for s in seen.steps[1:]] == pytest.approx([BACKWARD_S] * 9)
    assert len(seen.phases) == 2
    assert seen.accounted_s == pytest.approx(time() - 1000.0)


def test_gradients_taken_in_an_evaluation_make_it_no_training():
    time, net, seen = _watched()
    loader, optimizer = batches(4, time), sgd(net, time)
    held_out = batches(3, time)
    with seen:
        for _ in range(2):
            for x in loader:
                train_step(net, optimizer, x)
            net.eval()
            for x in held_out:  # an attack on the input
                net(x.requires_grad_()).sum().backward()
            net.train()
    assert seen.steps_by_epoch == [4, 4]
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 8)
    assert [s.backward_s for s in seen.steps] == pytest.approx([BACKWARD_S] * 8)
    assert len(seen.phases) == 2


def test_evaluation_on_a_list_inside_the_first_step_leaves_the_training_pass_alone():
    time, net, seen = _watched()
    loader, optimizer = batches(6, time), sgd(net, time)
    with seen:
        for index, x in enumerate(loader):
            if index == 1:
                evaluate(net, [torch.ones(2, 3)] * 2)
            net(x).sum().backward()
            if index % 3 == 2:
                optimizer.step()
    assert seen.steps_by_epoch == [2]
    assert seen.batches_by_epoch == [6]
    assert [p.duration_s for p in seen.phases] == pytest.approx([2 * FORWARD_S])


def test_pseudo_labels_on_the_training_batch_are_a_phase_and_the_pass_still_trains():
    time, net, seen = _watched()
    loader, optimizer = batches(4, time), sgd(net, time)
    with seen:
        for _ in range(2):
            for x in loader:
                net.eval()
                with torch.no_grad():
                    net(x)
                net.train()
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [4, 4]
    assert seen.batches_by_epoch == [4, 4]
    assert sum(p.duration_s for p in seen.phases) >= 8 * FORWARD_S
    assert seen.accounted_s == pytest.approx(time() - 1000.0)


def test_data_of_evaluation_never_shift_into_the_input_wait_of_training():
    time, net, seen = _watched()
    loader, optimizer = batches(4, time), sgd(net, time)
    held_out = batches(30, time)
    with seen:
        for x in loader:
            train_step(net, optimizer, x)
            evaluate(net, held_out)
    assert [s.input_wait_s for s in seen.steps] == pytest.approx([FETCH_S] * 4)


def test_named_phase_and_pause_are_no_part_of_a_step():
    time, net, seen = _watched()
    loader, optimizer = batches(4, time), sgd(net, time)
    with seen:
        for x in loader:
            seen.clock.on_phase_start("rollout", time())
            time.spend(10.0)
            seen.clock.on_phase_end(time())
            train_step(net, optimizer, x)
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 4)
    assert [(p.kind, p.duration_s) for p in seen.phases] == [("rollout", 10.0)] * 4
    assert seen.epochs[0].train_s == pytest.approx(4 * STEP_S)
    assert seen.epochs[0].duration_s == pytest.approx(4 * (STEP_S + 10.0))


def test_batch_fetched_inside_a_phase_is_no_input_wait_of_the_step():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        fetcher = iter(batches(4, time))
        for _ in range(4):
            seen.clock.on_phase_start("rollout", time())
            x = next(fetcher)
            seen.clock.on_phase_end(time())
            train_step(net, optimizer, x)
    assert [s.input_wait_s for s in seen.steps] == [0.0] * 4
    assert seen.batches_by_epoch == [4]
    assert seen.accounted_s == pytest.approx(time() - 1000.0)


def test_pause_inside_a_phase_belongs_to_the_phase():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        for x in batches(2, time):
            seen.clock.on_phase_start("eval", time())
            time.spend(1.0)
            seen.clock.on_phase_start("paused", time())
            time.spend(2.0)
            seen.clock.on_phase_end(time())
            time.spend(4.0)
            seen.clock.on_phase_end(time())
            train_step(net, optimizer, x)
    assert [s.wall_s for s in seen.steps] == pytest.approx([STEP_S] * 2)
    assert [(p.kind, p.duration_s) for p in seen.phases] == [("eval", 7.0)] * 2


def test_checkpoint_pause_stays_in_the_time_of_one_step():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        for index, x in enumerate(batches(6, time)):
            train_step(net, optimizer, x)
            if index == 2:
                time.spend(30.0)
    slow_steps = [s for s in seen.steps if s.wall_s > STEP_S + 1]
    assert len(slow_steps) == 1
    assert slow_steps[0].wall_s == pytest.approx(STEP_S + 30.0)
    assert slow_steps[0].input_wait_s == pytest.approx(FETCH_S)


# --- prefetch ------------------------------------------------------------------------------------


def _prefetching(loader: Any) -> Any:
    """One batch ahead, as Accelerate's loader: the data end before the last batch is used."""
    iterator = iter(loader)
    current = next(iterator)
    while True:
        try:
            following = next(iterator)
        except StopIteration:
            yield current
            return
        yield current
        current = following


@pytest.mark.parametrize("every", [1, 2, 4])
def test_prefetching_trainer_ends_the_epoch_after_its_last_steps(every: int):
    time, net, seen = _watched()
    loader, optimizer = batches(8, time), sgd(net, time)
    held_out = batches(2, time)
    with seen:
        for _ in range(2):
            for index, x in enumerate(_prefetching(loader)):
                net(x).sum().backward()
                if (index + 1) % every == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            evaluate(net, _prefetching(held_out))
    assert seen.steps_by_epoch == [8 // every] * 2
    assert seen.batches_by_epoch == [8, 8]
    assert [e.complete for e in seen.epochs] == [True, True]
    assert len(seen.phases) == 2


@pytest.mark.slow
def test_hugging_face_trainer_is_seen_step_by_step(tmp_path: Path):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    class Labelled(Points):
        def __getitem__(self, index: int) -> Any:
            x = super().__getitem__(index)
            return {"x": x, "labels": x}

    class Net(SlowNet):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            scores = super().forward(x)
            return {"loss": (scores - labels).square().mean(), "logits": scores}

    time = VirtualTime()
    net = Net(time)
    arguments = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=3,
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=net, args=arguments, train_dataset=Labelled(20), eval_dataset=Labelled(6)
    )
    with Watched(net, time) as seen:
        trainer.train()
    assert trainer.state.global_step == seen.clock.step == 8
    assert seen.steps_by_epoch == [4, 4]
    assert seen.batches_by_epoch == [10, 10]
    assert [s.num_micro_batches for s in seen.steps] == [3, 3, 3, 1] * 2
    assert [(p.kind, p.after_step) for p in seen.phases] == [("eval", 4), ("eval", 8)]
    assert sum(p.duration_s for p in seen.phases) == pytest.approx(6 * FORWARD_S)
    assert sum(s.wall_s for s in seen.steps) == pytest.approx(20 * (FORWARD_S + BACKWARD_S))


# --- loaders in odd places -----------------------------------------------------------------------


def test_exception_and_break_start_a_new_epoch_each():
    time, net, seen = _watched()
    loader, optimizer = batches(6, time), sgd(net, time)
    with seen:
        try:
            for index, x in enumerate(loader):
                train_step(net, optimizer, x)
                if index == 1:
                    raise KeyError("user")
        except KeyError:
            pass
        for index, x in enumerate(loader):
            train_step(net, optimizer, x)
            if index == 2:
                break
        for x in loader:
            train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [2, 3, 6]
    assert [e.complete for e in seen.epochs] == [False, False, True]
    assert seen.clock.progress(4, None).steps_per_epoch == 6


def test_exception_out_of_the_block_closes_the_running_epoch():
    time, net, seen = _watched()
    optimizer = sgd(net, time)

    def train() -> None:
        with seen:
            for index, x in enumerate(batches(6, time)):
                train_step(net, optimizer, x)
                if index == 1:
                    raise KeyError("user")

    with pytest.raises(KeyError):
        train()
    assert seen.steps_by_epoch == [2]
    assert seen.epochs[0].complete is False


def test_list_of_tensors_makes_steps_and_one_epoch():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        for x in [torch.ones(2, 3)] * 5:
            time.spend(FETCH_S)
            train_step(net, optimizer, x)
    assert seen.clock.step == 5
    assert [s.wall_s for s in seen.steps][1:] == pytest.approx([STEP_S] * 4)
    assert seen.steps_by_epoch == [5]


@pytest.mark.parametrize("keep", [True, False])
def test_first_batch_peeked_before_training_is_no_epoch(keep: bool):
    time, net, seen = _watched()
    loader, optimizer = batches(4, time), sgd(net, time)
    with seen:
        peek = iter(loader)
        next(peek)
        if not keep:
            del peek
        for _ in range(2):
            for x in loader:
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [4, 4]
    assert seen.batches_by_epoch[1] == 4


def test_steps_on_one_kept_batch_are_all_counted():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        iterator = iter(batches(4, time))
        x = next(iterator)
        for _ in range(100):
            train_step(net, optimizer, x)
    assert seen.clock.step == 100


def test_persistent_workers_make_an_epoch_of_every_pass():
    time, net, seen = _watched()
    loader = batches(4, None, num_workers=1, persistent_workers=True)
    optimizer = sgd(net, time)
    with seen:
        for _ in range(3):
            for x in loader:
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [4, 4, 4]
    assert [e.complete for e in seen.epochs] == [True] * 3


@pytest.mark.parametrize(("first", "second"), [(5, 5), (5, 8), (8, 5)])
def test_zipped_loaders_make_an_epoch_of_the_shorter(first: int, second: int):
    time, net, seen = _watched()
    one, two = batches(first, time), batches(second, time)
    optimizer = sgd(net, time)
    with seen:
        for _ in range(4):
            for x, y in zip(one, two, strict=False):
                train_step(net, optimizer, x + y)
        total = seen.clock.progress(4, None).total_steps
    assert seen.steps_by_epoch == [5] * 4
    assert total == 20
    assert [e.complete for e in seen.epochs] == [True] * 4


def test_cycled_shorter_loader_does_not_end_the_epoch():
    time, net, seen = _watched()
    long, short = batches(7, time), batches(3, time)
    optimizer = sgd(net, time)

    def endless() -> Any:
        while True:
            yield from short

    with seen:
        for _ in range(2):
            for x, y in zip(long, endless(), strict=False):
                train_step(net, optimizer, x + y)
    assert seen.steps_by_epoch == [7, 7]
    assert seen.batches_by_epoch == [7, 7]


def test_iterator_refilled_by_hand_makes_an_epoch_of_every_pass():
    time, net, seen = _watched()
    loader, optimizer = batches(4, time), sgd(net, time)
    with seen:
        iterator = iter(loader)
        for _ in range(10):
            try:
                x = next(iterator)
            except StopIteration:
                iterator = iter(loader)
                x = next(iterator)
            train_step(net, optimizer, x)
        progress = seen.clock.progress(None, 10)
    assert seen.steps_by_epoch == [4, 4, 2]
    assert progress.total_steps == 10


def test_named_loader_feeds_although_another_yields_first():
    time = VirtualTime()
    net = SlowNet(time)
    aside, loader = batches(9, time), batches(4, time)
    optimizer = sgd(net, time)
    with Watched(net, time, loader_key=id(loader)) as seen:
        for _ in range(2):
            other = iter(aside)
            for x in loader:
                train_step(net, optimizer, x + next(other))
    assert seen.steps_by_epoch == [4, 4]
    assert seen.clock.progress(2, None).steps_per_epoch == 4


def test_explicit_loader_makes_epochs_of_any_iterable():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    data = [torch.ones(2, 3)] * 6
    with seen:
        for _ in range(2):
            for x in seen.loader(data):
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [6, 6]
    assert [s.num_samples for s in seen.steps] == [2] * 12
    assert len(seen.loader(data)) == 6


def test_explicit_loader_around_a_dataloader_reports_one_pass():
    time, net, seen = _watched()
    loader, optimizer = batches(6, time), sgd(net, time)
    with seen:
        for _ in range(2):
            for x in seen.loader(y * 2 for y in loader):
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [6, 6]
    assert seen.batches_by_epoch == [6, 6]


def test_manual_steps_count_alone_once_called():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        for index, x in enumerate(batches(6, time)):
            train_step(net, optimizer, x)
            if index % 2:
                seen.clock.on_manual_step(time())
    assert seen.clock.step in (3, 4)  # the first optimizer call came before the first run.step()
    assert [g[0] for g in seen.guesses].count("steps") == 1
    assert seen.batches_by_epoch == [6]


def test_manual_epoch_end_rules_over_the_loaders_passes():
    time, net, seen = _watched()
    loader, optimizer = batches(3, time), sgd(net, time)
    with seen:
        for _ in range(3):
            for _ in range(2):
                for x in loader:
                    train_step(net, optimizer, x)
            seen.clock.on_manual_epoch(time())
    # the loader's first pass had closed before the user told otherwise
    assert seen.steps_by_epoch == [3, 3, 6, 6]
    assert [e.train_s for e in seen.epochs[2:]] == pytest.approx([6 * STEP_S] * 2)
    assert [e.complete for e in seen.epochs] == [True] * 4
    assert seen.clock.progress(5, None).steps_per_epoch == 6


def test_new_pass_for_every_step_is_no_epoch_each():
    time, net, seen = _watched()
    loader, optimizer = batches(5, time), sgd(net, time)
    with seen:
        for _ in range(12):
            train_step(net, optimizer, next(iter(loader)))
        assert seen.clock.progress(4, None).total_steps == 20
    assert seen.steps_by_epoch == [5, 5, 2]
    assert [e.complete for e in seen.epochs] == [True, True, False]


@pytest.mark.parametrize("keep", [True, False])
def test_batch_of_another_loader_kept_before_training_is_no_epoch(keep: bool):
    time, net, seen = _watched()
    loader, optimizer = batches(4, time), sgd(net, time)
    with seen:
        shown = iter(batches(9, time))
        next(shown)
        if not keep:
            del shown
        for _ in range(2):
            for x in loader:
                train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [4, 4]
    assert seen.batches_by_epoch == [4, 4]


def test_dataloader_is_as_before_when_listeners_overlap_in_any_order():
    original = DataLoader.__dict__["__iter__"]
    time = VirtualTime()
    for order in ([0, 1], [1, 0]):
        two = [Watched(SlowNet(time), time) for _ in range(2)]
        for one in two:
            one.__enter__()
        assert DataLoader.__dict__["__iter__"] is not original
        two[order[0]].__exit__()
        assert DataLoader.__dict__["__iter__"] is not original
        two[order[1]].__exit__()
        assert DataLoader.__dict__["__iter__"] is original


def test_patch_of_somebody_else_over_ours_survives_and_passes_calls_on():
    original = DataLoader.__dict__["__iter__"]
    time, _, seen = _watched()
    try:
        with seen:
            ours = DataLoader.__iter__
            calls = []

            def theirs(self: Any) -> Any:
                calls.append(1)
                return ours(self)

            DataLoader.__iter__ = theirs
        assert DataLoader.__dict__["__iter__"] is theirs
        assert len(list(batches(3, time))) == 3
        assert calls == [1]
        assert seen.steps == []
    finally:
        DataLoader.__iter__ = original


def test_iterator_of_a_loader_keeps_its_own_attributes_and_length():
    time, _, seen = _watched()
    with seen:
        iterator = iter(batches(3, time))
        assert len(iterator) == 3
        assert iterator._num_yielded == 0
        assert iter(iterator) is iterator


def test_training_with_dynamic_batch_sampler_tells_the_true_samples_of_the_epoch():
    time, net, seen = _watched()
    groups = [[0, 1], [2, 3, 4], [5]]
    loader = DataLoader(Points(6), batch_sampler=groups, collate_fn=Collate(time))
    optimizer = sgd(net, time)
    with seen:
        for x in loader:
            train_step(net, optimizer, x)
    assert seen.steps_by_epoch == [3]
    assert seen.epochs[0].num_batches == 3


def test_a_phase_after_the_last_epoch_is_in_its_duration_and_not_in_its_training():
    time, net, seen = _watched()
    optimizer = sgd(net, time)
    with seen:
        loader = seen.loader(list(batches(4, time)))
        for _ in range(2):
            for x in loader:
                train_step(net, optimizer, x)
            seen.clock.on_phase_start("eval", time())
            time.spend(100.0)
            seen.clock.on_phase_end(time())
    first, last = seen.epochs
    assert first.train_s == pytest.approx(last.train_s)
    assert first.duration_s == pytest.approx(last.duration_s)
    assert last.duration_s == pytest.approx(last.train_s + 100.0)
