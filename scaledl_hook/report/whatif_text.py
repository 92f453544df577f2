"""The what-if table as text: heading with the batch rule, rows, chart, advice, foot."""

from scaledl.records import ScalingReport, ScalingRow
from scaledl.report.chart import interval_chart
from scaledl.report.columns import add_optional, memory_text
from scaledl.report.left import left_text
from scaledl.report.scaling import cause_text, caveat_text, is_far
from scaledl.report.side_by_side import strategy_lines
from scaledl.report.text import (
    Column,
    Style,
    by_doubt,
    range_text,
    step_unit,
    table_lines,
    two_ends,
    words,
    wrap_text,
)
from scaledl.units import format_fraction

MAX_LINES = 30
MAX_NOTES = 2


def render_report(
    report: ScalingReport,
    *,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
    cpu_run: bool = False,
    whole_run: bool = False,
) -> str:
    """The whole what-if report as text (the answer of ``scaledl what-if``)."""
    style = Style(width=width, unicode=unicode, color=color)
    table = whatif_lines(report, style, cpu_run=cpu_run)
    chart = chart_lines(report, style)
    tail = advice_lines(report, style, cpu_run=cpu_run, whole_run=whole_run)
    blank = [""] if chart else []
    foot = foot_lines(style, cpu_run=cpu_run)
    compared = strategy_lines(report, style, cpu_run=cpu_run)
    return "\n".join([*table, *blank, *chart, *compared, "", *tail, *foot])


def heading_text(report: ScalingReport, *, cpu_run: bool) -> str:
    """Which batch rule the table stands under: half of all misreadings are about it."""
    if report.batch_rule == "fixed-global":
        size = f" of {report.global_batch:,}" if report.global_batch else ""
        return f"What if, with the same global batch{size}:"
    return f"What if, with the same batch per {words(cpu_run).one} (so the global batch changes):"


def _heading_lines(
    report: ScalingReport, rows: list[ScalingRow], style: Style, *, cpu_run: bool
) -> list[str]:
    """The batch rule, and at the right what the marks before the counts mean."""
    marks = [_mark(row, report, style) for row in rows]
    legend = [f"{style.mark('advised')} advised"] if style.mark("advised") in marks else []
    legend += [f"{style.mark('measured')} as now"] if style.mark("measured") in marks else []
    heading = heading_text(report, cpu_run=cpu_run)
    return two_ends(heading, "  ".join(legend), style) if legend else wrap_text(heading, style)


def _basis_text(row: ScalingRow, report: ScalingReport) -> str:
    if row.basis == "prior":
        return "prior"
    if row.basis == "interpolated":
        return "between"
    return ""


def _mark(row: ScalingRow, report: ScalingReport, style: Style) -> str:
    if report.recommendation is not None and report.recommendation.num_gpus == row.num_gpus:
        return style.mark("advised")
    if report.measured_index is not None and report.rows[report.measured_index] is row:
        return style.mark("measured")
    return " "


def whatif_lines(
    report: ScalingReport, style: Style, *, cpu_run: bool = False, most_rows: int | None = None
) -> list[str]:
    """Heading and table; at most ``most_rows`` rows, the running and advised ones always."""
    rows = choose_rows(report, most_rows)
    if not rows:
        return [heading_text(report, cpu_run=cpu_run), "  no count to compare"]
    unit, factor = step_unit([row.step_s.mean for row in rows])
    digits = len(str(rows[-1].num_gpus))
    columns = [
        Column(title="procs" if cpu_run else "GPUs"),
        Column(title="step"),
        Column(title="interval", left=True),
    ]
    cells = [
        [
            f"{_mark(row, report, style)} {row.num_gpus:>{digits}}",
            *_step_cells(row, report, unit, factor),
        ]
        for row in rows
    ]
    add_optional(columns, cells, rows)
    columns.append(Column(title="limited by", left=True, least=16))
    for line, row in zip(cells, rows, strict=True):
        line.append(_cause_text(row, cpu_run=cpu_run))
    heading = _heading_lines(report, rows, style, cpu_run=cpu_run)
    lines = [*heading, *table_lines(columns, cells, style)]
    for at, row in enumerate(rows, start=len(lines) - len(rows)):
        if row.fits is False:
            lines[at] = style.paint(lines[at], "dim")
        elif report.recommendation and report.recommendation.num_gpus == row.num_gpus:
            lines[at] = style.paint(lines[at], "bold")
    left_out = len(report.rows) - len(rows)
    return [*lines, f"  ({left_out} more counts in the full report)"] if left_out else lines


