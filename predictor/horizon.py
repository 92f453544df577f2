"""Where a run and its epoch should end, and what a trend adds until then."""

import math

from scaledl.predictor.level import Level
from scaledl.records import Progress

TREND_HORIZON, TREND_BOUND = 2.0, 1.0


def run_end(progress: Progress) -> int | None:
    """The step at which the run should end, the earlier one where two ends are known."""
    total, per_epoch = progress.total_steps, progress.steps_per_epoch
    if progress.num_epochs is None or not per_epoch or (total and progress.limited_by):
        return total
    begun = progress.step - progress.step_in_epoch
    end = begun + (progress.num_epochs - progress.epoch) * per_epoch
    return end if total is None else min(end, total)


def epoch_end_of(progress: Progress) -> int | None:
    """The step at which the running epoch ends, no later than the run."""
    if not progress.steps_per_epoch:
        return None
    end = progress.step - progress.step_in_epoch + progress.steps_per_epoch
    run = run_end(progress)
    return end if run is None or run < progress.step else min(end, run)


def trend_cost(level: Level, steps: int) -> float:
    """Extra time of ``steps`` steps under the level's trend, bounded.

    The line is followed over at most twice what was seen, then flat, and to a change of at most
    the level itself; an exponential decay as long.
    """
    if not level.slope_s:
        return 0.0
    horizon = min(float(steps), TREND_HORIZON * level.num_steps)
    if level.decay:
        left = math.exp(-level.decay * horizon)
        return level.mean_s * ((1 - left) / level.decay + (steps - horizon) * left - steps)
    bound = TREND_BOUND * level.mean_s if level.slope_s > 0 else 0.5 * level.mean_s
    horizon = min(horizon, bound / abs(level.slope_s))
    return level.slope_s * (horizon**2 / 2 + horizon * (steps - horizon))
