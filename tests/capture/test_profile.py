"""One profiled step: on which thread, with which options, and what a broken one leaves behind.

What could end the process runs in a child and is judged by its exit code.
"""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from timelines import Stream

import scaledl
from scaledl.capture import profile
from scaledl.capture.collectives import RawEvent, StepComm, read_collectives
from scaledl.capture.guard import GUARD
from scaledl.capture.profile import ProfileSession
from scaledl.capture.timers import HostTimer
from scaledl.capture.windows import STOP_MOST_S, Windows
from scaledl.records import ProfileWindow, StepRecord

SOURCES = sorted(Path(scaledl.__file__).parent.rglob("*.py"))


@pytest.fixture
def guarded() -> Any:
    user = object()
    GUARD.install(user)
    yield GUARD
    GUARD.remove(user)


def test_P02_a_session_is_never_stopped_on_another_thread_than_its_own() -> None:
    code = """
    import os, threading, time
    os.environ["WORLD_SIZE"] = "2"
    import torch
    from torch.profiler import ProfilerActivity, profile
    import scaledl
    from scaledl.capture.guard import GUARD
    from scaledl.capture.profile import ProfileSession

    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(num_steps):
        for _ in range(num_steps):
            model(x).sum().backward()
            optimizer.step()

    def users_profile():
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            model(x)
        return sum(e.count for e in seen.key_averages() if e.key == "aten::linear")

    def elsewhere(work):
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    # Left after 11 steps, a session that the other thread began would be open here.
    with scaledl.track(model, report="none") as run:
        elsewhere(lambda: train(11)).join()
    assert run.status()["step"] == 11
    assert "left the thread" in run.status()["guesses"]["comm"]
    print(users_profile())

    # The user profiles on another thread while ours runs here: theirs waits for our step's end.
    GUARD.install("test")
    ours = ProfileSession()
    assert ours.start()
    counts = []
    thread = elsewhere(lambda: counts.append(users_profile()))
    while not GUARD._foreign:
        time.sleep(0.001)
    train(1)
    ours.stop()
    thread.join()
    assert not elsewhere(lambda: counts.append(ours.start())).join()
    GUARD.remove("test")
    print(counts, users_profile(), torch._C._autograd._profiler_enabled())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:2] == ["1", "[1, False] 1 False"]
    assert "no active profiling session" not in done.stderr


@pytest.mark.usefixtures("guarded")
def test_P09_a_session_sees_its_step_without_a_schedule_and_without_the_users_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = ProfileSession()
    kept: list[RawEvent] = []
    monkeypatch.setattr(profile, "read_collectives", kept.extend)
    assert session.start()
    torch.ones(2, 2).mm(torch.ones(2, 2))
    session.stop()
    assert "aten::mm" in {event.name for event in kept}


@pytest.mark.usefixtures("guarded")
def test_P14_only_the_cheapest_kind_of_profile_is_ever_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    real = profile.profile

    def noted(**options: Any) -> Any:
        asked.append(options)
        return real(**options)

    monkeypatch.setattr(profile, "profile", noted)
    session = ProfileSession()
    assert session.start()
    session.stop()
    assert [set(options) for options in asked] == [{"activities"}]
    for path in SOURCES:
        for word in ("with_stack", "with_flops", "profile_memory", "export_chrome_trace"):
            assert word not in path.read_text(), (path, word)


def test_P22_names_that_only_some_torch_versions_have_are_not_used() -> None:
    for path in SOURCES:
        for name in ("cuda_time_total", "device_time_total", "key_averages"):
            assert name not in path.read_text(), (path, name)


def test_P15_a_profiled_step_of_very_many_operations_is_kept_in_a_few_hundred_bytes() -> None:
    work = [RawEvent("aten::mm", 1 + i * 1e-5, 1 + (i + 0.5) * 1e-5) for i in range(50_000)]
    comm = [RawEvent("gloo:all_reduce", 1.1 + i * 0.1, 1.15 + i * 0.1) for i in range(3)]
    found = read_collectives([*work, *comm])
    assert found is not None
    window = ProfileWindow(step=1, rank=0, step_s=0.5, comm=found.events((), 2))
    assert len(msgspec.json.encode(window)) < 1000


class Session:
    """A session whose stop does what the test says."""

    is_here = True
    was_taken = False
    is_blind = False
    kernels = None

    def __init__(self, stop: Callable[[], StepComm | None], *, is_blind: bool = False) -> None:
        self.stop = stop
        self.is_blind = is_blind
        self.num_starts = 0

    def start(self) -> bool:
        self.num_starts += 1
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run_windows(session: Session, clock: Clock, num_steps: int) -> tuple[list[Any], list[str]]:
    """So many quick steps of a job of two ranks; the windows taken, and what was told."""
    taken: list[Any] = []
    told: list[str] = []
    windows = Windows(
        rank=0,
        timer=HostTimer(clock),
        make_layer_window=lambda part, want: pytest.fail("layers are off here"),
        make_session=lambda: session,  # type: ignore[arg-type, return-value]
        ddp=lambda: None,
        take=taken.append,
        take_graph=taken.append,
        mark_sampled=lambda sampled: None,
        clock=clock,
        tell=lambda key, text: told.append(text),
        budget_fraction=1.0,
    )
    windows.layers_off = True
    for step in range(num_steps):
        windows.boundary(StepRecord(step=step, epoch=0, wall_s=1.0))
    return taken, told


def test_P05_P06_a_profile_without_any_gpu_event_is_no_data_and_said_once() -> None:
    session = Session(lambda: None, is_blind=True)
    taken, told = run_windows(session, Clock(), 500)
    assert taken == []
    assert session.num_starts == 1
    (text,) = told
    assert "sees nothing of the GPU" in text
    assert "collectives are not timed" in text


@pytest.mark.usefixtures("guarded")
def test_P05_P06_host_events_alone_tell_that_a_gpu_session_is_blind() -> None:
    for cuda in (True, False):
        session = ProfileSession()
        session._cuda = cuda  # the machine has none: only the host is recorded
        assert session.start()
        torch.ones(2, 2).mm(torch.ones(2, 2))
        assert session.stop() is None
        assert session.is_blind == cuda


def test_P16_a_profiler_that_is_slow_to_stop_is_not_used_again() -> None:
    clock = Clock()

    def stop() -> None:
        clock.now_s += STOP_MOST_S + 1

    session = Session(stop)
    _, told = run_windows(session, clock, 10_000)
    assert session.num_starts == 1
    assert told == ["stopping the profiler took 3 s: collectives are not timed from here on."]
    again = Session(lambda: None)
    run_windows(again, Clock(), 10_000)
    assert again.num_starts > 3


def test_P10_a_profiler_that_fails_at_its_end_leaves_training_and_guard_as_they_were(
    guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self, **options: Any) -> None: ...
        def start(self) -> None: ...
        def stop(self) -> None:
            raise RuntimeError("kineto stopped by itself")

    with monkeypatch.context() as patched:
        patched.setattr(profile, "profile", Failing)
        session = ProfileSession()
        assert session.start()
        with pytest.raises(RuntimeError, match="by itself"):
            session.stop()
        assert session.stop() is None
    following = ProfileSession()
    assert following.start(), "the guard is free again"
    following.stop()


@pytest.mark.parametrize(("basis", "layers"), [("modules", ["net.0"]), ("ranges", [])])
def test_a_profiled_step_on_a_gpu_tells_kernel_seconds_by_layer(
    basis: str, layers: list[str]
) -> None:
    comm = read_collectives([RawEvent("gloo:all_reduce", 1.0, 1.5)])
    stream = Stream().inside("nn.Module: net.0", 0, 50).launch(10, 2_000_000).launch(60, 1_000_000)
    session = Session(lambda: comm)
    session.kernels = stream.read()._replace(basis=basis)  # type: ignore[arg-type, assignment]
    taken, _ = run_windows(session, Clock(), 12)
    (window,) = taken
    assert [t.fqn for t in window.layers] == layers
    if layers:
        (timing,) = window.layers
        assert (timing.source, timing.forward_s) == ("profiler", pytest.approx(2e-3))
        assert window.outside_forward_s == pytest.approx(1e-3)
