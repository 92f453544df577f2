"""Forecast rows to a ScalingReport: which count is advised, why, and what to be careful about."""

from scaledl.records import (
    BatchRule,
    Cause,
    Coverage,
    Measurement,
    Recommendation,
    ScalingReport,
    ScalingRow,
)
from scaledl.report.hints import hints_of
from scaledl.report.limits import limits_of
from scaledl.report.text import words
from scaledl.units import format_seconds

# Doubling the GPUs must give at least 1.7 times the speed for the larger count to be advised.
GOOD_MARGIN_FRACTION = 0.7

CAUSE_TEXT: dict[Cause, str] = {
    "compute": "compute",
    "memory-bandwidth": "memory bandwidth",
    "all-reduce-intra": "all-reduce inside node",
    "all-reduce-inter": "all-reduce between nodes",
    "all-gather": "all-gather (FSDP)",
    "input": "input",
    "optimizer": "optimizer",
    "launch": "launch overhead (kernels too short)",
    "straggler": "waiting for the slowest rank",
    "throttling": "throttling",
    "small-batch": "small batch per GPU",
    "does-not-fit": "does not fit",
}

# On a CPU run no kernels are launched: the same share of the step is work or sleep of the host.
_CPU_CAUSE_TEXT: dict[Cause, str] = {
    "launch": "other work or sleep of the host",
    "small-batch": "small batch per process",
}

CAVEAT_TEXT: dict[str, str] = {
    "unlike-devices": "the ranks run on unlike devices: the slowest sets the pace, here as there",
    "few-steps": "fewer than 20 steady steps were measured",
    "communication-is-prior": "communication was never measured: its cost is a prior; scaledl "
    "probe measures it",
    "no-multi-node-data": "nothing measured between nodes: there the link is as stated; scaledl "
    "probe measures it",
    "not-run": "nothing of this job ran: the step is told from its layers and the data sheet",
    "far-extrapolation": "the largest count is over 4 times the largest seen: treat it as a guess",
    "other-gpu": "another kind of device than the measured one: only ratios are known",
    "may-not-fit": "memory is a close call on some counts: their peak is known too roughly",
    "loader-cores": "with more {many} a node, loader workers outnumber its cores: input may limit",
    "memory-not-checked": "memory was not checked: fewer {many} hold more each and may not fit it",
    "no-full-batch": "with the largest counts an epoch holds no full batch",
    "more-gpus-than-samples": "more {many} than samples in the global batch: it grows with them",
    "uneven-batch": "the global batch does not divide evenly on every count: it is rounded up",
    "input-may-not-scale": "input wait is over a tenth of the step; more {many} may not shrink it",
    "host-shared": "the processes share one host and compete for its cores and memory",
    "one-count-only": "one count was measured: how it scales rests on the model",
    "measured-earlier": "rows marked 'earlier' are of another run: the load may have been another",
    "size-unknown": "the gradients' size was not seen: it is taken from the parameters",
    "batch-unknown": "the batch size was not seen: steps per epoch are taken as they are",
}
# ``{one}`` and ``{many}`` stand for GPU and GPUs, on a CPU run for process and processes.
# What the predictor says of single rows, under the name the report uses.
_REPORT_KEY = {"no-communication-data": "communication-is-prior"}


def cause_text(cause: Cause, *, cpu_run: bool) -> str:
    """What limits a step, in words that are right for the device."""
    return _CPU_CAUSE_TEXT.get(cause, CAUSE_TEXT[cause]) if cpu_run else CAUSE_TEXT[cause]


def caveat_text(key: str, *, cpu_run: bool) -> str:
    """What to be careful about, in words that are right for the device."""
    return words(cpu_run).fill(CAVEAT_TEXT.get(key, key))


