"""Scores the ETA on live trainings of this machine, beside a cumulative mean and tqdm's rule.

    python benchmarks/eta_live.py [--cases plain,stalls] [--seconds 15] [--repeats 1] [--json]

Each case is a process that trains a small model with what real trainings have: evaluation,
checkpoints, a stalling input, accumulation, a compiled model, batches sorted by length, a resume
after SIGKILL, other processes that compete for the cores from half way on. At each point the time
left is the finish that scaledl said last, less the time of day; the others are fed the training's
own step times up to that moment. What comes at half cannot be foreseen: those rows are listed and
stay out of the bars. So does what else the machine has to do: its load is told with the results.
"""

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Bar, below, finish, machine, table
from eta_baselines import CumulativeMean, Ema, Event
from eta_live_job import Case

from scaledl.records import Eta
from scaledl.store import read_lines

JOB = Path(__file__).parent / "eta_live_job.py"
POINTS = (0.05, 0.10, 0.25, 0.50, 0.75)
RESUMED_POINTS = (0.45, 0.50, 0.75)
TQDM_UPDATES_S = 0.1
TIMEOUT_S = 180.0
SHARE, OUTSIDE = 0.7, 0.15
CASES = (
    Case(name="plain"),
    Case(name="checkpoints", saves_an_epoch=4),
    Case(name="stalls", stalls_an_epoch=3),
    Case(name="accumulation", accumulate=4),
    Case(name="sorted lengths", sorted_lengths=True),
    Case(name="compiled", compiled=True),
    Case(name="slow-down at half", slow_from=0.5),
    Case(name="killed and resumed", kill_at=0.5),
)
COLUMNS = (
    "case",
    "point",
    "left_s",
    "scaledl_s",
    "low_s",
    "high_s",
    "inside",
    "error",
    "mean_error",
    "tqdm_error",
    "foreseeable",
)


def run_case(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Train once, again where the process was killed; the rows of the last process.

    Raises:
        RuntimeError: the training failed.
    """
    command = [sys.executable, str(JOB), str(folder), json.dumps(dataclasses.asdict(case))]
    for _ in range(1 if case.kill_at is None else 2):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip().splitlines()[-1:] or ended.returncode)
    seen = json.loads((folder / "steps.json").read_text())
    run = max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    etas = [line for line in read_lines(run, 0) if isinstance(line, Eta)]
    return rows_of(case, seen, etas)


def rows_of(case: Case, seen: dict[str, Any], etas: Sequence[Eta]) -> list[dict[str, Any]]:
    """One row a point: what a user saw when it was reached, and what was true then.

    Args:
        case: What was trained.
        seen: Times and counts of the training's own.
        etas: All estimates that were recorded.
    """
    rows, total = [], seen["total_steps"]
    for point in POINTS if case.kill_at is None else RESUMED_POINTS:
        now_s = seen["step_ends_s"][math.ceil(point * total) - seen["first_step"] - 1]
        before = [e for e in etas if e.remaining_s is not None and e.at_s <= now_s]
        if not before or before[-1].remaining_s is None:
            continue  # nothing was said yet
        passed_s = now_s - before[-1].at_s
        mean_s, low_s, high_s = (
            max(getattr(before[-1].remaining_s, end) - passed_s, 0.0)
            for end in ("mean", "low", "high")
        )
        left_s = seen["ended_s"] - now_s
        told = {"error": mean_s} | others_s(seen, now_s)
        came = case.slow_from is None or point > case.slow_from
        rows.append(
            {
                "case": case.name,
                "point": point,
                "left_s": left_s,
                "scaledl_s": mean_s,
                "low_s": low_s,
                "high_s": high_s,
                "inside": low_s <= left_s <= high_s,
                **{name: abs(value / left_s - 1) for name, value in told.items()},
                "foreseeable": came,
            }
        )
    return rows


def others_s(seen: dict[str, Any], at_s: float) -> dict[str, float]:
    """What a cumulative mean and tqdm say is left at ``at_s``, from steps that had ended."""
    total, first = float(seen["total_steps"]), float(seen["first_step"])
    mean = CumulativeMean(total, seen["started_s"], first)
    tqdm = Ema(total, seen["started_s"], first)
    shown_s = seen["started_s"]
    for done, end_s in enumerate(seen["step_ends_s"], start=1):
        if end_s > at_s:
            break
        event = Event(at_s=end_s, kind="progress", done=first + done)
        mean.on_event(event)
        if end_s - shown_s >= TQDM_UPDATES_S:
            shown_s = end_s
            tqdm.on_event(event)
    said = {"mean_error": mean.left_s(), "tqdm_error": tqdm.left_s()}
    return {name: left_s for name, left_s in said.items() if left_s is not None}


def summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean errors over the cases at each point, and how often the interval held."""
    found = []
    for point in sorted({row["point"] for row in rows}):
        here = [row for row in rows if row["point"] == point and row["foreseeable"]]
        if here:
            names = ("error", "mean_error", "tqdm_error")
            means = {n: statistics.fmean(r[n] for r in here if n in r) for n in names}
            held = statistics.fmean(row["inside"] for row in here)
            found.append({"case": f"all {len(here)}", "point": point, "inside": held, **means})
    return found


def bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """What has to hold, over all points that could be foreseen."""
    fair = [r for r in rows if r["foreseeable"] and {"mean_error", "tqdm_error"} <= r.keys()]
    if not fair:
        return []
    ours, mean, tqdm = (
        statistics.fmean(r[name] for r in fair) for name in ("error", "mean_error", "tqdm_error")
    )
    text = f"({len(fair)} forecasts)"
    return [
        below(f"mean error over the cumulative mean's {text}", ours / mean, SHARE),
        below(f"mean error over tqdm's {text}", ours / tqdm, SHARE),
        below(
            f"share outside the interval {text}",
            statistics.fmean(not r["inside"] for r in fair),
            OUTSIDE,
        ),
    ]


def chosen(names: str | None) -> tuple[Case, ...]:
    """The cases of these names, separated by commas; all by default."""
    if names is None:
        return CASES
    by_name = {case.name: case for case in CASES}
    wrong = [name for name in names.split(",") if name not in by_name]
    if wrong:
        raise SystemExit(f"no case {wrong[0]!r}. Known: {', '.join(by_name)}.")
    return tuple(by_name[name] for name in names.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", help="Names, separated by commas [all].")
    parser.add_argument("--seconds", type=float, default=15.0, help="Of each training, about.")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases, about, rows = chosen(args.cases), machine(), []
    for case in cases * args.repeats:
        with tempfile.TemporaryDirectory() as folder:
            try:
                case = dataclasses.replace(case, seconds=args.seconds)
                rows += run_case(case, Path(folder))
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                print(f"{case.name}: not run, {error}", flush=True)
    print(table(rows, COLUMNS))
    print(table(summaries(rows), ("case", "point", "inside", "error", "mean_error", "tqdm_error")))
    finish("eta_live", [*rows, *summaries(rows)], bars(rows), about, as_json=args.json)


if __name__ == "__main__":
    main()
