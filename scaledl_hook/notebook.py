"""The live line in a notebook: one output of the cell, updated in place.

Plain text, no widgets: it stays readable in a saved notebook, and nothing has to be installed.
Nothing is imported either: where a kernel runs, IPython is there.
"""

import os
import sys
from typing import Any


def has_kernel() -> bool:
    """Whether this process is a notebook's kernel; a rank forked from one cannot display."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        return bool(shell.kernel.session.pid == os.getpid())
    except Exception:  # no IPython, none in a kernel, or another module of that name
        return False


class Output:
    """One output, made at the first line."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    def draw(self, text: str) -> None:
        """Show ``text`` in place of what was shown; an empty one takes it away.

        Raises:
            Exception: of any kind, where the notebook cannot display.
        """
        if text == self._shown:
            return
        self._shown, data = text, {"text/plain": text}
        if self._handle is None:
            show = sys.modules["IPython.display"].display
            self._handle = show(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
