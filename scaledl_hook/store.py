"""Run folders: one folder a run, one append-only JSON-lines file a rank, no locks.

Layout: ``home/runs/<run_id>/run.json`` (written by rank 0) and ``rank<k>.jsonl``. Each file has
one writer, so that nothing is shared between processes and a crash leaves at most one torn last
line, which the reader skips. The file's first line names the schema.
"""

import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from scaledl.errors import StoreError, UsageError
from scaledl.records import SCHEMA, LayerGraph, Line, RunInfo, ScalingReport
from scaledl.units import printable
from scaledl.writer import FileHead, RunWriter

__all__ = [
    "RunEntry",
    "RunList",
    "RunWriter",
    "find_run",
    "home_dir",
    "list_runs",
    "new_run_id",
    "newest_folders",
    "ranks_of",
    "read_info",
    "read_lines",
    "read_tail",
]

MAX_LINE_BYTES = 8 * 2**20
_RANK_FILE = re.compile(r"rank(\d{1,7})\.jsonl")


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a listing: its head and where it lies."""

    info: RunInfo
    folder: Path


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """Readable runs, newest first, and how many folders could not be read."""

    runs: tuple[RunEntry, ...]
    num_skipped: int = 0


_decoder: "msgspec.json.Decoder[FileHead | Line]" = msgspec.json.Decoder(FileHead | Line)


# --- where runs lie ----------------------------------------------------------------------------


def home_dir(configured: str | None = None) -> Path:
    """The folder that holds ``runs/``: the argument, else ``SCALEDL_HOME``, else the user's cache.

    A user without a home folder (a container with a made-up user id) gets ``.scaledl`` in the
    working folder: never a shared one such as ``/tmp``.
    """
    text = configured or os.environ.get("SCALEDL_HOME") or "~/.cache/scaledl"
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        return Path(".scaledl").absolute()


def new_run_id(now_s: float, model_name: str) -> str:
    """A fresh name such as ``1201-1402-gpt2-a3f9``: local date and time, model, four random digits.

    Only ``a-z 0-9 -`` occur. The digits come from the system, not from the user's ``random`` state.
    """
    name = re.sub(r"[^a-z0-9]+", "-", model_name.lower()).strip("-")[:24].strip("-") or "run"
    stamp = time.strftime("%m%d-%H%M", time.localtime(now_s))
    return f"{stamp}-{name}-{secrets.token_hex(2)}"


# --- reading -----------------------------------------------------------------------------------


def _newer(schema: int) -> StoreError:
    return StoreError(
        f"run was written by schema {schema}, this scaledl reads up to {SCHEMA}. "
        "Upgrade: pip install -U scaledl"
    )


class _AnySchema(msgspec.Struct):
    schema: int = SCHEMA


def read_info(folder: Path) -> RunInfo:
    """The head of a run.

    Raises:
        StoreError: missing, damaged, or written by a newer schema.
    """
    path = Path(folder) / "run.json"
    try:
        with _open_plain(path) as stream:
            data = stream.read(MAX_LINE_BYTES)
        schema = msgspec.json.decode(data, type=_AnySchema).schema
        if schema > SCHEMA:
            raise _newer(schema)
        return msgspec.json.decode(data, type=RunInfo)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"cannot read {path}: {error}. Give another run.")


def _open_plain(path: Path) -> Any:
    """A binary reader; refuses links, pipes and devices, which could hang or lead elsewhere."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"not a plain file: {path}")
    return os.fdopen(fd, "rb")


def ranks_of(folder: Path) -> tuple[int, ...]:
    """The ranks that left a file, ascending.

    Raises:
        StoreError: the folder cannot be listed.
    """
    try:
        found = [_RANK_FILE.fullmatch(name) for name in os.listdir(folder)]
    except OSError as error:
        raise _unreadable(folder, error) from error
    return tuple(sorted(int(match[1]) for match in found if match))


def read_lines(folder: Path, rank: int | None = None) -> Iterator[Line]:
    """Records of one rank or, rank by rank, of all; torn, huge and unknown lines are skipped.

    Raises:
        StoreError: a file cannot be opened or read, or was written by a newer schema.
    """
    for each in ranks_of(folder) if rank is None else (rank,):
        yield from _read_file(Path(folder) / f"rank{each}.jsonl", 0)


