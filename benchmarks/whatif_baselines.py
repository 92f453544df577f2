"""The forecasts scaledl has to beat. Each takes the seen rows and returns a rule for any row.

Ernest and the paper's equation are fitted on relative errors (rows divided by the measured step),
which suits the score and makes them stronger than a fit in seconds.
"""

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from whatif_data import Row, comparable, exposed_s
from whatif_pollux import fit_pollux

Rule = Callable[[Row], float]
FloatArray = NDArray[np.float64]


def hold(seen: Sequence[Row]) -> Rule:
    """The mean step at the largest count seen with that batch.

    Rows that cross nodes as the asked one does go first. A batch never seen takes as many times as
    long as it is larger: the rate of a GPU holds.
    """

    def predict(row: Row) -> float:
        mates = comparable(seen, row)
        top = max(r.num_gpus for r in mates)
        last = [r for r in mates if r.num_gpus == top]
        alike = [r for r in last if r.crosses == row.crosses]
        return statistics.fmean(r.step_s / r.batch for r in alike or last) * row.batch

    return predict


def ideal(seen: Sequence[Row]) -> Rule:
    """The step of 1 GPU; where none was seen, the step less exposed communication.

    By the sample, as ``hold``, where the batch was never seen.
    """

    def predict(row: Row) -> float:
        mates = comparable(seen, row)
        alone = [r.step_s / r.batch for r in mates if r.num_gpus == 1]
        busy = [(r.step_s - exposed_s(r, seen)) / r.batch for r in mates]
        return statistics.fmean(alone or busy) * row.batch

    return predict


def ernest_features(rows: Sequence[Row]) -> FloatArray:
    """Venkataraman et al. 2016 (Ernest), per step: fixed cost, data a GPU, tree, all-to-one."""
    n = np.array([r.num_gpus for r in rows], dtype=np.float64)
    batch = np.array([r.batch for r in rows], dtype=np.float64)
    return np.stack([np.ones_like(n), batch, np.log(n), n], axis=1)


def equation_15_features(rows: Sequence[Row]) -> FloatArray:
    """ScaleDL 2025, equation 15: compute, and a ring's bandwidth and latency terms."""
    n = np.array([r.num_gpus for r in rows], dtype=np.float64)
    batch = np.array([r.batch for r in rows], dtype=np.float64)
    return np.stack([np.ones_like(n), batch, 2 * (n - 1) / n, 2 * (n - 1)], axis=1)


def _linear(features: Callable[[Sequence[Row]], FloatArray], seen: Sequence[Row]) -> Rule:
    steps_s = np.array([r.step_s for r in seen])
    design = features(seen) / steps_s[:, None]
    scale = np.maximum(np.linalg.norm(design, axis=0), 1e-30)
    weights = nnls(design / scale, np.ones_like(steps_s))[0] / scale
    return lambda row: max(float(features([row])[0] @ weights), 1e-9)


def ernest(seen: Sequence[Row]) -> Rule:
    """Nonnegative least squares on Ernest's terms."""
    return _linear(ernest_features, seen)


def equation_15(seen: Sequence[Row]) -> Rule:
    """Nonnegative least squares on the paper's terms: a constant alpha and beta."""
    return _linear(equation_15_features, seen)


def pollux(seen: Sequence[Row]) -> Rule:
    """The throughput model of Qiao et al. 2021 (Pollux), fitted by its own loss."""
    fitted = fit_pollux(
        np.array([r.num_nodes for r in seen]),
        np.array([r.num_gpus for r in seen]),
        np.array([r.batch for r in seen], dtype=np.float64),
        np.array([r.step_s for r in seen]),
        np.array([exposed_s(r, seen) for r in seen]),
    )
    return lambda row: fitted.step_s(row.num_nodes, row.num_gpus, row.batch)


BASELINES: dict[str, Callable[[Sequence[Row]], Rule]] = {
    "hold": hold,
    "ideal": ideal,
    "ernest": ernest,
    "equation 15": equation_15,
    "pollux": pollux,
}


def mean_relative_error(rule: Rule, rows: Sequence[Row]) -> float:
    """MRE of a rule; infinite for no rows."""
    if not rows:
        return math.inf
    return statistics.fmean(abs(rule(r) / r.step_s - 1) for r in rows)
