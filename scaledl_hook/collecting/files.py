"""Files of tasks and of measurements: JSON lines, appended one by one, packed when committed."""

import lzma
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from scaledl.collecting.records import Collected, Machine, Task
from scaledl.errors import StoreError

Line = Machine | Collected


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """All tasks in the order in which they are to be measured."""
    path.write_bytes(msgspec.json.encode(list(tasks)))


def read_tasks(path: Path) -> list[Task]:
    """What ``write_tasks`` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=list[Task])


def read(path: Path) -> tuple[Machine | None, list[Collected]]:
    """The measurements of a file, plain or packed (``.xz``), and where they were taken.

    A last line that a kill left torn is left out.

    Raises:
        StoreError: the file is missing, or another line is no measurement.
    """
    try:
        data = path.read_bytes()
        lines = (lzma.decompress(data) if path.suffix == ".xz" else data).split(b"\n")
    except (OSError, lzma.LZMAError) as error:
        raise StoreError(f"cannot read measurements of {path}: {error}.") from error
    machine: Machine | None = None
    found: list[Collected] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            one = msgspec.json.decode(line, type=Line)
        except msgspec.MsgspecError as error:
            if number == len(lines):
                break
            raise StoreError(f"line {number} of {path} is no measurement: {error}.") from error
        if isinstance(one, Machine):
            machine = machine or one
        else:
            found.append(one)
    return machine, found


def done(path: Path) -> set[Task]:
    """The tasks that a file holds already; none where there is no file."""
    return {one.task for one in read(path)[1]} if path.exists() else set()


@contextmanager
def open_for_append(path: Path, machine: Machine) -> Iterator[BinaryIO]:
    """The file, its torn last line ended and its first line written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    if torn:
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rfind(b"\n") + 1])
    with path.open("ab") as stream:
        if path.is_file() and path.stat().st_size == 0:
            write_line(stream, machine)
        yield stream


def write_line(stream: BinaryIO, line: Line) -> None:
    """One line, on its way to the disk at once."""
    stream.write(msgspec.json.encode(line) + b"\n")
    stream.flush()


def pack(path: Path, packed: Path) -> None:
    """A packed copy, small enough to hand on."""
    packed.write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
