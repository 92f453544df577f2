"""A tracked training is the untracked one to the last bit, and leaves the process as it was."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import (
    BATCHES,
    KINDS,
    NUM_STEPS,
    Trace,
    differences,
    make_loader,
    make_model,
    no_tracking,
    quietly,
    seed_all,
    surroundings,
    train,
)

import scaledl
import scaledl.tracker
from scaledl.records import EpochRecord, Eta, LayerGraph, PhaseRecord, ProfileWindow, RunEnd
from scaledl.store import read_lines

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def untracked() -> Callable[..., Trace]:
    """The same training without scaledl, once for each kind."""
    known: dict[str, Trace] = {}

    def of(kind: str, num_steps: int = NUM_STEPS) -> Trace:
        key = f"{kind} {num_steps}"
        if key not in known:
            known[key] = train(kind, no_tracking, num_steps=num_steps)
        return known[key]

    return of


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any) -> None:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


# --- while it runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_a_tracked_training_is_bit_equal(
    kind: str, untracked: Callable[..., Trace], tmp_path: Path
) -> None:
    tracked = train(kind, quietly(epochs=5, run_dir=tmp_path))
    for name, values in untracked(kind).as_dict().items():
        assert tracked.as_dict()[name] == values, name


def test_the_tracked_arm_really_measured(tmp_path: Path) -> None:
    train("plain", quietly(epochs=5, run_dir=tmp_path / "runs"))
    (folder,) = (tmp_path / "runs").iterdir()
    lines = list(read_lines(folder))
    assert {EpochRecord, PhaseRecord, ProfileWindow, LayerGraph, Eta} <= {type(x) for x in lines}
    assert [line.step for line in lines if isinstance(line, RunEnd)] == [NUM_STEPS]


def test_two_untracked_trainings_agree_so_that_equality_means_something(
    untracked: Callable[..., Trace],
) -> None:
    assert train("plain", no_tracking).as_dict() == untracked("plain").as_dict()
    assert len(set(untracked("plain").losses)) == NUM_STEPS + NUM_STEPS // BATCHES


def test_the_scaler_did_skip_a_step_in_the_amp_arm(untracked: Callable[..., Trace]) -> None:
    parameters = untracked("amp").parameters
    assert parameters[10 + 2] == parameters[10 + 1]  # one evaluation lies before it
    assert len(set(parameters)) > NUM_STEPS / 2


# --- after it ------------------------------------------------------------------------------------


class Parts:
    """A model, an optimizer and a loader that the test can look at."""

    def __init__(self) -> None:
        seed_all()
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = make_loader()
        for x, y in self.loader:  # what torch itself adds at first use
            one_step(self.model, self.optimizer, x, y)

    def surroundings(self) -> dict[str, Any]:
        return surroundings(self.model, self.optimizer, self.loader)

    def batches(self, times: int = 2) -> Iterator[tuple[int, Any, Any]]:
        step = 0
        for _ in range(times):
            for x, y in self.loader:
                one_step(self.model, self.optimizer, x, y)
                yield step, x, y
                step += 1


class Leaving(Exception):
    pass


def leave_at_the_end(parts: Parts) -> None:
    with quietly()(parts.model):
        assert sum(1 for _ in parts.batches()) == 2 * BATCHES


def leave_at(parts: Parts, last: int, error: type[BaseException]) -> None:
    with quietly()(parts.model):
        for step, _, _ in parts.batches():
            if step == last:
                raise error


def leave_by_exception(parts: Parts) -> None:
    with pytest.raises(Leaving):
        leave_at(parts, 13, Leaving)


def leave_by_exception_inside_the_forward(parts: Parts) -> None:
    def refuse(module: nn.Module, args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 7:  # the sampled step, with hooks on every leaf
            raise Leaving

    calls = 0
    handle = parts.model[4].register_forward_pre_hook(refuse)
    try:
        with pytest.raises(Leaving), quietly()(parts.model):
            for _ in parts.batches():
                pass
    finally:
        handle.remove()


def leave_by_exception_inside_the_backward(parts: Parts) -> None:
    def refuse(grad: Any) -> None:
        raise Leaving

    def run() -> None:
        with quietly()(parts.model):
            for step, x, y in parts.batches():
                if step == 5:
                    output = parts.model(x)
                    output.register_hook(refuse)
                    nn.functional.cross_entropy(output, y).backward()

    with pytest.raises(Leaving):
        run()


def leave_by_keyboard_interrupt(parts: Parts) -> None:
    with pytest.raises(KeyboardInterrupt):
        leave_at(parts, 6, KeyboardInterrupt)


def leave_by_system_exit(parts: Parts) -> None:
    with pytest.raises(SystemExit):
        leave_at(parts, 6, SystemExit)


def leave_by_break(parts: Parts) -> None:
    with quietly()(parts.model):
        for step, _, _ in parts.batches():
            if step == 6:  # a sampled step is open
                break


def leave_by_return(parts: Parts) -> None:
    @quietly()(parts.model)
    def run() -> int:
        for step, _, _ in parts.batches():
            if step == 4:
                return step
        return -1

    assert run() == 4


def leave_by_closing_a_generator(parts: Parts) -> None:
    def run() -> Iterator[int]:
        with quietly()(parts.model):
            for step, _, _ in parts.batches():
                yield step

    running = run()
    assert [next(running) for _ in range(8)] == list(range(8))
    running.close()


def leave_without_any_step(parts: Parts) -> None:
    with quietly()(parts.model):
        pass


def leave_with_an_open_phase(parts: Parts) -> None:
    with pytest.raises(Leaving), quietly()(parts.model) as run, run.phase("eval"):
        raise Leaving


def leave_with_an_iterator_kept(parts: Parts) -> None:
    with quietly()(parts.model):
        kept = iter(parts.loader)
        for _ in range(3):
            one_step(parts.model, parts.optimizer, *next(kept))
    one_step(parts.model, parts.optimizer, *next(kept))  # it still works afterwards
    assert len(list(kept)) == BATCHES - 4


LEAVES = [
    value
    for name, value in sorted(globals().items())
    if name.startswith("leave_") and name != "leave_at"
]


@pytest.mark.parametrize("leave", LEAVES, ids=lambda leave: leave.__name__)
def test_nothing_is_left_behind_whichever_way_the_block_is_left(
    leave: Callable[[Parts], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEDL_RUN_DIR", str(tmp_path))
    parts = Parts()
    before = parts.surroundings()
    leave(parts)
    assert differences(before, parts.surroundings()) == {}


def test_hooks_of_the_user_survive_in_their_order(tmp_path: Path) -> None:
    parts, fired = Parts(), []
    parts.model.register_forward_hook(lambda *_: fired.append("early"))
    before = parts.surroundings()
    with quietly(run_dir=tmp_path)(parts.model):
        handle = parts.model.register_forward_hook(lambda *_: fired.append("late"))
        for _ in parts.batches(1):
            pass
        handle.remove()
    assert fired == ["early", "late"] * BATCHES
    assert differences(before, parts.surroundings()) == {}


def test_a_wrapper_that_the_user_put_around_the_loader_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, calls = Parts(), []
    owner = torch.utils.data.DataLoader
    original = owner.__iter__
    with quietly(run_dir=tmp_path)(parts.model):
        ours = owner.__iter__

        def theirs(self: Any) -> Any:
            calls.append(1)
            return ours(self)

        monkeypatch.setattr(owner, "__iter__", theirs)
        assert len(list(parts.batches(1))) == BATCHES
    assert owner.__iter__ is theirs
    assert len(list(parts.batches(1))) == BATCHES  # ours below it only passes calls on
    assert len(calls) == 2
    monkeypatch.undo()
    owner.__iter__ = original


CHILD = """
import json, os, signal, sys, threading
sys.path.insert(0, {tests!r})
from training import *

