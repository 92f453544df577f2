"""The time left on the user's own tqdm bar: a text at its end, and nothing else of it changes."""

import io
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from scaledl.bars import UserBars, drawn_bars

LONG, SHORT = "done 14:05 (13:55 to 14:20)", "done 13:55 to 14:20"
TEXTS = (LONG, SHORT)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def __init__(self, columns: int = 100) -> None:
        super().__init__()
        self.columns = columns
        self.bars: list[Any] = []

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """What a terminal shows after all that was written."""
        screen = pyte.Screen(self.columns, 24)
        pyte.Stream(screen).feed(self.getvalue().replace("\n", "\r\n"))
        return [row.rstrip() for row in screen.display if row.strip()]


@pytest.fixture(autouse=True)
def _no_bar_before_nor_after() -> Iterator[None]:
    assert drawn_bars() == []
    yield
    for bar in drawn_bars():
        bar.close()


def bar_on(terminal: Terminal, **options: Any) -> Any:
    """A bar of ten, after three, whose clock stands still."""
    bar = tqdm(**{"total": 10, "file": terminal, "ncols": terminal.columns, **options})
    start_s = bar.start_t
    bar._time = lambda: start_s + 4.0
    bar.update(3)
    terminal.bars.append(bar)  # a bar that nobody holds is gone
    return bar


def test_the_text_stands_behind_the_users_own_and_both_stay() -> None:
    terminal, bars = Terminal(), UserBars()
    bar = bar_on(terminal, desc="train")
    bar.set_postfix(loss=0.5)
    assert bars.show(TEXTS)
    assert terminal.rows()[0].endswith(f"loss=0.5, {LONG}]")
    bar.set_postfix(loss=0.4)
    bar.set_description("epoch 2")
    (row,) = terminal.rows()
    assert row.startswith("epoch 2:  30%|")
    assert row.endswith(f"loss=0.4, {LONG}]")
    assert bar.postfix == "loss=0.4"


def test_without_a_text_and_at_the_end_the_bar_is_as_it_was() -> None:
    terminal, bars = Terminal(), UserBars()
    bar = bar_on(terminal, bar_format="{desc}{bar}{postfix}")
    for take_away in (lambda: bars.show(()), bars.leave):
        assert bars.show(TEXTS)
        assert LONG in terminal.rows()[0]
        take_away()
        assert bar.bar_format == "{desc}{bar}{postfix}"
        assert "done" not in terminal.rows()[0]


