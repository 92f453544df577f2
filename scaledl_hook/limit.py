"""Whether the training ends before the job's time limit: said once, early, with what would help."""

import os
from collections.abc import Mapping, Sequence

from scaledl.records import Eta, ScalingRow
from scaledl.units import format_clock

# Slurm sets it since 22.05: seconds since 1970. SCALEDL_ENDS_AT tells the same elsewhere.
NAMES = ("SCALEDL_ENDS_AT", "SLURM_JOB_END_TIME")
SAVE_BEFORE_S = 300.0


def limit_of(environ: Mapping[str, str] = os.environ) -> float | None:
    """When the job will be ended, in Unix seconds; ``None`` where nothing tells."""
    for name in NAMES:
        try:
            at_s = float(environ.get(name, ""))
        except ValueError:
            continue
        if 1e9 < at_s < 1e11:
            return at_s
    return None


def on_the_limit(
    eta: Eta, limit_s: float, rows: Sequence[ScalingRow] = (), *, num_gpus: int = 1
) -> tuple[str, str] | None:
    """Key and text of what to say about the limit; ``None`` while the training makes it.

    Args:
        eta: The estimate; one that is a prior says nothing.
        limit_s: When the job ends, in Unix seconds.
        rows: The last what-if report's, for a count that would make it.
        num_gpus: The running count.
    """
    left = eta.remaining_s
    if left is None or eta.basis == "prior" or eta.at_s + left.high <= limit_s:
        return None
    now_s = eta.at_s
    surely = now_s + left.low > limit_s
    ends, low, high = (
        format_clock(at_s, now_s) for at_s in (limit_s, now_s + left.low, now_s + left.high)
    )
    verb = "needs until" if surely else "may need until"
    text = f"this job ends {ends}, training {verb} {high if low == high else f'{low} to {high}'}. "
    text += f"Save before {format_clock(max(now_s, limit_s - SAVE_BEFORE_S), now_s)}"
    faster = _first_in_time(rows, limit_s - now_s, num_gpus)
    if faster is not None and faster.remaining_s is not None:
        done = format_clock(now_s + faster.remaining_s.mean, now_s)
        text += f"; on {faster.num_gpus} it would be done about {done}, if resumed now"
    return ("limit-surely" if surely else "limit-maybe"), f"{text}."


def _first_in_time(rows: Sequence[ScalingRow], seconds: float, num_gpus: int) -> ScalingRow | None:
    """The smallest larger count whose whole interval is within ``seconds``."""
    for row in sorted(rows, key=lambda row: row.num_gpus):
        fast = row.remaining_s is not None and row.remaining_s.high <= seconds
        if row.num_gpus > num_gpus and fast and row.fits is not False:
            return row
    return None