model, optimizer = make_model(), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = make_loader()
for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
import scaledl.tracker
before = surroundings(model, optimizer, loader)
caught = ""
try:
    with scaledl.track(model, epochs=100):
        for epoch in range(100):
            for index, (x, y) in enumerate(loader):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                if (epoch, index) == (2, 3):
                    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    caught = "KeyboardInterrupt"
left = differences(before, surroundings(model, optimizer, loader))
print(json.dumps([caught, {{k: str(v) for k, v in left.items()}}]))
"""


@pytest.mark.slow
def test_a_real_ctrl_c_ends_the_loop_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(tests=str(TESTS))],
        env={**os.environ, "SCALEDL_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["KeyboardInterrupt", {}]
    run = scaledl.open_run("latest", home=tmp_path)
    assert run.ended is not None
    assert (run.ended.outcome, run.ended.step) == ("interrupted", 2 * BATCHES + 4)
    assert "Traceback" not in done.stderr


# --- with an error injected into each part -------------------------------------------------------


FEW_STEPS = 24  # two epochs and a sampled step


class Boom(RuntimeError):
    """An error of ours."""


def _fail(*args: Any, **kwargs: Any) -> Any:
    raise Boom("injected")


# What is made to raise, as module:attribute. Every one is called in a training of two epochs.
FAULTS = (
    "scaledl.capture.session:read_environment",
    "scaledl.capture.session:read_plan",
    "scaledl.capture.session:Capture.start",
    "scaledl.capture.session:Capture.stop",
    "scaledl.capture.session:Capture.step_ended",
    "scaledl.capture.session:Capture.ddp",
    "scaledl.capture.loaders:LoaderSensor.start",
    "scaledl.capture.loaders:LoaderSensor.stop",
    "scaledl.capture.session:open_device",
    "scaledl.capture.root:RootSensor.start",
    "scaledl.capture.root:RootSensor.stop",
    "scaledl.capture.root:RootSensor._watch_backward",
    "scaledl.capture.optimizers:OptimizerSensor.start",
    "scaledl.capture.optimizers:OptimizerSensor.stop",
    "scaledl.capture.optimizers:OptimizerSensor._counts",
    "scaledl.capture.sampler:Sampler.start",
    "scaledl.capture.sampler:Sampler.stop",
    "scaledl.capture.sampler:Sampler._add",
    "scaledl.capture.devices.cpu:CpuDevice.read",
    "scaledl.capture.clock:StepClock.on_pass_start",
    "scaledl.capture.clock:StepClock.on_fetch",
    "scaledl.capture.clock:StepClock.on_batch",
    "scaledl.capture.clock:StepClock.on_pass_end",
    "scaledl.capture.clock:StepClock.on_forward_begin",
    "scaledl.capture.clock:StepClock.on_forward",
    "scaledl.capture.clock:StepClock.on_backward",
    "scaledl.capture.clock:StepClock.on_optimizer",
    "scaledl.capture.clock:StepClock._close_step",
    "scaledl.capture.clock:StepClock._close_epoch",
    "scaledl.capture.clock:StepClock._close_eval",
    "scaledl.capture.clock:StepClock.stop",
    "scaledl.capture.clock:StepClock.progress",
    "scaledl.capture.epochs:EpochBook.add_step",
    "scaledl.capture.epochs:EpochBook.close",
    "scaledl.capture.windows:Windows.boundary",
    "scaledl.capture.windows:Windows.stop",
    "scaledl.capture.windows:Windows._read_waiting",
    "scaledl.capture.modules:LayerWindow.attach",
    "scaledl.capture.modules:LayerWindow.detach",
    "scaledl.capture.modules:LayerWindow._enter",
    "scaledl.capture.modules:LayerWindow._leave",
    "scaledl.capture.modules:LayerWindow._watch",
    "scaledl.capture.modules:LayerWindow._after_root",
    "scaledl.capture.modules:LayerWindow.read",
    "scaledl.capture.modules:leaves",
    "scaledl.capture.graph:build",
    "scaledl.engine:Engine.__init__",
    "scaledl.engine:Engine.on_step",
    "scaledl.engine:Engine.on_phase",
    "scaledl.engine:Engine.on_epoch",
    "scaledl.engine:Engine.on_window",
    "scaledl.engine:Engine.on_graph",
    "scaledl.engine:Engine.on_sample",
    "scaledl.engine:Engine._flush",
    "scaledl.engine:Engine._finish",
    "scaledl.reporter:Reporter.epoch_ended",
    "scaledl.reporter:Reporter._ranks_of",
    "scaledl.engine:Engine._meet",
    "scaledl.pulse:Pulse.beat",
    "scaledl.pulse:feed",
    "scaledl.engine:Engine._study",
    "scaledl.engine:Engine._stop_study",
    "scaledl.learning.launch:Background.look",
    "scaledl.engine:cores_free",
    "scaledl.engine:cluster_of",
    "scaledl.reporter:Reporter._report",
    "scaledl.reporter:Reporter.finish",
    "scaledl.engine:new_run_id",
    "scaledl.engine:home_dir",
    "scaledl.pulse:EtaEstimator",
    "scaledl.predictor.eta:EtaEstimator.on_steps",
    "scaledl.predictor.eta:EtaEstimator.on_phase",
    "scaledl.predictor.eta:EtaEstimator.on_epoch",
    "scaledl.predictor.eta:EtaEstimator.estimate",
    "scaledl.predictor.forecaster:Forecaster.learn",
    "scaledl.predictor.forecaster:Forecaster.predict",
    "scaledl.predictor.forecaster:Forecaster.audit",
    "scaledl.outlook:Outlook.add_step",
    "scaledl.outlook:Outlook.add_window",
    "scaledl.outlook:Outlook.measurement",
    "scaledl.outlook:Outlook.learn",
    "scaledl.outlook:Outlook.report",
    "scaledl.outlook:measure",
    "scaledl.outlook:load_relatives",
    "scaledl.outlook:answer_rows",
    "scaledl.outlook:build_query",
    "scaledl.report.scaling:build",
    "scaledl.narrator:render_epoch",
    "scaledl.narrator:render_end",
    "scaledl.report.live:render_log_line",
    "scaledl.report.live:LinePolicy.is_due",
    "scaledl.report.live:LinePolicy.calm",
    "scaledl.narrator:Narrator.tell",
    "scaledl.narrator:Narrator.progress",
    "scaledl.narrator:Narrator.epoch",
    "scaledl.narrator:Narrator.end",
    "scaledl.speaker:Speaker._write",
    "scaledl.speaker:Speaker._write_block",
    "scaledl.speaker:Speaker.notice",
    "scaledl.speaker:Speaker.block",
    "scaledl.speaker:Speaker.line",
    "scaledl.speaker:Speaker.end_line",
    "scaledl.speaker:_live_bar",
    "scaledl.journal:Journal.open",
    "scaledl.journal:Journal.write",
    "scaledl.journal:Journal.write_info",
    "scaledl.journal:Journal.add_step",
    "scaledl.journal:Journal.close_block",
    "scaledl.journal:Journal.close",
    "scaledl.journal:summarise",
    "scaledl.writer:RunWriter.append",
    "scaledl.writer:RunWriter.write_info",
    "scaledl.writer:RunWriter.close",
    "scaledl.writer:RunWriter._open",
    "scaledl.writer:RunWriter._flush",
)
# The writer's thread is never strict: disks do fill up. Of the others each third will do: they
# share few ways out.
STRICT = [f for f in FAULTS if not f.startswith("scaledl.writer:")][::3]
# In these the voice itself is broken: nothing can be told on the terminal.
VOICE = ("scaledl.speaker:", "scaledl.narrator:Narrator.tell")
# Here the undoing itself raises; each part's is tried on its own, and this one cannot be had.
UNDOING = [f for f in FAULTS if f.endswith((".stop", ".detach", ".close"))]
# In these a fault is met where it arises: nothing is lost, or the writer tells it in its own words.
WITHOUT_NOTICE = (
    "scaledl.speaker:_live_bar",
    "scaledl.capture.session:Capture.ddp",
    "scaledl.reporter:Reporter._ranks_of",
)


def inject(fault: str, patch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Make one part raise; returns a list of the calls of it."""
    calls: list[tuple[Any, ...]] = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        raise Boom("injected")

    patch.setattr(fault.replace(":", "."), fail)
    return calls


