"""What a forecast of the time left cannot know, as widths beside what the run's own past says.

The constants were set on the development half of public recorded runs: 28 steady runs of ten
families (MLPerf training logs v0.7 to v5.1, DAWNBench), those for which
``benchmarks/eta_accuracy.py --half dev`` scores. The other half was not used; there the intervals
hold less often early in a run (74 to 80 % at 5 to 25 % of it), mostly where a first evaluation
comes only after a quarter of the run.
"""

import math

WANDER, WANDER_MAX = 0.003, 0.025
AGAIN_SHARE, AGAIN_MAX = 0.5, 1.0
ALONE_SHARE, ALONE_TOTAL, ALONE_MAX = 0.2, 20, 0.9
LATE_SHARE, LATE_MAX = 0.01, 0.12
UNSEEN_SHARE, UNSEEN_SHARE_ONE_EPOCH, UNSEEN_FEW = 0.65, 0.03, 1.6


def wander_share(steps_left: int, steps_seen: int) -> float:
    """Spread of the later mean step time around the earlier one: a level that wanders."""
    return min(WANDER * math.sqrt(steps_left / max(steps_seen, 1)), WANDER_MAX)


def again_share(num_changes: int, ratio: float) -> float:
    """Spread of the later mean step time where it changed more than once: likely by a schedule.

    Not set on any run: a step time that changed twice is taken to change again by about half of
    the last change, either way.
    """
    if num_changes < 2:
        return 0.0
    return min(AGAIN_SHARE * abs(math.log(ratio)) * math.sqrt(num_changes - 1), AGAIN_MAX)


def alone_share(steps_seen: int, steps_left: int) -> float:
    """By how much the rest may be quicker since the only steps seen may hold start-up costs.

    Starting weighs the more, the shorter a step is beside the run.
    """
    total = steps_seen + steps_left
    share = min(ALONE_SHARE * math.sqrt(total / ALONE_TOTAL), ALONE_MAX)
    return share / max(steps_seen, 1) ** 2


def late_s(passed_s: float, left_s: float) -> float:
    """What may still come once: a stall, a slow end, a final evaluation.

    In a fifth of the runs such things took about one percent of the whole; bounded by a share of
    what is left.
    """
    return min(LATE_SHARE * (passed_s + left_s), LATE_MAX * left_s)


def unseen_share(steps_seen: int, steps_left: int, *, has_epochs: bool) -> float:
    """Share by which a run may be longer than its steps say while no evaluation was seen.

    Where one follows each epoch, pauses of 24 to 40 % of the time are common on small data sets:
    1 / 0.6 - 1. A run of very few steps has long ones, which is where evaluations hide.
    """
    if steps_left <= 0:
        return 0.0
    total = steps_seen + steps_left
    share = UNSEEN_SHARE if has_epochs else UNSEEN_SHARE_ONE_EPOCH + UNSEEN_FEW / total
    return share * max(1 - 2 * steps_seen / total, 0.0)
