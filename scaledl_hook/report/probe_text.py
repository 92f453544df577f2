"""Probes as text: the plan, what came out, what it narrowed, links."""

import math

from scaledl.probe_records import LinkMeasurement, Narrowing, ProbePlan, ProbeResult
from scaledl.records import Interval, LinkSpec
from scaledl.report.text import (
    Column,
    Style,
    by_doubt,
    range_text,
    safe_text,
    step_unit,
    table_lines,
    words,
    wrap_text,
)
from scaledl.units import format_bytes, format_seconds, format_usd

WARNING = (
    "The first steps of the real script are run, in this folder: what it saves in them it saves. "
    "Give it another output folder where that could harm. It is ended by SystemExit after its last "
    "step."
)


def render_plan(plan: ProbePlan, style: Style) -> str:
    """What is run, what it takes and what it is expected to tell."""
    many = words(plan.cpu_run)
    wall_s = sum(point.wall_s for point in plan.points)
    gpu_s = sum(point.gpu_s for point in plan.points)
    costs = [point.cost_usd for point in plan.points if point.cost_usd is not None]
    num = "1 run" if len(plan.points) == 1 else f"{len(plan.points)} runs"
    steps = sorted({point.num_steps for point in plan.points})
    span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    price = f", {format_usd(sum(costs))}" if costs else ""
    head = (
        f"scaledl probe for {safe_text(plan.run, style)}: {num} of "
        f"{span} steps, about {format_seconds(wall_s)}, "
        f"{_minutes(gpu_s)} {many.one} minutes{price}"
    )
    unit, factor = step_unit([point.step_s.mean for point in plan.points])
    columns = [
        Column(title="procs" if plan.cpu_run else "GPUs"),
        Column(title=f"batch per {many.one}", give_up=2),
        Column(title="step expected", left=True),
        Column(title="time"),
        Column(title=f"{many.one} minutes", give_up=1),
    ]
    cells = [
        [
            str(point.num_gpus),
            "n/a" if point.batch_per_gpu is None else str(point.batch_per_gpu),
            _step_text(point.step_s, unit, factor),
            format_seconds(point.wall_s),
            _minutes(point.gpu_s),
        ]
        for point in plan.points
    ]
    foot = wrap_text("time: with 20 s assumed for the start of the script", style, indent="  ")
    lines = [*wrap_text(head, style), *table_lines(columns, cells, style, indent="  "), *foot]
    told = narrowing_lines(plan.expected, style, cpu_run=plan.cpu_run)
    title = "What-if with the same global batch, if the probes come out as expected:"
    heading = wrap_text(title, style, hang="  ")
    return "\n".join([*lines, "", *heading, *told, "", *wrap_text(WARNING, style)])


def render_results(
    results: tuple[ProbeResult, ...], after: tuple[Narrowing, ...], style: Style, *, cpu_run: bool
) -> str:
    """Told and true at the probed counts, what failed, and the what-if before and with them."""
    good = [r for r in results if r.step_s is not None and r.told is not None]
    lines: list[str] = []
    if good:
        unit, factor = step_unit([r.step_s or 0.0 for r in good])
        columns = [
            Column(title="procs" if cpu_run else "GPUs"),
            Column(title="step told", left=True),
            Column(title="step is", left=True),
            Column(title="inside", left=True),
            Column(title="took"),
            Column(title="run", left=True, give_up=1),
        ]
        cells = [_result_cells(r, unit, factor) for r in good]
        lines += table_lines(columns, cells, style, indent="  ")
    for result in results:
        if result.error:
            lines += _error_lines(result, style, cpu_run=cpu_run)
    if good and after:
        title = "What-if with the same global batch, before and with the probes:"
        lines += ["", *wrap_text(title, style, hang="  ")]
        lines += narrowing_lines(after, style, cpu_run=cpu_run)
    return "\n".join(lines)


def _result_cells(result: ProbeResult, unit: str, factor: float) -> list[str]:
    told, step_s = result.told, result.step_s
    if told is None or step_s is None:
        raise ValueError(f"no result at {result.num_gpus}: {result.error}")
    return [
        str(result.num_gpus),
        _step_text(told, unit, factor),
        f"{by_doubt(step_s * factor, 0.0)} {unit}",
        "yes" if step_s in told else "no",
        format_seconds(result.wall_s),
        result.run or "",
    ]


