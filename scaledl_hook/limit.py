"""The job's time limit against the plan: which comes first, and what would help.

Whichever end comes first is named in the estimate itself; where it is the limit, that is also said
once, early, with when to save.
"""

import math
import os
from collections.abc import Mapping, Sequence

import msgspec

from scaledl.records import EndName, Eta, Interval, Progress, ScalingRow, TimeLimit
from scaledl.report.when import reached_text
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


def with_end(eta: Eta, progress: Progress, limit_s: float | None) -> Eta:
    """The estimate with the name of what ends the run, and the limit where that may come first.

    Args:
        eta: The estimate of what the plan needs.
        progress: Where the run stood at ``eta.at_s``.
        limit_s: When the job will be ended, in Unix seconds. One that has passed was none.
    """
    plan = _end_of_plan(progress)
    left = eta.remaining_s
    if limit_s is None or limit_s <= eta.at_s:
        return msgspec.structs.replace(eta, ends_by=plan)
    here_s = limit_s - eta.at_s
    if left is None or plan is None:  # none, or it was passed: the limit is the only end known
        limit = TimeLimit(at=limit_s)
        return msgspec.structs.replace(eta, ends_by="time-limit", limit=limit)
    if eta.at_s + left.high <= limit_s:
        return msgspec.structs.replace(eta, ends_by=plan)
    return msgspec.structs.replace(
        eta,
        ends_by="time-limit" if left.mean > here_s else plan,
        limit=_reached(left, progress, limit_s, here_s, is_prior=eta.basis == "prior"),
    )


def _end_of_plan(progress: Progress) -> EndName | None:
    if progress.total_steps is None or progress.step > progress.total_steps:
        return None
    names: tuple[EndName, ...] = ("total_steps", "total_samples", "total_tokens")
    return next((name for name in names if name == progress.limited_by), "epochs")


def _reached(
    left: Interval, progress: Progress, limit_s: float, here_s: float, *, is_prior: bool
) -> TimeLimit:
    """How far the run will be at the limit, its time taken as spread evenly over the steps left."""
    total = progress.total_steps
    assert total is not None
    to_go = max(total - progress.step, 0)
    first, last = (
        progress.step + to_go * min(here_s / whole_s, 1.0)
        for whole_s in (left.high, max(left.low, here_s))
    )
    steps = math.floor(first), math.ceil(last)
    return TimeLimit(
        at=limit_s,
        is_sure=left.low > here_s and not is_prior,
        steps=steps,
        total_steps=total,
        epochs=_epochs(steps, progress),
        num_epochs=progress.num_epochs,
    )


def _epochs(steps: tuple[int, int], progress: Progress) -> tuple[int, int] | None:
    """The epochs in which the run is after so many steps, from 0."""
    per_epoch = progress.steps_per_epoch
    if not per_epoch or progress.num_epochs is None:
        return None
    begun = progress.step - progress.step_in_epoch
    first, last = (progress.epoch + max(step - begun, 0) // per_epoch for step in steps)
    most = max(progress.num_epochs - 1, progress.epoch)
    return min(first, most), min(last, most)


def on_the_limit(
    eta: Eta, limit_s: float, rows: Sequence[ScalingRow] = (), *, num_gpus: int = 1
) -> tuple[str, str] | None:
    """Key and text of what to say about the limit; ``None`` while the training makes it.

    Args:
        eta: The estimate with its end; one that is a prior says nothing.
        limit_s: When the job ends, in Unix seconds.
        rows: The last what-if report's, for a count that would make it.
        num_gpus: The running count.
    """
    now_s, left, limit = eta.at_s, eta.remaining_s, eta.limit
    if limit_s <= now_s:
        ended = format_clock(limit_s, now_s)
        return (
            "limit-passed",
            f"this job was to end {ended} by its time limit and still runs: the limit is left "
            "out from here on. SCALEDL_ENDS_AT, in Unix seconds, names another one.",
        )
    if left is None or limit is None or eta.basis == "prior":
        return None
    ends, low, high = (
        format_clock(at_s, now_s) for at_s in (limit.at, now_s + left.low, now_s + left.high)
    )
    where = reached_text(limit) if limit.is_sure else ""
    verb = "needs until" if limit.is_sure else "may need until"
    text = f"this job ends {ends}{f', {where}' if where else ''}, "
    text += f"training {verb} {high if low == high else f'{low} to {high}'}. "
    save_s = limit.at - SAVE_BEFORE_S
    text += f"Save before {format_clock(save_s, now_s)}" if save_s > now_s else "Save now"
    faster = _first_in_time(rows, limit.at - now_s, num_gpus)
    if faster is not None and faster.remaining_s is not None:
        done = format_clock(now_s + faster.remaining_s.mean, now_s)
        text += f"; on {faster.num_gpus} it would be done about {done}, if resumed now"
    return ("limit-surely" if limit.is_sure else "limit-maybe"), f"{text}."


def _first_in_time(rows: Sequence[ScalingRow], seconds: float, num_gpus: int) -> ScalingRow | None:
    """The smallest larger count whose whole interval is within ``seconds``."""
    for row in sorted(rows, key=lambda row: row.num_gpus):
        fast = row.remaining_s is not None and row.remaining_s.high <= seconds
        if row.num_gpus > num_gpus and fast and row.fits is not False:
            return row
    return None
