"""Does the count that `scaledl probe` would choose tell more than another one? On measured tables.

    python benchmarks/probe_choice.py --table CSV [CSV ...] [--batches N] [--json]

Tables are those of whatif_accuracy.py; of rows of one setting the middle one, of counts powers of
two on the fewest nodes. A job of one batch a GPU runs on one count, one more count is probed (the
row's own step and communication are learned), and all counts but the running one are asked for:
error, width and coverage of the 90 % intervals. Counts inside one machine can be probed ("machine")
or all below the largest ("cluster").

Choices: "D-optimal" is the product; "expected width" probes where intervals would become narrowest
if the probe came out as told; "largest", "next larger" and "smallest" count; "any" is the mean over
all candidates; "best" knows the truth. Experience is fitted on other models on other clusters. No
constant of the choice was set on these tables.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import below, finish, machine, table
from whatif_data import Job, Row, is_dense, tasks_of
from whatif_experience import cases_of, kind_of, lived
from whatif_ours import cluster_of, measurement_of, plan_of, tell
from whatif_tables import read_tables

from scaledl.predictor.experience import Case, Experience
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.probes import imagined, most_telling

COUNTS = (1, 2, 4, 8, 16, 32, 64)
LEAST_COUNTS = 4
PROBE_STEPS = 30
NONE, ANY, BEST = "no probe", "any", "best"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One job at one batch that ran on one count."""

    job: Job
    running: Row
    others: tuple[Row, ...]
    reach: str
    candidates: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Of one probe: means over the asked counts; ``elsewhere`` leaves the probed one out."""

    error: float
    elsewhere: float
    log_width: float
    held: float


def situations(jobs: Sequence[Job], most_batches: int) -> Iterator[Situation]:
    """Every running count below the largest, of the batches that ran on most counts."""
    for job in jobs:
        dense = [r for r in job.rows if r.num_gpus in COUNTS and is_dense(r, job.gpus_per_node)]
        by_batch: dict[int, dict[int, list[Row]]] = {}
        for row in dense:
            by_batch.setdefault(row.batch, {}).setdefault(row.num_gpus, []).append(row)
        ranked = sorted(by_batch.values(), key=len, reverse=True)[:most_batches]
        for counts in ranked:
            if len(counts) < LEAST_COUNTS:
                continue
            rows = [_middle(counts[count]) for count in sorted(counts)]
            for running in rows[:-1]:
                others = tuple(row for row in rows if row is not running)
                inside = tuple(r for r in others if not r.crosses)
                for reach, candidates in (("machine", inside), ("cluster", others[:-1])):
                    if len(candidates) > 1 and not (reach == "machine" and running.crosses):
                        yield Situation(
                            job=job,
                            running=running,
                            others=others,
                            reach=reach,
                            candidates=candidates,
                        )


def _middle(rows: Sequence[Row]) -> Row:
    """The row of the median step, the lower one of two."""
    return sorted(rows, key=lambda row: row.step_s)[(len(rows) - 1) // 2]


def knowing(s: Situation, experience: Experience, probes: Sequence[Row] = ()) -> Forecaster:
    """A forecaster that learned the probes and the running count."""
    forecaster = Forecaster(experience)
    seen = (*probes, s.running)
    for row in seen:
        forecaster.learn(measurement_of(s.job, row, seen, link_known=False))
    return forecaster


def score(s: Situation, forecaster: Forecaster, probed: Row | None = None) -> Score:
    """The asked counts against their truth."""
    told = [
        (forecaster.predict(cluster_of(s.job, row, False), plan_of(row)).step_s, row.step_s)
        for row in s.others
    ]
    errors = [abs(span.mean / truth_s - 1) for span, truth_s in told]
    return Score(
        error=statistics.fmean(errors),
        elsewhere=statistics.fmean(
            e for e, row in zip(errors, s.others, strict=True) if row is not probed
        ),
        log_width=statistics.fmean(math.log(span.high / span.low) for span, _ in told),
        held=statistics.fmean(truth_s in span for span, truth_s in told),
    )


def d_optimal(s: Situation, experience: Experience) -> Row:
    """The product's choice of one count."""
    forecaster = knowing(s, experience)
    draws = [
        forecaster.step_draws(cluster_of(s.job, row, False), plan_of(row)) for row in s.candidates
    ]
    costs = [float(row.num_gpus) for row in s.candidates]
    return s.candidates[most_telling(draws, costs, count=1).chosen[0]]


def expected_width(s: Situation, experience: Experience) -> Row:
    """Where the intervals would be narrowest after a probe that comes out as told."""
    base = measurement_of(s.job, s.running, [s.running], link_known=False)
    forecaster = knowing(s, experience)

    def after(row: Row) -> float:
        told = forecaster.predict(cluster_of(s.job, row, False), plan_of(row))
        return score(s, forecaster.knowing(imagined(base, told, PROBE_STEPS))).log_width

    return min(s.candidates, key=after)