KINDS: list[dict[str, Any]] = [
    {},
    {"desc": "train"},
    {"desc": "train: "},
    {"total": None},
    {"total": None, "desc": "train"},
    {"total": None, "desc": "train: "},
    {"total": 2},  # more was done than there is
    {"unit_scale": True, "unit": "B", "total": 10_000},
    {"postfix": {"loss": 0.5}},
    {"ascii": True},
    {"colour": "green"},
    {"bar_format": "{l_bar}{bar}{r_bar}"},
    {"bar_format": "{desc}: {percentage:.0f}% of {total_fmt}"},
    {"bar_format": "{n}/{total} {postfix}"},
    {"total": None, "bar_format": "{n_fmt} {postfix}"},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_but_the_text_is_another_than_without_it(kind: dict[str, Any]) -> None:
    bar, bars = bar_on(Terminal(), **{**kind, "ncols": None}), UserBars()
    before = str(bar)
    assert bars.show(TEXTS)
    assert str(bar).replace(f", {LONG}", "") == before
    assert str(bar).count(LONG) == 1


@given(
    columns=st.integers(1, 160), done=st.integers(3, 10), postfix=st.text("ab=0.5 ", max_size=50)
)
def test_a_text_is_never_cut_and_a_short_one_stands_where_a_long_one_has_no_room(
    columns: int, done: int, postfix: str
) -> None:
    terminal, bars = Terminal(columns), UserBars()
    bar = bar_on(terminal)
    bar.set_postfix_str(postfix)
    is_shown = bars.show(TEXTS)
    bar.n = done  # drawn by the loop before the next text comes
    bar.refresh()
    shown = str(bar)
    bar.close()
    assert len(shown) <= columns
    assert is_shown == (LONG in shown or SHORT in shown)
    assert is_shown or ", d" not in shown


@pytest.mark.parametrize(("columns", "text"), [(100, LONG), (70, SHORT), (50, "")])
def test_the_longest_text_that_fits_is_shown(columns: int, text: str) -> None:
    terminal, bars = Terminal(columns), UserBars()
    bar_on(terminal)
    assert bars.show(TEXTS) == bool(text)
    assert text in terminal.rows()[0]
    assert text or "done" not in terminal.rows()[0]


def test_of_nested_bars_the_outermost_that_is_open_has_the_text() -> None:
    terminal, bars = Terminal(), UserBars()
    outer = bar_on(terminal, desc="epochs")
    inner = bar_on(terminal, desc="batches")
    assert bars.show(TEXTS)
    assert LONG in terminal.rows()[0]
    inner.close()
    assert bars.show((SHORT,))
    (row,) = (row for row in terminal.rows() if row.startswith("epochs"))
    assert SHORT in row
    outer.close()
    assert not bars.show(TEXTS)
    bar_on(terminal, desc="later")
    assert bars.show(TEXTS)


class Elsewhere(tqdm):  # type: ignore[type-arg]
    """As tqdm.rich and tqdm.gui: what it draws knows nothing of the format."""

    def display(self, *_: Any, **__: Any) -> bool:
        return True


@pytest.mark.parametrize(
    "make",
    [
        lambda: tqdm(total=9, file=io.StringIO()),  # a log file
        lambda: tqdm(total=9, file=Terminal(), disable=True),
        lambda: tqdm(total=9, file=Terminal(), delay=100.0),  # not drawn yet
        lambda: tqdm(total=9, file=Terminal(), ncols=0),  # draws no format
        lambda: Elsewhere(total=9, file=Terminal(), ncols=100),
    ],
    ids=["file", "disabled", "delayed", "no columns", "drawn elsewhere"],
)
def test_a_bar_that_cannot_carry_a_text_is_left_as_it_is(make: Any) -> None:
    bar = make()
    written = "" if bar.disable else bar.fp.getvalue()
    assert not UserBars().show(TEXTS)
    assert getattr(bar, "bar_format", None) is None
    assert bar.disable or bar.fp.getvalue() == written
    bar.close()


def test_switched_off_it_touches_no_bar() -> None:
    bar = bar_on(Terminal())
    assert not UserBars(is_on=False).show(TEXTS)
    assert bar.bar_format is None


class Odd(ModuleType):
    """A module of that name which is another one."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize("module", [None, Odd("tqdm"), ModuleType("tqdm")])
def test_without_tqdm_or_with_another_of_that_name_there_is_no_bar(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    bar_on(terminal)
    monkeypatch.setitem(sys.modules, "tqdm", module)
    assert not UserBars().show(TEXTS)
    monkeypatch.delitem(sys.modules, "tqdm")
    assert not UserBars().show(TEXTS)
    assert "tqdm" not in sys.modules
    monkeypatch.undo()


def is_lock_free() -> bool:
    """Whether another thread may draw."""
    found: list[bool] = []

    def look() -> None:
        found.append(tqdm.get_lock().th_lock.acquire(blocking=False))
        if found[0]:
            tqdm.get_lock().th_lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_other_threads_may_draw_after_a_text_was_put() -> None:
    terminal = Terminal()
    bar_on(terminal)
    assert UserBars().show(TEXTS)
    assert is_lock_free()


def test_a_bar_that_fails_at_drawing_is_given_back_and_never_touched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bar, bars = bar_on(Terminal()), UserBars()

    def fail(*_: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(bar, "sp", fail)
    assert not bars.show(TEXTS)
    assert bar.bar_format is None
    assert is_lock_free()
    monkeypatch.undo()
    assert not bars.show(TEXTS)


def test_a_format_that_the_user_sets_meanwhile_wins() -> None:
    bar, bars = bar_on(Terminal()), UserBars()
    assert bars.show(TEXTS)
    bar.bar_format = "mine {n}"
    assert bars.show(TEXTS)
    assert str(bar) == f"mine 3, {LONG}"
    bars.leave()
    assert bar.bar_format == "mine {n}"
    assert bars.show(TEXTS)
    bar.bar_format = "again {n}"
    bars.leave()
    assert bar.bar_format == "again {n}"


def test_of_two_tracked_models_one_has_the_bar_and_then_the_other() -> None:
    bar, first, second = bar_on(Terminal()), UserBars(), UserBars()
    for _ in range(3):
        assert first.show(TEXTS)
        assert not second.show((SHORT,))
    assert str(bar).count("done") == 1
    first.leave()
    assert second.show((SHORT,))
    second.leave()
    assert bar.bar_format is None


def test_a_bar_that_nobody_holds_any_more_is_not_kept() -> None:
    bar, bars = tqdm(total=10, file=Terminal(), ncols=100), UserBars()
    assert bars.show(TEXTS)
    del bar
    assert drawn_bars() == []
    assert not bars.show(TEXTS)
