"""Scores of forecasts: errors a cell, macro means, intervals and split conformal ones.

A cell is (scope, cluster, regime, group). Errors are averaged over a model's rows first, then over
models, so that a model with many batch sizes counts as one.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scaledl.records import Interval

LEVEL = 0.9
Cell = tuple[str, str, str, str]
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Score:
    """All forecasts of one asked row, and what was measured."""

    model: str
    cluster: str
    scope: str
    regime: str
    group: str
    task: str
    truth_s: float
    forecasts_s: dict[str, float]
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def cell(self) -> Cell:
        """Where the score counts."""
        return self.scope, self.cluster, self.regime, self.group

    def error(self, name: str) -> float:
        """Relative error of one forecaster."""
        return abs(self.forecasts_s[name] / self.truth_s - 1)


def grouped(scores: Iterable[Score], key: str) -> dict[Any, list[Score]]:
    """Scores by one attribute, keys sorted."""
    groups: dict[Any, list[Score]] = {}
    for score in scores:
        groups.setdefault(getattr(score, key), []).append(score)
    return dict(sorted(groups.items()))


def errors_by_model(scores: Iterable[Score], name: str) -> dict[str, float]:
    """MRE of each model."""
    return {
        model: statistics.fmean(s.error(name) for s in mine)
        for model, mine in grouped(scores, "model").items()
    }


def cell_rows(scores: Sequence[Score], names: Sequence[str]) -> list[Record]:
    """One row a cell and forecaster: mean and median over models of their MRE."""
    rows = []
    for (scope, cluster, regime, group), mine in grouped(scores, "cell").items():
        for name in names:
            errors = errors_by_model(mine, name)
            rows.append(
                {
                    "kind": "cell",
                    "scope": scope,
                    "cluster": cluster,
                    "regime": regime,
                    "group": group,
                    "forecaster": name,
                    "mean_mre": statistics.fmean(errors.values()),
                    "median_mre": statistics.median(errors.values()),
                    "num_models": len(errors),
                    "num_rows": len(mine),
                }
            )
    return rows


def model_rows(scores: Sequence[Score], names: Sequence[str]) -> list[Record]:
    """Two rows a scope, regime and group: mean and median over models of their MRE, in %.

    A model counts as one, whatever the clusters it was measured on.
    """
    groups: dict[tuple[str, str, str], list[Score]] = {}
    for s in scores:
        groups.setdefault((s.scope, s.regime, s.group), []).append(s)
    rows = []
    for (scope, regime, group), mine in sorted(groups.items()):
        errors = {name: list(errors_by_model(mine, name).values()) for name in names}
        for label, middle in (("mean", statistics.fmean), ("median", statistics.median)):
            row: Record = {
                "kind": "models",
                "scope": scope,
                "regime": regime,
                "group": group,
                "over models": label,
                "num_models": len(next(iter(errors.values()))),
            }
            rows.append(row | {name: 100 * middle(values) for name, values in errors.items()})
    return rows


def task_rows(scores: Sequence[Score], names: Sequence[str]) -> list[Record]:
    """One row a scope, task, regime and cluster; a column a forecaster: mean over models, in %."""
    groups: dict[tuple[str, str, str, str], list[Score]] = {}
    for s in scores:
        groups.setdefault((s.scope, s.task, s.regime, s.cluster), []).append(s)
    rows = []
    for (scope, task, regime, cluster), mine in groups.items():
        row: Record = {
            "kind": "task",
            "scope": scope,
            "task": task,
            "regime": regime,
            "cluster": cluster,
            "num_rows": len(mine),
        }
        for name in names:
            row[name] = 100 * statistics.fmean(errors_by_model(mine, name).values())
        rows.append(row)
    return sorted(rows, key=lambda r: (r["scope"] != "dense", r["cluster"]))


def macro_mean(cells: Iterable[Record], name: str) -> float | None:
    """Mean over cells of one forecaster's mean error; ``None`` without a cell."""
    values = [c["mean_mre"] for c in cells if c["forecaster"] == name]
    return statistics.fmean(values) if values else None


