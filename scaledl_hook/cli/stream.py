"""Where commands meet the terminal: what it can show, writing to it, errors as exit codes."""

import functools
import os
import shutil
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec

import msgspec
import typer

from scaledl.errors import ScaledlError, UsageError

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
    is_tty = sys.stdout.isatty()
    try:
        "\u251c\u25cf\u25b8\u2026".encode(sys.stdout.encoding or "ascii")
        unicode = True
    except (UnicodeEncodeError, LookupError):
        unicode = False
    width = shutil.get_terminal_size((_WIDTH, 24)).columns if is_tty else _WIDTH
    color = is_tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Look(width=max(60, width), unicode=unicode, color=color)


def write_out(text: str) -> None:
    """Text to standard output; when the reader went away (``| head``), silence."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is buffered would fail again when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def errors_as_exit_codes(command: Callable[_P, None]) -> Callable[_P, None]:
    """A command whose users' mistakes are one line on standard error and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ScaledlError as error:
            typer.echo(f"scaledl: {error}", err=True)
            code = WRONG_USE if isinstance(error, UsageError) else FAILED
            raise typer.Exit(code) from None

    return wrapped
