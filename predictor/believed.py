"""The step time that is believed: what was measured, and a forecast made before the first step."""

import math

import msgspec

from scaledl.predictor.level import Level
from scaledl.records import Interval

LEARNING_STEPS = 20
"""A forecast fades over so many steps."""
LEARNING_SPREAD = 0.25
"""Doubt in the first steps beside a forecast: share of the level, over the root of their number."""
STARTING = 3.0
"""By how much more in the very first one, which holds start-up; over the square of their number."""


def believed(level: Level | None, prior: Interval | None, z: float) -> tuple[Level, float] | None:
    """The level and the standard deviation of what is known of it, a forecast blended in.

    Both are weighted by their precision, the forecast's fading linearly; their distance widens the
    result. ``None`` while nothing is known. ``z`` is the normal quantile of the forecast's level.
    """
    if level is None:
        if prior is None:
            return None
        return Level(mean_s=prior.mean, se_s=0.0, num_steps=0), _half(prior) / z
    if prior is None or level.num_steps >= LEARNING_STEPS:
        return level, level.se_s
    n = level.num_steps
    few = LEARNING_SPREAD * level.mean_s * (1 / math.sqrt(n) + STARTING / n**2)
    sd = math.hypot(level.se_s, few)
    trust = (z / max(_half(prior), 1e-9)) ** 2 * (1 - level.num_steps / LEARNING_STEPS)
    own = 1 / max(sd, 1e-9) ** 2
    mean = (trust * prior.mean + own * level.mean_s) / (trust + own)
    apart = abs(level.mean_s - prior.mean) * trust / (trust + own)
    return msgspec.structs.replace(level, mean_s=mean), math.hypot(sd, apart)


def _half(prior: Interval) -> float:
    return max(prior.high - prior.mean, prior.mean - prior.low)
