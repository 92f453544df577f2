"""What modules do themselves, between their children: functional softmax, residual sums, reshapes.

In the forward the time between two stamps is of the innermost module that is open. In the backward
nothing marks such work, but it lies in the same gaps between layers, in the opposite order: the
gap's time is split as its forward was.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from scaledl.capture.inert import Hook
from scaledl.capture.root import in_backward_pass
from scaledl.capture.timers import Timer

Shares = dict[str, float]


class _Edge(NamedTuple):
    """A module's forward begins or ends."""

    fqn: str
    at: Any
    enters: bool
    is_leaf: bool


class Own(NamedTuple):
    """Own seconds in the forward by module, and of the gaps.

    ``before`` holds the shares of the gap before each layer, ``after`` of the one after the last.
    """

    forward: Shares
    calls: dict[str, int]
    before: dict[str, Shares]
    after: Shares


class OwnWork:
    """Stamps of modules that have children, beside those of the layers that a window takes.

    Args:
        containers: The modules with their names.
        timer: Takes the stamps.
        on_error: Told of an error of ours.
    """

    def __init__(
        self,
        containers: Iterable[tuple[str, nn.Module]],
        timer: Timer,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._containers = list(containers)
        self._timer = timer
        self._on_error = on_error
        self._handles: list[Any] = []
        self._edges: dict[int, list[_Edge]] = {}  # by thread
        self._active = False

    def attach(self) -> None:
        """Place the hooks around those of the layers."""
        self._active = True
        for fqn, module in self._containers:
            enter, leave = Hook(self._stamp(fqn, enters=True)), Hook(self._stamp(fqn, enters=False))
            self._handles.append(module.register_forward_pre_hook(enter))
            self._handles.append(module.register_forward_hook(leave, always_call=True))

    def detach(self) -> None:
        """Remove the hooks; the stamps stay."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def layer(self, fqn: str, at: Any, *, enters: bool) -> None:
        """A layer begins or ends, by the window's own stamp."""
        self._edges.setdefault(threading.get_ident(), []).append(_Edge(fqn, at, enters, True))

    def _stamp(self, fqn: str, *, enters: bool) -> Callable[..., None]:
        def stamp(*args: Any) -> None:
            if torch.compiler.is_compiling() or not self._active or in_backward_pass():
                return
            try:
                edge = _Edge(fqn, self._timer.mark(), enters, False)
                self._edges.setdefault(threading.get_ident(), []).append(edge)
            except Exception as error:
                self._on_error(error)

        return stamp

    def read(self, feeds: Mapping[str, str]) -> Own:
        """The times; ``feeds`` names layers whose gap before them is an attention's."""
        own = Own({}, {}, {}, {})
        for edges in self._edges.values():
            _walk(edges, feeds, self._timer.between_s, own)
        return own


def _walk(
    edges: list[_Edge],
    feeds: Mapping[str, str],
    between_s: Callable[[Any, Any], float],
    own: Own,
) -> None:
    """Book the time between neighbouring edges of one thread to the innermost open module."""
    stack: list[_Edge] = []
    gap: Shares = {}
    last: Any = None
    has_layer = False
    for edge in edges:
        if stack and not any(each.is_leaf for each in stack):
            seconds = max(0.0, between_s(last, edge.at))
            gap[stack[-1].fqn] = gap.get(stack[-1].fqn, 0.0) + seconds
        last = edge.at
        if not edge.enters:
            _close(stack, edge.fqn)
            continue
        if edge.is_leaf:
            if edge.fqn not in feeds or not has_layer:
                _add(own.forward, gap)
                _add(own.before.setdefault(edge.fqn, {}), gap)
            gap, has_layer = {}, True
        else:
            own.calls[edge.fqn] = own.calls.get(edge.fqn, 0) + 1
        stack.append(edge)
    _add(own.forward, gap)
    _add(own.after, gap)


def _close(stack: list[_Edge], fqn: str) -> None:
    """Drop the module and what an exception left open inside it."""
    index = next((i for i in reversed(range(len(stack))) if stack[i].fqn == fqn), None)
    if index is not None:
        del stack[index:]


def _add(times: Shares, more: Shares) -> None:
    for fqn, seconds in more.items():
        times[fqn] = times.get(fqn, 0.0) + seconds


def split(gaps: Iterable[tuple[str | None, float]], own: Own) -> Shares:
    """Own seconds in the backward: each gap after a layer's backward, split as its forward was.

    Args:
        gaps: (layer whose backward ended, seconds); ``None`` before the first.
        own: The shares. A gap whose forward took no time is left out, and so outside.
    """
    times: Shares = {}
    for layer, seconds in gaps:
        shares = own.after if layer is None else own.before.get(layer, {})
        whole_s = sum(shares.values())
        if whole_s > 0:
            _add(times, {fqn: seconds * share_s / whole_s for fqn, share_s in shares.items()})
    return times
