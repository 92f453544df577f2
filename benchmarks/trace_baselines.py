"""The obvious reader of a trace: the whole file through ``json``, durations added up.

It counts no moment once only and knows no overlap: what ran at the same time counts twice.
"""

import gzip
import json
import statistics
from itertools import pairwise
from pathlib import Path

COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")


def read_naive(path: Path) -> dict[str, float | None]:
    """The figures of the reference in milliseconds, by sums."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        value = json.load(stream)
    events = value["traceEvents"] if isinstance(value, dict) else value
    nccl = compute = copies = 0.0
    marks: dict[bool, list[float]] = {True: [], False: []}
    optimizers = []
    for event in events:
        if event.get("ph") != "X":
            continue
        kind, name = str(event.get("cat")).lower(), event["name"]
        if kind == "kernel" and "nccl" in name.lower():
            nccl += event["dur"]
        elif kind == "kernel":
            compute += event["dur"]
        elif kind in COPIES:
            copies += event["dur"]
        elif name.startswith("ProfilerStep"):
            marks[kind.startswith("gpu")].append(event["dur"])
        elif name.startswith("Optimizer.step") and not kind.startswith("gpu"):
            optimizers.append(event["ts"])
    periods = [b - a for a, b in pairwise(sorted(optimizers))]
    found = {
        "step_ms_median": _mean(marks[False]),
        "gpu_step_ms_median": _mean(marks[True]),
        "optimizer_period_ms_median": _mean(periods),
        "nccl_sum_ms": nccl,
        "nccl_union_ms": nccl,
        "compute_union_ms": compute,
        "overlap_ms": 0.0,
        "exposed_comm_ms": nccl,
        "gpu_busy_ms": nccl + compute + copies,
    }
    return {key: None if us is None else us / 1e3 for key, us in found.items()}


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
