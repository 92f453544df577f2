"""Fixed parameter draws: the same 256 well-spread normal vectors in every process and run."""

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

NUM_DRAWS = 256
SEED = 20251104
_STANDARD = NormalDist()


@cache
def normal_draws(num_dims: int) -> FloatArray:
    """Standard normal draws; row 0 is all zeros, the median of every parameter.

    A Latin hypercube (McKay, Beckman, Conover 1979): each parameter visits the middle of each of
    its 256 equally likely slices once, in a seeded order. Quantiles of a sum then need far fewer
    draws than independent ones, and equal inputs give equal forecasts.

    Shapes: result [1 + NUM_DRAWS, num_dims].
    """
    quantiles = [_STANDARD.inv_cdf((i + 0.5) / NUM_DRAWS) for i in range(NUM_DRAWS)]
    random = np.random.default_rng(SEED)
    draws = np.zeros((1 + NUM_DRAWS, num_dims))
    for dim in range(num_dims):
        draws[1:, dim] = random.permutation(quantiles)
    draws.flags.writeable = False
    return draws


def normal_quantile(level: float) -> float:
    """The z that a standard normal stays within, up or down, with probability ``level``."""
    return _STANDARD.inv_cdf(0.5 + level / 2)


def expected_max_normal(count: int) -> float:
    """Expected maximum of ``count`` independent standard normals, within 5 %; 0 for one.

    E[max] = Phi^-1((n - 0.375) / (n + 0.25))    (Blom 1958, "Statistical Estimates and
    Transformed Beta-Variables", equation for the largest order statistic)
    """
    return _STANDARD.inv_cdf((count - 0.375) / (count + 0.25))
