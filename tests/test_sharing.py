"""The live line and the user's own bars on one screen: one of them tells the time left."""

import functools
import io
import os
import sys
import types
from typing import Any

import msgspec
import pyte
import pytest
from fakes import FakeClock
from rich.console import Console
from rich.progress import Progress as RichProgress
from samples import NOW_S
from test_bars import Terminal
from tqdm import tqdm

from scaledl.bars import UserBars
from scaledl.narrator import Narrator
from scaledl.records import Eta, Interval, Progress
from scaledl.report.pace import LOG_LINES
from scaledl.speaker import Speaker

TOTAL = 20_000
JUMP = 20  # steps of a second between two estimates, where all of the run is played


class Run:
    """A narrator on standard error, whose clock the test turns: a second for each step."""

    def __init__(self, mode: str = "print", *, speaks: bool = True, bars: bool = True) -> None:
        self.clock = FakeClock(NOW_S)
        self.narrator = Narrator(Speaker(mode, speaks), self.clock, UserBars(is_on=bars))
        self.step = 0

    def go(self, num_estimates: int = 30, changed_because: str = "", jump: int = 1) -> None:
        for _ in range(num_estimates):
            self.step += jump
            self.clock.tick(float(jump))
            left_s = max(TOTAL - self.step, 0) * 1.0
            eta = Eta(
                at_s=self.clock(),
                step=self.step,
                basis="measured",
                step_s=Interval(mean=1.0, low=0.9, high=1.1),
                remaining_s=Interval(mean=left_s, low=0.9 * left_s, high=1.1 * left_s),
                finish_at=self.clock() + left_s,
                changed_because=changed_because,
            )
            place = Progress(step=self.step, epoch=0, step_in_epoch=self.step, total_steps=TOTAL)
            if self.step > TOTAL:
                eta = msgspec.structs.replace(eta, remaining_s=None, finish_at=None)
            self.narrator.progress(eta, place, 1.0, None)


