"""Console text: the epoch report, the end of a run; the other renderers are re-exported here.

Every renderer takes records plus width, unicode and colour, and returns text without a last
newline; it never prints. Epochs count from 0 in records and from 1 in text.
"""

from scaledl.records import EpochSummary, Eta, RunEnd, ScalingReport
from scaledl.report.exchange import exchange_text
from scaledl.report.layers import render_comm, render_layers
from scaledl.report.left import left_text
from scaledl.report.lists import (
    Check,
    RunLine,
    planned_text,
    render_doctor,
    render_runs,
    render_show,
    where_text,
)
from scaledl.report.parts import changed_text, render_parts
from scaledl.report.ranks import rank_lines
from scaledl.report.text import Style, safe_text, two_ends, words, wrap_text
from scaledl.report.whatif_text import (
    MAX_LINES,
    advice_lines,
    chart_lines,
    foot_lines,
    render_report,
    whatif_lines,
)
from scaledl.units import (
    format_count,
    format_energy,
    format_fraction,
    format_seconds,
    format_usd,
    printable,
)

__all__ = [
    "Check",
    "RunLine",
    "render_comm",
    "render_doctor",
    "render_end",
    "render_epoch",
    "render_layers",
    "render_parts",
    "render_report",
    "render_runs",
    "render_show",
]


def render_epoch(
    summary: EpochSummary,
    report: ScalingReport | None = None,
    *,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
    repeat: bool = False,
    previous: EpochSummary | None = None,
    previous_report: ScalingReport | None = None,
    phases_left_s: float | None = None,
    audit: str = "",
) -> str:
    """The report at an epoch's end, at most 30 lines.

    Args:
        summary: What was measured in the epoch.
        report: The what-if table; ``None`` leaves it out.
        width: Columns of the stream.
        unicode: Whether marks may be unicode.
        color: Whether ANSI colour may be used.
        repeat: A later epoch: only the heading, what changed, and the advice if it changed.
        previous: The epoch reported before, for what changed.
        previous_report: The report before, for whether the advice changed.
        phases_left_s: What evaluation and other phases will take in the rest; ``None``: unknown.
        audit: One line on how an earlier forecast turned out.
    """
    style = Style(width=width, unicode=unicode, color=color)
    head = [*_heading(summary, style)]
    if repeat:
        head += _changed_lines(summary, previous, style)
        if report is not None:
            head += _news_lines(summary, report, previous_report, phases_left_s, style)
        return "\n".join(head)
    name = "mean step" if report is None else "step"  # the report's foot says that it is the mean
    head += wrap_text(render_parts(summary.parts, name), style, hang="  ")
    head += _comm_lines(summary, style) + rank_lines(summary.ranks, style)
    if audit:
        head += wrap_text(audit, style, hang="  ")
    if report is None:
        return "\n".join(head)
    return "\n".join(_fit_screen(head, summary, report, phases_left_s, style))


def _fit_screen(
    head: list[str],
    summary: EpochSummary,
    report: ScalingReport,
    phases_left_s: float | None,
    style: Style,
) -> list[str]:
    """Head, table, chart and advice within one screen.

    Where it is too much, blank lines go first, then the notes, the chart, and rows.
    """
    table = whatif_lines(report, style, cpu_run=summary.cpu_run)
    chart = chart_lines(report, style)
    hint = f" More: scaledl show {safe_text(summary.run, style, 60)}"
    noted, short = (
        advice_lines(
            report,
            style,
            cpu_run=summary.cpu_run,
            phases_left_s=phases_left_s,
            with_notes=with_notes,
            run_hint=hint,
        )
        + foot_lines(style, cpu_run=summary.cpu_run)
        for with_notes in (True, False)
    )
    for layout in (
        [*head, "", *table, "", *chart, "", *noted],
        [*head, "", *table, *chart, *noted],
        [*head, "", *table, *chart, *short],
        [*head, "", *table, *noted],
    ):
        if len(layout) <= MAX_LINES:
            return layout
    room = MAX_LINES - len(head) - len(short) - 4  # blank, heading, column titles, "more counts"
    table = whatif_lines(report, style, cpu_run=summary.cpu_run, most_rows=max(2, room))
    return [*head, "", *table, *short][:MAX_LINES]


def _heading(summary: EpochSummary, style: Style) -> list[str]:
    extra = [
        f"{name} {format_seconds(value)}"
        for name, value in (("evaluation", summary.eval_s), ("pauses", summary.pause_s))
        if value > 0.01 * summary.duration_s
    ]
    took = format_seconds(summary.duration_s) + (f" ({', '.join(extra)})" if extra else "")
    if summary.before_s > 0.01 * summary.duration_s:
        took += f" (and {format_seconds(summary.before_s)} of evaluation and pauses before it)"
    where = where_text(summary.cluster, style, cpu_run=summary.cpu_run)
    number = planned_text(summary.epoch + 1, summary.num_epochs)
    left = f"scaledl  epoch {number} took {took} on {where}"
    lines = two_ends(left, f"run {safe_text(summary.run, style, 60)}", style)
    return [style.paint(lines[0], "bold"), *lines[1:]]


def _exchange(summary: EpochSummary) -> str:
    return exchange_text(summary.parts, summary.comm_total_s, summary.comm_bytes, summary.ranks)


