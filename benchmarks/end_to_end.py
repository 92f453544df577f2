"""What-if forecasts scored on live jobs: watched at 2 ranks, run at 4, 8 and 16.

    sudo .venv/bin/python benchmarks/end_to_end.py [--cases uniform-100,two-level] [--json]

The jobs are real: DDP or FSDP2 on gloo, ranks in network namespaces behind shaped links, gradients
all-reduced as they are anywhere. Only the compute is emulated, by sleeping, so that 16 ranks fit on
a few cores. The sleeping ranks stand for devices, so scaledl is not told to count this machine's
cores; all else it sees as in any job. A point whose ranks waited for a core is no truth: it is
listed and not scored.

``two-level`` is watched inside one node. Its border is crossed unseen, which must be flagged; then
the links are timed at 8 ranks as ``scaledl probe --links`` does, and the same run is asked again
(``two-level probed``).

Beside the forecast: ``hold`` (the step stays as watched), ``ideal`` (compute alone, the links cost
nothing) and ``timeline``, a replay of buckets that is told every time, size and line rate.

On a machine that does other work run it under ``chrt -f 5``, and name idle cores with ``taskset``.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from cluster import UnavailableError, Wire, enter, run_ranks
from common import Bar, below, finish, machine, table
from end_to_end_job import (
    BATCH,
    BUCKET_MB,
    FIRST_HEAVY,
    LAST_HEAVY,
    OPTIMIZER_S,
    UNIFORM,
    Case,
    batch_of,
    probe_links,
    row_as_dict,
    train,
)

from scaledl.linkbook import LinkBook
from scaledl.past import PastRun
from scaledl.predictor.overlap import exposed_and_hidden_s
from scaledl.predictor.whatif import answer_rows
from scaledl.probe_records import TimedLinks
from scaledl.probing.link_probe import fitted
from scaledl.query import build_query

WATCHED, PROBE_RANKS = 2, 8
PROBED = " probed"
MOST_WAITED, MOST_OVERSHOOT = 0.03, 0.03
"""Shares of a step beyond which ranks got in each other's way."""
TWO_LEVEL = Wire(rank_mbit=400, uplink_mbit=100, ranks_per_node=4)
CASES = (
    Case("uniform-100", UNIFORM, Wire(100)),
    Case("uniform-60", UNIFORM, Wire(60)),
    Case("uniform-200", UNIFORM, Wire(200)),
    Case("first-heavy", FIRST_HEAVY, Wire(200)),
    Case("last-heavy", LAST_HEAVY, Wire(100)),
    Case("fixed-global", UNIFORM, Wire(200), counts=(4, 8), rule="fixed-global"),
    Case("accumulation", UNIFORM, Wire(100), accumulation=2),
    Case("straggler", UNIFORM, Wire(100), late=0.2),
    Case("two-level", UNIFORM, TWO_LEVEL),
    Case("fsdp2", UNIFORM, Wire(200), counts=(4,), sharded=True),
)
COLUMNS = (
    "case",
    "num_ranks",
    "truth_s",
    "scaledl_s",
    "low_s",
    "high_s",
    "error",
    "exposed_error",
    "hold_error",
    "ideal_error",
    "timeline_error",
    "basis",
    "flagged",
    "contended",
)


def compute_s(case: Case, num_ranks: int) -> float:
    """What the slowest rank computes in an optimizer step."""
    share = batch_of(case, num_ranks, WATCHED) / BATCH
    one_s = sum(layer.forward_s + layer.backward_s for layer in case.layers) * share
    return one_s * case.accumulation * (1 + case.late) + OPTIMIZER_S


def timeline_s(case: Case, num_ranks: int) -> float | None:
    """The step by a replay of DDP's buckets over a ring of the nominal rate; not for FSDP."""
    if case.sharded:
        return None
    wire = case.wire
    crosses = wire.uplink_mbit is not None and num_ranks > wire.ranks_per_node
    mbit = min(wire.rank_mbit, wire.uplink_mbit or wire.rank_mbit) if crosses else wire.rank_mbit
    share = batch_of(case, num_ranks, WATCHED) / BATCH * (1 + case.late)
    sizes, ready_s, done_s = [0], [0.0], 0.0
    for layer in reversed(case.layers):
        done_s += layer.backward_s * share
        if sizes[-1] >= BUCKET_MB * 2**20:
            sizes.append(0)
            ready_s.append(done_s)
        sizes[-1] += layer.num_bytes
        ready_s[-1] = done_s
    per_byte_s = 2 * (num_ranks - 1) / num_ranks * 8 / (mbit * 1e6)
    exposed_s, _ = exposed_and_hidden_s(ready_s, [n * per_byte_s for n in sizes], done_s)
    return compute_s(case, num_ranks) + exposed_s


