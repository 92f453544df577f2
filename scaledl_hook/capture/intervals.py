"""Arithmetic on sets of time intervals: what overlaps what, each moment counted once."""

from collections.abc import Iterable

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """The spans merged where they touch or overlap, in time order; empty ones are dropped."""
    merged: list[Span] = []
    for start, end in sorted(s for s in spans if s[1] > s[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total(spans: Iterable[Span]) -> float:
    """Length of the union."""
    return sum(end - start for start, end in union(spans))


def overlap(first: Iterable[Span], second: Iterable[Span]) -> float:
    """Length of the time in which both are active."""
    a, b = union(first), union(second)
    i = j = 0
    shared = 0.0
    while i < len(a) and j < len(b):
        shared += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return shared
