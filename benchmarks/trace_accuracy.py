"""Scores the import of torch.profiler traces against reference values, beside a naive reader.

    python benchmarks/trace_accuracy.py --traces DIR --reference CSV [--json]

DIR holds ``<trace>.json.gz``; CSV has one line a trace with the column ``trace`` and, in
milliseconds, those of ``CELLS``. A value within 1 % or 1 microsecond is right; cells that the
reference leaves empty are not scored. A second table tells how much kernel time found who caused
it, in percent, and by how much all parts together miss the total (``check_ns``). Each file is read
in a process of its own: ``read_s`` is the time of reading, ``peak_mb`` the memory it took beyond
what the imports take.
"""

import argparse
import csv
import json
import resource
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
from trace_baselines import read_naive

from scaledl.records import KernelTimes, TraceSummary
from scaledl.traces.summary import read_trace

CELLS = (
    "step_ms_median",
    "gpu_step_ms_median",
    "optimizer_period_ms_median",
    "nccl_sum_ms",
    "nccl_union_ms",
    "compute_union_ms",
    "overlap_ms",
    "exposed_comm_ms",
    "gpu_busy_ms",
)
TOLERANCE, LEAST_MS = 0.01, 1e-3
READERS = ("scaledl", "naive")


def figures(trace: TraceSummary) -> dict[str, float | None]:
    """The reference's figures as scaledl reads them, in milliseconds."""
    periods = [b - a for a, b in pairwise(trace.optimizer_starts_s)]
    found = {
        "step_ms_median": _median([mark.duration_s for mark in trace.steps]),
        "gpu_step_ms_median": _median([mark.duration_s for mark in trace.gpu_steps]),
        "optimizer_period_ms_median": _median(periods),
        "nccl_sum_ms": trace.nccl.sum_s,
        "nccl_union_ms": trace.nccl.union_s,
        "compute_union_ms": trace.nccl.compute_union_s,
        "overlap_ms": trace.nccl.overlap_s,
        "exposed_comm_ms": trace.nccl.exposed_s,
        "gpu_busy_ms": trace.gpu_busy_s,
    }
    return {key: None if value_s is None else value_s * 1e3 for key, value_s in found.items()}


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def read_one(path: Path, reader: str) -> dict[str, Any]:
    """Figures, time and memory of one reading; run in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    trace = read_trace(path, 64e9) if reader == "scaledl" else None
    found = read_naive(path) if trace is None else {}
    read_s = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer: dict[str, Any] = {"read_s": read_s, "peak_mb": (peak - before) * 1024 / 1e6}
    if trace is not None:
        found = figures(trace)
        answer |= {
            "unpacked_mb": trace.unpacked_bytes / 1e6,
            "other_kernels": trace.comm.num_kernels - trace.nccl.num_kernels,
            "comm_union_ms": trace.comm.union_s * 1e3,
            "comm_exposed_ms": trace.comm.exposed_s * 1e3,
            "booked": _booked(trace.kernels),
        }
    return answer | {"figures": found}


def _booked(kernels: KernelTimes | None) -> dict[str, Any] | None:
    """Shares of the kernel time, in percent, and how far the parts miss the total."""
    if kernels is None or not kernels.total_s:
        return None
    passes = ("forward_s", "backward_s", "recompute_s")
    shares = {p: sum(getattr(layer, p) or 0.0 for layer in kernels.layers) for p in passes}
    shares |= {
        "outside_s": kernels.outside_forward_s + kernels.outside_backward_s,
        "optimizer_s": kernels.optimizer_s,
        "comm_s": kernels.comm_s,
        "unlinked_s": kernels.unlinked_s,
    }
    percent = {key[:-2]: 100 * value / kernels.total_s for key, value in shares.items()}
    return {
        "basis": kernels.basis,
        "layers": len(kernels.layers),
        "kernel_ms": kernels.total_s * 1e3,
        **percent,
        "check_ns": (sum(shares.values()) - kernels.total_s) * 1e9,
    }


def in_child(path: Path, reader: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(path), "--reader", reader]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(name: str, found: dict[str, float | None], row: dict[str, str]) -> list[dict[str, Any]]:
    """One row a scored cell."""
    cells = []
    for cell in CELLS:
        if row.get(cell, "") == "":
            continue
        truth, value = float(row[cell]), found.get(cell)
        right = value is not None and abs(value - truth) <= max(TOLERANCE * abs(truth), LEAST_MS)
        cells.append({"trace": name, "cell": cell, "truth": truth, "value": value, "right": right})
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--reader", choices=READERS, default="scaledl", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(read_one(args.one, args.reader)))
        return
    if args.traces is None or args.reference is None:
        parser.error("--traces and --reference are needed")
    with args.reference.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if _path(args.traces, row).exists()]
    report(args.traces, rows, as_json=args.json)


def _path(folder: Path, row: dict[str, str]) -> Path:
    return folder / f"{row['trace']}.json.gz"


def report(folder: Path, rows: list[dict[str, str]], *, as_json: bool) -> None:
    cells: dict[str, list[dict[str, Any]]] = {reader: [] for reader in READERS}
    results: list[dict[str, Any]] = []
    for row in rows:
        answers = {reader: in_child(_path(folder, row), reader) for reader in READERS}
        scored = {
            reader: compare(row["trace"], answers[reader]["figures"], row) for reader in READERS
        }
        for reader in READERS:
            cells[reader] += scored[reader]
        ours, naive = answers["scaledl"], answers["naive"]
        results.append(
            {
                "trace": row["trace"],
                "cells": len(scored["scaledl"]),
                "right": _right(scored["scaledl"]),
                "naive_right": _right(scored["naive"]),
                "read_s": ours["read_s"],
                "naive_s": naive["read_s"],
                "unpacked_mb": ours["unpacked_mb"],
                "peak_mb": ours["peak_mb"],
                "naive_peak_mb": naive["peak_mb"],
                "other_kernels": ours["other_kernels"],
                "comm_union_ms": ours["comm_union_ms"],
                "comm_exposed_ms": ours["comm_exposed_ms"],
                **{f"booked_{key}": value for key, value in (ours["booked"] or {}).items()},
            }
        )
    if not results:
        print(f"no trace of the reference lies in {folder}")
        return
    hidden = ("comm_", "booked_")
    print(common.table(results, [key for key in results[0] if not key.startswith(hidden)]))
    _print_others(results)
    booked = [row for row in results if "booked_basis" in row]
    _print_booked(booked)
    wrong = [cell for cell in cells["scaledl"] if not cell["right"]]
    if wrong:
        print("\ncells that differ:")
        print(common.table(wrong, ["trace", "cell", "truth", "value"]))
    for reader in READERS:
        print(f"{reader}: {_right(cells[reader])} of {len(cells[reader])} cells right")
    bars = [
        common.below("cells off by over 1 % and 1 us", float(len(wrong)), 0.0),
        common.below("parts of the kernel time against it, ns", _most_off(booked), 1.0),
        common.below("kernel time of traces with modules that found none, %", _lost(booked), 1.0),
        common.below("most memory of a reading, MB", max(r["peak_mb"] for r in results), 64.0),
    ]
    common.finish("trace_accuracy", results, bars, common.machine(), as_json=as_json)


def _print_booked(rows: list[dict[str, Any]]) -> None:
    print("\nkernel time by who caused it, percent of the sum over streams:")
    plain = [{key.removeprefix("booked_"): value for key, value in row.items()} for row in rows]
    columns = ["trace", *(key.removeprefix("booked_") for key in rows[0] if "booked_" in key)]
    print(common.table(plain, columns) + "\n")


def _most_off(rows: list[dict[str, Any]]) -> float:
    return max((abs(row["booked_check_ns"]) for row in rows), default=0.0)


def _lost(rows: list[dict[str, Any]]) -> float:
    """Of kernels whose launch is in the trace; those launched before it began cannot be told."""
    return max((r["booked_outside"] for r in rows if r["booked_basis"] == "modules"), default=0.0)


def _right(cells: list[dict[str, Any]]) -> int:
    return sum(cell["right"] for cell in cells)


def _print_others(results: list[dict[str, Any]]) -> None:
    others = [row for row in results if row["other_kernels"]]
    if others:
        print("\ncommunication that has no nccl in its name; the reference counts it as computing:")
        columns = ["trace", "other_kernels", "comm_union_ms", "comm_exposed_ms"]
        print(common.table(others, columns) + "\n")


if __name__ == "__main__":
    main()