def undo_after_all(fault: str, calls: list[tuple[Any, ...]]) -> None:
    """What could not be undone because undoing raised, so that the next test starts clean."""
    module, _, path = fault.partition(":")
    function: Any = importlib.import_module(module)
    for name in path.split("."):
        function = getattr(function, name)
    for args in calls:
        function(*args)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what comes once a second or once a minute come at each step."""
    monkeypatch.setattr("scaledl.engine.FLUSH_S", 0.0)
    monkeypatch.setattr("scaledl.reporter.REPORT_SHARE", 1e9)
    monkeypatch.setattr("scaledl.report.pace.LOG_FIRST_S", 0.0)
    monkeypatch.setattr("scaledl.report.pace.LOG_GAP_S", 0.0)
    monkeypatch.setattr("scaledl.report.pace.LOG_LATER_GAP_S", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_of_ours_neither_ends_nor_changes_the_training_and_is_told_once(
    fault: str,
    untracked: Callable[..., Trace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("SCALEDL_STRICT")
    expected = untracked("plain", FEW_STEPS).as_dict()
    seed_all()
    model, loader = make_model(), make_loader()
    before = surroundings(model, loader)
    try:
        with monkeypatch.context() as patch:
            calls = inject(fault, patch)
            traced = train(
                "plain",
                lambda m: scaledl.track(m, epochs=3, run_dir=tmp_path),
                model=model,
                loader=loader,
                num_steps=FEW_STEPS,
            )
    finally:
        if fault in UNDOING:
            undo_after_all(fault, calls)
    assert traced.as_dict() == expected
    assert calls, "the fault was never met"
    told = capfd.readouterr().err
    assert "Traceback" not in told
    heard = told + caplog.text
    count = len(re.findall("training is not affected|training goes on", heard, re.IGNORECASE))
    if fault in WITHOUT_NOTICE:
        assert count <= 1
    elif not fault.startswith(VOICE):
        assert count == 1, heard
    assert differences(before, surroundings(model, loader)) == {}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", STRICT)
def test_strict_mode_raises_the_error_again(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = inject(fault, patch)
        with pytest.raises(Boom):
            train(
                "plain",
                lambda m: scaledl.track(m, epochs=3, run_dir=tmp_path),
                num_steps=FEW_STEPS,
            )
    if fault in UNDOING:
        undo_after_all(fault, calls)


def test_a_loader_whose_length_raises_is_trained_all_the_same(
    untracked: Callable[..., Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make_loader()
    expected = untracked("plain").as_dict()
    monkeypatch.setattr(type(loader), "__len__", _fail)
    with pytest.raises(Boom):
        len(loader)

    class Counted:
        """Around it, so that the training itself may ask for the length."""

        def __len__(self) -> int:
            return BATCHES

        def __iter__(self) -> Iterator[Any]:
            return iter(loader)

    assert train("plain", quietly(run_dir=tmp_path), loader=Counted()).as_dict() == expected


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "fault",
    [
        "scaledl.predictor.eta:EtaEstimator.estimate",
        "scaledl.outlook:Outlook.report",
        "scaledl.outlook:measure",
        "scaledl.journal:Journal.add_step",
        "scaledl.narrator:render_epoch",
        "scaledl.report.live:render_log_line",
        "scaledl.capture.modules:LayerWindow.attach",
        "scaledl.capture.devices.cpu:CpuDevice.read",
    ],
)
def test_the_parts_beside_a_broken_one_go_on(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCALEDL_STRICT")
    with monkeypatch.context() as patch:
        inject(fault, patch)
        train("plain", lambda m: scaledl.track(m, run_dir=tmp_path), num_steps=FEW_STEPS)
    (folder,) = tmp_path.iterdir()
    lines = list(read_lines(folder))
    assert [line.num_steps for line in lines if isinstance(line, EpochRecord)] == [10, 10, 4]
    assert [(line.step, line.outcome) for line in lines if isinstance(line, RunEnd)] == [
        (FEW_STEPS, "finished")
    ]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", UNDOING)
def test_a_part_that_cannot_be_detached_keeps_no_other_attached(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCALEDL_STRICT")
    parts = Parts()
    before = parts.surroundings()
    calls: list[tuple[Any, ...]] = []
    try:
        with monkeypatch.context() as patch:
            calls = inject(fault, patch)
            with quietly(run_dir=tmp_path)(parts.model):
                for _ in parts.batches(1):
                    pass
        left = set(differences(before, parts.surroundings()))
    finally:
        undo_after_all(fault, calls)
    allowed = {
        # nothing is taken off then, not even a layer window that happens to be open
        "Capture.stop": {"hooks", "own methods", "global optimizer hooks", "loader", "threads"},
        "RootSensor.stop": {"hooks"},
        "LayerWindow.detach": {"hooks"},
        "OptimizerSensor.stop": {"global optimizer hooks"},
        "LoaderSensor.stop": {"loader", "own methods"},
        "Sampler.stop": {"threads"},
    }
    name = fault.partition(":")[2]
    assert left <= allowed.get(name, {"threads", "files"} if "close" in name else set())
    assert differences(before, parts.surroundings()) == {}


def test_an_error_of_the_user_is_passed_on_as_it_is(tmp_path: Path) -> None:
    thrown = ValueError("mine")

    def refuse(step: int) -> None:
        if step == 20:
            raise thrown

    with pytest.raises(ValueError, match=r"^mine$") as caught:
        train("plain", quietly(run_dir=tmp_path), on_batch=refuse)
    assert caught.value is thrown
    assert caught.value.__context__ is None


def test_an_error_of_ours_does_not_hide_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(step: int) -> None:
        if step == 20:
            raise ValueError("mine")

    monkeypatch.setattr("scaledl.narrator.render_end", _fail)
    with pytest.raises(ValueError, match=r"^mine$"):
        train("plain", lambda m: scaledl.track(m, run_dir=tmp_path), on_batch=refuse)


# --- models that are one leaf ---------------------------------------------------------------------


class Flat(nn.Module):
    """No child: hooks of the whole and of the only layer sit on one module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("make", [lambda: nn.Linear(12, 3), Flat], ids=["linear", "flat"])
