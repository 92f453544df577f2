"""Time and memory of `scaledl import` beside HolisticTraceAnalysis, as whole processes, in turns.

    python benchmarks/trace_speed.py --trace TRACE.json.gz --hta ENV/bin/python [--json]
    python benchmarks/trace_speed.py --trace TRACE.json.gz --gigabytes 1

``--hta`` is the Python of an environment that has HolisticTraceAnalysis, whose requirements are not
ours. Both read the same file and make the same figures: the time breakdown and the overlap of
communication. ``--gigabytes`` repeats the trace's events until the unpacked file has that size and
imports it. Seconds are of the wall clock, memory is the largest resident set of the process.
"""

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

ROUNDS = 5
MAX_TIME, MAX_MEMORY, MAX_PEAK = 1 / 3, 1.0, 8.0
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
print(analysis.get_temporal_breakdown(visualize=False))
print(analysis.get_comm_comp_overlap(visualize=False))
"""


def run(command: list[str], environ: dict[str, str]) -> tuple[float, float, int, str]:
    """Wall seconds, peak megabytes, exit status and output of one process."""
    with tempfile.TemporaryFile() as output:
        begin_s = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin_s
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return wall_s, usage.ru_maxrss * 1024 / 1e6, child.returncode, text


def ours(trace: Path, home: Path) -> tuple[list[str], dict[str, str]]:
    shutil.rmtree(home, ignore_errors=True)
    command = [sys.executable, "-m", "scaledl", "import", str(trace)]
    return command, {**os.environ, "SCALEDL_HOME": str(home)}


def in_turns(trace: Path, hta: str | None, home: Path) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {"scaledl": []}
    for _ in range(ROUNDS):
        commands = {"scaledl": ours(trace, home)}
        if hta is not None:
            commands["hta"] = [hta, "-c", HTA, str(trace)], dict(os.environ)
        for name, (command, environ) in commands.items():
            wall_s, peak_mb, code, text = run(command, environ)
            if code:
                raise SystemExit(f"{name} failed ({code}): {text[-2000:]}")
            found.setdefault(name, []).append((wall_s, peak_mb))
    return found


def unpacked_bytes(trace: Path) -> int:
    opener = gzip.open if trace.suffix == ".gz" else open
    size = 0
    with opener(trace, "rb") as file:
        while block := file.read(2**22):
            size += len(block)
    return size


def repeat(trace: Path, target: Path, num_bytes: float) -> None:
    """The trace's events again and again, each time later, up to ``num_bytes``."""
    opener = gzip.open if trace.suffix == ".gz" else open
    with opener(trace, "rt", encoding="utf-8") as file:
        content = json.load(file)
    events = content["traceEvents"]
    starts = [float(e["ts"]) for e in events if "ts" in e]
    length_us = max(starts) - min(starts) + 1e6
    with target.open("w", encoding="utf-8") as file:
        head = {key: value for key, value in content.items() if key != "traceEvents"}
        file.write(json.dumps(head)[:-1] + (", " if head else "") + '"traceEvents": [\n')
        for index in range(10**6):
            for event in events:
                if "ts" in event:
                    event["ts"] = float(event["ts"]) + (length_us if index else 0.0)
            file.write(",\n".join(json.dumps(e) for e in events))
            if file.tell() >= num_bytes:
                break
            file.write(",\n")
        file.write("]}")


def compare(args: argparse.Namespace, home: Path) -> None:
    size_mb = unpacked_bytes(args.trace) / 1e6
    rows = []
    for name, runs in in_turns(args.trace, args.hta, home).items():
        seconds, peaks = zip(*runs, strict=True)
        wall_s, peak_mb = statistics.median(seconds), max(peaks)
        rows.append({"reader": name, "wall_s": wall_s, "peak_mb": peak_mb, "unpacked_mb": size_mb})
    print(common.table(rows, ("reader", "wall_s", "peak_mb", "unpacked_mb")))
    mine = rows[0]
    bars = [common.below("peak over the unpacked file", mine["peak_mb"] / size_mb, MAX_PEAK)]
    for other in rows[1:]:
        time_ratio, memory = mine["wall_s"] / other["wall_s"], mine["peak_mb"] / other["peak_mb"]
        bars.append(common.below("time over HolisticTraceAnalysis", time_ratio, MAX_TIME))
        bars.append(common.below("memory over HolisticTraceAnalysis", memory, MAX_MEMORY))
    common.finish("trace_speed", rows, bars, common.machine(), as_json=args.json)


def large(args: argparse.Namespace, folder: Path) -> None:
    target = folder / "large.json"
    repeat(args.trace, target, args.gigabytes * 1e9)
    size_mb = target.stat().st_size / 1e6
    wall_s, peak_mb, code, text = run(*ours(target, folder / "home"))
    row: dict[str, Any] = {"wall_s": wall_s, "peak_mb": peak_mb, "unpacked_mb": size_mb}
    print(text.strip()[-1500:])
    print(common.table([row | {"exit": code}], ("wall_s", "peak_mb", "unpacked_mb", "exit")))
    bars = [
        common.below("peak over the unpacked file", peak_mb / size_mb, MAX_PEAK),
        common.below("exit status of a killed process", 0.0 if code in (0, 1, 2) else 1.0, 0.0),
    ]
    common.finish("trace_large", [row], bars, common.machine(), as_json=args.json)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--hta", help="Python of an environment with HolisticTraceAnalysis")
    parser.add_argument("--gigabytes", type=float, help="size of a trace made by repeating")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.gigabytes is not None:
            large(args, Path(folder))
        else:
            compare(args, Path(folder) / "home")


if __name__ == "__main__":
    main()
