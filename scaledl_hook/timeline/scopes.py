"""Inside what each launch lies: one sweep over the host's events in the order of their starts.

Per thread a stack of open events is kept; each inherits from the one around it and adds its own
meaning. A forward operator leaves its module under its thread and sequence number; the autograd
node that has the same two, on whatever thread, takes the module from there. An operator that makes
no node sees the number that the next node will get, so the last one to start under a number is the
one that made the node.
"""

from collections import defaultdict
from typing import Literal, NamedTuple

import numpy as np

from scaledl.timeline.events import HostTable, Role

Phase = Literal["forward", "backward", "recompute", "optimizer"]
Basis = Literal["modules", "ranges"]


class Scope(NamedTuple):
    """What holds at one moment on one thread.

    ``is_sealed``: in a compiled region or an optimizer, which own all that runs inside them.
    ``at_leaf``: in the node of a parameter, where DDP launches its buckets.
    """

    layer: str | None = None
    phase: Phase = "forward"
    in_backward: bool = False
    is_sealed: bool = False
    at_leaf: bool = False
    unit: str = ""
    round: int = 0  # forwards of a DDP wrapper so far


class Scopes:
    """The scope of each launch and operator, by the number that kernels name it by."""

    def __init__(self) -> None:
        self.of_launch: dict[int, Scope] = {}
        self.of_operator: dict[int, Scope] = {}
        self.num_calls: dict[str, int] = defaultdict(int)
        self.basis: Basis = "modules"


def find_scopes(table: HostTable) -> Scopes:
    """Sweep over the events of all threads; module ranges, or the user's ranges if there are none.

    Reentrant checkpointing is told by its node. Other recomputation is a module that runs inside
    the backward: operators with numbers of their own there may also be a second derivative.
    """
    return _Sweep(table).run()


class _Sweep:
    def __init__(self, table: HostTable) -> None:
        self._table = table
        self._found = Scopes()
        has_modules = Role.MODULE in table.roles
        self._found.basis = "modules" if has_modules else "ranges"
        self._layer_role = Role.MODULE if has_modules else Role.RANGE
        self._thread_of = _forward_threads(table)
        self._layers: dict[tuple[int, int], str | None] = {}
        self._open: dict[int, list[tuple[int, Scope]]] = defaultdict(list)
        self._round = 0

    def run(self) -> Scopes:
        table = self._table
        starts = np.frombuffer(table.starts_ns, dtype=np.int64) if len(table) else np.empty(0)
        ends = np.frombuffer(table.ends_ns, dtype=np.int64) if len(table) else np.empty(0)
        # Of those that start together the longest stands around the others.
        for index in np.lexsort((-ends, starts)).tolist():
            self._enter(index)
        return self._found

    def _enter(self, index: int) -> None:
        table = self._table
        role, own_id = table.roles[index], table.ids[index]
        stack = self._open[table.thread_of[index]]
        while stack and stack[-1][0] <= table.starts_ns[index]:
            stack.pop()
        scope = stack[-1][1] if stack else Scope()
        if role == Role.LAUNCH:
            self._found.of_launch[own_id] = scope._replace(round=self._round)
            return
        scope = self._inside(index, role, scope)
        if own_id >= 0:
            self._found.of_operator[own_id] = scope._replace(round=self._round)
        stack.append((table.ends_ns[index], scope))

    def _inside(self, index: int, role: int, around: Scope) -> Scope:
        """The scope inside this event."""
        table = self._table
        sequence, forward_thread = table.sequences[index], table.forward_threads[index]
        label = table.labels[table.label_of[index]]
        if role in (Role.NODE, Role.REMAT) or (forward_thread > 0 and sequence >= 0):
            thread = self._thread_of.get(forward_thread, -1)
            return Scope(
                layer=self._layers.get((thread, sequence)),
                phase="recompute" if role == Role.REMAT else "backward",
                in_backward=True,
                at_leaf=label == "leaf",
            )
        inside = self._forward(role, label, around)
        if sequence >= 0:
            self._layers[table.thread_of[index], sequence] = inside.layer
        return inside

    def _forward(self, role: int, label: str, around: Scope) -> Scope:
        if role == Role.OPTIMIZER:
            return around._replace(layer=None, phase="optimizer", is_sealed=True)
        if role == Role.UNIT:
            return around._replace(unit=label)
        if role == Role.DDP:
            self._round += 1
        elif role == self._layer_role:
            return self._layer(label, around)
        elif role == Role.REGION:
            return around._replace(layer=around.layer or label, is_sealed=True)
        return around

    def _layer(self, label: str, around: Scope) -> Scope:
        if around.is_sealed:
            return around
        if not around.in_backward:
            self._found.num_calls[label] += 1
        elif self._found.basis == "modules":
            return around._replace(layer=label, phase="recompute", at_leaf=False)
        return around._replace(layer=label)


def _forward_threads(table: HostTable) -> dict[int, int]:
    """Column index of the thread that backward operators know by a number of their own.

    In a process both numbers are the same; a trace tells threads by those of the system. Then it is
    the thread whose operators have most of the sequence numbers.
    """
    forward: dict[int, set[int]] = defaultdict(set)
    backward: dict[int, set[int]] = defaultdict(set)
    columns = zip(table.sequences, table.forward_threads, table.thread_of, strict=True)
    for sequence, forward_thread, thread in columns:
        if sequence >= 0:
            if forward_thread > 0:
                backward[forward_thread].add(sequence)
            else:
                forward[thread].add(sequence)
    found: dict[int, int] = {}
    for number, sequences in backward.items():
        shared = {
            thread: (len(own & sequences), table.threads[thread] == number)
            for thread, own in forward.items()
        }
        if shared:
            found[number] = max(shared, key=lambda thread: shared[thread])
    return found
