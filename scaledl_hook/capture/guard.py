"""Never meets another profiler.

Two torch profilers in one process destroy each other: the inner one empties the outer one's trace,
and one that starts while the other warms up ends the process with a segmentation fault, which no
``except`` catches. While a guard is installed, the three entry points that every torch profiler
goes through (``torch.autograd.profiler._prepare_profiler``, ``_enable_profiler`` and
``_disable_profiler``) are wrapped. As soon as anybody else prepares or starts one, ours is stopped
first and stays off until theirs has ended. If torch lacks one of these names, nothing is profiled.
"""

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.profiler as entry_points

_NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
# One subscriber only: a tool that was injected, or a site-wide daemon, owns the counters.
_FOREIGN_TOOLS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "KINETO_USE_DAEMON")


class ProfilerGuard:
    """Knows whether a profiler of ours may run, and stops it when somebody else begins."""

    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}
        self._wrappers: dict[str, Any] = {}
        self._users: set[object] = set()
        self._foreign = False
        self._ours = False
        self._yield: Callable[[], None] | None = None
        self.reason = ""

    def install(self, user: object) -> None:
        """Wrap the entry points, if ``user`` is the first who needs it."""
        self._users.add(user)
        if len(self._users) > 1:
            return
        self._foreign, self.reason = False, ""
        tool = next((name for name in _FOREIGN_TOOLS if os.environ.get(name)), None)
        if tool is not None:
            self.reason = f"{tool} is set: another tool owns the profiler"
        elif any(not callable(getattr(entry_points, name, None)) for name in _NAMES):
            self.reason = "this torch has other profiler entry points"
        if self.reason:
            return
        if _a_profiler_waits():
            self._foreign = True
        for name in _NAMES:
            original = getattr(entry_points, name)
            wrapper = self._wrap(original, ends=name == "_disable_profiler")
            self._originals[name], self._wrappers[name] = original, wrapper
            setattr(entry_points, name, wrapper)

    def remove(self, user: object) -> None:
        """``user`` needs it no more; put the entry points back once nobody does."""
        self._users.discard(user)
        if self._users:
            return
        for name, original in self._originals.items():
            if getattr(entry_points, name, None) is self._wrappers[name]:
                setattr(entry_points, name, original)
        self._originals.clear()
        self._wrappers.clear()

    def try_begin(self, yield_now: Callable[[], None]) -> bool:
        """Whether ours may start now; ``yield_now`` is called if somebody else starts meanwhile."""
        if self.reason or not self._originals or self._foreign or self._ours:
            return False
        enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
        if enabled is None or enabled():
            return False
        self._ours, self._yield = True, yield_now
        return True

    def end(self) -> None:
        """Ours has stopped."""
        self._ours, self._yield = False, None

    def _wrap(self, original: Any, *, ends: bool) -> Any:
        def entry(*args: Any, **kwargs: Any) -> Any:
            if not _OURS.active:
                self._foreign = not ends  # first: none of ours may begin meanwhile
                if not ends and self._yield is not None:
                    yield_now, self._yield = self._yield, None
                    yield_now()
            return original(*args, **kwargs)

        entry.__wrapped__ = original  # type: ignore[attr-defined]
        return entry


class _Ours(threading.local):
    """Set while a call into the profiler comes from scaledl, on this thread."""

    active = False

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *exc: object) -> None:
        self.active = False


_OURS = _Ours()
GUARD = ProfilerGuard()


def ours() -> _Ours:
    """A context in which calls into the profiler count as scaledl's own."""
    return _OURS


def _a_profiler_waits() -> bool:
    """Whether a ``torch.profiler.profile`` is warming up or recording already.

    Its warm-up is invisible to torch's own flags; one look at all objects costs some 40 ms, once.
    """
    from torch.profiler import ProfilerAction, profile

    for candidate in gc.get_objects():
        if type(candidate) is profile:
            action = getattr(candidate, "current_action", ProfilerAction.NONE)
            inner = getattr(candidate, "profiler", None)
            # One that has ended keeps its last action, but has its results.
            ended = getattr(inner, "kineto_results", None) is not None
            if action != ProfilerAction.NONE and inner is not None and not ended:
                return True
    return False
