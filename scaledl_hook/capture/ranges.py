"""Ranges around modules in a profiled step, so that its kernels can be told by module.

All modules have one, not only leaves: functional work of a module is then its own. The hooks stand
for one step; what a thread of the user's left open is closed when they go.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function

from scaledl.capture.inert import Hook
from scaledl.capture.names import modules
from scaledl.timeline.events import LAYER_PREFIX

MAX_RANGES = 2000  # a larger model's deepest modules count to those around them


class ModuleRanges:
    """Draws a range around the forward of each module under ``model``.

    Args:
        model: The tracked module, which has no range itself: a window may begin inside its hooks.
        on_error: Told of an error of ours; the ranges are then off.
    """

    def __init__(self, model: nn.Module, on_error: Callable[[Exception], None]) -> None:
        self._modules = [(n, m) for n, m in modules(model) if m is not model][:MAX_RANGES]
        self._on_error = on_error
        self._handles: list[Any] = []
        self._open: dict[int, list[tuple[int, Any]]] = {}  # by thread: (module, range)
        self._active = False

    def attach(self) -> None:
        """Place the hooks; ours begin before the user's and end after them."""
        self._active = True
        for name, module in self._modules:
            enter, leave = Hook(self._entering(LAYER_PREFIX + name)), Hook(self._leave)
            self._handles.append(module.register_forward_pre_hook(enter, prepend=True))
            # Also on an exception: checkpointing ends a recomputation early by raising one.
            self._handles.append(module.register_forward_hook(leave, always_call=True))

    def silence(self) -> None:
        """Draw no more; from any thread."""
        self._active = False

    def detach(self) -> None:
        """Remove the hooks and close what an exception left open; between two steps only."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for _, left in reversed(self._open.pop(threading.get_ident(), [])):
            left.__exit__(None, None, None)
        self._open.clear()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            if torch.compiler.is_compiling() or not self._active:
                return
            try:
                drawn = record_function(name)
                drawn.__enter__()  # type: ignore[no-untyped-call]
                self._open.setdefault(threading.get_ident(), []).append((id(module), drawn))
            except Exception as error:
                self._off(error)

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._active:
            return
        try:
            stack = self._open.get(threading.get_ident(), [])
            if all(owner != id(module) for owner, _ in stack):
                return
            while stack:  # a forward that raised left its range above this one
                owner, drawn = stack.pop()
                drawn.__exit__(None, None, None)
                if owner == id(module):
                    return
        except Exception as error:
            self._off(error)

    def _off(self, error: Exception) -> None:
        self._active = False
        self._on_error(error)
