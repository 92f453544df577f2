"""How long a memory the level deserves, learned from the run's own past.

Several memories forecast the same past: at each block what the following ones took. Their errors
weigh them (exponentially weighted forecaster; Cesa-Bianchi and Lugosi 2006, "Prediction, Learning,
and Games", section 2.1). A run with steady noise earns a long memory, one that drifts a short one.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Share of what was seen after which a block's weight has fallen to 1/e, and the trust in that share
# before any forecast. The first is the usual one.
MEMORIES = (0.7, 5.0, 0.25, 0.08)
TRUST = np.array((0.7, 0.1, 0.1, 0.1))
RATE = 0.5  # what one forecast's error beside the usual memory's says; neighbours' are alike
FIRST_BLOCKS = 3


def blended(steps: Floats, means: Floats) -> float:
    """The level now: each memory's weighted mean, weighted by how it fared so far.

    Shapes: steps [blocks], the number of steps in each; means [blocks], their mean times.
    """
    total = float(steps.sum())
    age = total - np.cumsum(steps) + steps / 2
    spans = np.array(MEMORIES)[:, None] * total
    fading = steps * np.exp(-age / spans)
    levels = fading @ means / fading.sum(axis=1)
    return float(trust(means) @ levels)


def trust(means: Floats) -> Floats:
    """Weights of the memories from their past forecasts of blocks of one size; they sum to 1."""
    errors = np.array([past_errors(means, memory) for memory in MEMORIES])
    usual = float(errors[0].mean()) if errors.shape[1] else 0.0
    if usual <= 0:
        return TRUST
    lost = errors.sum(axis=1) / usual
    weights = TRUST * np.exp(-RATE * (lost - lost.min()))
    found: Floats = weights / weights.sum()
    return found


def past_errors(means: Floats, memory: float) -> Floats:
    """Misses of a memory's level after each block against the mean of half as many later ones."""
    n = len(means)
    last = np.arange(FIRST_BLOCKS - 1, n - 1)
    if not len(last):
        return np.zeros(0)
    sums = np.concatenate([[0.0], np.cumsum(means)])
    stop = np.minimum(last + 1 + np.maximum((last + 1) // 2, 1), n)
    later = (sums[stop] - sums[last + 1]) / (stop - last - 1)
    misses: Floats = np.abs(_fading(n, memory) @ means - later)
    return misses


@lru_cache(maxsize=2 * len(MEMORIES))
def _fading(n: int, memory: float) -> Floats:
    """Weights of the blocks in the level after each block but the first and the last one."""
    last = np.arange(FIRST_BLOCKS - 1, n - 1)[:, None]
    age = last - np.arange(n)[None, :]
    weights = np.where(age >= 0, np.exp(-np.maximum(age, 0) / (memory * (last + 1))), 0.0)
    found: Floats = weights / weights.sum(axis=1, keepdims=True)
    return found
