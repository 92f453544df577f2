"""Time stamps inside a step: the host's clock on CPU, CUDA events on a GPU.

A stamp is taken on the hot path and read later; nothing here ever waits for the device.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Timer(Protocol):
    """Takes stamps and tells the time between two of them."""

    source: str

    def mark(self) -> Any:
        """Take a stamp on the current stream."""

    def is_ready(self, mark: Any) -> bool:
        """Whether the stamp can be read without waiting."""

    def between_s(self, first: Any, last: Any) -> float:
        """Seconds from ``first`` to ``last``; both must be ready."""


class HostTimer:
    """Stamps of ``clock``: right where work runs on the calling thread (CPU)."""

    source = "clock"

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.mark: Callable[[], float] = clock

    def is_ready(self, mark: float) -> bool:
        return True

    def between_s(self, first: float, last: float) -> float:
        return last - first


class EventTimer:
    """CUDA events on the current stream, from a pool that is used again.

    Args:
        make_event: Makes one timing event; injected in tests.
    """

    source = "events"

    def __init__(self, make_event: Callable[[], Any] | None = None) -> None:
        self._make = make_event or _cuda_event
        self._pool: list[Any] = []
        self._used: list[Any] = []

    def mark(self) -> Any:
        event = self._pool.pop() if self._pool else self._make()
        event.record()
        self._used.append(event)
        return event

    def is_ready(self, mark: Any) -> bool:
        return bool(mark.query())

    def between_s(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) * 1e-3  # CUDA tells milliseconds

    def recycle(self) -> None:
        """Take all events of the last window back into the pool."""
        self._pool.extend(self._used)
        self._used.clear()


def _cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
