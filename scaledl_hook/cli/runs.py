"""``scaledl runs``: the list of recorded runs."""

import time
from typing import Annotated

import msgspec
import typer

from scaledl.cli.stream import HomeOption, JsonOption, look_of_stdout, write_json, write_out
from scaledl.past import list_run_lines
from scaledl.report.console import render_runs

SHORT_HELP = "List recorded runs, newest first."
HELP = (
    "Example: scaledl runs --last 5\n\n"
    "List recorded runs, newest first. step: median time between two optimizer steps; state: "
    "finished, stopped early (before its planned end), interrupted (Ctrl-C), error, running, or "
    "killed? (no end was recorded and there was no sign for ten minutes)."
)


def run(
    last: Annotated[int, typer.Option("--last", min=1, help="How many.")] = 20,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write the list to standard output."""
    found = list_run_lines(home, last)
    if json:
        lines = [msgspec.to_builtins(line) for line in found.lines]
        write_json({"schema": "scaledl.runs/1", "runs": lines, "num_skipped": found.num_skipped})
        return
    look = look_of_stdout()
    write_out(
        render_runs(
            found.lines,
            found.num_skipped,
            now_s=time.time(),
            width=look.width,
            unicode=look.unicode,
            color=look.color,
        )
    )