def _comm_lines(summary: EpochSummary, style: Style) -> list[str]:
    said = [_exchange(summary)] if summary.cluster.num_gpus > 1 else []
    if summary.power_w is not None:
        said.append(f"power {summary.power_w:.0f} W each")
    if summary.energy_j is not None:
        seen = sum(r.energy_j is not None for r in summary.ranks) or 1
        of = (seen, summary.cluster.num_gpus)
        said.append(_energy_text(summary.energy_j, *of, cpu_run=summary.cpu_run))
    rates = [(summary.samples_per_s, "samples/s"), (summary.tokens_per_s, "tokens/s")]
    said += [f"{format_count(rate)} {unit}" for rate, unit in rates if rate is not None]
    said.append(f"tracking cost {format_fraction(summary.overhead_fraction)} of the time")
    return wrap_text("; ".join(said), style, hang="  ")


def _energy_text(energy_j: float, num_seen: int, num_gpus: int, *, cpu_run: bool) -> str:
    """Energy with the devices it is the sum over, so that nobody multiplies or halves it."""
    of = f"all {num_gpus}" if num_seen == num_gpus else f"{num_seen} of {num_gpus}"
    where = "" if num_gpus == 1 else f" ({of} {words(cpu_run).many})"
    return f"energy {format_energy(energy_j)}{where}"


def _changed_lines(summary: EpochSummary, previous: EpochSummary | None, style: Style) -> list[str]:
    """The step against that of the epoch reported before, which is named; the slow rank.

    What of the exchange is waiting is told as soon as other ranks' files have told it.
    """
    text = f"mean step {format_seconds(summary.step_s)}"
    if previous is not None and previous.step_s > 0:
        change = summary.step_s / previous.step_s - 1
        moved = changed_text(summary.parts, previous.parts)
        text += f", {change * 100:+.1f} % against" if abs(change) >= 5e-4 else ", as in"
        text += f" epoch {previous.epoch + 1}"
        text += f" ({moved})" if moved else ""
    lines = wrap_text(text, style, hang="  ")
    was_untold = previous is not None and previous.comm_total_s is None
    if was_untold and summary.comm_total_s is not None:
        lines += wrap_text(_exchange(summary), style, hang="  ")
    return lines + rank_lines(summary.ranks, style, only_slow=True)


def _news_lines(
    summary: EpochSummary,
    report: ScalingReport,
    previous_report: ScalingReport | None,
    phases_left_s: float | None,
    style: Style,
) -> list[str]:
    """The advice if it changed, and the time left."""
    lines: list[str] = []
    advice = report.recommendation
    told = previous_report.recommendation if previous_report is not None else None
    if advice is not None and (told is None or told.num_gpus != advice.num_gpus):
        was = "" if told is None else f" (was {told.num_gpus})"
        lines += wrap_text(f"{style.mark('advised')} {advice.text}{was}", style, hang="  ")
    left = left_text(report, phases_left_s=phases_left_s)
    return [*lines, *(wrap_text(left, style, indent="  ") if left else [])]


def render_end(
    end: RunEnd,
    *,
    run: str,
    duration_s: float,
    num_steps: int,
    first_eta: Eta | None = None,
    audit: str = "",
    energy_j: float | None = None,
    energy_of: tuple[int, int] = (1, 1),
    cost_usd: float | None = None,
    cpu_run: bool = False,
    width: int = 96,
    unicode: bool = True,
    color: bool = False,
) -> str:
    """The last words of a run: done, the actual time against the first estimate, where it lies.

    Args:
        end: How the run ended.
        run: Its id.
        duration_s: From entering to leaving the block.
        num_steps: Optimizer steps of this process.
        first_eta: The first estimate of the whole run that was shown.
        audit: One line on how a what-if forecast turned out.
        energy_j: Energy of the run, where known.
        energy_of: How many devices it is the sum over, and how many there are.
        cost_usd: Price of the run, where known.
        cpu_run: Whether the ranks are CPU processes.
        width: Columns of the stream.
        unicode: Whether marks may be unicode.
        color: Whether ANSI colour may be used.
    """
    style = Style(width=width, unicode=unicode, color=color)
    how = {
        "finished": "done",
        "stopped-early": "stopped early",
        "interrupted": "interrupted",
        "exception": "ended by an error",
    }
    said = [f"scaledl  {how[end.outcome]}: {num_steps} steps in {format_seconds(duration_s)}"]
    if energy_j is not None:
        said.append(_energy_text(energy_j, *energy_of, cpu_run=cpu_run))
    said += [format_usd(cost_usd)] if cost_usd is not None else []
    if end.overhead_fraction is not None:
        said.append(f"tracking cost {format_fraction(end.overhead_fraction)}")
    first, *rest = wrap_text(", ".join(said), style, hang="  ")
    lines = [style.paint(first, "bold"), *rest]
    if end.outcome == "finished" and first_eta is not None and first_eta.remaining_s is not None:
        lines += wrap_text(_first_estimate(end, first_eta), style, indent="  ", hang="    ")
    if audit:
        lines += wrap_text(printable(audit), style, indent="  ", hang="    ")
    name = safe_text(run, style, 60)
    lines += wrap_text(f"see: scaledl show {name}; scaledl what-if {name}", style, indent="  ")
    return "\n".join(lines)


def _first_estimate(end: RunEnd, eta: Eta) -> str:
    told = eta.remaining_s
    assert told is not None
    took_s = end.at_s - eta.at_s
    off = f"{(told.mean / took_s - 1) * 100:+.0f} %" if took_s > 0 else "n/a"
    verdict = "held" if took_s in told else "missed"
    return (
        f"at step {eta.step} it said {format_seconds(told.mean)} more ({format_seconds(told.low)} "
        f"to {format_seconds(told.high)}); it took {format_seconds(took_s)} ({off}, {verdict})"
    )
