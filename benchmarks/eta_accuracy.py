"""Scores the ETA on recorded runs, event by event, beside the estimators of other tools.

    python benchmarks/eta_accuracy.py --runs DIR [--json] [--each] [--half dev|held]

DIR holds ``runs.csv`` (one line a run) and ``runs/<run_id>.csv.gz`` (its events: t_s, kind, done,
value). At each point the remaining time is forecast from what was seen so far; truth is the run's
duration less the time passed. Steady and scheduled runs (column ``schedule``) are scored apart,
so are runs logged by step and by epoch, the hard third (by the cumulative mean's error), both
halves of the families (constants are set on ``dev`` alone) and processes that resume a run.
One step of the estimator is one logging interval of the run. Lasting changes of the pace and
schedules whose plan is given, or whose sizes the loader shows, come from made-up streams, where the
truth is known.
"""

import argparse
import json
from pathlib import Path

from eta_bars import bars_of
from eta_baselines import BASELINES
from eta_recordings import read_runs
from eta_scores import OURS, Jumps, Row, Score, count_jumps, score_resumed, score_run, summarise
from eta_sized import sized_bars, sized_rows
from eta_streams import change_rows, plan_rows, stream_bars


def groups_of(scores: list[Score]) -> dict[str, list[Score]]:
    """Scores by the groups of the table; a run is in several."""
    steady = [s for s in scores if s.run.group == "steady"]
    groups = {
        "steady": steady,
        "scheduled": [s for s in scores if s.run.group == "scheduled"],
        "steady, by step": [s for s in steady if not s.run.is_by_epoch],
        "steady, by epoch": [s for s in steady if s.run.is_by_epoch],
        "steady, hard third": hard_third(steady),
        "steady, dev half": [s for s in steady if s.run.half == "dev"],
        "steady, held half": [s for s in steady if s.run.half == "held"],
    }
    return {label: found for label, found in groups.items() if found}


def hard_third(scores: list[Score]) -> list[Score]:
    """At each point the third of the runs with the largest error of the cumulative mean."""
    kept = []
    for point in {s.point for s in scores}:
        here = [s for s in scores if s.point == point]
        here.sort(key=lambda s: s.error("cumulative-mean"))
        kept += here[len(here) - max(len(here) // 3, 1) :]
    return kept


def print_each(scores: list[Score]) -> None:
    print("    at " + "  ".join(name[:7].rjust(7) for name in (OURS, *BASELINES)))
    for s in sorted(scores, key=lambda s: (s.run.group, s.point, s.run.run_id)):
        found = [s.forecasts_s.get(name) for name in (OURS, *BASELINES)]
        errors = "  ".join(
            f"{100 * (v / s.truth_s - 1):+7.1f}" if v is not None else "      -" for v in found
        )
        low, high = s.interval.low / s.truth_s, s.interval.high / s.truth_s
        held = " " if s.truth_s in s.interval else "*"
        print(f"{s.point:6.2f} {errors}  [{low:.2f} {high:.2f}]{held} {s.run.run_id[:60]}")


def print_table(rows: list[Row]) -> None:
    print(f"{'runs':19} at   n  estimator        mean %  median %   p90 %  inside  width  Winkler")
    for row in rows:
        errors = [100 * float(str(row[k])) for k in ("mean_error", "median_error", "p90_error")]
        tail = ""
        if "coverage" in row:
            tail = "  {coverage:6.2f}  {median_width:5.3f}  {mean_winkler:7.3f}".format(**row)
        print(
            f"{row['runs']:18} {row['point']:4.2f} {row['n']:3}  {row['estimator']:15}"
            f"{errors[0]:8.1f}  {errors[1]:8.1f}{errors[2]:8.1f}{tail}"
        )


def print_streams(rows: list[Row]) -> None:
    print(f"\n{'made-up streams':62}   n  estimator                 mean %  worst %  inside")
    for row in rows:
        errors = [100 * float(str(row[k])) for k in ("mean_error", "worst_error")]
        held = f"  {row['coverage']:6.2f}" if "coverage" in row else ""
        print(
            f"{str(row['runs'])[10:]:62} {row['n']:3}  {row['estimator']:24}"
            f"{errors[0]:8.1f}{errors[1]:9.1f}{held}"
        )


def jump_rows(jumps: list[Jumps]) -> list[Row]:
    """Visible jumps by group and estimator, summed over the runs."""
    return [
        {
            "runs": group,
            "n": sum(j.run.group == group for j in jumps),
            "estimator": name,
            "visible_jumps": sum(j.counts[name] for j in jumps if j.run.group == group),
        }
        for group in ("steady", "scheduled")
        for name in (OURS, "ema-0.3")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--each", action="store_true", help="one line a run and point")
    parser.add_argument("--half", choices=("dev", "held"), help="only runs of this half")
    args = parser.parse_args()
    runs = [r for r in read_runs(args.runs) if args.half in (None, r.half)]
    scores = [score for run in runs for score in score_run(run)]
    resumed = [s for run in runs if not run.schedule for s in score_resumed(run)]
    jumps = [count_jumps(run) for run in runs]
    rows = [row for label, found in groups_of(scores).items() for row in summarise(label, found)]
    rows += summarise("steady, resumed", resumed)
    if args.each:
        print_each([*scores, *resumed])
    print_table(rows)
    changes, plans, sized = change_rows(), plan_rows(), sized_rows()
    print_streams([*changes, *plans, *sized])
    bars = [*bars_of(rows, scores, jumps), *stream_bars(changes, plans), *sized_bars(sized)]
    print()
    for bar in bars:
        print(
            f"{'holds ' if bar['holds'] else 'MISSED'} {bar['value']:7.3f} ({bar['limit']}) "
            f"{bar['name']}"
        )
    rows += [*jump_rows(jumps), *changes, *plans, *sized]
    if args.json:
        print(json.dumps({"benchmark": "eta_accuracy", "results": rows, "bars": bars}))


if __name__ == "__main__":
    main()
