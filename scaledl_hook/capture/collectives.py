"""Collectives of a step: from DDP's own logging and from profiled events.

The comm-hook slot stays the user's: only one may be registered, and it changes numerics.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scaledl.intervals import fair_shares, overlap, total, uncovered, union
from scaledl.records import BucketTiming, CommEvent

LAUNCHES = {
    "c10d::allreduce_": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::broadcast_": "broadcast",
}
_DEVICE_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
}
_BACKWARD = "autograd::engine::evaluate_function"
_HOST_WORK = ("aten::", "fsdp::")
_CLOCK_SKEW_S = 1e-4  # of the device's clock against the host's


class RawEvent(NamedTuple):
    """What is kept of a profiler event: name, start and end in seconds, where it ran."""

    name: str
    start_s: float
    end_s: float
    on_device: bool = False
    owner: str = ""  # of a launch: who caused the collective

    @staticmethod
    def is_wanted(name: str) -> bool:
        """Whether a host event of this name tells something about communication."""
        return name.startswith(("gloo:", "c10d::", _BACKWARD, *_HOST_WORK)) or (
            "nccl" in name.lower()
        )


class _Launch(NamedTuple):
    """A collective as the host issued it."""

    at_s: float
    op: str
    owner: str


class Collective(NamedTuple):
    """One collective of the step; times count from the first event seen."""

    op: str
    start_s: float
    end_s: float
    launched_s: float | None
    owner: str = ""
    exposed_s: float | None = None


class StepComm(NamedTuple):
    """Communication of one profiled step. ``origin_s`` is where the backward began."""

    collectives: tuple[Collective, ...]
    backward: tuple[float, float] | None
    total_s: float
    overlap_s: float

    @property
    def overlap_fraction(self) -> float | None:
        """Share of the communication that ran beside computation."""
        return self.overlap_s / self.total_s if self.total_s > 0 else None

    def events(self, buckets: tuple[int, ...], group_size: int) -> tuple[CommEvent, ...]:
        """The collectives as records; bytes and owner where they are DDP's buckets."""
        reduces = [c for c in self.collectives if c.op == "all_reduce"]
        known = dict(zip(reduces, buckets, strict=True)) if len(reduces) == len(buckets) else {}
        order = {c: i for i, c in enumerate(reduces)}
        return tuple(
            CommEvent(
                op=c.op,
                group_size=group_size,
                num_bytes=known.get(c),
                start_s=c.start_s,
                duration_s=c.end_s - c.start_s,
                exposed_s=c.exposed_s,
                owner=f"bucket {order[c]}" if c in known else c.owner,
            )
            for c in self.collectives
        )

    def bucket_timings(self, buckets: tuple[int, ...]) -> tuple[BucketTiming, ...]:
        """When each of DDP's buckets was ready, and its all-reduce's time; empty if they differ.

        gloo runs two at once, which then share the link: each counts what it took of it.
        """
        reduces = [c for c in self.collectives if c.op == "all_reduce"]
        if self.backward is None or len(reduces) != len(buckets) or not buckets:
            return ()
        begin = self.backward[0]
        own_s = fair_shares((c.start_s, c.end_s) for c in reduces).tolist()
        return tuple(
            BucketTiming(
                num_bytes=size,
                ready_s=max(0.0, (c.launched_s or c.start_s) - begin),
                duration_s=duration_s,
            )
            for c, size, duration_s in zip(reduces, buckets, own_s, strict=True)
        )


