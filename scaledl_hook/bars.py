"""The user's own tqdm bar: the time left stands at its end, and no second bar is drawn.

Nothing is patched and nothing imported. A bar's ``bar_format`` is a template of its line; ours is
the user's with a text behind its postfix. So what the loop sets with ``set_postfix`` stays, and
neither text makes the other flicker. The user's format is put back once there is nothing to say.
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

# What tqdm draws where no format is given, for a bar of known and of unknown length.
KNOWN = "{l_bar}{bar}{r_bar}"
UNKNOWN = "{n_fmt}{unit} [{elapsed}, {rate_fmt}{postfix}]"
RIGHT = "| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"  # its {r_bar}
POSTFIX = "{postfix}"
# Columns that stay free: counts and times grow, and a text that loses its end would be another one.
MARGIN = 8
_DRAWN_BY = ("tqdm.std", "tqdm.notebook")  # kinds of display that draw by the format

# Who put a text on which bar: where two models are tracked, only one has it.
_carried: "weakref.WeakKeyDictionary[Any, UserBars]" = weakref.WeakKeyDictionary()


def drawn_bars() -> list[Any]:
    """The tqdm bars that are drawn on a terminal or in a notebook now, the outermost first."""
    try:
        instances = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", None)
        alive = [bar for bar in list(instances or ()) if _is_drawn(bar)]
        return sorted(alive, key=lambda bar: abs(bar.pos))
    except Exception:  # half installed, changed by another thread, or another module of that name
        return []


def _is_drawn(bar: Any) -> bool:
    if bar.disable or not hasattr(bar, "start_t") or bar._time() < bar.start_t + bar.delay:
        return False
    return bool(_is_widget(bar) or bar.fp.isatty())


def _is_widget(bar: Any) -> bool:
    return hasattr(bar, "container")


class UserBars:
    """Puts a text on the outermost bar that takes one; off for good once a bar fails at it."""

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._bar: Callable[[], Any] = _no_bar  # a weak reference to the one that carries the text
        self._given: str | None = None  # its format as the user left it
        self._made = ""  # and the one with our text

    def show(self, texts: Sequence[str]) -> bool:
        """Put the first of ``texts`` that fits on a bar; whether one carries it now.

        Args:
            texts: The same, said ever shorter; none takes away what was put.
        """
        if not self._is_on:
            return False
        try:
            return self._show(texts)
        except Exception:  # another tqdm than this was written for: its bars stay as they are
            self._is_on = False
            self._take_back()
            return False

    def leave(self) -> None:
        """Give the bar back its format."""
        self.show(())

    def _show(self, texts: Sequence[str]) -> bool:
        bar = next((bar for bar in drawn_bars() if self._may_take(bar)), None)
        is_same = bar is not None and self._bar() is bar and bar.bar_format == self._made
        if not is_same:
            _draw(self._take_back())
        if bar is None:
            return False
        given = self._given if is_same else bar.bar_format
        made = next((m for m in (_with(bar, given, t) for t in texts) if m is not None), None)
        if made is None:
            _draw(self._take_back())
            return False
        is_news = bar.bar_format != made
        self._bar, self._given, self._made = weakref.ref(bar), given, made
        bar.bar_format, _carried[bar] = made, self
        if is_news:
            _draw(bar)
        return True

    def _may_take(self, bar: Any) -> bool:
        by_format = type(bar).display.__module__ in _DRAWN_BY
        return by_format and _carried.get(bar, self) is self

    def _take_back(self) -> Any:
        """The bar that carried the text, with the format it had; ``None`` where nothing changed."""
        bar, self._bar = self._bar(), _no_bar
        if bar is None:
            return None
        _carried.pop(bar, None)
        if bar.bar_format != self._made:  # the user set another one
            return None
        bar.bar_format = self._given
        return bar


def _no_bar() -> None:
    return None


def _draw(bar: Any) -> None:
    """Draw it now: an outer bar moves only once an epoch.

    Under tqdm's own lock by hand: ``refresh()`` keeps it for ever where drawing fails, and with
    ``lock_args`` wherever the lock is the usual one, whose ``acquire`` returns nothing.
    """
    if bar is not None:
        with bar.get_lock():
            bar.refresh(nolock=True)


def _with(bar: Any, given: str | None, text: str) -> str | None:
    """The format of ``bar`` with ``text`` at its end; ``None`` where it has no room for it."""
    made = _joined(given or _usual(bar), text)
    if _is_widget(bar):
        return made
    if bar.ncols == 0:  # such a bar is drawn without any format
        return None
    room = bar.format_dict["ncols"]  # asks a terminal that changes its size
    width = None if room is None else max(room - MARGIN, 1)
    line = bar.format_meter(**{**bar.format_dict, "bar_format": made, "ncols": width})
    return made if text in line else None


def _usual(bar: Any) -> str:
    if _is_widget(bar) or (bar.total and bar.n <= bar.total):
        return KNOWN
    return f"{{desc}}: {UNKNOWN}" if bar.desc else UNKNOWN


def _joined(given: str, text: str) -> str:
    given = given.replace("{r_bar}", RIGHT)
    if POSTFIX in given:
        return given.replace(POSTFIX, f"{POSTFIX}, {text}")
    return f"{given}, {text}"
