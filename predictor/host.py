"""How ranks of one machine slow each other down by sharing its processors and memory.

    slow(N) = h^(log2 of ranks a machine)

CPU processes share caches, memory bandwidth and clock budget. Ranks with a GPU each share the cores
that load and prepare their data: on the clusters of the Pollux and Sia traces the part of a step
that is no communication follows the ranks on a machine, and not the number of machines.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.anchor import Anchor
from scaledl.predictor.fit import MICRO_REL_SIGMA, Line
from scaledl.records import ClusterSpec

FloatArray = NDArray[np.float64]

CPU_LOG_SLOPE, CPU_LOG_SIGMA = math.log(1.1), 0.08
"""log h of CPU processes; with more processes than cores h is 2, hence the wide doubt."""
GPU_LOG_SLOPE, GPU_LOG_SIGMA = 0.0, 0.05
"""log h of ranks with a GPU each: none is assumed until it shows, but doubted; four jobs of the
Pollux traces (OSDI 2021, 12 cores a GPU) have 0.01 to 0.08."""
GPU_REL_SIGMA = 0.04
"""log-sd of such a rank's own time from placement to placement: layouts of equal nodes and GPUs
differ by 3 to 5 % about their mean (Pollux traces)."""


def own_s(anchor: Anchor) -> float:
    """Seconds of a micro-batch that a rank spends by itself: compute, and with a GPU its input.

    A late input pipeline shows in either, by where the loop waits for the device.
    """
    if anchor.measurement.host_shared:
        return anchor.micro_s
    return anchor.micro_s + anchor.parts.input_wait_s / anchor.measurement.plan.grad_accum


def fit_host(anchors: Sequence[Anchor]) -> Line:
    """Log of the slow-down per doubling of ranks a machine, the prior included.

    Only counts measured at one batch size are compared, so that the batch model does not enter.
    """
    shared = any(a.measurement.host_shared for a in anchors)
    slope, sigma = (CPU_LOG_SLOPE, CPU_LOG_SIGMA) if shared else (GPU_LOG_SLOPE, GPU_LOG_SIGMA)
    noise = MICRO_REL_SIGMA if shared else GPU_REL_SIGMA
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for a in anchors:
        if a.measurement.host_shared == shared and own_s(a) > 0:
            key = (a.batch, a.measurement.plan.grad_accum, a.measurement.cluster.gpu.name)
            at = (float(np.log2(a.ranks_per_node)), float(np.log(own_s(a))))
            groups.setdefault(key, []).append(at)
    top, bottom = slope / sigma**2, sigma**-2
    for points in groups.values():
        x, y = np.array(points).T
        spread = float(((x - x.mean()) ** 2).sum())
        if spread > 0:
            top += float(((x - x.mean()) * y).sum()) / noise**2
            bottom += spread / noise**2
    return Line(value=max(0.0, top / bottom), sigma=bottom**-0.5)


def slow_draws(anchor: Anchor, host: Line, z: FloatArray, cluster: ClusterSpec) -> FloatArray:
    """slow(N) / slow(N0) for standard normal draws, [S]."""
    own = anchor.measurement
    ranks_per_node = -(-cluster.num_gpus // cluster.num_nodes)
    turns = 1.0
    if own.host_shared:
        # More processes than cores take turns.
        slots = own.host_slots or max(ranks_per_node, anchor.ranks_per_node)
        turns = max(1.0, ranks_per_node / slots) / max(1.0, anchor.ranks_per_node / slots)
    doublings = math.log2(ranks_per_node / anchor.ranks_per_node)
    if host.value <= 0:
        return np.asarray(turns * np.exp(doublings * host.sigma * np.maximum(0.0, z)))
    # lognormal: a slow-down never speeds up, and its upper tail is long
    log_sigma = min(0.9, host.sigma / host.value)
    return np.asarray(turns * np.exp(doublings * host.value * np.exp(log_sigma * z)))