def read_tail(folder: Path, rank: int = 0, max_bytes: int = 2**18) -> tuple[Line, ...]:
    """The last records of one rank: what a listing needs, without reading megabytes."""
    path = Path(folder) / f"rank{rank}.jsonl"
    try:
        size = path.lstat().st_size
    except OSError:
        return ()
    return tuple(_read_file(path, max(0, size - max_bytes)))


def _read_file(path: Path, start: int) -> Iterator[Line]:
    for data in _read_raw(path, start):
        record = decode_line(data)
        if isinstance(record, (FileHead, LayerGraph, ScalingReport)) and record.schema > SCHEMA:
            raise _newer(record.schema)
        if record is not None and not isinstance(record, FileHead):
            yield record


def _read_raw(path: Path, start: int) -> Iterator[bytes]:
    """Lines of a file, those beyond the limit left out; an error of the disk is ours to tell."""
    try:
        with _open_plain(path) as stream:
            if start:
                stream.seek(start)
                stream.readline(MAX_LINE_BYTES)
            while data := stream.readline(MAX_LINE_BYTES):
                if len(data) == MAX_LINE_BYTES and not data.endswith(b"\n"):
                    while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                        pass
                    continue
                yield data
    except OSError as error:
        raise _unreadable(path, error) from error


def decode_line(data: bytes) -> "FileHead | Line | None":
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def list_runs(home: Path) -> RunList:
    """The runs under ``home``, newest first; folders that cannot be read are counted."""
    entries: list[RunEntry] = []
    num_skipped = 0
    for folder in _folders(home):
        try:
            entries.append(RunEntry(info=read_info(folder), folder=folder))
        except StoreError:
            num_skipped += 1
    entries.sort(key=lambda e: (e.info.started_at, e.info.run_id), reverse=True)
    return RunList(runs=tuple(entries), num_skipped=num_skipped)


def _folders(home: Path) -> list[Path]:
    """The run folders under ``home/runs``, or under ``home`` where it is a ``run_dir`` itself."""
    inner = Path(home) / "runs"
    if _is_dir(inner):
        return [path for path in _entries(inner) if _is_dir(path)]
    return [path for path in _entries(Path(home)) if _is_file(path / "run.json")]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):  # also a name with a zero in it
        return []


def _is_dir(path: Path) -> bool:
    """Whether it is a folder that can be looked at; a name too long or a closed way is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def newest_folders(home: Path, most: int) -> list[Path]:
    """The run folders that changed last, found by their time stamps alone."""

    def changed_at(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except OSError:
            return 0.0

    return sorted(_folders(home), key=changed_at, reverse=True)[:most]


def find_run(home: Path, name: str | os.PathLike[str]) -> Path:
    """The folder of a run named by id, unique prefix, path, or ``latest``.

    Raises:
        StoreError: nothing fits, or several do; the message names candidates.
        UsageError: ``name`` is neither text nor a path.
    """
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"a run is named by text or a path, got {type(name).__name__}.")
    name = os.fsdecode(name)
    if name == "latest":
        runs = list_runs(home).runs
        if not runs:
            raise StoreError(f"no runs in {home}. Train with scaledl.track(model), or give --home.")
        # A probe serves another run: it is the latest only where there is nothing else.
        return next((run for run in runs if not run.info.probe), runs[0]).folder
    folders = {path.name: path for path in _folders(home)}
    names = sorted(folders)
    fitting = [n for n in names if n == name] or [n for n in names if name and n.startswith(name)]
    if len(fitting) == 1:
        return folders[fitting[0]]
    if not fitting and name and _is_dir(Path(name)):
        return Path(name)
    known = ", ".join((fitting or names[-5:])[:5]) or "none"
    shown = repr(printable(name, 60))
    what = f"{shown} fits {len(fitting)} runs" if fitting else f"no run {shown}"
    raise StoreError(f"{what}. Candidates: {known}. See: scaledl runs")
