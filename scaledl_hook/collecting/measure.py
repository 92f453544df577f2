"""One configuration: built, trained for a few steps, and timed. Loads torch."""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scaledl.capture.modules import LayerTimes, LayerWindow
from scaledl.capture.root import RootSensor
from scaledl.capture.timers import HostTimer
from scaledl.collecting.families import Job, build, loss_of
from scaledl.collecting.records import Collected, Task
from scaledl.records import LayerGraph

WARM_STEPS = 3
TIMED_STEPS = 11
_CALIBRATION_SIZE, _CALIBRATION_CALLS = 256, 20


def calibration_s() -> float:
    """Seconds of a fixed matrix product, the least of a few: what this core gives just now."""
    matrix = torch.ones(_CALIBRATION_SIZE, _CALIBRATION_SIZE)
    took = []
    for _ in range(_CALIBRATION_CALLS):
        start_s = time.perf_counter()
        matrix @ matrix
        took.append(time.perf_counter() - start_s)
    return statistics.median(took)


def measure(task: Task) -> Collected:
    """Train the configuration for a few steps; in a process group as one of its ranks."""
    job = build(task.configuration)
    before_s = calibration_s()
    step, model = _trainer(job)
    for _ in range(WARM_STEPS):
        step()
    steps_s = tuple(_timed(step) for _ in range(TIMED_STEPS))
    times, graph = _layers(model, step)
    found = Collected(
        task=task,
        steps_s=steps_s,
        graph=graph,
        layers=times.layers,
        num_params=sum(p.numel() for p in job.model.parameters()),
        num_tensors=sum(1 for _ in job.model.parameters()),
        comm_s=_all_reduce_s(job.model) if _is_distributed() else None,
        calibration_s=(before_s, calibration_s()),
        at_s=time.time(),
    )
    del job, step, model
    gc.collect()
    return found


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _trainer(job: Job) -> tuple[Callable[[], None], nn.Module]:
    model = DistributedDataParallel(job.model) if _is_distributed() else job.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss: Tensor = loss_of(model, job.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, model


def _timed(step: Callable[[], None]) -> float:
    if _is_distributed():
        torch.distributed.barrier()
    start_s = time.perf_counter()
    step()
    return time.perf_counter() - start_s


class _Deaf:
    """The root's listener: only its stamps are wanted here."""

    def on_forward_begin(self, start_s: float, training: bool) -> None: ...
    def on_forward(self, start_s: float, end_s: float, training: bool, with_grad: bool) -> None: ...
    def on_backward(self, compute_s: float, exposed_s: float) -> None: ...


def _raise(error: Exception) -> None:
    raise error


def _layers(model: nn.Module, step: Callable[[], Any]) -> tuple[LayerTimes, LayerGraph]:
    """Times of each layer, the less of two sampled steps, and the layer graph."""
    timer = HostTimer()
    root = RootSensor(model, _Deaf(), time.perf_counter, _raise)
    root.start()
    found: list[LayerTimes] = []
    graph: LayerGraph | None = None
    try:
        for _ in range(2):
            window = LayerWindow(model, root, timer, _raise, want_graph=graph is None)
            window.attach()
            step()
            window.detach()
            graph = graph or window.graph
            times = window.read()
            if times is not None:
                found.append(times)
    finally:
        root.stop()
    if graph is None or not found:
        raise RuntimeError("no layer of the model was seen in a sampled step")
    # the step in which the graph is built takes longer
    return found[-1], graph


def _all_reduce_s(model: nn.Module) -> float:
    """What the gradients' all-reduces take alone, in DDP's default bucket size; median of three."""
    sizes = [p.numel() for p in model.parameters()]
    buckets = [torch.ones(n) for n in _bucket_sizes(sizes)]

    def reduce() -> None:
        for bucket in buckets:
            torch.distributed.all_reduce(bucket)

    return statistics.median(_timed(reduce) for _ in range(3))


def _bucket_sizes(sizes: list[int], first: int = 2**18, most: int = 25 * 2**18) -> list[int]:
    """Elements of DDP's buckets: 1 MiB first, then 25 MiB of float32."""
    buckets, limit, filled = [], first, 0
    for size in reversed(sizes):
        filled += size
        if filled >= limit:
            buckets.append(filled)
            limit, filled = most, 0
    return [*buckets, filled] if filled else buckets
