"""The writing half of the store: one rank's append-only file, fed from a thread of its own."""

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from scaledl.records import SCHEMA, Line, RunEnd, RunInfo
from scaledl.units import format_bytes

MAX_FILE_BYTES = 64 * 2**20
_MAX_QUEUE = 8192
_FLUSH_S = 0.5


class FileHead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First line of a rank's file."""

    schema: int


def _plain_number(value: Any) -> Any:
    """The Python number of a numpy or torch scalar that slipped into a record."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"cannot store a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain_number)


def _make_private_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents with mode 0700."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _write_all(fd: int, data: bytes) -> None:
    """Write every byte; ``os.write`` may take only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class RunWriter:
    """Appends records of one rank to its file, from a thread, and never disturbs the training.

    ``append`` puts into a bounded queue. A file error (full disk, read-only folder, quota) or the
    size cap turns recording off and is told once through ``on_trouble``. In a forked child the
    writer does nothing: the file belongs to the parent.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / f"rank{rank}.jsonl"
        self.num_dropped = 0
        self._max_bytes = max_bytes
        self._on_trouble = on_trouble
        self._pid = os.getpid()
        self._queue: deque[Line] = deque()
        self._wake = threading.Event()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._fd: int | None = None
        self._num_bytes = 0
        self._off = self._full = self._closed = self._told = False

    def write_info(self, info: RunInfo) -> None:
        """Write ``run.json`` in one move, so that a reader never sees half of it."""
        if self._off or os.getpid() != self._pid:
            return
        part = self.folder / f".run.json.{self._pid}"
        try:
            _make_private_folder(self.folder)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                _write_all(fd, msgspec.json.format(_encoder.encode(info), indent=1) + b"\n")
            finally:
                os.close(fd)
            part.replace(self.folder / "run.json")
        except Exception as error:
            with contextlib.suppress(OSError):
                part.unlink()
            self._switch_off(error)

    def append(self, line: Line) -> None:
        """Hand over one record; returns at once and never raises."""
        if os.getpid() != self._pid:
            return
        if self._off or self._closed or len(self._queue) >= _MAX_QUEUE:
            self.num_dropped += 1
            return
        self._queue.append(line)
        if self._thread is None:
            self._start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued and end the thread; gives up after ``timeout_s``."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="scaledl-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                self._switch_off(error)
                return
            self._thread = thread

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping and not self._off:
                stopping = self._wake.wait(_FLUSH_S)
                self._flush()
        except Exception as error:
            self._switch_off(error)
        finally:
            fd, self._fd = self._fd, None
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _flush(self) -> None:
        """Encode and write all that is queued, as one write."""
        chunks: list[bytes] = []
        num_bytes = 0
        while self._queue:
            line = self._queue.popleft()
            try:
                data = _encoder.encode(line) + b"\n"
            except (TypeError, ValueError, msgspec.MsgspecError):
                self.num_dropped += 1
                continue
            if not self._room_for(line, num_bytes + len(data)):
                self.num_dropped += 1
                continue
            chunks.append(data)
            num_bytes += len(data)
        if chunks:
            fd = self._open() if self._fd is None else self._fd
            if os.fstat(fd).st_nlink == 0:  # what is written to it would be lost in silence
                raise FileNotFoundError(errno.ENOENT, "it was removed")
            _write_all(fd, b"".join(chunks))
            self._num_bytes += num_bytes

    def _room_for(self, line: Line, num_bytes: int) -> bool:
        """Whether the size cap allows it; the closing ``RunEnd`` (100 bytes) always passes."""
        if isinstance(line, RunEnd):
            return True
        if not self._full and self._num_bytes + num_bytes > self._max_bytes:
            self._full = True
            self._tell(
                f"recording stops: {self.path} reached its cap of {format_bytes(self._max_bytes)}. "
                "Training and forecasts go on."
            )
        return not self._full

    def _open(self) -> int:
        _make_private_folder(self.folder)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = fd = os.open(self.path, flags, 0o600)
        self._num_bytes = os.fstat(fd).st_size
        head = _encoder.encode(FileHead(schema=SCHEMA)) + b"\n"
        if self._num_bytes and os.pread(fd, 1, self._num_bytes - 1) != b"\n":
            head = b"\n" + head  # ends the line that a killed writer left torn
        _write_all(fd, head)
        self._num_bytes += len(head)
        return fd

    def _switch_off(self, error: Exception) -> None:
        self._off = True
        self.num_dropped += len(self._queue)
        self._queue.clear()
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        self._tell(
            f"cannot write {self.folder}: {reason}. Recording is off, training goes on. "
            "Set SCALEDL_HOME or run_dir=."
        )

    def _tell(self, message: str) -> None:
        if self._told:
            return
        self._told = True
        try:
            self._on_trouble(message)
        except Exception:
            self._off = True  # nobody listens; the training must not hear of it
