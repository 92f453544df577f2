"""Backward time by layer from the stamps of one sampled step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Stamp(NamedTuple):
    """One moment of a backward: a layer begins, or is done with its input."""

    fqn: str
    begins: bool
    at: Any
    number: int  # whole backwards before this one in the step


def read_backward(
    stamps: Sequence[Stamp],
    marks: Sequence[tuple[Any, Any]],
    between_s: Callable[[Any, Any], float],
) -> tuple[dict[str, float], list[tuple[str | None, float]]]:
    """Seconds by layer, and the gaps after each layer by its name (``None``: before the first).

    A layer's time is from "begins" to its own "input done" or the next "begins". A stamp "input
    done" lies on the node before the layer. It comes late where that node waits for other branches;
    the next layer's "begins" then closes the time.

    Args:
        stamps: In time order.
        marks: First and last moment of each backward.
        between_s: Tells the seconds between two stamps.
    """
    times: dict[str, float] = {}
    gaps: list[tuple[str | None, float]] = []
    for number, (first, last) in enumerate(marks):
        before, since = None, first  # the layer that was done last, and when
        for index, stamp in enumerate(stamps):
            if not stamp.begins or stamp.number != number:
                continue
            gaps.append((before, max(0.0, between_s(since, stamp.at))))
            before, since = stamp.fqn, _closing(stamps, index, last)
            seconds = max(0.0, between_s(stamp.at, since))
            times[stamp.fqn] = times.get(stamp.fqn, 0.0) + seconds
        gaps.append((before, max(0.0, between_s(since, last))))
    return times, gaps


def _closing(stamps: Sequence[Stamp], index: int, last: Any) -> Any:
    """The moment that ends the backward of the layer that begins at ``index``."""
    stamp = stamps[index]
    for other in stamps[index + 1 :]:
        if other.number != stamp.number:
            break
        if other.begins or other.fqn == stamp.fqn:
            return other.at
    return last