def _step_cells(row: ScalingRow, report: ScalingReport, unit: str, factor: float) -> list[str]:
    if row.fits is False:
        return ["n/a", "does not fit"]
    half = 0.0 if row.basis == "measured" else (row.step_s.high - row.step_s.low) / 2
    about = "~" if is_far(row, report) else ""
    step = f"{about}{by_doubt(row.step_s.mean * factor, half * factor)} {unit}"
    if row.basis == "measured":
        return [step, "earlier" if "measured-earlier" in row.caveats else "measured"]
    return [step, f"{range_text(row.step_s, factor)} {_basis_text(row, report)}".rstrip()]


def _cause_text(row: ScalingRow, *, cpu_run: bool) -> str:
    name = cause_text("does-not-fit" if row.fits is False else row.limited_by, cpu_run=cpu_run)
    if row.limited_by in ("compute", "does-not-fit") or row.fits is False:
        return name
    return f"{format_fraction(row.limited_fraction)} {name}"


def choose_rows(report: ScalingReport, most: int | None) -> list[ScalingRow]:
    """At most ``most`` rows: the running and advised ones, then those spread evenly."""
    rows = list(report.rows)
    if most is None or len(rows) <= most:
        return rows
    keep = {report.measured_index} if report.measured_index is not None else set()
    if report.recommendation is not None:
        keep |= {i for i, r in enumerate(rows) if r.num_gpus == report.recommendation.num_gpus}
    room = max(0, most - len(keep))
    others = [i for i in range(len(rows)) if i not in keep]
    keep |= {others[round(k * (len(others) - 1) / max(1, room - 1))] for k in range(room)}
    return [rows[i] for i in sorted(keep)]


def chart_lines(report: ScalingReport, style: Style) -> list[str]:
    """The interval chart of the report."""
    measured = None if report.measured_index is None else report.rows[report.measured_index]
    fixed_global = report.batch_rule == "fixed-global"
    return interval_chart(list(report.rows), measured, style, fixed_global=fixed_global)


def advice_lines(
    report: ScalingReport,
    style: Style,
    *,
    cpu_run: bool = False,
    phases_left_s: float | None = None,
    whole_run: bool = False,
    with_notes: bool = True,
    run_hint: str = "",
) -> list[str]:
    """Advice, time left at the interesting counts, cautions, and how often intervals held."""
    lines: list[str] = []
    if report.recommendation is not None:
        text = f"{style.mark('advised')} {report.recommendation.text}"
        lines += wrap_text(text, style, hang="  ")
    left = left_text(report, phases_left_s=phases_left_s, whole_run=whole_run)
    if left:
        lines += wrap_text(left, style, indent="  ")
    if report.limits is not None and not report.limits.within:
        lines += wrap_text(report.limits.text, style, hang="  ")
    lines += remedy_lines(report, style)
    if with_notes:
        for hint in report.hints:
            lines += wrap_text(f"hint: {hint}", style, indent="  ", hang="    ")
    for key in report.caveats[:MAX_NOTES] if with_notes else ():
        note = f"note: {caveat_text(key, cpu_run=cpu_run)}"
        lines += wrap_text(note, style, indent="  ", hang="    ")
    return [*lines, *wrap_text(coverage_text(report) + run_hint, style, hang="  ")]


def remedy_lines(report: ScalingReport, style: Style) -> list[str]:
    """What would make the smallest and the largest count fit that do not."""
    told = [row for row in report.rows if row.fits is False and row.remedy]
    ends = [told[0], told[-1]] if len(told) > 1 else told
    return [
        line
        for row in ends
        for line in wrap_text(
            f"{row.num_gpus} does not fit ({memory_text(row)}). {row.remedy}",
            style,
            indent="  ",
            hang="    ",
        )
    ]


def coverage_text(report: ScalingReport) -> str:
    """How often the intervals held so far."""
    cover = report.coverage
    aim = f"aim {cover.nominal * 100:.0f} %"
    if cover.seen is None or cover.n == 0:
        return f"Intervals were not checked against later steps yet ({aim})."
    return f"Intervals so far held {round(cover.seen * cover.n)} of {cover.n} times ({aim})."


def foot_lines(style: Style, *, cpu_run: bool = False) -> list[str]:
    """What the printed fields mean."""
    text = (
        f"step: mean; speed: against now; eff.: per {words(cpu_run).one}, first row 100 %; "
        "~: beyond 2x seen"
    )
    return [style.paint(line, "dim") for line in wrap_text(text, style, hang="  ")]
