"""The profiler guard. What could end the process runs in a child and is judged by its exit code."""

import subprocess
import sys
import textwrap

import pytest
import torch.autograd.profiler as entry_points

from scaledl.capture import guard
from scaledl.capture.guard import ProfilerGuard

NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")

PRELUDE = """
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from scaledl.capture.guard import GUARD
from scaledl.capture.profile import ProfileSession

A = [ProfilerActivity.CPU]
model, x = torch.nn.Linear(32, 32), torch.randn(8, 32)
ran = []

def step(i):
    session = ProfileSession()
    ours = session.start()
    model(x).sum().backward()
    session.stop()
    ran.append(ours and not session.was_taken)

def linears(prof):
    return sum(e.count for e in prof.key_averages() if e.key == "aten::linear")
"""


def run_child(body: str) -> str:
    code = PRELUDE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_A1_session_in_users_warm_up_neither_crashes_nor_empties_their_trace():
    out = run_child("""
        GUARD.install(GUARD)
        with profile(activities=A, schedule=schedule(wait=1, warmup=2, active=2, repeat=1)) as user:
            for i in range(8):
                step(i)
                user.step()
        GUARD.remove(GUARD)
        print(linears(user), ran)
    """)
    count, ran = out.strip().split(" ", 1)
    assert int(count) == 2
    # One step of waiting before the warm-up, then theirs, then free again after it has ended.
    assert ran == "[True, False, False, False, False, True, True, True]"


def test_A2_warm_up_begun_before_the_guard_is_found():
    out = run_child("""
        with profile(activities=A, schedule=schedule(wait=0, warmup=3, active=1, repeat=1)) as user:
            GUARD.install(GUARD)
            for i in range(5):
                step(i)
                user.step()
        GUARD.remove(GUARD)
        print(linears(user), ran)
    """)
    assert out.split()[0] == "1"
    assert "True" not in out.split(" ", 1)[1].split(",")[0]


def test_P01_plain_profile_of_the_user_keeps_every_event():
    out = run_child("""
        GUARD.install(GUARD)
        step(0)
        with profile(activities=A) as user:
            for i in range(3):
                step(i)
        step(4)
        GUARD.remove(GUARD)
        print(linears(user), ran)
    """)
    assert out.strip() == "3 [True, False, False, False, True]"


def test_P01_users_profile_that_starts_while_ours_runs_wins():
    out = run_child("""
        GUARD.install(GUARD)
        session = ProfileSession()
        assert session.start()
        with profile(activities=A) as user:
            model(x)
        print(linears(user), session.was_taken, session.stop())
        GUARD.remove(GUARD)
    """)
    assert out.strip() == "1 True None"


def test_P01_autograd_profiler_and_short_profile_inside_ours_win():
    out = run_child("""
        GUARD.install(GUARD)
        session = ProfileSession()
        assert session.start()
        with torch.autograd.profiler.profile() as user:
            model(x)
        taken = session.was_taken
        again = ProfileSession()
        free = again.start()
        again.stop()
        GUARD.remove(GUARD)
        print(len([e for e in user.function_events if e.name == "aten::linear"]), taken, free)
    """)
    assert out.strip() == "1 True True"


def test_P12_block_left_by_exception_leaves_no_profiler_on():
    out = run_child("""
        import scaledl
        model.train()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with scaledl.track(model, report="none"):
                for i in range(9):
                    model(x).sum().backward(); opt.step()
                raise KeyError("user")
        except KeyError:
            pass
        print(torch._C._autograd._profiler_enabled())
    """)
    assert out.strip() == "False"


@pytest.mark.parametrize("name", ["NSYS_PROFILING_SESSION_ID", "KINETO_USE_DAEMON"])
def test_P04_P20_foreign_tool_in_the_environment_keeps_ours_off(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    watch = ProfilerGuard()
    watch.install(watch)
    try:
        assert name in watch.reason
        assert not watch.try_begin(lambda: None)
        assert all(not hasattr(getattr(entry_points, n), "__wrapped__") for n in NAMES)
    finally:
        watch.remove(watch)


@pytest.mark.parametrize("name", NAMES)
def test_K05_without_an_entry_point_nothing_is_profiled(monkeypatch, name):
    monkeypatch.delattr(entry_points, name)
    watch = ProfilerGuard()
    watch.install(watch)
    assert not watch.try_begin(lambda: None)
    watch.remove(watch)
    assert not hasattr(entry_points, name)


def test_entry_points_are_the_same_objects_after_two_users_leave():
    before = [getattr(entry_points, name) for name in NAMES]
    watch = ProfilerGuard()
    watch.install("one")
    watch.install("other")
    watch.remove("one")
    watch.remove("one")
    assert all(hasattr(getattr(entry_points, name), "__wrapped__") for name in NAMES)
    watch.remove("other")
    assert [getattr(entry_points, name) for name in NAMES] == before


def test_entry_point_wrapped_by_somebody_else_meanwhile_stays_theirs():
    original = entry_points._enable_profiler
    watch = ProfilerGuard()
    watch.install(watch)
    inner = entry_points._enable_profiler

    def theirs(*args, **kwargs):
        return inner(*args, **kwargs)

    entry_points._enable_profiler = theirs
    try:
        watch.remove(watch)
        assert entry_points._enable_profiler is theirs
    finally:
        entry_points._enable_profiler = original


def test_one_session_at_a_time():
    watch = ProfilerGuard()
    watch.install(watch)
    try:
        assert watch.try_begin(lambda: None)
        assert not watch.try_begin(lambda: None)
        watch.end()
        assert watch.try_begin(lambda: None)
    finally:
        watch.end()
        watch.remove(watch)


def test_without_install_no_session_starts():
    assert not ProfilerGuard().try_begin(lambda: None)
    assert guard.GUARD.try_begin(lambda: None) is False