def _error_lines(result: ProbeResult, style: Style, *, cpu_run: bool) -> list[str]:
    first, *said = result.error.splitlines()
    head = wrap_text(f"{words(cpu_run).count(result.num_gpus)}: {first}", style, hang="  ")
    return [*head, *(f"  | {safe_text(line, style)}" for line in said)]


def narrowing_lines(narrowings: tuple[Narrowing, ...], style: Style, *, cpu_run: bool) -> list[str]:
    """A table of steps before and after, and how much narrower the interval is."""
    if not narrowings:
        return ["  no other count to compare"]
    unit, factor = step_unit([n.before.mean for n in narrowings])
    columns = [
        Column(title="procs" if cpu_run else "GPUs"),
        Column(title="step before", left=True, give_up=1),
        Column(title="step with them", left=True),
        Column(title="interval", left=True),
    ]
    cells = [
        [
            str(n.num_gpus),
            _step_text(n.before, unit, factor),
            _step_text(n.after, unit, factor),
            _width_text(n),
        ]
        for n in narrowings
    ]
    return table_lines(columns, cells, style, indent="  ")


def _minutes(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.2g}" if minutes < 9.95 else f"{minutes:,.0f}"


def _step_text(step_s: Interval, unit: str, factor: float) -> str:
    half = (step_s.high - step_s.low) / 2 * factor
    return f"{by_doubt(step_s.mean * factor, half)} {unit} ({range_text(step_s, factor)})"


def _log_width(step_s: Interval) -> float | None:
    return math.log(step_s.high / step_s.low) if step_s.low > 0 else None


def _width_text(n: Narrowing) -> str:
    """By the ratio of the ends: a step that is found longer has a longer interval, no wider one."""
    before, after = _log_width(n.before), _log_width(n.after)
    if not before or after is None:
        return "n/a"
    change = after / before - 1
    if abs(change) < 0.05:
        return "as wide"
    return f"{abs(change) * 100:.0f} % {'narrower' if change < 0 else 'wider'}"


# --- links ---------------------------------------------------------------------------------------


def render_links(
    measured: LinkMeasurement,
    nominal: tuple[LinkSpec, LinkSpec],
    changes: tuple[str, tuple[Narrowing, ...]] | None,
    style: Style,
    *,
    cpu_run: bool,
) -> str:
    """Timings, what they make of each link beside the nominal one, and what that changes."""
    many = words(cpu_run)
    head = (
        f"links of {safe_text(measured.device, style, 40)}: all-reduces of {measured.num_ranks} "
        f"ranks, {measured.ranks_per_node} a machine"
    )
    sizes = [Column(title="size"), Column(title="ranks"), Column(title="all-reduce")]
    rows = [
        [format_bytes(t.num_bytes), str(t.group_size), format_seconds(t.duration_s)]
        for t in measured.timings
    ]
    lines = [*wrap_text(head, style), *table_lines(sizes, rows, style, indent="  "), ""]
    for name, link, was in (
        ("inside a machine", measured.intra, nominal[0]),
        ("between machines", measured.inter, nominal[1]),
    ):
        lines += wrap_text(_link_text(name, link, was), style, hang="  ")
    if changes is None:
        lines.append(f"No run on these {many.many} is recorded yet; the next one uses the links.")
        return "\n".join(lines)
    run, narrowings = changes
    title = f"What-if of {safe_text(run, style)}, before and with these links:"
    lines += ["", *wrap_text(title, style, hang="  ")]
    return "\n".join([*lines, *narrowing_lines(narrowings, style, cpu_run=cpu_run)])


def _link_text(name: str, link: LinkSpec | None, nominal: LinkSpec) -> str:
    if link is None:
        return f"{name}: not measured, no two ranks lie so"
    return f"{name}: {_numbers(link)}; nominal {_numbers(nominal)}"


def _numbers(link: LinkSpec) -> str:
    rate = link.bytes_per_s / 1e9
    spread = math.exp(1.64 * link.rel_sigma)
    low, high = rate / spread, rate * spread
    return f"{format_seconds(link.latency_s)} a hop, {rate:.3g} GB/s ({low:.3g} to {high:.3g})"
