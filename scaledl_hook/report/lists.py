"""Text of the commands that list: runs, one run, and what works on this machine."""

import time
from typing import Literal

import msgspec

from scaledl.learned import Learned
from scaledl.records import ClusterSpec, EpochRecord, Measurement, Note, RunInfo
from scaledl.report.learned import learned_text
from scaledl.report.parts import render_parts
from scaledl.report.text import Column, Style, safe_text, table_lines, wrap_text
from scaledl.units import format_seconds


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a listing shows it. ``last_at`` is the time of the last record seen."""

    run: str
    started_at: float
    model: str
    num_gpus: int
    gpu: str
    state: str
    num_steps: int | None = None
    step_s: float | None = None
    last_at: float | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``scaledl doctor``: what, the verdict, what was seen, the remedy."""

    name: str
    status: Literal["ok", "warn", "off", "fail"]
    seen: str
    remedy: str = ""


def where_text(cluster: ClusterSpec, style: Style, *, cpu_run: bool) -> str:
    """``4 x A100-80GB, 1 node``; on a CPU run ``2 CPU processes``."""
    if cpu_run:
        return f"{cluster.num_gpus} CPU process{'' if cluster.num_gpus == 1 else 'es'}"
    nodes = cluster.num_nodes
    name = safe_text(cluster.gpu.name, style, 40)
    return f"{cluster.num_gpus} x {name}, {nodes} node{'' if nodes == 1 else 's'}"


# A run leaves a record at least each half minute, a device reading each 5 s; only a long pause on
# a device without a sensor is longer silent.
SILENT_S = 600.0


def _when(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


def state_text(line: RunLine, now_s: float | None) -> str:
    """The state; of a run without an end, whether it still gives signs.

    A kill leaves no word, so silence is all there is to go by: hence the question mark.
    """
    if line.state != "not ended" or now_s is None or line.last_at is None:
        return line.state
    return "running" if now_s - line.last_at < SILENT_S else "killed?"


def _long_state_text(line: RunLine, now_s: float | None) -> str:
    state = state_text(line, now_s)
    steps = f" after {line.num_steps} steps" if line.num_steps else ""
    if state == "killed?" and line.last_at is not None:
        return f"killed?{steps} (no end was recorded; last sign {_when(line.last_at)})"
    return state if state in ("finished", "running", "not ended") else state + steps


def render_runs(
    lines: tuple[RunLine, ...],
    num_skipped: int = 0,
    *,
    now_s: float | None = None,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
) -> str:
    """Recorded runs, newest first. Their ids are never cut: they are there to be copied."""
    style = Style(width=width, unicode=unicode, color=color)
    skipped = f"({num_skipped} folders could not be read)" if num_skipped else ""
    if not lines:
        return f"no runs yet: train with scaledl.track(model) {skipped}".rstrip()
    columns = [
        Column(title="started", left=True, give_up=1),
        Column(title="run", left=True),
        Column(title="model", left=True, least=8, give_up=3),
        Column(title="ranks", give_up=2),
        Column(title="device", left=True, least=4, give_up=4),
        Column(title="steps"),
        Column(title="step"),
        Column(title="state", left=True),
    ]
    cells = [
        [
            _when(line.started_at),
            safe_text(line.run, style),
            safe_text(line.model, style, 24),
            str(line.num_gpus),
            safe_text(line.gpu, style, 24),
            "n/a" if line.num_steps is None else str(line.num_steps),
            format_seconds(line.step_s),
            state_text(line, now_s),
        ]
        for line in lines
    ]
    head, *body = table_lines(columns, cells, style)
    foot = wrap_text("step: median time between two optimizer steps", style)
    return "\n".join([style.paint(head, "bold"), *body, *foot, *([skipped] if skipped else [])])


def render_show(
    line: RunLine,
    info: RunInfo,
    *,
    measurement: Measurement | None = None,
    epochs: tuple[EpochRecord, ...] = (),
    notes: tuple[Note, ...] = (),
    learned: Learned | None = None,
    now_s: float | None = None,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
) -> str:
    """One run in a few lines: where it ran, how it ended, where the step's time goes."""
    style = Style(width=width, unicode=unicode, color=color)
    cluster = info.cluster
    plan = info.plan if measurement is None else measurement.plan  # the batch is seen later
    batch = "n/a" if plan.batch_per_gpu is None else str(plan.batch_per_gpu)
    accum = f", accumulation {plan.grad_accum}" if plan.grad_accum > 1 else ""
    head = f"run {safe_text(line.run, style)}  {safe_text(info.model, style, 40)}"
    cpu_run = measurement is not None and measurement.host_shared
    where = (
        f"{where_text(cluster, style, cpu_run=cpu_run)}, {plan.strategy}, batch per rank {batch}"
        f"{accum}, {plan.dtype}"
    )
    state = f"started {_when(info.started_at)}, {_long_state_text(line, now_s)}"
    lines = [style.paint(head, "bold"), *wrap_text(state, style, indent="  ", hang="    ")]
    lines += wrap_text(where, style, indent="  ")
    if measurement is None:
        lines.append("  no steady step was measured")
    else:
        text = render_parts(measurement.parts)
        lines += wrap_text(text, style, indent="  ", hang="    ")
    whole = [record for record in epochs if record.rank == 0]
    if whole:
        took = format_seconds(whole[-1].duration_s)
        lines.append(
            f"  epochs recorded: {planned_text(len(whole), info.epochs)}, the last took {took}"
        )
    taught = learned_text(learned)
    lines += wrap_text(safe_text(taught, style, 400), style, indent="  ") if taught else []
    for note in notes[-5:]:
        told = f"told: {safe_text(note.text, style)}"
        lines += wrap_text(told, style, indent="  ", hang="    ")
    return "\n".join(lines)


def planned_text(number: int, planned: int | None) -> str:
    """``3 of 30``; beyond the plan ``31 (30 planned)``."""
    if planned is None:
        return str(number)
    return f"{number} of {planned}" if number <= planned else f"{number} ({planned} planned)"


_STATUS_COLOR = {"ok": "green", "warn": "yellow", "off": "dim", "fail": "red"}


def render_doctor(
    checks: tuple[Check, ...],
    *,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
) -> str:
    """What works here and what does not, each with its remedy."""
    style = Style(width=width, unicode=unicode, color=color)
    name_width = max((len(check.name) for check in checks), default=0)
    indent = " " * (name_width + 8)
    lines: list[str] = []
    for check in checks:
        first = f"{check.name:<{name_width}}  {check.status:<4}  "
        seen = wrap_text(safe_text(check.seen, style), style, indent=indent)
        painted = style.paint(f"{check.status:<4}", _STATUS_COLOR[check.status])
        first = f"{check.name:<{name_width}}  {painted}  "
        lines += [first + seen[0][len(indent) :], *seen[1:]]
        if check.remedy:
            lines += wrap_text(safe_text(check.remedy, style), style, indent=indent)
    return "\n".join(lines)
