"""``scaledl import``: traces of torch.profiler, shown and recorded as runs."""

import time
from typing import Annotated, Any

import msgspec
import typer

from scaledl.cli.stream import HomeOption, JsonOption, Look, look_of_stdout, write_json, write_out
from scaledl.errors import UsageError
from scaledl.imported import Imported, Stated, record_job
from scaledl.records import TraceJob
from scaledl.report.traces import render_ranks, render_trace, trace_to_dict
from scaledl.store import home_dir
from scaledl.traces.job import group_jobs
from scaledl.traces.summary import DEFAULT_MAX_BYTES, read_trace
from scaledl.units import MOST_GPUS

SHORT_HELP = "Read traces of torch.profiler as runs."
HELP = (
    "Example: scaledl import rank0.json.gz rank1.json.gz\n\n"
    "Read Chrome traces that torch.profiler exported (.json or .json.gz, any version): what a "
    "step took, how busy the GPU was, how much communication was hidden. Several ranks of one job "
    "in one command also tell transfer from waiting for peers. Where a step can be told, a run is "
    "recorded for scaledl show and scaledl what-if.\n\n"
    "step: from optimizer to optimizer, else as the profiler marked it. GPU busy: kernels and "
    "copies, each moment counted once. computation: kernels that do not communicate. "
    "communication: kernels of NCCL or RCCL and others known to communicate; such a kernel's time "
    "includes waiting for the slowest rank. exposed: communication beside which nothing was "
    "computed. input wait: time in the data loader in which the GPU did nothing. n/a: not in the "
    "trace."
)


def run(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Trace files.")],
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size", min=1, max=MOST_GPUS, help="Ranks of the job [from the trace]."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", min=1, max=MOST_GPUS, help="GPUs of a machine [seen]."),
    ] = None,
    gradient_bytes: Annotated[
        float | None,
        typer.Option("--gradient-bytes", help="Bytes reduced in a step [from the trace]."),
    ] = None,
    max_gb: Annotated[
        float, typer.Option("--max-gb", help="Largest unpacked trace.")
    ] = DEFAULT_MAX_BYTES / 1e9,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show only, record nothing.")] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Write what the traces hold to standard output, and record their runs."""
    if not max_gb > 0:
        raise UsageError(f"--max-gb must be above 0, got {max_gb:g}. Write for example 4.")
    if gradient_bytes is not None and not 0 < gradient_bytes < 1e15:
        raise UsageError(
            f"--gradient-bytes must be above 0, got {gradient_bytes:g}. Write for example 102e6."
        )
    stated = Stated(
        world_size=world_size, gpus_per_node=gpus_per_node, gradient_bytes=gradient_bytes
    )
    # All are read before any run is written: a bad file leaves nothing behind.
    jobs = group_jobs([read_trace(path, max_gb * 1e9) for path in traces])
    look = look_of_stdout()
    values: list[dict[str, Any]] = []
    for job in jobs:
        became = None if dry_run else record_job(job, home_dir(home), stated, time.time())
        if json:
            values.append(_as_dict(job, became))
        else:
            write_out(_text(job, became, look))
    if json:
        write_json({"schema": "scaledl.import/1", "jobs": values})


def _as_dict(job: TraceJob, became: Imported | None) -> dict[str, Any]:
    return {
        "traces": [trace_to_dict(trace) for trace in job.traces],
        "matched": [msgspec.to_builtins(each) for each in job.matched],
        "recorded": None if became is None else msgspec.to_builtins(became),
    }


def _text(job: TraceJob, became: Imported | None, look: Look) -> str:
    texts = [
        render_trace(trace, width=look.width, unicode=look.unicode, color=look.color)
        for trace in job.traces
    ]
    texts.append(render_ranks(job, width=look.width, unicode=look.unicode))
    texts.append(_outcome(became))
    return "\n".join(text for text in texts if text) + "\n"


def _outcome(became: Imported | None) -> str:
    if became is None:
        return ""
    if became.run_id is None:
        return f"not recorded: {became.not_recorded}"
    said = f"recorded as {became.run_id}. See: scaledl show {became.run_id}"
    if became.no_what_if is None:
        return said + f", scaledl what-if {became.run_id}"
    return f"{said}\nno what-if: {became.no_what_if}"