def build(
    rows: tuple[ScalingRow, ...],
    *,
    base: Measurement,
    run: str,
    batch_rule: BatchRule,
    coverage: Coverage,
    made_at: float,
    epoch: int | None = None,
    level: float = 0.9,
    global_batch: int | None = None,
    compared: tuple[ScalingRow, ...] = (),
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    loader_workers: int | None = None,
    model_version: str = "analytic-1",
) -> ScalingReport:
    """The report over ``rows``, with advice and caveats.

    Args:
        rows: Forecasts and measurements, any order.
        base: The running regime.
        run: Id of the run.
        batch_rule: What stays fixed when the count changes.
        coverage: How often intervals held so far.
        made_at: Seconds since the epoch of Unix.
        epoch: The epoch that just ended, from 0.
        level: Nominal probability of the intervals.
        global_batch: Samples of one step over all ranks; taken from ``base`` where not given.
        compared: Rows of other strategies, as they are to stand.
        deadline_s: Longest time for the rest of the run.
        budget_usd: Most money for it.
        loader_workers: Loader processes of one rank, for the hints.
        model_version: Which predictor made the rows.

    Raises:
        UsageError: a deadline or budget where the run's length or price is unknown.
    """
    ordered = tuple(sorted(rows, key=lambda row: row.num_gpus))
    running = base.cluster.num_gpus
    index = next((i for i, row in enumerate(ordered) if row.num_gpus == running), None)
    limits = limits_of(
        ordered, deadline_s=deadline_s, budget_usd=budget_usd, cpu_run=base.host_shared
    )
    advice = recommend(ordered, base=base)
    if limits is not None and limits.best is not None:
        advice = Recommendation(num_gpus=limits.best, reason="within-limits", text=limits.text)
    return ScalingReport(
        made_at=made_at,
        run=run,
        batch_rule=batch_rule,
        rows=ordered,
        measured_index=index,
        coverage=coverage,
        recommendation=advice,
        level=level,
        global_batch=_global_batch(base) if global_batch is None else global_batch,
        epoch=epoch,
        caveats=_caveats((*ordered, *compared), base),
        cpu_run=base.host_shared,
        compared=compared,
        limits=limits,
        hints=hints_of(base, loader_workers=loader_workers),
        model_version=model_version,
    )


def _global_batch(base: Measurement) -> int | None:
    plan = base.plan
    if plan.batch_per_gpu is None:
        return None
    return plan.batch_per_gpu * plan.grad_accum * base.cluster.num_gpus


def recommend(rows: tuple[ScalingRow, ...], *, base: Measurement) -> Recommendation | None:
    """The knee: the largest count up to which each further GPU still gives most of its worth.

    From the smallest count that fits upwards, a larger count is taken while the share
    (speed ratio - 1) / (count ratio - 1) is at least ``GOOD_MARGIN_FRACTION``.
    """
    running = base.cluster.num_gpus
    fitting = [row for row in rows if _is_open(row, running) and _time_s(row) > 0]
    if len(fitting) < 2:
        return None
    best = fitting[0]
    after: ScalingRow | None = None
    for row in fitting[1:]:
        gain = _time_s(best) / _time_s(row) - 1
        if gain < GOOD_MARGIN_FRACTION * (row.num_gpus / best.num_gpus - 1):
            after = row
            break
        best = row
    now = next((row for row in fitting if row.num_gpus == running), None)
    reason = _reason(best, after, now)
    return Recommendation(
        num_gpus=best.num_gpus, reason=reason, text=_advice(best, after, now, reason, base)
    )


def _is_open(row: ScalingRow, running: int) -> bool:
    """Whether a count may be advised: its memory is not in doubt, or it runs already."""
    return row.num_gpus == running or (row.fits is not False and "may-not-fit" not in row.caveats)


def _time_s(row: ScalingRow) -> float:
    """Time for equal work, relative to the running count; 0 where it is unknown."""
    return 1.0 / row.speedup if row.speedup else 0.0


def _reason(best: ScalingRow, after: ScalingRow | None, now: ScalingRow | None) -> str:
    if now is not None and best.num_gpus == now.num_gpus:
        return "stay"
    if now is not None and best.num_gpus < now.num_gpus:
        return "fewer-do-nearly-as-well"
    if after is None:
        return "largest-count-asked"
    if best.num_gpus <= best.gpus_per_node < after.num_gpus:
        return "largest-count-in-node"
    return "knee"


