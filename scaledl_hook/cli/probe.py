"""``scaledl probe``: the own script for a few steps at the counts that tell most; or the links."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from scaledl import arguments
from scaledl.cli.probe_links import probe_links
from scaledl.cli.stream import (
    FAILED,
    HomeOption,
    JsonOption,
    look_of_stdout,
    write_json,
    write_out,
)
from scaledl.errors import UsageError
from scaledl.past import PastRun, open_run
from scaledl.predictor.forecaster import Forecaster
from scaledl.probe_records import Narrowing, ProbePlan, ProbeResult
from scaledl.probing import link_probe
from scaledl.probing.batch_text import TEXTS, job_of
from scaledl.probing.carry_out import run_point
from scaledl.probing.command import BATCH, check_command, environment
from scaledl.probing.machine import num_cores_here, num_gpus_here
from scaledl.probing.plan import Wish, make_plan, narrowed
from scaledl.records import Measurement
from scaledl.report.probe_text import render_plan, render_results
from scaledl.report.text import Style, words
from scaledl.units import MOST_GPUS, parse_seconds

SHORT_HELP = "Run a script for a few steps at other GPU counts, or time the links."
HELP = (
    "Example: scaledl probe --gpus 1,2 -- python train.py --lr 3e-4\n\n"
    "Run the first steps of a training script at the GPU counts that tell most about the others, "
    "so that the next what-if of the run is narrower. The plan is shown first. Without --gpus two "
    "counts of this machine are chosen, or as many as --budget-min allows, by a D-optimal design. "
    "The script is started with torchrun and must have scaledl.track() around its loop, which ends "
    "it after the steps. In the command {gpus} becomes the count and {batch} the batch of one GPU "
    "that keeps the global batch; a command with {gpus} starts its ranks itself.\n\n"
    "--for slurm, k8s or ray prints what starts the probe on a cluster, and runs nothing.\n\n"
    "--links times all-reduces of 1 KiB to 64 MiB in under a minute and keeps latency and "
    "bandwidth for every what-if on this kind of device. Under torchrun on several machines (or "
    "as the job that --for prints for --ranks of them) links inside and between them are told "
    "apart."
)
LEAST_STEPS, MOST_STEPS = 15, 10_000
FAR = 4  # times the running count: up to there --for chooses, as the what-if shows


class Where(StrEnum):
    """What the text is for."""

    SLURM = "slurm"
    K8S = "k8s"
    RAY = "ray"


def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The script and its arguments.")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="Counts, such as 1,2,4.")] = None,
    budget_min: Annotated[
        float | None, typer.Option("--budget-min", help="Most GPU minutes of all probes.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=LEAST_STEPS,
            max=MOST_STEPS,
            help="At each count [30, of short ones more, to 5 s or 300].",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Id, unique prefix, folder, or 'latest'.")
    ] = "latest",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, run nothing.")] = False,
    where: Annotated[
        Where | None, typer.Option("--for", help="Print a job for a cluster, run nothing.")
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", min=1, max=MOST_GPUS, help="Of the cluster's machines."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Stop a probe after so long: 90s, 20min.")
    ] = None,
    links: Annotated[bool, typer.Option("--links", help="Time the links instead.")] = False,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, max=1024, help="That time the links here.")
    ] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Plan, show, run, compare."""
    if links:
        if command:
            raise UsageError("--links times the links alone. Leave the command out.")
        probe_links(ranks, home, gpus_per_node, None if where is None else where.value, json=json)
        return
    if link_probe.is_rank(os.environ):
        raise UsageError(
            "started as one of several ranks (RANK is set): the probe starts the ranks itself. Run "
            "it once, outside of torchrun."
        )
    words_given = list(command or ())
    limit_s = None if timeout is None else _limit_s(timeout)
    past = open_run(name, home)
    forecaster, base = past.learned()
    check_command(words_given, base.plan.batch_per_gpu)
    wish = _wish(words_given, gpus, budget_min, steps, gpus_per_node, base, where)
    plan = make_plan(past.info.run_id, forecaster, base, wish)
    if where is not None:
        _write_jobs(where, plan, words_given, past.folder.parent)
        return
    if not json or dry_run:
        _show_plan(plan, json=json)
    if not dry_run:
        _carry_out(plan, words_given, past, forecaster, base, wish, limit_s, json=json)


