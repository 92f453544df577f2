"""The typer app: one file a command, put together here."""

from typing import Annotated

import typer

from scaledl._version import __version__
from scaledl.cli import collect, doctor, importing, probe, runs, show, whatif
from scaledl.cli.stream import errors_as_exit_codes, write_out

app = typer.Typer(
    help="Example: scaledl what-if latest --gpus 1,2,4,8-64\n\n"
    "Looks at training runs that scaledl.track() recorded: where a step's time goes, and what "
    "another number of GPUs would do.\n\n"
    "Exit codes: 0 fine, 1 failed, 2 wrong use, 3 no option meets the deadline or budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        write_out(f"scaledl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Hold what stands before a command."""


for _name, _module in (
    ("runs", runs),
    ("show", show),
    ("what-if", whatif),
    ("import", importing),
    ("probe", probe),
    ("collect", collect),
    ("doctor", doctor),
):
    app.command(_name, help=_module.HELP, short_help=_module.SHORT_HELP)(
        errors_as_exit_codes(_module.run)
    )
