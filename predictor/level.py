"""Level, trend and change points of a series of step times; start-up steps at its head."""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.memory import blended

MAD_TO_SD = 1.4826  # of a normal distribution
TREND_BLOCKS, TREND_T, TREND_SHARE = 10, 6.0, 0.04
BEND = 0.7  # an exponential must leave so much less than a line
CHANGE_T = 6.0
MARGIN_SHARE, MARGIN_MIN, MARGIN_MAX = 0.12, 3, 12
START_UP_SHARE, START_UP_ALONE = 0.04, 0.15  # above the later steps; where there is only one

# Spread of single steps expected before they tell their own, and how many of them it counts for.
PRIOR_SPREAD, PRIOR_BLOCKS = 0.03, 1.0

Floats = NDArray[np.float64]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Steady step time now, its standard error, and its trend.

    ``slope_s`` is the growth from step to step; ``decay`` the share lost from step to step where a
    shrinking step time bends like an exponential.
    """

    mean_s: float
    se_s: float
    num_steps: int
    slope_s: float = 0.0
    decay: float = 0.0


def num_start_up(walls_s: Floats) -> int:
    """How many of a process's first steps are unlike the later ones: those far above them.

    The very first may also be far below: where the clock starts within it.
    """
    for i in range(len(walls_s) - 1):
        rest = walls_s[i + 1 :]
        middle = float(np.median(rest))
        mad = float(np.median(np.abs(rest - middle))) * MAD_TO_SD
        least = START_UP_SHARE if len(rest) > 1 else START_UP_ALONE
        off = walls_s[i] - middle
        if (abs(off) if i == 0 else off) <= max(least * middle, 5.0 * mad):
            return i
    return len(walls_s) - 1


def level_of(steps: Floats, means: Floats) -> Level:
    """Level, its error and trend from block means; old blocks weigh less than new ones.

    The error counts blocks, not steps, and is widened by (1 + r) / (1 - r) for blocks whose
    neighbours are alike with correlation r (AR(1) variance of a mean).
    """
    total = float(steps.sum())
    mean = blended(steps, means)
    full = means[:-1] if len(means) > 2 and steps[-1] < steps[0] else means
    n = len(full)
    slope, decay, centre = trend(full)
    expected = PRIOR_BLOCKS * (PRIOR_SPREAD * mean) ** 2 / float(steps[0])
    variance = (expected + float(centre @ centre)) / (PRIOR_BLOCKS + n - 1)
    alike = _correlation(centre)
    se = math.sqrt(variance / n * (1 + alike) / (1 - alike))
    if slope:
        mean = float(full[-1] - centre[-1])  # the line's or the curve's end
        se *= 2.0  # there: four times the variance of the mean
    return Level(
        mean_s=max(mean, 0.0),
        se_s=se,
        num_steps=int(total),
        slope_s=slope / float(steps[0]),
        decay=decay / float(steps[0]),
    )


def trend(means: Floats) -> tuple[float, float, Floats]:
    """Growth from block to block, share lost from block to block, and what is left over.

    A straight line, or an exponential where the times shrink and it fits better; each only where
    it is beyond doubt, else both are 0 and the blocks' distances from their mean are left over.
    The growth of an exponential is that at its end.
    """
    rest, logs = _detrended(means), np.log(np.maximum(means, 1e-12))
    curve = np.exp(logs - _detrended(logs))
    bent: Floats = means - curve
    if curve[-1] < curve[0] and float(bent @ bent) < BEND * float(rest @ rest):
        decay = -_sure_slope(logs, TREND_SHARE)
        if decay > 0:
            return -decay * float(curve[-1]), decay, bent
    slope = _sure_slope(means, TREND_SHARE * float(means.mean()))
    return (slope, 0.0, rest) if slope else (0.0, 0.0, means - means.mean())


def _sure_slope(values: Floats, least: float) -> float:
    """Slope of the line if it is beyond doubt, in all thirds, and at least so much in all."""
    n = len(values)
    if n < TREND_BLOCKS:
        return 0.0
    x = np.arange(n) - (n - 1) / 2
    sxx = float(x @ x)
    slope = float(x @ values) / sxx
    rest = _detrended(values)
    alike = _correlation(rest)
    error = math.sqrt(float(rest @ rest) / (n - 2) / sxx * (1 + alike) / (1 - alike))
    if abs(slope) < TREND_T * error or abs(slope) * n < least:
        return 0.0
    halves = float(values[n // 2 :].mean() - values[: n // 2].mean())
    thirds = np.sign([m.mean() for m in np.array_split(np.diff(values), 3)])
    if halves * slope <= 0 or not (thirds == np.sign(slope)).all():
        return 0.0
    return slope


def change_point(walls_s: Floats, *, ratio: float = 0.08) -> tuple[int, float] | None:
    """Where the level changed for good, and new to old; ``None`` where it did not.

    The largest t value over all splits with a margin of steps on either side, with the residuals'
    correlation in its error; a change under ``ratio`` is left to the memory's fading. Few steps
    have a narrow margin and must say it more clearly.
    """
    n = len(walls_s)
    margin = min(max(round(MARGIN_SHARE * n), MARGIN_MIN), MARGIN_MAX)
    if n < 2 * margin:
        return None
    sums = np.cumsum(walls_s)
    squares = np.cumsum(walls_s * walls_s)
    left = np.arange(margin, n - margin + 1)
    right = n - left
    mean_left = sums[left - 1] / left
    mean_right = (sums[-1] - sums[left - 1]) / right
    within = squares[-1] - left * mean_left**2 - right * mean_right**2
    variance = np.maximum(within, 0.0) / (n - 2) + (1e-3 * sums[-1] / n) ** 2
    t = np.abs(mean_right - mean_left) / np.sqrt(variance * (1 / left + 1 / right))
    best = int(t.argmax())
    if best == len(t) - 1:
        return None  # at the edge: the change may be later still, more steps will tell
    split = int(left[best])
    change = float(mean_right[best] / max(mean_left[best], 1e-12))
    if abs(change - 1) < ratio:
        return None
    line = _detrended(walls_s)
    if float(line @ line) < within[best]:
        return None  # a straight line says it better: drift, not a change
    rest = walls_s - np.where(np.arange(n) < split, mean_left[best], mean_right[best])
    alike = _correlation(rest)
    if t[best] * math.sqrt((1 - alike) / (1 + alike)) < CHANGE_T * math.sqrt(MARGIN_MAX / margin):
        return None
    return split, change


def _correlation(rest: Floats) -> float:
    power = float(rest @ rest)
    if len(rest) < 4 or power <= 0:
        return 0.0
    return min(max(float(rest[1:] @ rest[:-1]) / power, 0.0), 0.9)


def _detrended(values: Floats) -> Floats:
    if len(values) < 2:
        return np.zeros(len(values))
    x = np.arange(len(values)) - (len(values) - 1) / 2
    centre = values - values.mean()
    rest: Floats = centre - x * (float(x @ centre) / float(x @ x))
    return rest
