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


def _covered(merged: Spans, at: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Length of the merged spans that lies before each time in ``at``."""
    lengths = merged[:, 1] - merged[:, 0]
    before = np.concatenate(([0.0], np.cumsum(lengths)))
    index = np.searchsorted(merged[:, 0], at, side="right")
    last = np.maximum(index - 1, 0)
    beyond = np.where(index > 0, np.maximum(0.0, at - merged[last, 1]), 0.0)
    inside = np.where(index > 0, at - merged[last, 0] - beyond, 0.0)
    return np.asarray(before[last] + inside)
