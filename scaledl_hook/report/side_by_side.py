"""Strategies side by side: step, memory and cost of each at each count."""

from scaledl.records import ScalingReport, ScalingRow
from scaledl.report.columns import memory_text
from scaledl.report.text import Column, Style, by_doubt, range_text, step_unit, table_lines
from scaledl.units import format_fraction, format_seconds, format_usd

_NAMES = {"ddp": "DDP", "fsdp": "FSDP", "hsdp": "HSDP", "single": "single"}


def strategy_lines(report: ScalingReport, style: Style, *, cpu_run: bool = False) -> list[str]:
    """A table of the compared strategies with a blank line before; nothing where none was asked."""
    rows = report.compared
    if not report.compared:
        return []
    unit, factor = step_unit([row.step_s.mean for row in rows])
    columns = [
        Column(title="procs" if cpu_run else "GPUs"),
        Column(title="strategy", left=True),
        Column(title="step"),
        Column(title="interval", left=True),
        Column(title="exchange", give_up=2),
        Column(title="memory"),
        Column(title="epoch", give_up=1),
        Column(title="cost", give_up=3),
    ]
    cells = [_cells(row, unit, factor) for row in rows]
    return ["", "Strategies side by side:", *table_lines(columns, cells, style, indent="  ")]


def _cells(row: ScalingRow, unit: str, factor: float) -> list[str]:
    name = [str(row.num_gpus), _NAMES.get(row.strategy or "", "n/a")]
    if row.fits is False:
        return [*name, "n/a", "does not fit", "n/a", memory_text(row), "n/a", "n/a"]
    span = row.step_s
    half = 0.0 if row.basis == "measured" else (span.high - span.low) / 2
    doubt = "measured" if row.basis == "measured" else range_text(span, factor)
    if row.basis == "prior":
        doubt += " prior"
    if "may-not-fit" in row.caveats:
        doubt += ", may not fit"
    exposed = row.parts_s.comm_exposed_s / span.mean if span.mean > 0 else None
    return [
        *name,
        f"{by_doubt(span.mean * factor, half * factor)} {unit}",
        doubt,
        format_fraction(exposed),
        memory_text(row),
        format_seconds(row.epoch_s.mean if row.epoch_s else None),
        format_usd(row.cost_usd),
    ]
