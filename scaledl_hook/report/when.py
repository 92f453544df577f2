"""When a run ends, in words: for the live line, for a bar of the user's, for a title.

Pure functions that return text. Where the interval is so narrow that minutes would hide it, a time
of day has seconds; near the end seconds to go say it.
"""

import math

from scaledl.records import Eta, Interval, TimeLimit
from scaledl.units import format_clock

NEAR_S = 100.0  # so near the end seconds to go say more than the time of day
SECONDS_BELOW_S = 120.0  # an interval or a move that is narrower is shown to the second


def needs_seconds(left: Interval) -> bool:
    """Whether the interval is too narrow for minutes."""
    return left.high - left.low < SECONDS_BELOW_S


def is_near(at_s: float, now_s: float, left: Interval) -> bool:
    """Whether seconds to go say it best."""
    return at_s - now_s < NEAR_S and needs_seconds(left)


def when_text(eta: Eta, left: Interval, now_s: float, about: str = "", word: str = "") -> str:
    """``14:05 (13:55 to 14:20)``, near the end ``14:05, in 20 s (16 to 28 s)``."""
    if not is_near(eta.at_s + left.mean, now_s, left):
        return _clock_text(eta, left, now_s, about, word)
    mean, low, high = (
        max(eta.at_s + end_s - now_s, 0.0) for end_s in (left.mean, left.low, left.high)
    )
    span = f"{math.floor(low)} to {max(1, math.ceil(high))} s{_clause(word)}"
    at = format_clock(eta.at_s + left.mean, now_s)
    return f"{about}{at}, in {about}{max(1.0, mean):.0f} s ({span})"


def _clock_text(eta: Eta, left: Interval, now_s: float, about: str, word: str) -> str:
    at, first, last = _clocks(eta, left, now_s)
    return f"{about}{at} ({first} to {last}{_clause(word)})"


def _clocks(eta: Eta, left: Interval, now_s: float) -> list[str]:
    """Mean, low and high end as times of day."""
    ends_s = (left.mean, left.low, left.high)
    return [format_clock(eta.at_s + end_s, now_s, seconds=needs_seconds(left)) for end_s in ends_s]


def _clause(word: str) -> str:
    return f", {word}" if word else ""


def limit_text(limit: TimeLimit, now_s: float) -> str:
    """``time limit at 14:00``."""
    return f"time limit at {format_clock(limit.at, now_s)}"


def reached_text(limit: TimeLimit) -> str:
    """How far the run will be by then: ``in epoch 6 to 7 of 10``; empty where unknown."""
    if limit.epochs is not None and limit.num_epochs is not None:
        return f"in epoch {_span(limit.epochs, 1)} of {limit.num_epochs}"
    if limit.steps is not None and limit.total_steps is not None:
        return f"at step {_span(limit.steps, 0)} of {limit.total_steps}"
    return ""


def _span(ends: tuple[int, int], first: int) -> str:
    low, high = ends[0] + first, ends[1] + first
    return f"{low}" if low == high else f"{low} to {high}"


def short_texts(eta: Eta, now_s: float) -> tuple[str, ...]:
    """When the run is done and between what times, ever shorter; nothing while it is unknown.

    Times of day alone: a bar draws itself anew while its text waits for the next estimate, and
    seconds to go would be wrong by then.
    """
    limit = eta.limit
    if limit is not None and limit.is_sure:
        where, at = reached_text(limit), limit_text(limit, now_s)
        return (f"ends with the {at}, {where}", f"{at}, {where}", at) if where else (at,)
    left, name = eta.remaining_s, "done"
    if left is None:
        left, name = eta.epoch_remaining_s, "epoch done"
    if left is None:
        return ()
    about, word = ("~", "prior") if eta.basis == "prior" else ("", "")
    _, first, last = _clocks(eta, left, now_s)
    return (
        f"{name} {_clock_text(eta, left, now_s, about, word)}",
        f"{name} {about}{first} to {last}",
    )
