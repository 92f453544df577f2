"""One command run to its end, or ended politely: nothing of it stays behind."""

import contextlib
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import msgspec
import psutil

from scaledl.errors import UsageError
from scaledl.units import printable

TERM_S = 40.0
"""Time to end after SIGTERM: torchrun gives its ranks 30 s before it kills them."""
KILL_S = 5.0
TAIL_LINES = 20
_TAIL_BYTES = 2**16


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. ``code`` is ``None`` where it was stopped at the limit."""

    code: int | None
    wall_s: float
    tail: tuple[str, ...]


def run_command(
    words: Sequence[str], environ: Mapping[str, str], *, limit_s: float, term_s: float = TERM_S
) -> Ended:
    """Run to the end, at most for ``limit_s``; what it says is kept only to show its tail.

    Left by Ctrl-C, SIGTERM or any other way, the command and all it started are ended first.

    Raises:
        UsageError: it cannot be started.
    """
    with tempfile.TemporaryFile() as said:
        begin_s = time.monotonic()
        try:
            process = subprocess.Popen(
                list(words),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes here first, not to half of the ranks
            )
        except OSError as error:
            raise UsageError(
                f"cannot start {printable(words[0], 60)!r}: {error.strerror}. Check the command."
            ) from error
        try:
            with _ended_in_order():
                code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process, term_s)
        return Ended(code=code, wall_s=time.monotonic() - begin_s, tail=_tail(said))


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """A request to end this command leaves by an exception, so that its child is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # nobody may set handlers there
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    kept = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def end(process: "subprocess.Popen[bytes]", term_s: float = TERM_S) -> None:
    """Ask a process that still runs to end, then kill it and what it had started.

    The ranks of torchrun have sessions of their own: a signal to its group would miss them.
    """
    if process.poll() is not None:
        return
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(term_s)
    for child in started:
        with contextlib.suppress(psutil.Error):
            child.kill()  # psutil looks first whether the number is still of that process
    if process.poll() is None:
        process.kill()
        process.wait(KILL_S)
    psutil.wait_procs(started, timeout=KILL_S)


def _tail(said: IO[bytes]) -> tuple[str, ...]:
    size = said.seek(0, 2)
    said.seek(max(0, size - _TAIL_BYTES))
    lines = said.read().decode("utf-8", "replace").splitlines()
    return tuple(printable(line) for line in lines if line.strip())[-TAIL_LINES:]
