"""What the host did, told by name: module ranges, autograd nodes, compiled regions, launches.

One table serves a profile of this process and a trace file. Times are whole nanoseconds on one
clock, so that sums are exact; threads are whatever numbers or texts the source tells them by.
"""

import re
from array import array
from collections.abc import Hashable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeVar

_T = TypeVar("_T", bound=Hashable)
LAYER_PREFIX = "scaledl.layer: "
"""Begins the name of the ranges that scaledl itself draws around modules."""

_MODULE = "nn.Module: "
_NODE = "autograd::engine::evaluate_function: "
_REGION = "Torch-Compiled Region"
_UNIT = re.compile(r"FSDP::\w+ \((?P<unit>[^()]*)\)")
# Ranges that torch itself draws; they name no layer of the user's.
_TORCHS = (
    "ProfilerStep", "enumerate(DataLoader)", "nccl:", "gloo:", "c10d::", "record_param_comms",
    "DistributedDataParallel.", "FullyShardedDataParallel.", "FSDP::", "## Call ", "Optimizer.",
    "PyTorch Profiler", "Activity Buffer Request", "TorchDynamo", "AOTDispatcher", "execute_",
    "Inductor", "autograd::",
)  # fmt: skip


class Role(IntEnum):
    """What a host event means for the work launched inside it."""

    OPERATOR = 0
    MODULE = 1  # the forward of one module
    RANGE = 2  # a range of the user's
    NODE = 3  # one autograd node is evaluated
    REMAT = 4  # a node that first runs its forward again (reentrant checkpointing)
    REGION = 5  # a region compiled by torch.compile
    OPTIMIZER = 6
    UNIT = 7  # FSDP gathers or reduces the parameters of one module
    DDP = 8  # the forward of a DDP wrapper begins a new round of buckets
    LAUNCH = 9
    IGNORED = 10


class Meaning(NamedTuple):
    """Role and label (module, unit, region) of a host event."""

    role: Role
    label: str = ""


@lru_cache(maxsize=65536)
def meaning(name: str, *, is_range: bool = False) -> Meaning:
    """What a host event of this name is.

    Args:
        name: The event's name.
        is_range: Whether it was drawn by ``record_function`` and is no operator.

    >>> meaning("nn.Module: Linear_3"), meaning("FSDP::all_gather (layers.0)")[1]
    (Meaning(role=<Role.MODULE: 1>, label='Linear_3'), 'layers.0')
    """
    if name.startswith((_MODULE, LAYER_PREFIX)):
        return Meaning(Role.MODULE, name.partition(": ")[2])
    if name.startswith(_NODE):
        remat = "CheckpointFunctionBackward" in name
        is_leaf = name.endswith("AccumulateGrad")
        return Meaning(Role.REMAT if remat else Role.NODE, "leaf" if is_leaf else "")
    if name.startswith(_REGION):
        return Meaning(Role.REGION, "compiled region" + name.removeprefix(_REGION).rstrip(": "))
    if name == "CompiledFunction":  # inside the region's range, or alone where torch draws none
        return Meaning(Role.REGION, name)
    if name.startswith("Optimizer.step"):
        return Meaning(Role.OPTIMIZER)
    if (found := _UNIT.match(name)) is not None:
        return Meaning(Role.UNIT, found["unit"])
    if name.startswith("DistributedDataParallel.forward"):
        return Meaning(Role.DDP)
    if is_range and not name.startswith(_TORCHS):
        return Meaning(Role.RANGE, name)
    return Meaning(Role.IGNORED if is_range else Role.OPERATOR)


class HostTable:
    """Host events by column. Operators that neither link nor enclose anything may be left out."""

    def __init__(self) -> None:
        self.roles = array("b")
        self.labels: list[str] = []
        self.label_of = array("l")
        self.starts_ns = array("q")
        self.ends_ns = array("q")
        self.threads: list[Hashable] = []
        self.thread_of = array("l")
        self.sequences = array("q")  # -1: none
        self.forward_threads = array("q")  # of a backward operator; 0: it is none
        self.ids = array("q")  # what kernels name it by: correlation of a launch; -1: none
        self._labels: dict[str, int] = {}
        self._threads: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.roles)

    def add(
        self,
        what: Meaning,
        start_ns: int,
        end_ns: int,
        thread: Hashable,
        *,
        sequence: int = -1,
        forward_thread: int = 0,
        own_id: int = -1,
    ) -> None:
        """Note one event.

        Args:
            what: Its role and label.
            start_ns: Its start in nanoseconds; ``end_ns`` its end.
            end_ns: Not before ``start_ns``.
            thread: Where it ran.
            sequence: The autograd sequence number, -1 where it has none.
            forward_thread: The thread whose sequence numbers it uses (a backward operator), else 0.
            own_id: The number that kernels name it by, -1 where it has none.
        """
        self.roles.append(what.role)
        self.label_of.append(_index(self._labels, self.labels, what.label))
        self.starts_ns.append(start_ns)
        self.ends_ns.append(end_ns)
        self.thread_of.append(_index(self._threads, self.threads, thread))
        self.sequences.append(sequence)
        self.forward_threads.append(forward_thread)
        self.ids.append(own_id)


class KernelTable:
    """Kernels of a device by column."""

    def __init__(self) -> None:
        self.starts_ns = array("q")
        self.ends_ns = array("q")
        self.launches = array("q")  # correlation of the call that launched it; -1: unknown
        self.operators = array("q")  # the operator that launched it, where told; -1: unknown
        self.is_comm = array("b")

    def __len__(self) -> int:
        return len(self.starts_ns)

    def add(
        self,
        start_ns: int,
        end_ns: int,
        *,
        launch: int = -1,
        operator: int = -1,
        is_comm: bool = False,
    ) -> None:
        """Note one kernel and how to find who launched it."""
        self.starts_ns.append(start_ns)
        self.ends_ns.append(end_ns)
        self.launches.append(launch)
        self.operators.append(operator)
        self.is_comm.append(is_comm)


def _index(known: dict[_T, int], values: list[_T], value: _T) -> int:
    found = known.get(value)
    if found is None:
        found = known[value] = len(values)
        values.append(value)
    return found