def on_terminal(patch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal, from here to the test's end."""
    stream = Terminal()
    patch.setattr(sys, "stderr", stream)
    patch.setenv("TERM", "xterm")
    patch.setenv("COLUMNS", "100")
    return stream


def own_lines(stream: Terminal) -> list[str]:
    return [part for part in stream.getvalue().replace("\r", "\n").split("\n") if "scaledl" in part]


def test_U04_beside_a_bar_of_the_user_there_is_no_line_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with tqdm(total=TOTAL, ncols=100) as bar:
        run = Run()
        run.go()
        assert own_lines(terminal) == []
        (row,) = terminal.rows()
        assert "done " in row
        assert " to " in row
        run.narrator.tell("key", "a word of ours")
        assert terminal.rows()[0] == "scaledl  a word of ours"
        assert "done " in terminal.rows()[1]
        run.step = TOTAL
        run.go(1)
        assert "done " not in terminal.rows()[1]  # beyond the plan no time is told
        assert bar.bar_format is None
        run.step = 30
        run.go(1)
        assert bar.bar_format is not None
        run.narrator.leave_bars()
        assert bar.bar_format is None


def test_a_line_that_stood_before_the_bar_leaves_no_piece_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    run = Run()
    run.go(2)
    assert len(own_lines(terminal)) == 2
    with tqdm(total=TOTAL, ncols=100):
        run.go()
        run.narrator.tell("key", "a word of ours")
        assert terminal.rows()[0] == "scaledl  a word of ours"
        assert "done " in terminal.rows()[1]
        assert len(terminal.rows()) == 2


def test_a_move_of_the_finish_is_told_above_the_bar_with_its_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with tqdm(total=TOTAL, ncols=100):
        run = Run()
        run.go(3)
        run.step -= 8000
        run.go(1, "steps 12 % slower")
    assert [line for line in own_lines(terminal) if "steps 12 % slower" in line]


@pytest.mark.parametrize("options", [{"mode": "none"}, {"speaks": False}, {"bars": False}])
def test_a_silent_run_another_rank_and_bars_off_touch_no_bar(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    with tqdm(total=TOTAL, ncols=100) as bar:
        run = Run(**options)
        run.go()
        assert bar.bar_format is None
        assert "done " not in terminal.rows()[-1]
        assert run.narrator.shown is not None  # a title of the user's may still have it


@pytest.mark.parametrize("options", [{"ncols": 40}, {"ncols": 0}])
def test_above_a_bar_without_room_lines_are_as_few_as_in_a_log(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    with tqdm(total=TOTAL, **options):
        run = Run()
        run.go(TOTAL // JUMP, jump=JUMP)
    assert 3 < len(own_lines(terminal)) <= LOG_LINES


def test_above_a_rich_display_lines_are_as_few_as_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    console = Console(file=terminal, force_terminal=True, width=100)
    with RichProgress(console=console, auto_refresh=False) as display:
        display.add_task("train", total=TOTAL)
        assert sys.stderr is not terminal
        run = Run()
        run.go(TOTAL // JUMP, jump=JUMP)
    assert 3 < len(own_lines(terminal)) <= LOG_LINES
    screen = pyte.Screen(100, 60)
    pyte.Stream(screen).feed(terminal.getvalue().replace("\n", "\r\n"))
    rows = [row.rstrip() for row in screen.display if row.strip()]
    assert sum(row.startswith("train") for row in rows) == 1


def test_a_log_has_its_lines_while_a_bar_on_a_terminal_has_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with tqdm(total=TOTAL, ncols=100, file=terminal):
        log = io.StringIO()
        monkeypatch.setattr(sys, "stderr", log)
        Run().go(100)
        assert "left_low_s=" in log.getvalue()
        assert "\r" not in log.getvalue()
        assert "done " in terminal.rows()[0]


def test_a_bar_that_is_written_to_a_file_does_not_stop_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    with tqdm(total=TOTAL, file=io.StringIO()):
        Run().go()
    assert len(own_lines(terminal)) == 30
    assert len(terminal.rows()) == 1


# --- a notebook -----------------------------------------------------------------------------------


class Shell:
    """A stand-in for IPython in a kernel: it keeps what each of its outputs shows."""

    def __init__(self, patch: pytest.MonkeyPatch, pid: int | None = None) -> None:
        self.shown: list[Any] = []
        self.num_updates = 0
        session = types.SimpleNamespace(pid=os.getpid() if pid is None else pid)
        kernel = types.SimpleNamespace(session=session)
        self.front = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=kernel))
        patch.setitem(sys.modules, "IPython", self.front)
        patch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=self.display))
        patch.setattr(sys, "stderr", io.StringIO())

    def display(self, data: Any, *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.shown.append(data)
        return types.SimpleNamespace(update=functools.partial(self.update, len(self.shown) - 1))

    def update(self, place: int, data: Any, *, raw: bool) -> None:
        assert raw
        self.num_updates += 1
        self.shown[place] = data


def test_U04_a_notebook_has_one_output_in_place_and_reports_as_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell, run = Shell(monkeypatch), Run()
    run.go()
    run.narrator.tell("key", "a word of ours")
    run.go()
    (data,) = shell.shown
    assert data.keys() == {"text/plain"}
    assert data["text/plain"].startswith("scaledl  step    60/20000, 1.0 s: done ")
    assert shell.num_updates > 30
    assert sys.stderr.getvalue() == "scaledl  a word of ours\n"  # type: ignore[attr-defined]


def test_the_output_of_a_notebook_makes_room_for_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, run = Shell(monkeypatch), Run()
    run.go(3)
    with tqdm(total=TOTAL, ncols=100, file=Terminal()):
        run.go(3)
        assert shell.shown == [{"text/plain": ""}]
    run.go(3)
    assert "done " in shell.shown[0]["text/plain"]


def test_a_notebook_that_cannot_display_gets_lines_as_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell(monkeypatch)
    monkeypatch.delitem(sys.modules, "IPython.display")
    Run().go(400)
    assert shell.shown == []
    assert "left_low_s=" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_a_rank_forked_from_a_notebook_gets_lines_as_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(monkeypatch, pid=1)
    Run().go(400)
    assert shell.shown == []
    assert "left_low_s=" in sys.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{"mode": "none"}, {"speaks": False}])
def test_a_silent_run_and_another_rank_display_nothing(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(monkeypatch)
    Run(**options).go()
    assert shell.shown == []
