"""Estimators of other tools, a few lines each: remaining seconds from what was seen so far."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

EMA_SMOOTHING, WINDOW_S, MEDIAN_LENGTH = 0.3, 30.0, 1000


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of a recording."""

    at_s: float
    kind: str
    done: float | None


def cumulative_mean(seen: list[Event], total: float) -> float | None:
    last = seen[-1]
    assert last.done is not None
    return last.at_s * (total - last.done) / last.done if last.done else None


def ema(seen: list[Event], total: float) -> float | None:
    """Smoothed time and smoothed count apart, both bias-corrected (as tqdm does)."""
    time_s = count = before_s = before = 0.0
    for event in seen:
        assert event.done is not None
        time_s += EMA_SMOOTHING * (event.at_s - before_s - time_s)
        count += EMA_SMOOTHING * (event.done - before - count)
        before_s, before = event.at_s, event.done
    return time_s / count * (total - before) if count > 0 else None


def window_30s(seen: list[Event], total: float) -> float | None:
    last = seen[-1]
    inside = [e for e in seen if last.at_s - e.at_s <= WINDOW_S]
    first = inside[0] if len(inside) > 1 else (seen[-2] if len(seen) > 1 else None)
    start_s, start = (first.at_s, first.done) if first else (0.0, 0.0)
    assert last.done is not None
    assert start is not None
    if last.done <= start:
        return None
    return (last.at_s - start_s) / (last.done - start) * (total - last.done)


def median_1000(seen: list[Event], total: float) -> float | None:
    rates, before_s, before = [], 0.0, 0.0
    for event in seen:
        assert event.done is not None
        if event.done > before:
            rates.append((event.at_s - before_s) / (event.done - before))
        before_s, before = event.at_s, event.done
    return statistics.median(rates[-MEDIAN_LENGTH:]) * (total - before) if rates else None


BASELINES: dict[str, Callable[[list[Event], float], float | None]] = {
    "cumulative-mean": cumulative_mean,
    "ema-0.3": ema,
    "window-30s": window_30s,
    "median-1000": median_1000,
}
