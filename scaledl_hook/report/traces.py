"""Imported traces as text and as plain values."""

import statistics
from collections import defaultdict
from typing import Any

import msgspec

from scaledl.records import KernelTimes, TraceCollective, TraceComm, TraceJob, TraceSummary
from scaledl.report.text import Column, Style, safe_text, table_lines, wrap_text
from scaledl.units import format_bytes, format_fraction, format_seconds

_SOURCES = {
    "optimizer": "from optimizer to optimizer",
    "profiler": "as the profiler marked it on the host",
    "gpu": "as marked on the GPU",
}


def render_trace(
    trace: TraceSummary, *, width: int = 96, unicode: bool = True, color: bool = False
) -> str:
    """What one trace holds: step, GPU, communication, collectives by operation."""
    style = Style(width=width, unicode=unicode, color=color)
    lines = [style.paint(safe_text(trace.file, style), "bold")]
    lines += wrap_text(_who(trace, style), style, indent="  ")
    lines += [f"  {title:<15}{text}" for title, text in _rows(trace)]
    lines += _by_operation(trace.collectives, style)
    return "\n".join(lines)


def render_ranks(job: TraceJob, *, width: int = 96, unicode: bool = True) -> str:
    """Transfer and waiting of several ranks of one job; empty for a single trace."""
    if len(job.traces) < 2:
        return ""
    style = Style(width=width, unicode=unicode)
    if not job.matched:
        text = "the collectives of these ranks do not match: no waiting for peers can be told"
        return "\n".join(wrap_text(text, style))
    transfer_s = sum(each.transfer_s for each in job.matched)
    text = (
        f"{len(job.traces)} ranks share {len(job.matched)} collectives: transfer "
        f"{format_seconds(transfer_s)} (the shortest of each), the rest is waiting for peers"
    )
    world = job.traces[0].world_size
    if world is not None and len(job.traces) < world:
        text += f"; a rank that is not here may have been faster ({world} in the job)"
    columns = [Column(title=t) for t in ("rank", "in collectives", "waiting")]
    cells = []
    for index, trace in enumerate(job.traces):
        waits_s = sum(each.waits_s[index] for each in job.matched)
        cells.append(
            [str(trace.rank), format_seconds(transfer_s + waits_s), format_seconds(waits_s)]
        )
    return "\n".join([*wrap_text(text, style), *table_lines(columns, cells, style, indent="  ")])


def trace_to_dict(trace: TraceSummary) -> dict[str, Any]:
    """The record as plain values, with what is derived from it."""
    value: dict[str, Any] = msgspec.to_builtins(trace)
    for name in ("nccl", "comm"):
        value[name]["exposed_s"] = getattr(trace, name).exposed_s
    value["busy_fraction"] = _share(trace.gpu_busy_s, trace.span_s)
    return value


def _share(part_s: float, whole_s: float) -> float | None:
    return min(1.0, part_s / whole_s) if whole_s > 0 else None


def _who(trace: TraceSummary, style: Style) -> str:
    ranks = "n/a" if trace.world_size is None else str(trace.world_size)
    rank = "n/a" if trace.rank is None else str(trace.rank)
    said = [
        safe_text(trace.gpu, style, 60) if trace.gpu else "GPU n/a",
        f"rank {rank} of {ranks}",
    ]
    if trace.strategy is not None:
        said.append(trace.strategy.upper())
    said.append(f"{trace.num_kernels} kernels in {format_seconds(trace.span_s)}")
    return ", ".join(said)


def _rows(trace: TraceSummary) -> list[tuple[str, str]]:
    times = trace.step_times_s
    if times:
        middle = statistics.median(times)
        many = f"median of {len(times)}, " if len(times) > 1 else ""
        rows = [("step", f"{format_seconds(middle)} ({many}{_SOURCES[trace.step_source]})")]
    else:
        rows = [("step", "n/a (no step is marked)")]
    if not trace.num_kernels:
        return [*rows, ("GPU", "no kernels in this trace")]
    busy = format_fraction(_share(trace.gpu_busy_s, trace.span_s))
    rows.append(("GPU busy", f"{format_seconds(trace.gpu_busy_s)}, {busy} of the trace"))
    rows.append(("computation", format_seconds(trace.comm.compute_union_s)))
    rows.append(("communication", _comm_text(trace.comm)))
    if trace.kernels is not None and trace.kernels.layers:
        rows.append(("layers", _layers_text(trace.kernels)))
    others = trace.comm.num_kernels - trace.nccl.num_kernels
    if others:
        text = f"{others} of these kernels do not have nccl in their names; without them: "
        rows.append(("", text + format_seconds(trace.nccl.union_s)))
    if trace.input_wait_s > 0:
        rows.append(("input wait", format_seconds(trace.input_wait_s)))
    return rows


def _layers_text(kernels: KernelTimes) -> str:
    """How much of the computation found who caused it."""
    computed_s = kernels.total_s - kernels.comm_s
    what = "modules" if kernels.basis == "modules" else "annotated ranges"
    share = format_fraction(_share(kernels.layers_s, computed_s))
    said = f"{share} of the computation's kernel time is of {len(kernels.layers)} {what}"
    again_s = sum(layer.recompute_s or 0.0 for layer in kernels.layers)
    if again_s > 0:
        said += f"; {format_seconds(again_s)} of it ran again in the backward (checkpointing)"
    return said


def _comm_text(comm: TraceComm) -> str:
    if not comm.num_kernels:
        return "none"
    hidden = format_fraction(_share(comm.overlap_s, comm.union_s))
    return (
        f"{format_seconds(comm.union_s)} in {comm.num_kernels} kernels, {hidden} hidden behind "
        f"computation, {format_seconds(comm.exposed_s)} exposed"
    )


def _by_operation(collectives: tuple[TraceCollective, ...], style: Style) -> list[str]:
    if not collectives:
        return []
    grouped: dict[str, list[TraceCollective]] = defaultdict(list)
    for each in collectives:
        grouped[each.op].append(each)
    columns = [
        Column(title="collective", left=True, least=10),
        Column(title="kernels"),
        Column(title="ranks", give_up=1),
        Column(title="size in all"),
        Column(title="time in all"),
    ]
    cells = [
        [
            op,
            str(len(each)),
            _one({c.group_size for c in each}),
            format_bytes(_sum([c.num_bytes for c in each])),
            format_seconds(sum(c.duration_s for c in each)),
        ]
        for op, each in grouped.items()
    ]
    return table_lines(columns, cells, style, indent="  ")


def _one(sizes: set[int | None]) -> str:
    known = sorted(size for size in sizes if size is not None)
    return ", ".join(map(str, known[:4])) if known else "n/a"


def _sum(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
