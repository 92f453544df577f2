"""The one voice inside a training process: rank 0's live line, notices and reports.

Everything goes to one stream (standard error). A write that fails (the reader of a pipe went away)
makes the speaker silent; it never reaches the training loop.
"""

import os
import shutil
import sys
from typing import IO, Any

from scaledl.bars import drawn_bars
from scaledl.notebook import Output, has_kernel
from scaledl.units import printable


class Speaker:
    """Prints whole lines, and on a terminal keeps one line redrawn in place.

    Args:
        mode: ``print``, ``none``, or the path of a file for reports.
        speaks: Whether this rank speaks at all (rank 0).
        stream: Where to; by default standard error at the time of the call.
    """

    def __init__(self, mode: str, speaks: bool, stream: IO[str] | None = None) -> None:
        self._given = stream
        self._silent = mode == "none" or not speaks
        self._path = mode if mode not in ("print", "none") and speaks else None
        self._drawn = 0
        self._output = Output() if stream is None and has_kernel() else None

    @property
    def is_silent(self) -> bool:
        return self._silent

    @property
    def stream(self) -> IO[str]:
        return self._given if self._given is not None else sys.stderr

    @property
    def is_terminal(self) -> bool:
        """Whether a line can be redrawn in place here."""
        try:
            return self.stream.isatty() and os.environ.get("TERM") != "dumb"
        except (OSError, ValueError, AttributeError):
            return False

    @property
    def redraws(self) -> bool:
        """Whether a line can be redrawn in place, on a terminal or in a notebook."""
        return self._output is not None or self.is_terminal

    @property
    def is_shared(self) -> bool:
        """Whether the user's own bars are drawn where the live line would be."""
        return bool(drawn_bars()) or type(self.stream).__module__.startswith("rich.")

    @property
    def width(self) -> int:
        """Columns: of the terminal, else 96."""
        return max(40, shutil.get_terminal_size((96, 24)).columns) if self.is_terminal else 96

    @property
    def unicode(self) -> bool:
        """Whether the stream's encoding has the marks that the reports use."""
        encoding = getattr(self.stream, "encoding", None) or "ascii"
        try:
            "●▸│".encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    @property
    def color(self) -> bool:
        """Colour only on a terminal, and never against NO_COLOR."""
        return self.is_terminal and not os.environ.get("NO_COLOR")

    def notice(self, text: str) -> None:
        """One line of ours among the user's output."""
        if not self._silent:
            self._write_block(f"scaledl  {printable(text, 400)}")

    def block(self, text: str) -> None:
        """Several lines: a report."""
        if self._path is not None:
            self._append(text)
        elif not self._silent:
            self._write_block(text)

    def line(self, text: str) -> None:
        """The live line: redrawn where the place is ours alone, else a line of its own."""
        if self._silent:
            return
        if not self.redraws or self.is_shared:
            self._write_block(text)
            return
        if self._output is not None:
            self._draw_output(text)
            return
        text = f"{text}  "[: self.width]  # what the user prints next stays apart from it
        padding = " " * max(0, self._drawn - len(text))
        self._drawn = len(text)
        self._write(f"\r{text}{padding}")

    def _draw_output(self, text: str) -> None:
        try:
            if self._output is not None:
                self._output.draw(text)
        except Exception:  # another notebook than this was written for: lines as in a log
            self._output = None

    def clear_output(self) -> None:
        """Take the line of a notebook away: a bar of the user's has its text now."""
        self._draw_output("")

    def end_line(self) -> None:
        """Leave the live line standing and go below it."""
        drawn, self._drawn = self._drawn, 0
        if drawn and not self.is_shared:  # else a bar stands where the line was
            self._write("\n")

    def _write_block(self, text: str) -> None:
        drawn, self._drawn = self._drawn, 0
        if drawn and not self.is_shared:
            self._write("\r" + " " * drawn + "\r")
        bar = _live_bar()
        if bar is not None and self._given is None:
            try:
                bar.write(text, file=self.stream)
                return
            except Exception:  # a bar that cannot print must not keep us from printing
                pass
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        stream = self.stream
        try:
            if not self.unicode:
                text = text.encode("ascii", "replace").decode("ascii")
            stream.write(text)
            stream.flush()
        except (OSError, ValueError, AttributeError):  # gone, closed, or none at all
            self._silent = True

    def _append(self, text: str) -> None:
        try:
            with open(str(self._path), "a", encoding="utf-8", opener=_never_waits) as file:
                file.write(text + "\n")
        except OSError as error:
            path, self._path = self._path, None
            self.notice(f"cannot write reports to {path}: {error.strerror}. They go here instead.")
            self.block(text)


def _never_waits(path: str, flags: int) -> int:
    """Opens a file; a named pipe that nobody reads is an error and no wait."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def _live_bar() -> Any:
    """The class of a tqdm bar that is alive on this process, to print through; else ``None``."""
    try:
        bar = getattr(sys.modules.get("tqdm"), "tqdm", None)
        instances = getattr(bar, "_instances", None)
        return bar if instances is not None and len(instances) > 0 else None
    except Exception:  # half installed, or another module of that name
        return None