def next_larger(s: Situation, experience: Experience) -> Row:
    """The count after the running one, else the one before."""
    larger = [row for row in s.candidates if row.num_gpus > s.running.num_gpus]
    return larger[0] if larger else s.candidates[-1]


CHOICES: dict[str, Callable[[Situation, Experience], Row]] = {
    "D-optimal": d_optimal,
    "expected width": expected_width,
    "largest": lambda s, _: s.candidates[-1],
    "next larger": next_larger,
    "smallest": lambda s, _: s.candidates[0],
}


def scores_of(s: Situation, experience: Experience) -> dict[str, tuple[Score, float]]:
    """Each choice's score and its GPUs."""
    made = {row: score(s, knowing(s, experience, [row]), row) for row in s.candidates}
    found = {name: choose(s, experience) for name, choose in CHOICES.items()}
    scored = {name: (made[row], float(row.num_gpus)) for name, row in found.items()}
    best = min(made, key=lambda row: made[row].error)
    every = list(made.values())
    scored[ANY] = (_mean(every), statistics.fmean(row.num_gpus for row in made))
    scored[BEST] = (made[best], float(best.num_gpus))
    scored[NONE] = (score(s, knowing(s, experience)), 0.0)
    return scored


def _mean(scores: Sequence[Score]) -> Score:
    return Score(
        error=statistics.fmean(s.error for s in scores),
        elsewhere=statistics.fmean(s.elsewhere for s in scores),
        log_width=statistics.fmean(s.log_width for s in scores),
        held=statistics.fmean(s.held for s in scores),
    )


def results_of(jobs: Sequence[Job], cases: Sequence[Case], most: int) -> list[dict[str, Any]]:
    """A row a reach and choice: jobs weigh alike, however many batches and counts they have."""
    priors: dict[tuple[str, str], Experience] = {}
    by_job: dict[tuple[str, str], dict[str, list[tuple[Score, float]]]] = {}
    for s in situations(jobs, most):
        key = (kind_of(s.job.cluster), s.job.model)
        if key not in priors:
            priors[key] = lived(cases, s.job.cluster, s.job.model)[0]
        for name, each in scores_of(s, priors[key]).items():
            of_job = by_job.setdefault((f"{s.job.cluster}/{s.job.model}", s.reach), {})
            of_job.setdefault(name, []).append(each)
    rows: list[dict[str, Any]] = []
    for reach in ("machine", "cluster"):
        mine = [scores for (_, where), scores in by_job.items() if where == reach]
        for name in (NONE, *CHOICES, ANY, BEST) if mine else ():
            means = [_mean([score for score, _ in of_job[name]]) for of_job in mine]
            mean = _mean(means)
            rows.append(
                {
                    "reach": reach,
                    "choice": name,
                    "jobs": len(mine),
                    "cases": sum(len(of_job[name]) for of_job in mine),
                    "error": mean.error,
                    "elsewhere": mean.elsewhere,
                    "ends": math.exp(mean.log_width),
                    "held": mean.held,
                    "gpus": statistics.fmean(
                        statistics.fmean(gpus for _, gpus in of_job[name]) for of_job in mine
                    ),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, nargs="+", required=True)
    parser.add_argument("--batches", type=int, default=1, help="of each job, the fullest")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    jobs = read_tables(args.table)
    cases = [
        case
        for job in jobs
        for task in tasks_of(job)
        if task.scope == "dense" and task.group != "in-sample"
        for case in cases_of(tell(task, link_known=False), link_known=False)
    ]
    rows = results_of(jobs, cases, args.batches)
    print(
        "error: mean over asked counts (elsewhere: without the probed one); ends: upper over lower "
        "end of the intervals, geometric mean; held: of the 90 % intervals; gpus: of the probe"
    )
    columns = ("reach", "choice", "jobs", "cases", "error", "elsewhere", "ends", "held", "gpus")
    print(table(rows, columns))
    by_name = {(row["reach"], row["choice"]): row for row in rows}
    bars = [
        below(
            f"{reach}: {what} after the chosen probe over that after any",
            by_name[reach, "D-optimal"][what] / by_name[reach, ANY][what],
            1.0,
        )
        for reach in ("machine", "cluster")
        for what in ("error", "elsewhere", "ends")
        if (reach, ANY) in by_name
    ]
    bars += [
        below(
            f"{reach}: misses of the 90 % intervals after the chosen probe",
            1 - by_name[reach, "D-optimal"]["held"],
            0.1,
        )
        for reach in ("machine", "cluster")
        if (reach, ANY) in by_name
    ]
    finish("probe_choice", rows, bars, machine(), as_json=args.json)


if __name__ == "__main__":
    main()
