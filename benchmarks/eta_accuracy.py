"""Scores the ETA on recorded runs, event by event, beside the estimators of other tools.

    python benchmarks/eta_accuracy.py --runs DIR [--json] [--each]

DIR holds ``runs.csv`` (one line a run) and ``runs/<run_id>.csv.gz`` (its events: t_s, kind, done,
value). At each point the remaining time is forecast from what was seen so far; truth is the run's
duration less the time passed. Steady and scheduled runs (column ``schedule``) are scored apart.
One step of the estimator is one logging interval of the run.
"""

import argparse
import csv
import gzip
import json
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from eta_baselines import BASELINES, Event

from scaledl.predictor.eta import EtaEstimator
from scaledl.records import Interval, PhaseRecord, Progress

POINTS = (0.05, 0.10, 0.25, 0.50, 0.75)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One run and its events in order of time."""

    run_id: str
    source: str
    schedule: str
    total: float
    duration_s: float
    events: tuple[Event, ...]

    @property
    def unit(self) -> float:
        """Units of one logging interval, a setting known before the run."""
        done = [0.0] + [e.done for e in self.events if e.done is not None and e.kind == "progress"]
        gaps = [b - a for a, b in pairwise(done) if b > a]
        return statistics.median(gaps)


def read_runs(folder: Path) -> list[Recording]:
    runs = []
    with (folder / "runs.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            path = folder / "runs" / f"{row['run_id']}.csv.gz"
            if not path.exists():
                continue
            with gzip.open(path, "rt", newline="") as text:
                events = tuple(
                    Event(
                        at_s=float(e["t_s"]),
                        kind=e["kind"],
                        done=float(e["done"]) if e["done"] else None,
                    )
                    for e in csv.DictReader(text)
                )
            runs.append(
                Recording(
                    run_id=row["run_id"],
                    source=row["source"],
                    schedule=row.get("schedule") or "",
                    total=float(row["total"]),
                    duration_s=float(row["duration_s"]),
                    events=events,
                )
            )
    return runs


class Ours:
    """Feeds one recording to the estimator."""

    def __init__(self, run: Recording) -> None:
        self._estimator = EtaEstimator()
        self._unit = run.unit
        self._total = max(round(run.total / self._unit), 1)
        self._step = 0
        self._first: int | None = None
        self._last_s = 0.0
        self._eval_start_s: float | None = None
        self._eval_s = 0.0

    def on_event(self, event: Event) -> None:
        """Takes in the next event."""
        if event.kind == "eval_start":
            self._eval_start_s = event.at_s
        elif event.kind == "eval_end" and self._eval_start_s is not None:
            start_s, self._eval_start_s = self._eval_start_s, None
            self._eval_s += event.at_s - start_s
            self._estimator.on_phase(
                PhaseRecord(
                    kind="eval",
                    at_s=start_s,
                    duration_s=event.at_s - start_s,
                    after_step=self._step,
                    epoch=0,
                )
            )
        elif event.kind == "progress" and event.done is not None:
            self._eval_start_s = None  # progress during an evaluation: it runs beside training
            self._on_progress(event.at_s, event.done)

    def _on_progress(self, at_s: float, done: float) -> None:
        step = round(done / self._unit)
        steps = step - self._step
        if self._first is None and steps > 5:
            self._step = self._first = step - 1  # the clock started within the run
            steps = 1
        elif self._first is None:
            self._first = 0
        wall_s = at_s - self._last_s - self._eval_s
        if steps > 0 and wall_s >= 0:
            self._estimator.on_steps([wall_s / steps] * steps, self._step, 0)
            self._step, self._last_s, self._eval_s = step, at_s, 0.0

    def remaining(self, now_s: float) -> Interval | None:
        """Time left as forecast now."""
        progress = Progress(
            step=self._step, epoch=0, step_in_epoch=self._step, total_steps=self._total
        )
        return self._estimator.estimate(progress, now_s).remaining_s


@dataclass(frozen=True, kw_only=True)
class Score:
    """All forecasts of one run at one point, and what came true."""

    group: str
    run_id: str
    point: float
    truth_s: float
    forecasts_s: dict[str, float]
    interval: Interval


def score_run(run: Recording) -> list[Score]:
    """Forecasts at the last observation at or before each point."""
    progress = [i for i, e in enumerate(run.events) if e.kind == "progress" and e.done is not None]
    wanted: dict[int, list[float]] = {}
    for point in POINTS:
        before = [i for i in progress if (run.events[i].done or 0.0) <= point * run.total]
        if before:
            wanted.setdefault(before[-1], []).append(point)
    ours, seen, scores = Ours(run), [], []
    for i, event in enumerate(run.events):
        ours.on_event(event)
        if event.kind == "progress" and event.done is not None:
            seen.append(event)
        if i not in wanted:
            continue
        interval = ours.remaining(event.at_s)
        others = {name: rule(seen, run.total) for name, rule in BASELINES.items()}
        truth_s = run.duration_s - event.at_s
        if interval is None or truth_s <= 0 or None in others.values():
            continue
        known = {name: value for name, value in others.items() if value is not None}
        scores += [
            Score(
                group="scheduled" if run.schedule else "steady",
                run_id=run.run_id,
                point=point,
                truth_s=truth_s,
                forecasts_s={"scaledl": interval.mean, **known},
                interval=interval,
            )
            for point in wanted[i]
        ]
    return scores


def summarise(scores: list[Score]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for group in ("steady", "scheduled"):
        for point in POINTS:
            here = [s for s in scores if s.group == group and s.point == point]
            for name in ("scaledl", *BASELINES) if here else ():
                errors = sorted(abs(s.forecasts_s[name] / s.truth_s - 1) for s in here)
                row: dict[str, object] = {
                    "runs": group,
                    "point": point,
                    "n": len(here),
                    "estimator": name,
                    "mean_error": statistics.mean(errors),
                    "median_error": statistics.median(errors),
                    "p90_error": errors[min(int(0.9 * len(errors)), len(errors) - 1)],
                }
                if name == "scaledl":
                    widths = [(s.interval.high - s.interval.low) / s.truth_s for s in here]
                    row["coverage"] = sum(s.truth_s in s.interval for s in here) / len(here)
                    row["mean_width"] = statistics.mean(widths)
                    row["median_width"] = statistics.median(widths)
                    row["mean_winkler"] = statistics.mean(winkler(s) for s in here)
                rows.append(row)
    return rows


def winkler(score: Score) -> float:
    """Width plus 2 / alpha times the miss, relative to the truth (Winkler 1972)."""
    interval, truth_s = score.interval, score.truth_s
    miss = max(interval.low - truth_s, truth_s - interval.high, 0.0)
    return (interval.high - interval.low + 2 / (1 - interval.level) * miss) / truth_s


def bars_of(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    table = {(r["runs"], r["point"], r["estimator"]): r for r in rows}
    bars: list[dict[str, object]] = []

    def bar(name: str, value: float, low: float, high: float) -> None:
        limit: object = high if low == 0 else [low, high]
        holds = low <= value <= high
        bars.append({"name": name, "value": value, "limit": limit, "holds": holds})

    for point in POINTS:
        ours = table.get(("steady", point, "scaledl"))
        if ours is None:
            continue
        plain = table["steady", point, "cumulative-mean"]
        percent = f"at {point * 100:.0f} %"
        for kind in ("mean_error", "median_error") if point <= 0.5 else ():
            ratio = float(str(ours[kind])) / max(float(str(plain[kind])), 1e-12)
            bar(f"steady {kind} over cumulative mean's {percent}", ratio, 0, 0.7)
        if point <= 0.5:
            best = min(float(str(table["steady", point, b]["mean_error"])) for b in BASELINES)
            ratio = float(str(ours["mean_error"])) / max(best, 1e-12)
            bar(f"steady mean_error over best baseline's {percent}", ratio, 0, 1.0)
        bar(f"steady coverage {percent}", float(str(ours["coverage"])), 0.85, 0.95)
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--each", action="store_true", help="one line a run and point")
    args = parser.parse_args()
    scores = [score for run in read_runs(args.runs) for score in score_run(run)]
    rows = summarise(scores)
    if args.each:
        for s in sorted(scores, key=lambda s: (s.group, s.point, s.run_id)):
            errors = "  ".join(f"{100 * (v / s.truth_s - 1):+7.1f}" for v in s.forecasts_s.values())
            low, high = s.interval.low / s.truth_s, s.interval.high / s.truth_s
            held = " " if s.truth_s in s.interval else "*"
            print(f"{s.point:5.2f} {errors}  [{low:.2f} {high:.2f}]{held} {s.run_id[:60]}")
    print(
        "runs       at   n  estimator        mean %  median %   p90 %  coverage  width mean, median"
    )
    for row in rows:
        tail = ""
        if "coverage" in row:
            tail = "  {coverage:8.2f}  {mean_width:.3f} {median_width:.3f}".format(**row)
        errors = [100 * float(str(row[k])) for k in ("mean_error", "median_error", "p90_error")]
        print(
            f"{row['runs']:9} {row['point']:4.2f} {row['n']:3}  {row['estimator']:15}"
            f"{errors[0]:8.1f}  {errors[1]:8.1f}{errors[2]:8.1f}{tail}"
        )
    if args.json:
        print(json.dumps({"benchmark": "eta_accuracy", "results": rows, "bars": bars_of(rows)}))


if __name__ == "__main__":
    main()
