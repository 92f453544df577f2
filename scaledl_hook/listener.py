"""A function of the user's that hears each estimate worth hearing, for a logger."""

import time
from collections.abc import Callable

from scaledl.records import Eta

OnEta = Callable[[Eta], None]
GAP_S = 10.0
SHARE = 0.003  # of the time at most, that the function may take: where it is slow, less often


class Listener:
    """Calls the function between two steps, no more often than is good for the training.

    Args:
        on_eta: The user's function; ``None`` hears nothing. What it raises is passed on.
        now: A clock that only runs forward, in seconds.
    """

    def __init__(self, on_eta: OnEta | None, now: Callable[[], float] = time.perf_counter) -> None:
        self._on_eta = on_eta
        self._now = now
        self._next_s = -float("inf")

    def hear(self, eta: Eta | None) -> None:
        """Pass ``eta`` on if it is time."""
        begin_s = self._now()
        if self._on_eta is None or eta is None or begin_s < self._next_s:
            return
        self._next_s = begin_s + GAP_S
        self._on_eta(eta)
        end_s = self._now()
        self._next_s = max(self._next_s, end_s + (end_s - begin_s) / SHARE)
