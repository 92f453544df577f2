"""The report as JSON: base units, ``null`` for unknown, reasons as stable keys with text beside."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from scaledl.records import Footprint, Interval, ScalingReport, ScalingRow
from scaledl.report.scaling import cause_text, caveat_text

REPORT_SCHEMA = "scaledl.report/1"


def iso_time(at_s: float) -> str:
    """UTC in ISO 8601, whole seconds.

    >>> iso_time(0.0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_json(value: Any) -> str:
    """Indented JSON text; keeps ``null``, never writes NaN."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _interval(value: Interval | None) -> dict[str, float] | None:
    return None if value is None else {"mean": value.mean, "low": value.low, "high": value.high}


def _memory(found: Footprint | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    parts: dict[str, float | None] = msgspec.to_builtins(found)
    return {**parts, "total": found.total, "margin": found.margin}


def _row(row: ScalingRow, *, cpu_run: bool) -> dict[str, Any]:
    parts = row.parts_s
    return {
        "num_gpus": row.num_gpus,
        "gpus_per_node": row.gpus_per_node,
        "basis": row.basis,
        "fits": row.fits,
        "batch_per_gpu": row.batch_per_gpu,
        "steps_per_epoch": row.steps_per_epoch,
        "step_s": _interval(row.step_s),
        "parts_s": {
            "compute": parts.compute_s,
            "comm_exposed": parts.comm_exposed_s,
            "comm_hidden": parts.comm_hidden_s,
            "input_wait": parts.input_wait_s,
            "optimizer": parts.optimizer_s,
            "other": parts.other_s,
        },
        "epoch_s": _interval(row.epoch_s),
        "remaining_s": _interval(row.remaining_s),
        "speedup": row.speedup,
        "efficiency_fraction": row.efficiency_fraction,
        "cost_usd": row.cost_usd,
        "energy_j": row.energy_j,
        "gpu_hours": row.gpu_hours,
        "remaining_usd": row.remaining_usd,
        "remaining_j": row.remaining_j,
        "strategy": row.strategy,
        "grad_accum": row.grad_accum,
        "memory_bytes": _memory(row.memory),
        "remedy": row.remedy,
        "limited_by": row.limited_by,
        "limited_by_text": cause_text(row.limited_by, cpu_run=cpu_run),
        "limited_fraction": row.limited_fraction,
        "caveats": list(row.caveats),
    }


def report_to_dict(report: ScalingReport) -> dict[str, Any]:
    """The report under the schema ``scaledl.report/1``."""
    advice = report.recommendation
    # reports of older runs tell it only by the caution of several CPU processes
    cpu_run = report.cpu_run or "host-shared" in report.caveats
    limits = report.limits
    limited: dict[str, Any] = {}
    if limits is not None:
        limited = {
            "deadline_s": limits.deadline_s,
            "budget_usd": limits.budget_usd,
            "counts_within": list(limits.within),
            "best_within": limits.best,
            "limits_text": limits.text,
        }
    return limited | {
        "schema": REPORT_SCHEMA,
        "made_at": iso_time(report.made_at),
        "run": report.run,
        "epoch": report.epoch,
        "batch_rule": report.batch_rule,
        "global_batch": report.global_batch,
        "level": report.level,
        "coverage": msgspec.to_builtins(report.coverage),
        "measured_index": report.measured_index,
        "rows": [_row(row, cpu_run=cpu_run) for row in report.rows],
        "compared": [_row(row, cpu_run=cpu_run) for row in report.compared],
        "hints": list(report.hints),
        "recommendation": None if advice is None else msgspec.to_builtins(advice),
        "caveats": list(report.caveats),
        "caveat_texts": {key: caveat_text(key, cpu_run=cpu_run) for key in report.caveats},
        "model_version": report.model_version,
    }


def report_json(report: ScalingReport) -> str:
    """The report as JSON text."""
    return to_json(report_to_dict(report))
