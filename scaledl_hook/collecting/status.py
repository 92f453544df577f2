"""How far the collection is: one line after each configuration."""

import sys
import time

from scaledl.collecting.records import Collected
from scaledl.units import format_seconds


class Status:
    """Counts what is done and tells when the rest will be; ``total`` is what was left to do."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._num_done = 0
        self._start_s = time.perf_counter()

    def add(self, found: Collected) -> None:
        """One more is measured."""
        self._num_done += 1
        spent_s = time.perf_counter() - self._start_s
        left_s = spent_s / self._num_done * (self._total - self._num_done)
        c = found.task.configuration
        sys.stderr.write(
            f"{self._num_done}/{self._total} {c.family} batch {c.batch} length {c.length} width "
            f"{c.width} depth {c.depth} on {c.processes}: {found.step_s * 1e3:.1f} ms; "
            f"{format_seconds(left_s)} left\n"
        )
        sys.stderr.flush()