def job_by_cell(scores: Sequence[Score], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """MRE of each job in each cell, [jobs, cells]; NaN where it has no row."""
    jobs = sorted({(s.cluster, s.model) for s in scores})
    cells = sorted({s.cell for s in scores})
    matrix = np.full((len(jobs), len(cells)), np.nan)
    for j, cell in enumerate(cells):
        mine = [s for s in scores if s.cell == cell]
        for model, error in errors_by_model(mine, name).items():
            matrix[jobs.index((cell[1], model)), j] = error
    return matrix


def ratio_interval(
    scores: Sequence[Score], name: str, rival: str, draws: int = 2000
) -> tuple[float, float]:
    """95 % percentile interval of the ratio of macro means, jobs drawn again in pairs."""
    ours, theirs = job_by_cell(scores, name), job_by_cell(scores, rival)
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(draws):
        weight = np.bincount(rng.integers(0, len(ours), len(ours)), minlength=len(ours))
        counts = weight @ ~np.isnan(ours)
        used = counts > 0
        mine = (weight @ np.nan_to_num(ours))[used] / counts[used]
        other = (weight @ np.nan_to_num(theirs))[used] / counts[used]
        ratios.append(mine.mean() / other.mean())
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def add_conformal(scores: Sequence[Score], name: str, label: str) -> None:
    """Split conformal intervals of a baseline: residuals of the other models of the same cell.

    |log error| at rank ceil((n+1) * level), as Lei et al. 2018, section 2.2. A model without
    another one in its cell gets no interval.
    """
    for mine in grouped(scores, "cell").values():
        by_model = grouped(mine, "model")
        for model, own in by_model.items():
            rest = sorted(
                abs(math.log(s.truth_s / s.forecasts_s[name]))
                for other, group in by_model.items()
                if other != model
                for s in group
            )
            if not rest:
                continue
            rank = min(len(rest), math.ceil((len(rest) + 1) * LEVEL))
            spread = math.exp(rest[rank - 1])
            for s in own:
                mean = s.forecasts_s[name]
                s.intervals[label] = Interval(
                    mean=mean, low=mean / spread, high=mean * spread, level=LEVEL
                )


def winkler(interval: Interval, truth_s: float) -> float:
    """Width plus 2 / alpha times the miss, relative to the truth (Winkler 1972)."""
    miss = max(interval.low - truth_s, truth_s - interval.high, 0.0)
    return (interval.high - interval.low + 2 / (1 - interval.level) * miss) / truth_s


def interval_rows(scores: Sequence[Score], labels: Sequence[str]) -> list[Record]:
    """Coverage, relative width, Winkler score and high/low a scope, regime and label.

    Means over rows of a job first, then over jobs.
    """
    rows = []
    groups: dict[tuple[str, str], list[Score]] = {}
    for s in scores:
        groups.setdefault((s.scope, s.regime), []).append(s)
        groups.setdefault(("both", s.regime), []).append(s)
    for (scope, regime), mine in sorted(groups.items()):
        for label in labels:
            jobs: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
            ratios = []
            for s in mine:
                if label not in s.intervals:
                    continue
                i = s.intervals[label]
                jobs.setdefault((s.cluster, s.model), []).append(
                    (float(s.truth_s in i), (i.high - i.low) / i.mean, winkler(i, s.truth_s))
                )
                ratios.append(i.high / i.low)
            if not jobs:
                continue
            means = np.array([np.mean(values, axis=0) for values in jobs.values()]).mean(axis=0)
            rows.append(
                {
                    "kind": "interval",
                    "scope": scope,
                    "regime": regime,
                    "forecaster": label,
                    "coverage": float(means[0]),
                    "width": float(means[1]),
                    "winkler": float(means[2]),
                    "median_high_over_low": float(np.median(ratios)),
                    "max_high_over_low": float(np.max(ratios)),
                    "num_rows": len(ratios),
                }
            )
    return rows
