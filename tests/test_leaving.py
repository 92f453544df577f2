"""Entering and leaving a block: what is interrupted, forked or let go leaves nothing behind."""

import contextlib
import copy
import gc
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.autograd.profiler as entry_points
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader

import scaledl
from scaledl import tracker
from scaledl.capture import loaders
from scaledl.capture.guard import GUARD
from scaledl.errors import UsageError
from scaledl.records import RunEnd
from scaledl.store import read_lines

PACKAGE = os.path.dirname(scaledl.__file__)
# Their lines hold the blocks that clean up: an interruption is aimed at what they run.
CLEANERS = ("errors.py", "tracker.py")


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def make_loader(num_batches: int = 12) -> "DataLoader[Any]":
    return DataLoader(torch.randn(4 * num_batches, 4), batch_size=4)  # type: ignore[arg-type]


def train(model: nn.Module, loader: "DataLoader[Any]", epochs: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


_before: list[object] = []


@pytest.fixture(autouse=True)
def what_was_there_before() -> None:
    """Tests that make ``stop`` fail leave something on purpose."""
    _before[:] = []
    _before[:] = leftovers(nn.Module())


def leftovers(model: nn.Module) -> list[object]:
    """All that a block may have left on the model, in torch and in the process."""
    found: list[object] = []
    for module in model.modules():
        found += [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    found += [*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values()]
    found += [x for x in (DataLoader.__iter__, entry_points._enable_profiler) if is_wrapped(x)]
    found += [t for t in threading.enumerate() if t.name.startswith("scaledl") and t.is_alive()]
    found += [*loaders._watch.listeners, *GUARD._users, *tracker._open.values()]
    return [x for x in found if x not in _before]


def is_wrapped(function: Any) -> bool:
    return hasattr(function, "__wrapped__")


class Interruption:
    """Raises ``KeyboardInterrupt`` at the n-th line of the package that runs after ``arm``."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.num_lines = 0

    def arm(self) -> None:
        sys.settrace(self._trace)

    def disarm(self) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or os.path.basename(file) in CLEANERS:
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.at:
                self.disarm()
                raise KeyboardInterrupt
        return self._trace


@pytest.fixture
def interruption() -> Iterator[Callable[[int], Interruption]]:
    yield Interruption
    sys.settrace(None)


def enter_interrupted(model: nn.Module, at: Interruption, folder: Path) -> None:
    run = scaledl.track(model, report="none", run_dir=folder)
    at.arm()
    try:
        run.__enter__()
    finally:
        at.disarm()
    run.__exit__(None, None, None)


def leave_interrupted(model: nn.Module, at: Interruption, folder: Path) -> None:
    run = scaledl.track(model, report="none", run_dir=folder, epochs=1)
    run.__enter__()
    train(model, make_loader())
    at.arm()
    try:
        run.__exit__(None, None, None)
    finally:
        at.disarm()


@pytest.mark.parametrize("act", [enter_interrupted, leave_interrupted])
def test_ctrl_c_at_any_moment_of_entering_or_leaving_leaves_nothing_behind(
    act: Callable[..., None], interruption: Callable[[int], Interruption], tmp_path: Path
) -> None:
    never = interruption(-1)
    act(make_model(), never, tmp_path)
    assert never.num_lines > 100
    for at in range(1, never.num_lines, max(1, never.num_lines // 60)):
        model = make_model()
        with pytest.raises(KeyboardInterrupt):
            act(model, interruption(at), tmp_path)
        assert leftovers(model) == [], f"interrupted at line {at}"
    with scaledl.track(model, report="none", run_dir=tmp_path) as run:  # and works again
        train(model, make_loader())
    assert run.status()["step"] == 12


def test_the_model_is_freed_after_the_block_though_the_run_is_kept(tmp_path: Path) -> None:
    model = make_model()
    gone = weakref.ref(model)
    with scaledl.track(model, report="none", run_dir=tmp_path, epochs=1) as run:
        train(model, make_loader())
    assert run.what_if([1, 2]).rows
    del model
    gc.collect()
    assert gone() is None
    assert run.status()["step"] == 12
    assert [row.num_gpus for row in run.what_if([1, 2]).rows] == [1, 2]
    with pytest.raises(UsageError, match=r"model of this track\(\) is gone"):
        run.__enter__()


def test_a_block_can_be_entered_again_while_its_model_lives(tmp_path: Path) -> None:
    model = make_model()
    run = scaledl.track(model, report="none", run_dir=tmp_path)
    for _ in range(2):
        with run:
            train(model, make_loader())
        assert run.status()["step"] == 12


def test_a_forked_child_is_not_watched_and_leaves_the_run_to_its_parent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = make_model()
    with scaledl.track(model, run_dir=tmp_path, epochs=1) as run:
        loader = make_loader()
        train(model, loader)
        capfd.readouterr()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                left = [x for x in leftovers(model) if not isinstance(x, str)]  # the open mark
                train(model, loader)
                run.__exit__(None, None, None)
                code = 2 if left else 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        printed = capfd.readouterr()
        assert os.waitstatus_to_exitcode(status) == 0
        assert printed.out + printed.err == ""
        assert run.status()["step"] == 12


def test_the_iterator_of_a_watched_loader_behaves_like_the_loaders_own(tmp_path: Path) -> None:
    model = make_model()
    plain = iter(make_loader())
    with scaledl.track(model, report="none", run_dir=tmp_path):
        watched = iter(make_loader())
        watched.note = 5  # type: ignore[attr-defined]
        assert watched.note == 5  # type: ignore[attr-defined]
        assert watched._inner.note == 5  # type: ignore[attr-defined]
        assert len(watched) == len(plain)  # type: ignore[arg-type]
        assert type(copy.copy(watched)) is type(plain)
        with pytest.raises(AttributeError):
            object.__new__(type(watched))._inner  # noqa: B018


def test_a_tracked_iterable_copies_pickles_and_answers_like_what_it_wraps(tmp_path: Path) -> None:
    batches = [torch.ones(4), torch.zeros(4)]
    model = make_model()
    with scaledl.track(model, report="none", run_dir=tmp_path) as run:
        wrapped: Any = run.loader(batches)
        assert wrapped
        assert not run.loader([])
        assert run.loader(iter(batches))  # has no length: true as the iterator is
        assert wrapped[0] is batches[0]
        assert type(copy.deepcopy(wrapped)) is list
        assert len(pickle.loads(pickle.dumps(wrapped))) == 2
        loader = make_loader()
        tracked: Any = run.loader(loader)
        tracked.note = 7
        assert loader.note == 7  # type: ignore[attr-defined]


def test_scripting_a_model_inside_the_block_says_what_to_do(tmp_path: Path) -> None:
    model = make_model()
    with (
        scaledl.track(model, report="none", run_dir=tmp_path),
        pytest.raises(AttributeError, match="script it before or after the block"),
    ):
        torch.jit.script(model)
    torch.jit.script(model)


def test_a_report_pipe_that_nobody_reads_does_not_hold_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    model = make_model()
    with scaledl.track(model, report=pipe, run_dir=tmp_path, epochs=1):
        train(model, make_loader())
    assert f"cannot write reports to {pipe}" in capfd.readouterr().err


def test_two_blocks_that_cross_count_their_own_steps(tmp_path: Path) -> None:
    one, other = make_model(), make_model()
    first, second = (scaledl.track(m, report="none", run_dir=tmp_path) for m in (one, other))
    first.__enter__()
    second.__enter__()
    train(one, make_loader(32))
    first.__exit__(None, None, None)
    train(other, make_loader(16))
    second.__exit__(None, None, None)
    assert (first.status()["step"], second.status()["step"]) == (32, 16)
    assert leftovers(one) == leftovers(other) == []


def test_paths_are_those_of_the_start_though_the_script_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = make_model()
    with scaledl.track(model, epochs=1, run_dir="runs", report="report.txt") as run:
        os.chdir(tmp_path / "elsewhere")
        train(model, make_loader())
    assert run.folder is not None
    assert run.folder.parent == tmp_path / "runs"
    assert sorted(p.name for p in run.folder.iterdir()) == ["rank0.jsonl", "run.json"]
    assert (tmp_path / "report.txt").stat().st_size > 0
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (GeneratorExit(), "stopped-early"),
        (SystemExit(0), "stopped-early"),
        (SystemExit(), "stopped-early"),
        (SystemExit(3), "exception"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("of the user"), "exception"),
    ],
)
def test_how_a_run_ended_is_told_by_what_left_the_block(
    error: BaseException, outcome: str, tmp_path: Path
) -> None:
    model = make_model()
    with (
        contextlib.suppress(BaseException),
        scaledl.track(model, report="none", run_dir=tmp_path, epochs=3) as run,
    ):
        train(model, make_loader())
        raise error
    assert run.folder is not None
    (end,) = [line for line in read_lines(run.folder) if isinstance(line, RunEnd)]
    assert end.outcome == outcome


def test_an_epoch_cut_off_without_a_plan_is_an_early_end(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with scaledl.track(model, report="none", run_dir=tmp_path, epochs=1) as run:
        for index, batch in enumerate(make_loader(12)):
            if index == 5:
                break
            model(batch).sum().backward()
            optimizer.step()
    assert run.folder is not None
    (end,) = [line for line in read_lines(run.folder) if isinstance(line, RunEnd)]
    assert (end.outcome, end.step) == ("stopped-early", 5)
