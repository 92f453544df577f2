"""D-optimal design: time and determinant of choosing 160 of 840 candidates (the paper's numbers).

Rows are drawn here: intercept, log sizes on a grid as configurations have them, and their products.
Each case is compared with the best of 100 plain Fedorov restarts (random start, best pair of all
swapped until none helps; Fedorov 1972), with random choice, and with greedy alone. ``relative_det``
is a determinant over that best one; ``efficiency`` its p-th root, the share of measurements that a
perfect design would need.
"""

import argparse
import time

import numpy as np
from common import Bar, below, finish, machine, table
from numpy.typing import NDArray

from scaledl.predictor.design import choose

FloatArray = NDArray[np.float64]
NUM_CANDIDATES, COUNT = 840, 160


def linear_rows(rng: np.random.Generator) -> FloatArray:
    """Intercept and nine features. Shape: [840, 10]."""
    return np.column_stack([np.ones(NUM_CANDIDATES), rng.normal(size=(NUM_CANDIDATES, 9))])


def grid_rows(rng: np.random.Generator) -> FloatArray:
    """Logs of batch, length, width, depth and processes on grids, with all products: [840, 21]."""
    levels = [7, 6, 8, 6, 3]
    logs = np.column_stack([rng.integers(0, n, NUM_CANDIDATES) / (n - 1) for n in levels])
    pairs = [logs[:, i] * logs[:, j] for i in range(5) for j in range(i, 5)]
    return np.column_stack([np.ones(NUM_CANDIDATES), logs, *pairs])


def wide_rows(rng: np.random.Generator) -> FloatArray:
    """Forty heavy-tailed features, where the choice of rows matters most. Shape: [840, 40]."""
    return rng.standard_t(3, size=(NUM_CANDIDATES, 40))


CASES = {"linear": linear_rows, "grid": grid_rows, "wide": wide_rows}


def log_det(rows: FloatArray) -> float:
    return float(np.linalg.slogdet(rows.T @ rows)[1])


def fedorov_restart(rows: FloatArray, rng: np.random.Generator) -> float:
    """Log det that one restart ends at; kept apart from the package on purpose."""
    inside = np.zeros(len(rows), dtype=bool)
    inside[rng.choice(len(rows), COUNT, replace=False)] = True
    while True:
        picked, others = np.flatnonzero(inside), np.flatnonzero(~inside)
        inverse = np.linalg.inv(rows[picked].T @ rows[picked])
        cross = rows[picked] @ inverse @ rows[others].T
        d_out = ((rows[picked] @ inverse) * rows[picked]).sum(1)
        d_in = ((rows[others] @ inverse) * rows[others]).sum(1)
        gain = (1 - d_out)[:, None] * (1 + d_in) + cross**2
        i, j = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[i, j] <= 1 + 1e-9:
            return log_det(rows[inside])
        inside[picked[i]], inside[others[j]] = False, True


def score(name: str, restarts: int) -> list[dict[str, object]]:
    rows = CASES[name](np.random.default_rng(1))
    rng = np.random.default_rng(2)
    begun = time.perf_counter()
    ends = [fedorov_restart(rows, rng) for _ in range(restarts)]
    restarts_s = time.perf_counter() - begun
    begun = time.perf_counter()
    ours = choose(rows, count=COUNT)
    ours_s = time.perf_counter() - begun
    draws = [log_det(rows[rng.choice(len(rows), COUNT, replace=False)]) for _ in range(restarts)]
    costs = np.random.default_rng(3).uniform(1, 5, NUM_CANDIDATES)
    begun = time.perf_counter()
    priced = choose(rows, budget=COUNT * 3.0, costs=costs)
    priced_s = time.perf_counter() - begun
    best, columns = max(ends), rows.shape[1]

    def row(method: str, value: float, time_s: float | None) -> dict[str, object]:
        return {
            "case": name,
            "columns": columns,
            "method": method,
            "relative_det": float(np.exp(value - best)),
            "efficiency": float(np.exp((value - best) / columns)),
            "time_s": time_s,
        }

    return [
        row("scaledl", ours.log_det, ours_s),
        row("fedorov, best of all", best, restarts_s),
        row("fedorov, median", float(np.median(ends)), restarts_s / restarts),
        row("random, mean", float(np.mean(draws)), None),
        row("scaledl, unequal costs", priced.log_det, priced_s),
    ]


def bars_of(rows: list[dict[str, object]]) -> list[Bar]:
    bars = []
    for row in rows:
        if str(row["method"]).startswith("scaledl"):
            label = f"{row['case']}, {row['method']}"
            bars.append(below(f"seconds: {label}", float(str(row["time_s"])), 5.0))
        if row["method"] == "scaledl":
            value = float(str(row["relative_det"]))
            name = f"determinant over best restart's: {row['case']}"
            bars.append(Bar(name=name, value=value, limit=0.99, holds=value >= 0.99))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    about = machine()
    rows = [row for name in CASES for row in score(name, args.restarts)]
    print(table(rows, ("case", "columns", "method", "relative_det", "efficiency", "time_s")))
    finish("design_speed", rows, bars_of(rows), about, as_json=args.json)


if __name__ == "__main__":
    main()
