"""Reads a run's file while another process appends to it."""

from pathlib import Path

from scaledl.records import Line
from scaledl.store import MAX_LINE_BYTES, decode_line
from scaledl.writer import FileHead

MOST_BYTES = 4 * MAX_LINE_BYTES


class Tail:
    """Whole new lines of a file; a line that is not finished waits for the next time.

    Args:
        path: May not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> list[Line]:
        """The records that were added since the last call; what cannot be read is skipped."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._at)
                data = stream.read(MOST_BYTES)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        if not end and len(data) == MOST_BYTES:
            end = len(data)  # no line is that long: whatever it is, it is behind us
        self._at += end
        found = [decode_line(line) for line in data[:end].split(b"\n") if line]
        return [line for line in found if line is not None and not isinstance(line, FileHead)]
