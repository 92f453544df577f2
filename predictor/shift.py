"""Whether the last one to three steps show a new level, before a change point can be proven.

Only where a step is a large part of the run: one of thirty epochs that takes twice as long is
likely the first of a new kind; one step of many thousands is likely a pause.
"""

import msgspec
import numpy as np

from scaledl.predictor.level import MAD_TO_SD, Floats

CHANCES = (0.5, 0.75, 0.9)  # that one, two, three steps alike are a new level
FEWEST_BEFORE = 3
LEAST_SHARE, LEAST_SPREADS, LEAST_SPREAD = 0.08, 5.0, 0.01
COARSE_STEPS = 150.0  # from so many steps of the run on, a single step says nothing


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """A level that may be the new one, and how likely that is."""

    level_s: float
    chance: float


def fresh_shift(walls_s: Floats, *, total_steps: int, num_pauses: int) -> Shift | None:
    """What the last steps hint at; ``None`` where they are like those before.

    Args:
        walls_s: Steps since the last change, oldest first.
        total_steps: Length of the run.
        num_pauses: Single slow steps so far that were none: each makes the next less of a sign.
    """
    coarse = max(1.0 - total_steps / COARSE_STEPS, 0.0)
    count = _num_unlike(walls_s) if coarse else 0
    if not count:
        return None
    new = walls_s[-count:] if count == 1 else walls_s[1 - count :]  # the first may be a transition
    return Shift(level_s=float(new.mean()), chance=coarse * CHANCES[count - 1] / (1 + num_pauses))


def _num_unlike(walls_s: Floats) -> int:
    """How many of the last steps, three at most, lie together outside of those before."""
    for count in range(len(CHANCES), 0, -1):
        before, last = walls_s[:-count], walls_s[-count:]
        if len(before) < FEWEST_BEFORE:
            continue
        middle = float(np.median(before))
        spread = max(float(np.median(np.abs(before - middle))) * MAD_TO_SD, LEAST_SPREAD * middle)
        off = last - middle
        far = max(LEAST_SHARE * middle, LEAST_SPREADS * spread)
        if (off > far).all() or (off < -far).all():
            return count
    return 0
