"""Where commands meet the terminal: what it can show, writing to it, errors as exit codes.

A reader that goes away is no error; a disk that is full or a closed standard output is one.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec

import msgspec
import typer

from scaledl.errors import ScaledlError, UsageError
from scaledl.report.jsonable import to_json
from scaledl.units import printable

FAILED, WRONG_USE, NO_OPTION = 1, 2, 3
_WIDTH = 96
_P = ParamSpec("_P")

HomeOption = Annotated[
    str | None,
    typer.Option("--home", help="Folder of the runs [SCALEDL_HOME, else ~/.cache/scaledl]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for programs, base units.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Id, unique prefix, folder, or 'latest'.")
]


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What standard output can show."""

    width: int
    unicode: bool
    color: bool


def look_of_stdout() -> Look:
    """Colour only on a terminal without ``NO_COLOR``; unicode only where the encoding has it."""
    if sys.stdout is None:  # started with it closed; ``write_out`` says so
        return Look(width=_WIDTH, unicode=False, color=False)
    is_tty = sys.stdout.isatty()
    try:
        "\u251c\u25cf\u25b8\u2026".encode(sys.stdout.encoding or "ascii")
        unicode = True
    except (UnicodeEncodeError, LookupError):
        unicode = False
    width = shutil.get_terminal_size((_WIDTH, 24)).columns if is_tty else _WIDTH
    color = is_tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Look(width=max(60, width), unicode=unicode, color=color)


def write_out(text: str, *, is_json: bool = False) -> None:
    """Text to standard output; when the reader went away (``| head``), silence.

    Args:
        text: What to write; characters that the stream has not are replaced.
        is_json: Replace them by JSON's own escapes, so that it stays JSON.

    Raises:
        ScaledlError: it cannot be written.
    """
    if sys.stdout is None:
        raise ScaledlError("cannot write to standard output: it is closed. Give it a place.")
    try:
        sys.stdout.write(_encodable(text, sys.stdout.encoding, is_json=is_json) + "\n")
        sys.stdout.flush()
    except OSError as error:
        _drop_stdout()
        if isinstance(error, BrokenPipeError):
            return
        reason = os.strerror(error.errno or errno.EIO)
        raise ScaledlError(
            f"cannot write to standard output: {reason}. Send it to another place."
        ) from error


def write_json(value: Any) -> None:
    """``value`` as JSON to standard output."""
    write_out(to_json(value), is_json=True)


def _encodable(text: str, encoding: str | None, *, is_json: bool) -> str:
    encoding = encoding or "ascii"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        if not is_json:
            return text.encode(encoding, "replace").decode(encoding)
    # In JSON text what is not ASCII stands inside strings only.
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)


def _drop_stdout() -> None:
    """Let what is buffered go nowhere: it would fail again when the interpreter flushes."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)


def errors_as_exit_codes(command: Callable[_P, None]) -> Callable[_P, None]:
    """A command whose users' mistakes are one line on standard error and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ScaledlError as error:
            # Names in it may come from a folder that somebody else wrote.
            with contextlib.suppress(OSError):  # standard error may be full or gone as well
                typer.echo(f"scaledl: {printable(str(error), 1000)}", err=True)
            code = WRONG_USE if isinstance(error, UsageError) else FAILED
            raise typer.Exit(code) from None

    return wrapped
