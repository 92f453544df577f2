"""Arithmetic on sets of time intervals: what overlaps what, each moment counted once.

A set is an array of shape (n, 2) with starts and ends, or anything that yields such pairs. Units
are the caller's; results have the same.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Spans = npt.NDArray[np.float64]
AnySpans = Spans | Iterable[tuple[float, float]]


def as_spans(spans: AnySpans) -> Spans:
    """The pairs as an array of shape (n, 2)."""
    found: Any = spans if isinstance(spans, np.ndarray) else list(spans)
    return np.asarray(found, dtype=np.float64).reshape(-1, 2)


def union(spans: AnySpans) -> Spans:
    """The spans merged where they touch or overlap, in time order; empty ones are dropped."""
    pairs = as_spans(spans)
    pairs = pairs[pairs[:, 1] > pairs[:, 0]]
    if not len(pairs):
        return pairs
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    opens = np.concatenate(([True], pairs[1:, 0] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return np.column_stack((pairs[opens, 0], reach[closes]))


def total(spans: AnySpans) -> float:
    """Length of the union."""
    merged = union(spans)
    return float((merged[:, 1] - merged[:, 0]).sum())


def overlap(first: AnySpans, second: AnySpans) -> float:
    """Length of the time in which both are active."""
    a, b = union(first), union(second)
    if not len(a) or not len(b):
        return 0.0
    return float((_covered(b, a[:, 1]) - _covered(b, a[:, 0])).sum())


def uncovered(spans: AnySpans, cover: AnySpans) -> Spans:
    """How much of each span the cover leaves free; where spans overlap the first one has it.

    The parts thus sum to the length of the union of the spans outside the cover.

    Args:
        spans: In the order of their starts.
        cover: In any order.
    """
    own, merged = as_spans(spans), union(cover)
    if not len(own):
        return np.empty(0)
    reach = np.maximum.accumulate(own[:, 1])
    starts = own[:, 0].copy()
    starts[1:] = np.maximum(starts[1:], reach[:-1])
    ends = np.maximum(own[:, 1], starts)
    if not len(merged):
        return ends - starts
    return np.maximum(0.0, ends - starts - _covered(merged, ends) + _covered(merged, starts))


def fair_shares(spans: AnySpans) -> Spans:
    """Each span's length where those that are active share every moment equally.

    What each would take of a link that serves them one after the other: the shares sum to the
    length of the union. Shape: [n].
    """
    own = as_spans(spans)
    edges = np.unique(own)
    if not len(edges):
        return np.empty(0)
    middles, lengths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    active = (own[:, :1] < middles) & (middles < own[:, 1:])
    return np.asarray(active @ (lengths / np.maximum(active.sum(axis=0), 1)))


def _covered(merged: Spans, at: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Length of the merged spans that lies before each time in ``at``."""
    lengths = merged[:, 1] - merged[:, 0]
    before = np.concatenate(([0.0], np.cumsum(lengths)))
    index = np.searchsorted(merged[:, 0], at, side="right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(0.0, at - merged[last, 1]), 0.0)
    inside = np.where(index > 0, at - merged[last, 0] - beyond, 0.0)
    return np.asarray(before[last] + inside)