def run_case(case: Case, steps: int) -> list[dict[str, Any]]:
    """One row a count: the truth, and what was said about it."""
    with tempfile.TemporaryDirectory() as runs:
        watched = run_ranks(
            WATCHED,
            case.wire,
            lambda rank, n: train(
                case, rank, n, base=WATCHED, steps=steps, ask=case.counts, runs=runs
            ),
        )[0]
        told = {case.name: watched["rows"]}
        if case.wire.uplink_mbit is not None:
            told[f"{case.name}{PROBED}"] = probed_rows(case, Path(runs))
    rows = []
    for count in case.counts:
        ranks = run_ranks(
            count,
            case.wire,
            lambda rank, n: train(case, rank, n, base=WATCHED, steps=steps),
        )
        truths = [r["told"] for r in ranks]
        for name, said in told.items():
            row = next(row for row in said if row["num_gpus"] == count)
            rows.append(_row(case, name, count, row, watched["told"], truths))
    return rows


def probed_rows(case: Case, runs: Path) -> list[dict[str, Any]]:
    """What the watched run forecasts once the links were timed, between nodes too."""
    timed = run_ranks(PROBE_RANKS, case.wire, lambda rank, n: probe_links())[0]
    measured = fitted(msgspec.convert(timed, TimedLinks), time.time())
    (folder,) = (path for path in runs.iterdir() if (path / "run.json").exists())
    forecaster, base = PastRun(folder).learned(LinkBook(entries=(measured,)))
    query = build_query(case.counts, WATCHED, batch_rule=case.rule)
    return [row_as_dict(row) for row in answer_rows(forecaster, base, query)[0]]


def _row(
    case: Case,
    name: str,
    count: int,
    said: dict[str, Any],
    watched: dict[str, float],
    ranks: Sequence[dict[str, float]],
) -> dict[str, Any]:
    truth_s = ranks[0]["step_s"]

    def error(forecast_s: float | None) -> float | None:
        return None if forecast_s is None else abs(forecast_s / truth_s - 1)

    exposed_s = truth_s - ranks[0]["slept_s"]
    waited = max(rank["waited"] for rank in ranks)
    overshoot = max(rank["overshoot"] for rank in ranks)
    return {
        "case": name,
        "num_ranks": count,
        "truth_s": truth_s,
        "watched_s": watched["step_s"],
        "scaledl_s": said["step_s"],
        "low_s": said["low_s"],
        "high_s": said["high_s"],
        "error": error(said["step_s"]),
        "exposed_error": abs(said["exposed_s"] - exposed_s) / truth_s,
        "truth_exposed_s": exposed_s,
        "exposed_s": said["exposed_s"],
        "compute_s": said["compute_s"],
        "hold_error": error(watched["step_s"]),
        "ideal_error": error(compute_s(case, count)),
        "timeline_error": error(timeline_s(case, count)),
        "basis": said["basis"],
        "caveats": said["caveats"],
        "flagged": "border" if _is_flagged(said) else "",
        "waited": waited,
        "overshoot": overshoot,
        "contended": waited > MOST_WAITED or overshoot > MOST_OVERSHOOT,
    }


def _is_flagged(said: dict[str, Any]) -> bool:
    return any("node" in caveat for caveat in said["caveats"])


def _crosses(row: dict[str, Any]) -> bool:
    inside = row["num_ranks"] <= TWO_LEVEL.ranks_per_node
    return bool(row["case"].startswith("two-level") and not inside)


def bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """What has to hold, on points that are a truth; the border crossed unseen stands apart."""
    fair = [row for row in rows if not row["contended"]]
    known = [row for row in fair if not _crosses(row)]
    border = [row for row in fair if _crosses(row) and not row["case"].endswith(PROBED)]
    timed = [row["error"] for row in fair if _crosses(row) and row["case"].endswith(PROBED)]
    found = []
    if known:
        errors = [row["error"] for row in known]
        found += [
            below("median error", statistics.median(errors), 0.03),
            below("largest error", max(errors), 0.08),
            below("largest error of exposed", max(r["exposed_error"] for r in known), 0.05),
        ]
    if border:
        unflagged = sum(not row["flagged"] for row in border)
        found.append(below("border crossed unseen and not flagged", float(unflagged), 0))
    if timed:
        found.append(below("largest error across nodes once the links were timed", max(timed), 0.1))
    return found


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", help="Names, separated by commas [all].")
    parser.add_argument("--steps", type=int, default=40, help="Of a truth; twice that watched.")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = chosen(args.cases)
    rows: list[dict[str, Any]] = []
    try:
        enter()
        for case in cases:
            try:
                found = run_case(case, args.steps)
                rows += found
                print(table(found, COLUMNS), flush=True)
            except RuntimeError as error:
                print(f"{case.name}: not run, {error}", flush=True)
    except UnavailableError as error:
        print(f"Links cannot be shaped here ({error}); nothing was run.")
    if rows:
        print(table(rows, COLUMNS))
        for row in (row for row in rows if row["contended"]):
            print(f"not scored: {row['case']} at {row['num_ranks']}: ranks waited for a core")
    finish("end_to_end", rows, bars(rows), machine(), as_json=args.json)


if __name__ == "__main__":
    main()
