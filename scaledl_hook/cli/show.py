"""``scaledl show``: one run, where its step's time goes."""

from typing import Annotated

import typer

from scaledl.cli.stream import HomeOption, JsonOption, RunArgument, look_of_stdout, write_out
from scaledl.past import open_run

SHORT_HELP = "Show where one run's step time goes."
HELP = (
    "Example: scaledl show latest --layers 15\n\n"
    "Show one run: how it ended, where its step's time goes by part, with --layers also by layer, "
    "with --comm also by collective, and its last what-if report.\n\n"
    "step: time between two optimizer steps. compute: forward and backward less waiting. exposed "
    "comm.: waiting for communication that is not hidden behind backward. input wait: waiting for "
    "the data loader. optimizer: the optimizer's step. other: the rest, so that the parts add up. "
    "n/a: not measured. killed?: no end was recorded and there was no sign for ten minutes."
)


def run(
    name: RunArgument = "latest",
    layers: Annotated[
        int, typer.Option("--layers", min=0, help="Rows of the layer table; 0: none.")
    ] = 0,
    comm: Annotated[bool, typer.Option("--comm", help="Table of collectives.")] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write one run to standard output."""
    past = open_run(name, home)
    look = look_of_stdout()
    text = past.render(
        "json" if json else "console",
        layers=layers,
        comm=comm,
        width=look.width,
        unicode=look.unicode,
        color=look.color,
    )
    write_out(text, is_json=json)