def read_collectives(events: Iterable[RawEvent]) -> StepComm | None:
    """Collectives, their launch times and their overlap with computation; ``None`` if none ran.

    Events with an end before their start (a known fault of some sessions) are dropped.
    """
    sane = [e for e in events if e.end_s >= e.start_s > 0 and not _is_annotation(e)]
    if not sane:
        return None
    origin_s = min(e.start_s for e in sane)
    launches: list[_Launch] = []
    comm: list[tuple[str, RawEvent]] = []
    backward: list[RawEvent] = []
    kernels: list[RawEvent] = []
    host_work: list[RawEvent] = []
    for event in sane:
        op = _op_of(event)
        if op is not None:
            comm.append((op, event))
        elif event.on_device:
            kernels.append(event)
        elif event.name.startswith(_HOST_WORK):
            host_work.append(event)
        elif event.name in LAUNCHES:
            launches.append(_Launch(event.start_s, LAUNCHES[event.name], event.owner))
        elif event.name.startswith(_BACKWARD):
            backward.append(event)
    if not comm:
        return None
    comm.sort(key=lambda pair: pair[1].start_s)
    # On a host run the operators themselves: the nodes around them also hold waiting.
    compute = kernels or host_work
    comm_spans = [(e.start_s, e.end_s) for _, e in comm]
    frame = None
    if backward:
        spans = union((e.start_s, e.end_s) for e in backward)
        frame = (float(spans[0, 0]) - origin_s, float(spans[-1, 1]) - origin_s)
    computing = [(e.start_s, e.end_s) for e in compute]
    exposed = uncovered(comm_spans, computing).tolist()
    paired = _paired(comm, sorted(launches), origin_s)
    return StepComm(
        tuple(c._replace(exposed_s=e) for c, e in zip(paired, exposed, strict=True)),
        frame,
        total(comm_spans),
        overlap(comm_spans, computing),
    )


def _paired(
    comm: list[tuple[str, RawEvent]], launches: list[_Launch], origin_s: float
) -> Iterator[Collective]:
    """The collectives with their launches on the host, by order within each operation.

    Where their counts differ some event was lost, and the order tells nothing.
    """
    # gloo does a reduce-scatter by an all-reduce; only the launch has the right name.
    reduces = [launch for launch in launches if launch.op in ("all_reduce", "reduce_scatter")]
    if len(reduces) == sum(op == "all_reduce" for op, _ in comm):
        names = iter(reduces)
        comm = [(next(names).op if op == "all_reduce" else op, event) for op, event in comm]
    for op in {op for op, _ in comm}:
        if sum(each.op == op for each in launches) != sum(name == op for name, _ in comm):
            launches = [launch for launch in launches if launch.op != op]
    own = {op: iter([each for each in launches if each.op == op]) for op, _ in comm}
    for op, event in comm:
        launch = next(own[op], None)
        at_s = None if launch is None else launch.at_s
        if at_s is not None and at_s > event.start_s + _CLOCK_SKEW_S:
            at_s = None
        yield Collective(
            op,
            event.start_s - origin_s,
            event.end_s - origin_s,
            None if at_s is None else at_s - origin_s,
            "" if launch is None else launch.owner,
        )


def _is_annotation(event: RawEvent) -> bool:
    """The range that torch draws on the device around a NCCL kernel, which is there itself."""
    return event.on_device and event.name.startswith("nccl:")


def _op_of(event: RawEvent) -> str | None:
    if event.name.startswith("gloo:"):
        return event.name[5:]
    lowered = event.name.lower()
    if event.on_device and "nccl" in lowered:
        flat = lowered.replace("_", "")
        return next((op for key, op in _DEVICE_OPS.items() if key in flat), "other")
    return None


class DdpView:
    """What DDP tells about itself: buckets, group size, whether the user set a comm hook.

    ``_get_ddp_logging_data`` is a private name, so every read may fail and then tells nothing.
    """

    def __init__(self, module: DistributedDataParallel) -> None:
        self._module = module

    def buckets(self) -> tuple[int, ...]:
        """Bytes of the buckets in launch order; final after the first iteration."""
        data = self._data()
        text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
        try:
            return tuple(int(size) for size in str(text).split(",") if size.strip())
        except ValueError:
            return ()

    def times_s(self) -> tuple[float, float] | None:
        """(communication, hidden communication) of the last sampled backward, on the host."""
        data = self._data()
        total_ns = data.get("backward_comm_time")
        hidden_ns = data.get("backward_compute_comm_overlap_time")
        if not isinstance(total_ns, int) or not isinstance(hidden_ns, int) or total_ns <= 0:
            return None
        return total_ns * 1e-9, min(hidden_ns, total_ns) * 1e-9

    def group_size(self) -> int:
        """Ranks in DDP's process group."""
        return int(self._module.process_group.size())

    def _data(self) -> dict[str, Any]:
        try:
            return dict(self._module._get_ddp_logging_data())  # type: ignore[no-untyped-call]
        except Exception:  # private name, or a reducer that is not built yet
            return {}


def find_ddp(model: nn.Module) -> DistributedDataParallel | None:
    """The DDP wrapper at or under ``model``, or the one whose forward is running around it."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            return module
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return active if isinstance(active, DistributedDataParallel) else None
