"""Made-up streams of host events and kernels, written as one line an event."""

from typing import Any

from scaledl.timeline.events import HostTable, KernelTable, Meaning, Role, meaning
from scaledl.timeline.kernels import Attribution, attribute

MAIN, ENGINE = 11, 22
NODE = "autograd::engine::evaluate_function: "


class Stream:
    """Collects events; times in nanoseconds, threads by the system's numbers as in a trace."""

    def __init__(self) -> None:
        self.host, self.kernels = HostTable(), KernelTable()
        self._correlation = 0

    def inside(self, name: str, start: int, end: int, thread: int = MAIN, **more: Any) -> "Stream":
        """A range or an operator on the host."""
        is_range = bool(more.pop("is_range", False))
        self.host.add(meaning(name, is_range=is_range), start, end, thread, **more)
        return self

    def node(self, name: str, start: int, end: int, sequence: int = -1) -> "Stream":
        """One autograd node on the engine's thread; torch knows the main thread as 1."""
        forward_thread = 1 if sequence >= 0 else 0
        return self.inside(
            NODE + name, start, end, ENGINE, sequence=sequence, forward_thread=forward_thread
        )

    def launch(self, at: int, *lengths: int, thread: int = MAIN, is_comm: bool = False) -> "Stream":
        """One launch and its kernels, each a thousand nanoseconds after the other."""
        self._correlation += 1
        self.host.add(Meaning(Role.LAUNCH), at, at + 1, thread, own_id=self._correlation)
        for index, length in enumerate(lengths):
            start = at + 5 + 1000 * index
            self.kernels.add(start, start + length, launch=self._correlation, is_comm=is_comm)
        return self

    def read(self) -> Attribution:
        """What is booked to whom."""
        return attribute(self.host, self.kernels)


def times(found: Attribution) -> dict[str, tuple[int, int, int]]:
    """(forward, backward, recomputation) by layer."""
    return {x.layer: (x.forward_ns, x.backward_ns, x.recompute_ns) for x in found.layers}
