"""``scaledl what-if``: the same training on other counts."""

from enum import StrEnum
from typing import Annotated

import typer

from scaledl import arguments
from scaledl.cli.stream import (
    NO_OPTION,
    HomeOption,
    JsonOption,
    RunArgument,
    look_of_stdout,
    write_json,
    write_out,
)
from scaledl.errors import UsageError
from scaledl.past import PastRun, open_run
from scaledl.records import ScalingReport
from scaledl.report.console import render_report
from scaledl.report.jsonable import report_to_dict
from scaledl.units import MOST_GPUS, parse_seconds

SHORT_HELP = "Forecast a recorded run on other numbers of GPUs."
HELP = (
    "Example: scaledl what-if latest --gpus 1,2,4,8-64 --price 2.49 --deadline 12h\n\n"
    "Forecast a recorded run on other numbers of GPUs; 8-64 means 8, 16, 32, 64. At most 256 "
    "counts.\n\n"
    "step: time between two optimizer steps, with its interval. epoch: the same data once. speed: "
    "against the recorded count. eff.: work per GPU, the smallest count is 100 %. cost, energy: of "
    "one epoch; a price of 0 is one. measured: that count was run. between: between two counts "
    "that were run. ~: beyond twice the largest count run. prior: nothing of the kind was run. "
    "limited by: the largest cost beside compute, with its share of the step. memory: expected "
    "peak of one GPU, of what it has.\n\n"
    "With --deadline or --budget the exit code is 3 if no count keeps it at the upper end of its "
    "interval."
)


class Fixed(StrEnum):
    """What stays the same when the count changes."""

    BATCH_PER_GPU = "batch-per-gpu"
    GLOBAL_BATCH = "global-batch"


def run(
    name: RunArgument = "latest",
    gpus: Annotated[str | None, typer.Option("--gpus", help="Counts, such as 1,2,4,8-64.")] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", min=1, max=MOST_GPUS, help="Of the machines in question."),
    ] = None,
    link: Annotated[
        str | None, typer.Option("--link", help="Between nodes: 200Gb/s, 25GB/s or a class.")
    ] = None,
    price: Annotated[float | None, typer.Option("--price", help="Dollars a GPU-hour.")] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", help="Longest time for the rest, with its unit: 90s, 12h, 2d."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Most dollars for the rest; needs a price.")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option("--strategies", help="Compared at every count: ddp,fsdp,hsdp."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", min=1, max=arguments.MOST_EPOCHS, help="Length of the run [as recorded]."
        ),
    ] = None,
    fixed: Annotated[
        Fixed, typer.Option("--fixed", help="What stays the same.")
    ] = Fixed.GLOBAL_BATCH,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write the what-if report to standard output."""
    deadline_s = None if deadline is None else _deadline_s(deadline)
    budget = None if budget is None else arguments.amount("--budget", budget)
    price = None if price is None else arguments.price("--price", price)
    past = open_run(name, home)
    report = past.what_if(
        gpus,
        usd_per_gpu_hour=price,
        batch_rule="fixed-per-gpu" if fixed is Fixed.BATCH_PER_GPU else "fixed-global",
        gpus_per_node=gpus_per_node,
        inter=link,
        epochs=epochs,
        strategies=strategies,
        deadline_s=deadline_s,
        budget_usd=budget,
    )
    if json:
        write_json(report_to_dict(report))
    else:
        write_out(_text(past, report))
    if report.limits is not None and not report.limits.within:
        raise typer.Exit(NO_OPTION)


def _deadline_s(text: str) -> float:
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"--deadline: {error}") from None


def _text(past: PastRun, report: ScalingReport) -> str:
    look = look_of_stdout()
    return render_report(
        report,
        width=look.width,
        unicode=look.unicode,
        color=look.color,
        cpu_run=past.measurements[-1].host_shared,
        whole_run=past.ended is not None,
    )
