"""What the graph network made of a run: the record, and the file that it is handed over in."""

import contextlib
import os
from pathlib import Path
from typing import Literal

import msgspec

FILE = "learned.json"
MOST_BYTES = 2**20


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """State of the learner of one run. Seconds are those of a step, without waiting for data.

    ``told_s`` and ``truth_s`` are of the newest window, told before it was learned from;
    ``after_s`` is what is told of it since. ``errors`` are |told / true - 1| of the windows in
    turn, the newest last. ``first_told_s`` and ``first_truth_s`` are of the first window that
    anything could be told of; ``left_out`` names why nothing is learned, where that is so.
    """

    at_s: float
    state: Literal["learning", "done", "failed"]
    device: str = ""
    num_windows: int = 0
    num_updates: int = 0
    num_jobs: int = 0
    first_told_s: float | None = None
    first_truth_s: float | None = None
    told_s: float | None = None
    truth_s: float | None = None
    after_s: float | None = None
    errors: tuple[float, ...] = ()
    left_out: str = ""

    @property
    def first_error(self) -> float | None:
        """Of the first window told."""
        if self.first_told_s is None or not self.first_truth_s:
            return None
        return abs(self.first_told_s / self.first_truth_s - 1)


def write_learned(folder: Path, learned: Learned) -> None:
    """Put the file there in one move.

    Raises:
        OSError: it cannot be written.
    """
    part = folder / f".{FILE}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(part, flags, 0o600), "wb") as stream:
            stream.write(msgspec.json.encode(learned))
        part.replace(folder / FILE)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def read_learned(folder: Path) -> Learned | None:
    """What was written last; ``None`` where there is nothing that can be read."""
    try:
        with (folder / FILE).open("rb") as stream:
            return msgspec.json.decode(stream.read(MOST_BYTES), type=Learned)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
