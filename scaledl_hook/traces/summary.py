"""One trace as a record: steps, kernels, communication and how much of it was hidden."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaledl.errors import UsageError
from scaledl.intervals import Spans, overlap, total, union
from scaledl.records import (
    KernelTimes,
    Strategy,
    TraceCollective,
    TraceComm,
    TraceMark,
    TraceSummary,
)
from scaledl.timeline.kernels import NS, Attribution, attribute, layer_timings
from scaledl.traces.collect import Collector, Told
from scaledl.traces.matching import announced, tell
from scaledl.traces.pieces import TraceFile
from scaledl.traces.steps import step_times
from scaledl.units import printable

DEFAULT_MAX_BYTES = 2e9
"""Unpacked size up to which a trace is read. Real traces take some 15 MB whatever their size; a
file of nothing but the shortest kernels takes about twice its size, since all times are kept."""

_US = 1e-6


def read_trace(path: str | Path, max_bytes: float = DEFAULT_MAX_BYTES) -> TraceSummary:
    """Read one trace of torch.profiler, of whatever version.

    Args:
        path: A ``.json`` or ``.json.gz`` file.
        max_bytes: Most bytes that are unpacked.

    Raises:
        UsageError: no trace, damaged, truncated, too large, or with times that cannot be.
    """
    file = TraceFile(Path(path), max_bytes)
    seen = Collector(str(path))
    for events in file.pieces():
        seen.take(events)
    if not seen.num_events:
        raise UsageError(
            f"trace {printable(str(path))} has an empty traceEvents. Export it after the steps ran."
        )
    return _summary(file, seen)


def _summary(file: TraceFile, seen: Collector) -> TraceSummary:
    compute, memory = _spans(seen.compute), _spans(seen.memory)
    nccl = _comm_spans(seen, by_name=True)
    other = _comm_spans(seen, by_name=False)
    busy = union(np.concatenate((compute, memory, nccl, other)))
    waits = union(_spans(seen.input))
    info = file.distributed_info if isinstance(file.distributed_info, dict) else {}
    told = tell(seen.comm, seen.hints, seen.launches)
    attribution = attribute(seen.host, seen.kernels)
    steps, gpu_steps = _marks(seen, seen.steps), _marks(seen, seen.gpu_steps)
    optimizers = tuple(sorted((t - seen.first_us) * _US for t in seen.optimizers))
    times_s, source = step_times(steps, gpu_steps, optimizers)
    return TraceSummary(
        file=file.path.name,
        gpu=_gpu_name(file.device_properties, seen.gpu_ids),
        gpus_on_host=_num_devices(file.device_properties),
        rank=_count(info.get("rank"), 0),
        world_size=_count(info.get("world_size"), 1),
        backend=info.get("backend") if isinstance(info.get("backend"), str) else None,
        strategy=_strategy(seen),
        num_kernels=len(compute) + len(seen.comm),
        span_s=(seen.end_us - seen.first_us) * _US,
        steps=steps,
        gpu_steps=gpu_steps,
        optimizer_starts_s=optimizers,
        step_times_s=times_s,
        step_source=source,
        nccl=_comm(nccl, np.concatenate((compute, other))),
        comm=_comm(np.concatenate((nccl, other)), compute),
        gpu_busy_s=total(busy) * _US,
        input_wait_s=(total(waits) - overlap(waits, busy)) * _US if len(busy) else 0.0,
        collectives=_collectives(seen, told, attribution.owners),
        announced=tuple(
            _collective(seen, hint.told, hint.start_us, hint.end_us - hint.start_us, by_name=True)
            for hint in announced(seen.hints)
        ),
        num_events=seen.num_events,
        unpacked_bytes=file.unpacked_bytes,
        kernels=_kernel_times(attribution) if len(seen.kernels) else None,
    )


def _spans(flat: "array[float]") -> Spans:
    return np.frombuffer(flat, dtype=np.float64).reshape(-1, 2) if flat else np.empty((0, 2))


def _comm_spans(seen: Collector, *, by_name: bool) -> Spans:
    return np.array(
        [(k.start_us, k.start_us + k.duration_us) for k in seen.comm if k.by_name == by_name],
        dtype=np.float64,
    ).reshape(-1, 2)


def _comm(comm: Spans, compute: Spans) -> TraceComm:
    return TraceComm(
        num_kernels=len(comm),
        sum_s=float((comm[:, 1] - comm[:, 0]).sum()) * _US,
        union_s=total(comm) * _US,
        compute_union_s=total(compute) * _US,
        overlap_s=overlap(comm, compute) * _US,
    )


def _marks(seen: Collector, flat: "array[float]") -> tuple[TraceMark, ...]:
    pairs = sorted(zip(flat[::2], flat[1::2], strict=True))
    return tuple(
        TraceMark(start_s=(start - seen.first_us) * _US, duration_s=(end - start) * _US)
        for start, end in pairs
    )


def _collectives(
    seen: Collector, told: Sequence[Told], owners: Sequence[str]
) -> tuple[TraceCollective, ...]:
    found = [
        _collective(
            seen, what, kernel.start_us, kernel.duration_us, by_name=kernel.by_name, owner=owner
        )
        for kernel, what, owner in zip(seen.comm, told, owners, strict=True)
    ]
    return tuple(sorted(found, key=lambda c: c.start_s))


def _collective(
    seen: Collector,
    told: Told,
    start_us: float,
    duration_us: float,
    *,
    by_name: bool,
    owner: str = "",
) -> TraceCollective:
    return TraceCollective(
        op=told.op,
        start_s=(start_us - seen.first_us) * _US,
        duration_s=duration_us * _US,
        num_bytes=told.num_bytes,
        group_size=told.group_size,
        by_name=by_name,
        owner=owner,
    )


def _kernel_times(found: Attribution) -> KernelTimes:
    return KernelTimes(
        basis=found.basis,
        layers=layer_timings(found),
        outside_forward_s=found.outside_forward_ns * NS,
        outside_backward_s=found.outside_backward_ns * NS,
        optimizer_s=found.optimizer_ns * NS,
        comm_s=found.comm_ns * NS,
        unlinked_s=found.unlinked_ns * NS,
        total_s=found.total_ns * NS,
        union_s=found.union_ns * NS,
    )


def _gpu_name(devices: Any, kernels_of: dict[Any, int]) -> str | None:
    """The name of the device that ran most kernels; ``None`` where the file does not tell."""
    if not isinstance(devices, list):
        return None
    named = [d for d in devices if isinstance(d, dict) and isinstance(d.get("name"), str)]
    names = {d["name"] for d in named}
    if len(names) > 1 and kernels_of:
        most = max(kernels_of, key=lambda gpu: kernels_of[gpu])
        names = {d["name"] for d in named if d.get("id") == most}
    return names.pop() if len(names) == 1 else None


def _num_devices(devices: Any) -> int | None:
    """How many GPUs the process saw; it may have been shown only some of the machine's."""
    return len(devices) or None if isinstance(devices, list) else None


def _count(value: Any, least: int) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and least <= value < 10**7 else None


def _strategy(seen: Collector) -> Strategy | None:
    """How the job was spread, as far as annotations of torch's own wrappers tell."""
    if seen.is_fsdp:
        return "fsdp"
    return "ddp" if seen.is_ddp else None
