"""Sees forwards and backwards of the tracked module as a whole, at a few microseconds a step.

The forward by two hooks on the module; the backward by a pre-hook on the autograd node of its
output, which also asks the engine for a callback at the end of the pass. A module backward hook is
never used: it wraps inputs and outputs in views and breaks in-place operations.

The engine runs its final callbacks in order. Ours is queued before DDP queues the one that waits
for the all-reduces; a second one, queued from the first, runs after it. The time between the two
is the exposed communication of this step.
"""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd import Variable

from scaledl.capture.inert import Hook
from scaledl.capture.tensors import tensors_in
from scaledl.capture.timers import Timer

_MAX_OUTPUTS = 4


class RootListener(Protocol):
    """What the clock learns from the root, in host time."""

    def on_forward_begin(self, start_s: float, training: bool) -> None: ...
    def on_forward(self, start_s: float, end_s: float, training: bool, with_grad: bool) -> None: ...
    def on_backward(self, compute_s: float, exposed_s: float) -> None: ...


class DeviceMarks:
    """Device stamps of one sampled step: pairs of (first, last) by part."""

    def __init__(self) -> None:
        self.forward: list[tuple[Any, Any]] = []
        self.backward: list[tuple[Any, Any]] = []
        self.exposed: list[tuple[Any, Any]] = []


class RootSensor:
    """Attaches to one module and reports its forwards and backwards.

    Args:
        module: The module as the user trains it (a DDP or FSDP wrapper included).
        listener: Told of each forward and backward, in host time.
        clock: Host time in seconds.
        on_error: Told of an error of ours; the sensor then stops by itself.
    """

    def __init__(
        self,
        module: nn.Module,
        listener: RootListener,
        clock: Callable[[], float],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._module = weakref.ref(module)  # the user may let it go after the block
        self._listener = listener
        self._clock = clock
        self._on_error = on_error
        self._handles: list[Any] = []
        self._active = False
        self._start_s: float | None = None
        self._in_backward = False
        self._backward_start_s = 0.0
        self._compute_end_s = 0.0
        self._queue = _queue_callback()
        self.watches = True  # whether to time the backward of the running step
        # set by a window for one step
        self.timer: Timer | None = None
        self.marks: DeviceMarks | None = None
        self.after_forward: Callable[[Any, Any], None] | None = None
        self._first_mark: Any = None
        self._compute_mark: Any = None

    @property
    def module(self) -> nn.Module | None:
        """The module the hooks sit on, while it lives."""
        return self._module()

    def start(self) -> None:
        """Attach the two forward hooks. ``prepend``: our time holds the user's hooks too."""
        module = self._module()
        if module is None or isinstance(module, torch.jit.ScriptModule):
            return  # refuses hooks; the step clock then works from optimizer and loader alone
        self._active = True
        before, after = Hook(self._before), Hook(self._after)
        self._handles.append(module.register_forward_pre_hook(before, prepend=True))
        self._handles.append(module.register_forward_hook(after))

    def stop(self) -> None:
        """Detach; callbacks of a backward that still runs do nothing."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.timer = self.marks = self.after_forward = None

    def _before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not self._active:
            return
        if in_backward_pass():
            return  # recomputation of a checkpointed region
        try:
            self._in_backward = False  # a backward that raised left it set
            self._listener.on_forward_begin(self._clock(), module.training)
            self._start_s = self._clock()
            if self.marks is not None and self.timer is not None:
                self._first_mark = self.timer.mark()
        except Exception as error:
            self._on_error(error)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._active or self._start_s is None:
            return
        start_s, self._start_s = self._start_s, None
        try:
            with_grad = torch.is_grad_enabled()
            if with_grad and (self.watches or self.marks is not None or not module.training):
                self._watch_backward(output)
            if self.marks is not None and self.timer is not None:
                self.marks.forward.append((self._first_mark, self.timer.mark()))
            self._listener.on_forward(start_s, self._clock(), module.training, with_grad)
            if self.after_forward is not None:
                self.after_forward(args, output)
        except Exception as error:
            self._on_error(error)

    def _watch_backward(self, output: Any) -> None:
        if self._queue is None:
            return
        found = [output] if isinstance(output, torch.Tensor) else tensors_in(output, _MAX_OUTPUTS)
        for tensor in found:
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._backward_begins)

    def _backward_begins(self, grads: Any) -> None:
        if torch.compiler.is_compiling() or not self._active or self._in_backward:
            return
        try:
            self._in_backward = True
            self._backward_start_s = self._clock()
            if self.marks is not None and self.timer is not None:
                self._first_mark = self.timer.mark()
            if self._queue is not None:
                self._queue(self._compute_ends)
        except Exception as error:
            self._in_backward = False
            self._on_error(error)

    def _compute_ends(self) -> None:
        self._compute_end_s = self._clock()
        try:
            if self.marks is not None and self.timer is not None:
                self._compute_mark = self.timer.mark()
            if self._queue is not None:
                self._queue(self._backward_ends)
        except Exception as error:
            self._in_backward = False
            self._on_error(error)

    def _backward_ends(self) -> None:
        self._in_backward = False
        if not self._active:
            return
        try:
            end_s = self._clock()
            if self.marks is not None and self.timer is not None:
                last = self.timer.mark()
                self.marks.backward.append((self._first_mark, self._compute_mark))
                self.marks.exposed.append((self._compute_mark, last))
            compute_s = self._compute_end_s - self._backward_start_s
            self._listener.on_backward(compute_s, end_s - self._compute_end_s)
        except Exception as error:
            self._on_error(error)


def _queue_callback() -> Callable[[Callable[[], None]], None] | None:
    """The engine's end-of-backward queue, the one FSDP uses; ``None`` where torch lacks it."""
    engine = getattr(Variable, "_execution_engine", None)
    return getattr(engine, "queue_callback", None)


_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def in_backward_pass() -> bool:
    """Whether this thread is inside the autograd engine."""
    return _graph_task() != -1
