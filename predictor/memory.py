"""How long a memory the level deserves, learned from the run's own past.

Several memories forecast the same past: at each block what the following ones took. Their errors
weigh them (prediction with expert advice; Cesa-Bianchi and Lugosi 2006, "Prediction, Learning, and
Games", chapter 2). A run with steady noise earns a long memory, one that drifts a short one.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Share of what was seen after which a block's weight has fallen to 1/e. The first is the usual one.
MEMORIES = (0.7, 5.0, 0.25, 0.08)
POWER = 4.0
USUAL_BLOCKS = 4.0  # forecasts that count as made already, equally good for all
FIRST_BLOCKS = 3


def blended(steps: Floats, means: Floats) -> float:
    """The level now: each memory's weighted mean, weighted by how it fared so far.

    Shapes: steps [blocks], the number of steps in each; means [blocks], their mean times.
    """
    total = float(steps.sum())
    age = total - np.cumsum(steps) + steps / 2
    levels = [
        float(np.average(means, weights=steps * np.exp(-age / (memory * total))))
        for memory in MEMORIES
    ]
    weights = trust(means)
    return float(weights @ levels)


def trust(means: Floats) -> Floats:
    """Weights of the memories from their past forecasts of blocks of one size; they sum to 1."""
    errors = np.array([past_errors(means, memory) for memory in MEMORIES])
    count = errors.shape[1]
    if not count:
        return np.eye(len(MEMORIES))[0]
    usual = float(errors[0].mean())
    losses = (errors.sum(axis=1) + USUAL_BLOCKS * usual) / (count + USUAL_BLOCKS)
    if usual <= 0:
        return np.eye(len(MEMORIES))[0]
    weights = (losses / usual) ** -POWER
    found: Floats = weights / weights.sum()
    return found


def past_errors(means: Floats, memory: float) -> Floats:
    """Misses of a memory's level after each block against the mean of half as many later ones."""
    n = len(means)
    last = np.arange(FIRST_BLOCKS - 1, n - 1)
    if not len(last):
        return np.zeros(0)
    age = last[:, None] - np.arange(n)[None, :]
    weights = np.where(age >= 0, np.exp(-np.maximum(age, 0) / (memory * (last[:, None] + 1))), 0.0)
    levels = weights @ means / weights.sum(axis=1)
    sums = np.concatenate([[0.0], np.cumsum(means)])
    stop = np.minimum(last + 1 + np.maximum((last + 1) // 2, 1), n)
    later = (sums[stop] - sums[last + 1]) / (stop - last - 1)
    misses: Floats = np.abs(levels - later)
    return misses