def test_a_model_without_children_trains_without_a_loader(
    make: Callable[[], nn.Module], evaluates: bool, tmp_path: Path
) -> None:
    def run(tracked: Any) -> list[float]:
        seed_all()
        model, losses = make(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(8, 12), torch.randint(3, (8,))
        with tracked(model):
            for _ in range(30):
                model.train()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                if evaluates:
                    model.eval()
                    with torch.no_grad():
                        losses.append(model(x).sum().item())
        return losses

    assert run(quietly(run_dir=tmp_path)) == run(no_tracking)


# --- torch.compile -------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


def compile_whole(model: Net) -> nn.Module:
    return torch.compile(model, backend="eager", fullgraph=True)  # type: ignore[return-value]


def compile_in_place(model: Net) -> nn.Module:
    model.compile(backend="eager", fullgraph=True)
    return model


def compile_child(model: Net) -> nn.Module:
    model.body = torch.compile(model.body, backend="eager", fullgraph=True)  # type: ignore[assignment]
    return model


def graphs_of(
    make: Callable[[Net], nn.Module], tracked: Any, *, late: bool = False
) -> tuple[int, dict[str, int], list[float]]:
    """Graphs and breaks of a compiled training of 20 steps, and its losses."""
    import torch._dynamo.utils as dynamo

    torch._dynamo.reset()
    dynamo.counters.clear()
    seed_all()
    model: Any = Net()
    loader = make_loader()
    called = model if late else make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    with tracked(called):
        if late:
            called = make(model)
        for _ in range(2):
            for x, y in loader:
                loss = nn.functional.cross_entropy(called(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    counts = dynamo.counters
    return counts["stats"]["unique_graphs"], dict(counts["graph_break"]), losses


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("make", [compile_whole, compile_in_place, compile_child])
def test_tracking_adds_no_graph_and_no_graph_break(
    make: Callable[[Net], nn.Module], late: bool, tmp_path: Path
) -> None:
    plain = graphs_of(make, no_tracking, late=late)
    assert plain[0] >= 1
    assert graphs_of(make, quietly(run_dir=tmp_path), late=late) == plain


def test_U13_signal_handlers_are_the_users_while_a_block_is_open(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with quietly(run_dir=tmp_path)(make_model()):
        assert before == {number: signal.getsignal(number) for number in signal.valid_signals()}
