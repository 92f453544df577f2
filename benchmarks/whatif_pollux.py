"""Pollux's throughput model (Qiao et al., OSDI 2021, section 3.2), written anew as a baseline.

    T_g = a_c + b_c m
    T_n = 0 for one GPU; a_r + b_r (K-2)+ within a node; a_n + b_n (K-2)+ across nodes
    T   = (T_g^g + T_n^g)^(1/g)

m is the batch of a GPU, K the count. It explores optimistically: what was never seen costs nothing,
or 10 % more than what was.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int_]

TINY = 1e-8
A_C, B_C, A_N, B_N, A_R, B_R, GAMMA = range(7)
STARTS = (
    (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001),  # the original's
    (0.02, 0.001, 0.05, 0.001, 0.02, 0.001, 2.0),
    (0.1, 0.003, 0.3, 0.01, 0.05, 0.003, 4.0),
)


@dataclass(frozen=True, kw_only=True)
class PolluxFit:
    """The seven parameters."""

    parameters: tuple[float, ...]

    def step_s(self, num_nodes: int, num_gpus: int, batch: float) -> float:
        """Seconds of a step with gradient synchronisation."""
        _, step_s = _times(
            np.array(self.parameters),
            np.array([num_nodes]),
            np.array([num_gpus]),
            np.array([float(batch)]),
        )
        return float(step_s[0])


def _times(
    p: FloatArray, nodes: IntArray, gpus: IntArray, batch: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compute and step seconds, [rows]."""
    compute_s = p[A_C] + p[B_C] * batch
    more = np.maximum(gpus - 2, TINY)
    network_s = np.where(nodes > 1, p[A_N] + p[B_N] * more, p[A_R] + p[B_R] * more)
    network_s = np.where(gpus == 1, TINY, network_s)
    top = np.maximum(compute_s, network_s)
    ratio = np.minimum(compute_s, network_s) / top
    return compute_s, top * (1 + ratio ** p[GAMMA]) ** (1 / p[GAMMA])


def fit_pollux(
    nodes: IntArray, gpus: IntArray, batch: FloatArray, step_s: FloatArray, sync_s: FloatArray
) -> PolluxFit:
    """The parameters of least loss over a few starts; shapes: all [rows].

    Parameters of what was not seen are pinned as the original does.
    """
    log_compute = np.log(np.maximum(step_s - sync_s, TINY))
    log_step = np.log(step_s)
    pins = _pins(nodes, gpus, batch, np.exp(log_compute))

    def loss(p: FloatArray) -> float:
        compute, step = _times(p, nodes, gpus, batch)
        return float(
            np.sqrt(np.mean((np.log(compute) - log_compute) ** 2))
            + np.sqrt(np.mean((np.log(step) - log_step) ** 2))
            + 1e-3 * (p[GAMMA] - 1) ** 2
            + 1e-2 * ((p[B_N] / p[A_N]) ** 2 + (p[B_R] / p[A_R]) ** 2)
        )

    def log_loss(log_p: FloatArray) -> float:
        return loss(np.exp(log_p))

    bounds = [(TINY, 1e3)] * 6 + [(1.0, 10.0)]
    bounds = [(pins[i], pins[i]) if i in pins else b for i, b in enumerate(bounds)]
    low, high = np.array(bounds).T
    found = []
    for start in STARTS:
        # logarithms: the parameters span six powers of ten
        at = np.log(np.clip(start, low, high))
        log_bounds = list(zip(np.log(low), np.log(high), strict=True))
        found.append(minimize(log_loss, at, method="L-BFGS-B", bounds=log_bounds))
    best = np.exp(min(found, key=lambda f: float(f.fun)).x)
    if not (nodes > 1).any():
        best[A_N] = max(best[A_N], 1.1 * best[A_R])
        best[B_N] = max(best[B_N], 1.1 * best[B_R])
    return PolluxFit(parameters=tuple(float(v) for v in best))


def _pins(
    nodes: IntArray, gpus: IntArray, batch: FloatArray, compute_s: FloatArray
) -> dict[int, float]:
    pins: dict[int, float] = {}
    if len(np.unique(batch)) == 1:
        pins[A_C] = float(compute_s.mean()) / 2
    if not (nodes > 1).any():
        pins |= {A_N: TINY, B_N: TINY}
    if not ((nodes == 1) & (gpus > 1)).any():
        pins |= {A_R: TINY, B_R: TINY}
    if not (gpus > 2).any():
        pins |= {B_N: TINY, B_R: TINY}
    return pins
