"""Forward and backward time of each layer in one sampled step, through public hooks.

Hooks sit on the leaves for one step only. Forward times are taken between a pre- and a post-hook;
backward times from pre-hooks on the autograd nodes of each layer's output (its backward begins) and
input (its backward is done). What a module does between its children is its own (``own_work``).
The stamps are read after the step, on a GPU some steps later.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from scaledl.capture import graph
from scaledl.capture.backward import Stamp, read_backward
from scaledl.capture.graph import OUTSIDE, LayerCall, Walk
from scaledl.capture.inert import Hook
from scaledl.capture.names import class_name, is_bare, leaves, modules, unwrap
from scaledl.capture.own_work import OwnWork, split
from scaledl.capture.root import DeviceMarks, RootSensor, in_backward_pass
from scaledl.capture.tensors import tensors_in
from scaledl.capture.timers import Timer
from scaledl.records import LayerGraph, LayerTiming

MAX_LAYERS = 600  # hooked in one window; a larger model is timed a part at a time
_MAX_OUTPUTS = 4  # watched in the backward; a loss may use any of them


class LayerTimes:
    """What a window showed, in seconds: layers and what is outside them."""

    def __init__(
        self,
        layers: tuple[LayerTiming, ...],
        forward_s: float,
        backward_s: float,
        exposed_s: float,
        outside_forward_s: float,
        outside_backward_s: float | None,
    ) -> None:
        self.layers = layers
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.exposed_s = exposed_s
        self.outside_forward_s = outside_forward_s
        self.outside_backward_s = outside_backward_s


class LayerWindow:
    """Hooks for one step: ``attach``, one training step, ``detach``, later ``read``.

    Args:
        model: The tracked module; its wrappers are looked through.
        root: The sensor of the whole module; it gives the frame the layers stand in.
        timer: Takes the stamps.
        want_graph: Whether to build the layer graph from the first forward.
        part: Which part of a model with more than ``MAX_LAYERS`` leaves to time.
    """

    def __init__(
        self,
        model: nn.Module,
        root: RootSensor,
        timer: Timer,
        on_error: Callable[[Exception], None],
        *,
        want_graph: bool = True,
        part: int = 0,
    ) -> None:
        self._root = root
        self._timer = timer
        self._on_error = on_error
        self._want_graph = want_graph
        self._model = model
        # A compiled region is one leaf: wrappers are looked through, it is not.
        every = [(n, m) for n, m in leaves(model) if _can_hook(m)]
        # A window may begin inside a hook of the root, whose tables must not change then. A model
        # that is one layer is timed by the root's own stamps.
        self._single = next((n for n, m in every if m is root.module), None)
        every = [(n, m) for n, m in every if m is not root.module]
        parts = max(1, -(-len(every) // MAX_LAYERS))
        self.is_partial = parts > 1
        start = (part % parts) * MAX_LAYERS
        self._leaves = every[start : start + MAX_LAYERS]
        taken = {id(root.module), *(id(m) for _, m in every)}
        # Between the layers of a part lie also those of the other parts.
        outer = [
            (n, m)
            for n, m in modules(model)
            if not self.is_partial and id(m) not in taken and not is_bare(m)
        ]
        self._own = OwnWork(outer, timer, on_error)
        inner = unwrap(model)
        is_whole = inner is root.module and self._single is None and not self.is_partial
        is_whole = is_whole and not is_bare(inner)
        self._root_name = class_name(inner) if is_whole else None
        self._handles: list[Any] = []
        self._active = False
        self._calls: list[LayerCall] = []
        # by module and thread: replicas and user threads run the same hooks at once
        self._open: dict[tuple[int, int], tuple[Any, LayerCall | None, Any]] = {}
        self._forward: list[tuple[str, Any, Any]] = []  # (fqn, first, last) in time order
        self._backward: list[Stamp] = []  # in time order
        self._feeds: dict[str, str] = {}
        self._marks = DeviceMarks()
        self.graph: LayerGraph | None = None

    def attach(self) -> None:
        """Place the hooks; the step that follows is the sampled one."""
        self._active = True
        for fqn, module in self._leaves:
            enter, leave = self._hooks_for(fqn)
            self._handles.append(module.register_forward_pre_hook(Hook(enter), with_kwargs=True))
            self._handles.append(module.register_forward_hook(Hook(leave), with_kwargs=True))
        self._own.attach()
        self._root.timer = self._timer
        self._root.marks = self._marks
        self._root.after_forward = self._after_root

    def detach(self) -> None:
        """Remove the hooks; the stamps stay until read."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._own.detach()
        if self._root.marks is self._marks:
            self._root.timer = self._root.marks = self._root.after_forward = None
        self._calls.clear()
        self._open.clear()

    def is_ready(self) -> bool:
        """Whether all stamps can be read without waiting."""
        spans = [*self._marks.forward, *self._marks.backward, *self._marks.exposed]
        return all(self._timer.is_ready(last) for _, last in spans)

    # --- hooks --------------------------------------------------------------------------------

    def _hooks_for(self, fqn: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling() or not self._active:
                return
            try:
                self._enter(fqn, module, args, kwargs)
            except Exception as error:
                self._on_error(error)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if torch.compiler.is_compiling() or not self._active:
                return
            try:
                self._leave(fqn, module, args, kwargs, output)
            except Exception as error:
                self._on_error(error)

        return enter, leave

    def _enter(self, fqn: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        node = None
        if torch.is_grad_enabled():
            first = next(tensors_in((args, kwargs), limit=1), None)
            node = first.grad_fn if first is not None else None
            if node is not None:
                self._watch(node, fqn, begins=False)
        call = None
        if self._want_graph and self.graph is None:
            call = LayerCall(fqn, module)
            call.take_inputs(args, kwargs)
        first_mark = self._timer.mark()
        if not in_backward_pass():
            self._own.layer(fqn, first_mark, enters=True)
        self._open[id(module), threading.get_ident()] = (first_mark, call, node)

    def _leave(self, fqn: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        last = self._timer.mark()
        key = (id(module), threading.get_ident())
        first, call, fed_by = self._open.pop(key, (None, None, None))
        if call is not None:
            call.take_output(args, kwargs, output)
            self._calls.append(call)
        if not in_backward_pass() and first is not None:
            # Else: recomputation inside the backward, which is part of the backward's time.
            self._forward.append((fqn, first, last))
            self._own.layer(fqn, last, enters=False)
        seen = [fed_by]  # a layer that hands its input on (dropout of 0) has no backward of its own
        for tensor in tensors_in(output, limit=_MAX_OUTPUTS):
            node = tensor.grad_fn
            if node is not None and all(node is not other for other in seen):
                seen.append(node)
                self._watch(node, fqn, begins=True)

    def _watch(self, node: Any, fqn: str, *, begins: bool) -> None:
        def stamp(grads: Any) -> None:
            if self._active and not torch.compiler.is_compiling():
                try:
                    number = len(self._marks.backward)
                    self._backward.append(Stamp(fqn, begins, self._timer.mark(), number))
                except Exception as error:
                    self._on_error(error)

        node.register_prehook(stamp)

    def _after_root(self, args: Any, output: Any) -> None:
        if self._single is not None and self._want_graph and self.graph is None:
            call = LayerCall(self._single, self._model)
            call.take_output(args, {}, output)
            self._calls.append(call)
        if not self._want_graph or self.graph is not None or not self._calls:
            return
        walk = Walk(self._calls, output)
        for attention in walk.attention:
            self._watch(attention.node, attention.fqn, begins=True)
        self._feeds = walk.feeds
        self.graph = graph.build(self._calls, walk, self._model.parameters())
        self._calls.clear()  # they hold autograd nodes

    # --- reading ------------------------------------------------------------------------------

    def read(self) -> LayerTimes | None:
        """Times of the sampled step; ``None`` where no forward was seen."""
        if not self._marks.forward or not (self._forward or self._single):
            return None
        between = self._timer.between_s
        forward_s = sum(between(a, b) for a, b in self._marks.forward)
        backward_s = sum(between(a, b) for a, b in self._marks.backward)
        exposed_s = sum(between(a, b) for a, b in self._marks.exposed)
        forward, calls = self._read_forward()
        backward, gaps = read_backward(self._backward, self._marks.backward, between)
        own = self._own.read(self._feeds)
        forward |= own.forward
        calls |= own.calls
        backward |= split(gaps, own)
        if self._single is not None:
            forward, calls = {self._single: forward_s}, {self._single: len(self._marks.forward)}
            backward = {self._single: backward_s} if self._marks.backward else {}
        # What the root does between its children is its own.
        root_s = forward_s - sum(forward.values())
        if self._root_name is not None and root_s > 0:
            forward[self._root_name] = forward.get(self._root_name, 0.0) + root_s
            calls[self._root_name] = len(self._marks.forward)
        layers = tuple(
            LayerTiming(
                fqn=fqn,
                forward_s=seconds,
                # 0 where no gradient runs through it: frozen, or unused by the loss
                backward_s=backward.get(fqn, 0.0) if self._marks.backward else None,
                num_calls=calls[fqn],
                source="events" if self._timer.source == "events" else "clock",
            )
            for fqn, seconds in forward.items()
        )
        # The stamps of the last layer and of the root lie on one node, the layer's first.
        forward_s = max(forward_s, sum(forward.values()))
        outside_backward = None
        if self._marks.backward:
            known = sum(s for fqn, s in backward.items() if fqn in forward)
            backward_s = max(backward_s, known)
            outside_backward = backward_s - known
        return LayerTimes(
            layers,
            forward_s,
            backward_s,
            exposed_s,
            forward_s - sum(forward.values()),
            outside_backward,
        )

    def _read_forward(self) -> tuple[dict[str, float], dict[str, int]]:
        times: dict[str, float] = {}
        calls: dict[str, int] = {}
        previous: Any = None
        for fqn, first, last in self._forward:
            source = self._feeds.get(fqn)
            if source is not None and previous is not None:
                # The attention ran between the layer before its consumer and the consumer.
                gap_s = max(0.0, self._timer.between_s(previous, first))
                times[source] = times.get(source, 0.0) + gap_s
                calls[source] = calls.get(source, 0) + 1
            times[fqn] = times.get(fqn, 0.0) + max(0.0, self._timer.between_s(first, last))
            calls[fqn] = calls.get(fqn, 0) + 1
            previous = last
        return times, calls


def _can_hook(module: nn.Module) -> bool:
    """Not inside a region compiled in place: hooks placed after compilation never fire."""
    return getattr(module, "_compiled_call_impl", None) is None


__all__ = ["MAX_LAYERS", "OUTSIDE", "LayerTimes", "LayerWindow"]
