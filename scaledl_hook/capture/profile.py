"""One profiled step: which collectives ran, how long, and how much of it was hidden.

Started and stopped on the thread that trains, with no schedule and no warm-up left open over the
user's code, under the guard of ``guard.py``. Raw kineto events are read once and dropped.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from scaledl.capture.collectives import RawEvent, StepComm, read_collectives
from scaledl.capture.guard import GUARD, ours
from scaledl.capture.ranges import ModuleRanges
from scaledl.capture.tables import launch_owners, read_tables
from scaledl.timeline.kernels import Attribution, attribute

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_PATIENCE_S = 5.0  # of somebody else's profiler, for the end of a step


class ProfileSession:
    """A profiler that runs for one step. ``start`` tells whether it may.

    Args:
        cuda: Whether the GPU's kernels are recorded too.
        thread: The thread on which it may run (``get_ident``); by default the one that asks.
        ranges: Drawn around the modules meanwhile, so that kernels are told by layer.

    Attributes:
        kernels: Who caused the GPU's kernels, once stopped; ``None`` where none were seen.
        was_taken: Somebody else's profiler ended this one.
        is_blind: The GPU was asked for and nothing of it was seen.
    """

    def __init__(
        self,
        *,
        cuda: bool = False,
        thread: int | None = None,
        ranges: ModuleRanges | None = None,
    ) -> None:
        self._activities = [ProfilerActivity.CPU]
        if cuda:
            self._activities.append(ProfilerActivity.CUDA)
        self._cuda = cuda
        self._thread = threading.get_ident() if thread is None else thread
        self._ended = threading.Event()
        self._profile: Any = None
        self.was_taken = False
        self.is_blind = False
        self.kernels: Attribution | None = None
        self._ranges = ranges

    @property
    def is_here(self) -> bool:
        """Whether the calling thread may start and stop it.

        Stopped on another thread than it was started on, the profiler of torch 2.13 leaves its
        state behind: the next one of the user's then raises "already enabled", or the process dies.
        """
        return threading.get_ident() == self._thread

    def start(self) -> bool:
        """Start unless another profiler is prepared, active or suspected, or this is no place."""
        if not self.is_here or not GUARD.try_begin(self._give_way):
            return False
        try:
            with ours(), _quiet_kineto():
                self._profile = profile(activities=self._activities)
                self._profile.start()
        except Exception:
            self._profile = None
            GUARD.end()
            raise
        if self._ranges is not None:
            self._ranges.attach()
        return True

    def stop(self) -> StepComm | None:
        """Stop and read; ``None`` where somebody else's profiler took over meanwhile."""
        self._leave_ranges()
        running, self._profile = self._profile, None
        if running is None:
            return None
        try:
            with ours(), _quiet_kineto():
                running.stop()
        finally:
            GUARD.end()
            self._ended.set()
        results = getattr(running.profiler, "kineto_results", None)
        if results is None:
            return None
        raw = results.events()
        events = list(_raw(raw, launch_owners(raw)))
        self.is_blind = self._cuda and not any(event.on_device for event in events)
        if self._cuda and not self.is_blind:
            self.kernels = attribute(*read_tables(raw))
        return read_collectives(events)

    def _give_way(self) -> None:
        """Somebody else starts a profiler on this process: ours ends before theirs begins.

        Another thread waits for the end of the running step, where our own thread ends it.
        """
        if not self.is_here and self._ended.wait(_PATIENCE_S):
            return
        if self._ranges is not None:
            self._ranges.silence()  # the hooks go at the end of the step, on their own thread
        running, self._profile = self._profile, None
        self.was_taken = True
        if running is not None:
            with ours(), _quiet_kineto():
                running.stop()
        GUARD.end()

    def _leave_ranges(self) -> None:
        ranges, self._ranges = self._ranges, None
        if ranges is not None:
            ranges.detach()


def _raw(events: Any, owners: dict[int, str]) -> Iterator[RawEvent]:
    for event in events:
        name = event.name()
        on_device = event.device_type() != DeviceType.CPU
        if on_device and event.is_user_annotation():
            continue  # the shadow of a host range on the device, no work of its own
        if on_device or RawEvent.is_wanted(name):
            start_s, duration_s = event.start_ns() * 1e-9, event.duration_ns() * 1e-9
            owner = "" if on_device else owners.get(event.start_ns(), "")
            yield RawEvent(name, start_s, start_s + duration_s, on_device=on_device, owner=owner)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep kineto from printing a line on the user's terminal at each start and stop."""
    before = os.environ.get(_LOG_LEVEL)
    if before is None:
        os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)