def _advice(
    best: ScalingRow,
    after: ScalingRow | None,
    now: ScalingRow | None,
    reason: str,
    base: Measurement,
) -> str:
    called = words(base.host_shared)
    unit, name = called.one, called.count(best.num_gpus)
    more = _next_text(best, after, cpu_run=base.host_shared)
    if reason == "stay":
        return f"{name}, as now: {more}."
    if reason == "fewer-do-nearly-as-well" and now is not None:
        return f"{name}: {_pace_text(best, now)}{_price_text(best, now, unit)}; {more}."
    gain = "the best of those asked"
    if now is not None:
        gain = f"{_pace_text(best, now)}{_price_text(best, now, unit)}"
    if best.basis == "prior":
        more += "; nothing like it was measured yet"
    if reason == "largest-count-in-node":
        return f"{name}: {gain}; it is the largest count inside one node."
    return f"{name}: {gain}; {more}."


def _next_text(best: ScalingRow, after: ScalingRow | None, *, cpu_run: bool) -> str:
    """What the next larger count would bring."""
    if after is None:
        return "it is the largest count asked for"
    ratio = _time_s(best) / _time_s(after)
    cause = cause_text(after.limited_by, cpu_run=cpu_run)
    if ratio < 1.0:
        return f"{after.num_gpus} would be slower, limited by {cause}"
    return f"{after.num_gpus} would be only {ratio:.2f}x faster, limited by {cause}"


def _pace_text(best: ScalingRow, now: ScalingRow) -> str:
    slower = _time_s(best) / _time_s(now)
    if slower < 0.95:
        return f"{1 / slower:.1f}x faster"
    return f"{slower:.1f}x the time" if slower > 1.05 else "about the same time"


def _price_text(best: ScalingRow, now: ScalingRow, unit: str) -> str:
    """``for 6 % more money``; GPU-hours where no price is known."""
    cost, cost_now, what = best.cost_usd, now.cost_usd, "money"
    if not cost or not cost_now:
        cost, cost_now = best.num_gpus * _time_s(best), now.num_gpus * _time_s(now)
        what = f"{unit}-hours"
    change = cost / cost_now - 1
    if abs(change) < 0.005:
        return f" for the same {what}"
    return f" for {abs(change) * 100:.0f} % {'more' if change > 0 else 'less'} {what}"


def _caveats(rows: tuple[ScalingRow, ...], base: Measurement) -> tuple[str, ...]:
    """Keys that apply to any row or to the whole, in the order of ``CAVEAT_TEXT``."""
    found = {_REPORT_KEY.get(key, key) for row in rows for key in row.caveats}
    seen = {row.num_gpus for row in rows if row.basis == "measured"} | {base.cluster.num_gpus}
    if len(seen) == 1 and len(rows) > 1:
        found.add("one-count-only")
    if len(base.devices) > 1:
        found.add("unlike-devices")
    if base.num_steps < 20:
        found.add("few-steps")
    if "not-run" in found:  # which says it all
        found -= {"one-count-only", "few-steps", "communication-is-prior"}
    known = [key for key in CAVEAT_TEXT if key in found]
    return (*known, *sorted(found - set(CAVEAT_TEXT)))


def is_far(row: ScalingRow, report: ScalingReport) -> bool:
    """Whether the row is a forecast beyond twice the largest count measured."""
    seen = [r.num_gpus for r in report.rows if r.basis == "measured"]
    return row.basis != "measured" and bool(seen) and row.num_gpus > 2 * max(seen)


def audit_text(told: ScalingRow, measured: Measurement) -> str:
    """What an earlier forecast said against what came: ``2 GPUs: told 114 ms, it is 117 ms``."""
    seen_s, span = measured.step_s, told.step_s
    count = words(measured.host_shared).count(told.num_gpus)
    verdict = "inside" if seen_s in span else "outside"
    return (
        f"an earlier run's forecast for {count}: "
        f"told a mean step of {format_seconds(span.mean)}, it is {format_seconds(seen_s)} "
        f"({verdict} the {span.level * 100:.0f} % interval "
        f"{format_seconds(span.low)} to {format_seconds(span.high)})"
    )
