"""One profiled step: which collectives ran, how long, and how much of it was hidden.

Started and stopped on the thread that trains, with no schedule and no warm-up left open over the
user's code, under the guard of ``guard.py``. Raw kineto events are read once and dropped.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from scaledl.capture.collectives import RawEvent, StepComm, read_collectives
from scaledl.capture.guard import GUARD, ours

_LOG_LEVEL = "KINETO_LOG_LEVEL"


class ProfileSession:
    """A profiler that runs for one step. ``start`` tells whether it may."""

    def __init__(self, *, cuda: bool = False) -> None:
        self._activities = [ProfilerActivity.CPU]
        if cuda:
            self._activities.append(ProfilerActivity.CUDA)
        self._profile: Any = None
        self.was_taken = False

    def start(self) -> bool:
        """Start unless another profiler is prepared, active or suspected."""
        if not GUARD.try_begin(self._give_way):
            return False
        try:
            with ours(), _quiet_kineto():
                self._profile = profile(activities=self._activities)
                self._profile.start()
        except Exception:
            self._profile = None
            GUARD.end()
            raise
        return True

    def stop(self) -> StepComm | None:
        """Stop and read; ``None`` where somebody else's profiler took over meanwhile."""
        running, self._profile = self._profile, None
        if running is None:
            return None
        try:
            with ours(), _quiet_kineto():
                running.stop()
        finally:
            GUARD.end()
        results = getattr(running.profiler, "kineto_results", None)
        if results is None:
            return None
        return read_collectives(_raw(results.events()))

    def _give_way(self) -> None:
        """Somebody else starts a profiler on this process: ours ends before theirs begins."""
        running, self._profile = self._profile, None
        self.was_taken = True
        if running is not None:
            with ours(), _quiet_kineto():
                running.stop()
        GUARD.end()


def _raw(events: Any) -> Iterator[RawEvent]:
    for event in events:
        name = event.name()
        on_device = event.device_type() != DeviceType.CPU
        if on_device and event.is_user_annotation():
            continue  # the shadow of a host range on the device, no work of its own
        if on_device or RawEvent.is_wanted(name):
            start_s, duration_s = event.start_ns() * 1e-9, event.duration_ns() * 1e-9
            yield RawEvent(name, start_s, start_s + duration_s, on_device=on_device)


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