def _limit_s(text: str) -> float:
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"--timeout: {error}") from None


def _wish(
    command: list[str],
    gpus: str | None,
    budget_min: float | None,
    steps: int | None,
    gpus_per_node: int | None,
    base: Measurement,
    where: Where | None,
) -> Wish:
    """The question; counts that this machine does not have need ``--for``."""
    here = num_cores_here() if base.host_shared else num_gpus_here()
    named = () if gpus is None else arguments.gpu_counts(gpus)
    many = words(base.host_shared).many
    beyond = [count for count in named if count > here]
    if where is None and (here == 0 or (beyond and not base.host_shared)):
        asked = f"{beyond[0]} {many}" if beyond else many
        raise UsageError(
            f"{asked} are not on this machine, which has {here}. Start the probe there, or print a "
            "job for it with --for slurm, k8s or ray."
        )
    inside = gpus_per_node
    if inside is None and where is None and not base.host_shared:
        inside = here
    return Wish(
        gpus=named,
        budget_gpu_s=None
        if budget_min is None
        else 60 * arguments.amount("--budget-min", budget_min),
        num_steps=steps,
        batch_rule="fixed-global" if any(BATCH in w for w in command) else "fixed-per-gpu",
        gpus_per_node=inside,
        most_gpus=here if where is None else FAR * base.cluster.num_gpus,
    )


def _style() -> Style:
    look = look_of_stdout()
    return Style(width=look.width, unicode=look.unicode, color=look.color)


def _show_plan(plan: ProbePlan, *, json: bool) -> None:
    if json:
        write_json({"schema": "scaledl.probe/1", "plan": msgspec.to_builtins(plan)})
    else:
        write_out(render_plan(plan, _style()))


def _write_jobs(where: Where, plan: ProbePlan, command: list[str], runs: Path) -> None:
    for point in plan.points:
        environ = environment(point.num_steps, runs)
        job = job_of(point, command, environ, cpu_run=plan.cpu_run)
        write_out(TEXTS[where.value](job) + "\n")


def _carry_out(
    plan: ProbePlan,
    command: list[str],
    past: PastRun,
    forecaster: Forecaster,
    base: Measurement,
    wish: Wish,
    limit_s: float | None,
    *,
    json: bool,
) -> None:
    results: list[ProbeResult] = []
    for point in plan.points:
        typer.echo(f"running {words(plan.cpu_run).count(point.num_gpus)} ...", err=True)
        results.append(
            run_point(point, command, base, forecaster, past.folder.parent, limit_s=limit_s)
        )
    after = _after(past, forecaster, base, wish, results)
    if json:
        found: dict[str, Any] = {"plan": plan, "results": results, "after": after}
        write_json({"schema": "scaledl.probe/1"} | msgspec.to_builtins(found))
    else:
        text = render_results(tuple(results), after, _style(), cpu_run=plan.cpu_run)
        write_out("\n" + text)
    if any(result.error for result in results):
        raise typer.Exit(FAILED)


def _after(
    past: PastRun,
    forecaster: Forecaster,
    base: Measurement,
    wish: Wish,
    results: list[ProbeResult],
) -> tuple[Narrowing, ...]:
    """What the next what-if says, read anew from the store as that will."""
    probed = [result.num_gpus for result in results if not result.error]
    if not probed:
        return ()
    learned = PastRun(past.folder, past.info).learned()
    return narrowed((forecaster, base), learned, wish, probed)
