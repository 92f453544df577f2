"""Kernel time by layer and pass. Each kernel is counted once, so that the parts add up exactly.

A kernel belongs to the innermost module around its launch; work of a module outside its children
(a functional softmax, say) is thus the module's own. In the backward it belongs to the module whose
forward made the autograd node. What no module caused is outside, optimizer or communication.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaledl.intervals import union
from scaledl.records import LayerTiming
from scaledl.timeline.events import HostTable, KernelTable
from scaledl.timeline.scopes import Basis, Phase, Scope, Scopes, find_scopes

_Ints = npt.NDArray[np.int64]
_UNKNOWN = Scope()
NS = 1e-9
"""Seconds in a nanosecond."""


class LayerKernels(NamedTuple):
    """Kernel time of one layer in nanoseconds: sums by pass, and each moment once over streams."""

    layer: str
    num_calls: int
    num_kernels: int
    forward_ns: int
    backward_ns: int
    recompute_ns: int
    union_ns: int

    @property
    def sum_ns(self) -> int:
        """All passes."""
        return self.forward_ns + self.backward_ns + self.recompute_ns


class Attribution(NamedTuple):
    """Kernel time of a profile in nanoseconds; the parts sum to ``total_ns`` exactly.

    ``outside_forward_ns`` holds what no backward and no layer launched, ``unlinked_ns`` kernels
    whose launch is not in the profile. ``owners`` tell who caused each communication kernel, in
    their order: "bucket 0" of DDP, a unit of FSDP, a layer, or "".
    """

    layers: tuple[LayerKernels, ...]
    basis: Basis
    outside_forward_ns: int
    outside_backward_ns: int
    optimizer_ns: int
    comm_ns: int
    unlinked_ns: int
    total_ns: int
    union_ns: int
    owners: tuple[str, ...]

    @property
    def layers_ns(self) -> int:
        """Kernel time that found a layer."""
        return sum(layer.sum_ns for layer in self.layers)

    @property
    def outside_ns(self) -> int:
        """Kernel time of computation that found none."""
        parts = (self.outside_forward_ns, self.outside_backward_ns)
        return sum(parts) + self.optimizer_ns + self.unlinked_ns


def layer_timings(found: Attribution) -> tuple[LayerTiming, ...]:
    """The layers as records, in seconds."""
    return tuple(
        LayerTiming(
            fqn=layer.layer,
            forward_s=layer.forward_ns * NS,
            backward_s=layer.backward_ns * NS,
            recompute_s=layer.recompute_ns * NS,
            num_calls=layer.num_calls,
            source="profiler",
        )
        for layer in found.layers
    )


def attribute(host: HostTable, kernels: KernelTable) -> Attribution:
    """Book each kernel to who caused it; pure."""
    found = find_scopes(host)
    scopes = [_scope_of(found, kernels, index) for index in range(len(kernels))]
    starts, ends = _ints(kernels.starts_ns), _ints(kernels.ends_ns)
    is_comm = np.array(kernels.is_comm, dtype=bool)
    sums: dict[tuple[str | None, Phase | None], int] = {}
    members: dict[str, list[int]] = {}
    for index in np.flatnonzero(~is_comm).tolist():
        key = _booked_to(scopes[index])
        sums[key] = sums.get(key, 0) + kernels.ends_ns[index] - kernels.starts_ns[index]
        if key[0] is not None:
            members.setdefault(key[0], []).append(index)
    layers = tuple(
        _layer(layer, sums, found.num_calls.get(layer, 0), starts[own], ends[own])
        for layer, own in members.items()
    )
    outside_backward = sums.get((None, "backward"), 0) + sums.get((None, "recompute"), 0)
    return Attribution(
        layers=layers,
        basis=found.basis,
        outside_forward_ns=sums.get((None, "forward"), 0),
        outside_backward_ns=outside_backward,
        optimizer_ns=sums.get((None, "optimizer"), 0),
        comm_ns=int((ends - starts)[is_comm].sum()),
        unlinked_ns=sums.get((None, None), 0),
        total_ns=int((ends - starts).sum()),
        union_ns=_union_ns(starts, ends),
        owners=_owners(scopes, starts, np.flatnonzero(is_comm)),
    )


def _booked_to(scope: Scope | None) -> tuple[str | None, Phase | None]:
    """Layer and pass. An optimizer's work is its own, whatever range stands around its step."""
    if scope is None:
        return None, None
    return (None if scope.phase == "optimizer" else scope.layer), scope.phase


def owners(scopes: list[Scope | None]) -> tuple[str, ...]:
    """Who caused each collective, given where it was launched, in the order of the launches.

    DDP launches a bucket from the node of a parameter, where only its reducer launches anything;
    its buckets are counted from each forward of the wrapper.
    """
    found: list[str] = []
    seen: dict[int, int] = {}
    for scope in scopes:
        place = _UNKNOWN if scope is None else scope
        if place.unit:
            found.append(place.unit)
        elif place.at_leaf and place.round:
            found.append(f"bucket {seen.get(place.round, 0)}")
            seen[place.round] = seen.get(place.round, 0) + 1
        else:
            found.append(place.layer or "")
    return tuple(found)


def _owners(
    scopes: list[Scope | None], starts: _Ints, comm: npt.NDArray[np.intp]
) -> tuple[str, ...]:
    """Owners in the order of ``comm``, whatever the order in time."""
    by_time = comm[np.argsort(starts[comm], kind="stable")].tolist()
    owner_of = dict(zip(by_time, owners([scopes[index] for index in by_time]), strict=True))
    return tuple(owner_of[index] for index in comm.tolist())


def _scope_of(found: Scopes, kernels: KernelTable, index: int) -> Scope | None:
    by_launch = found.of_launch.get(kernels.launches[index])
    return by_launch or found.of_operator.get(kernels.operators[index])


def _layer(
    layer: str,
    sums: dict[tuple[str | None, Phase | None], int],
    num_calls: int,
    starts: _Ints,
    ends: _Ints,
) -> LayerKernels:
    return LayerKernels(
        layer=layer,
        num_calls=num_calls,
        num_kernels=len(starts),
        forward_ns=sums.get((layer, "forward"), 0),
        backward_ns=sums.get((layer, "backward"), 0),
        recompute_ns=sums.get((layer, "recompute"), 0),
        union_ns=_union_ns(starts, ends),
    )


def _union_ns(starts: _Ints, ends: _Ints) -> int:
    """Exact: float64 holds the whole nanoseconds of a hundred days, counted from the first."""
    if not len(starts):
        return 0
    merged = union(np.column_stack((starts, ends)) - starts.min())
    return int((merged[:, 1] - merged[:, 0]).sum())


def _ints(column: "npt.ArrayLike") -> _Ints:
    return np.asarray(column, dtype=np.int64)
