"""The jobs of end_to_end.py: real DDP or FSDP2 whose compute is emulated by sleeping."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from cluster import Wire
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import scaledl
from scaledl.capture import environ
from scaledl.probing.links import time_links
from scaledl.records import BatchRule, ScalingRow

BATCH = 16
LINK_SIZES_BYTES = tuple(2**10 * 4**k for k in range(6))
WARMUP_STEPS = 5
BUCKET_MB = 0.25
OPTIMIZER_S = 0.004


class Layer(NamedTuple):
    """Parameter bytes, and seconds of forward and backward for BATCH samples."""

    num_bytes: int
    forward_s: float
    backward_s: float


UNIFORM = (Layer(128_000, 0.004, 0.008),) * 12
FIRST_HEAVY = (Layer(1_000_000, 0.001, 0.001), *(Layer(64_000, 0.005, 0.010),) * 8)
LAST_HEAVY = (
    *(Layer(24_000, 0.008, 0.016),) * 5,
    *(Layer(100_000, 0.004, 0.008),) * 3,
    *(Layer(500_000, 0.002, 0.004),) * 2,
)


class Case(NamedTuple):
    """One training. ``late``: how much longer the last rank computes."""

    name: str
    layers: tuple[Layer, ...]
    wire: Wire
    counts: tuple[int, ...] = (4, 8, 16)
    rule: BatchRule = "fixed-per-gpu"
    sharded: bool = False
    late: float = 0.0
    accumulation: int = 1


class Told(NamedTuple):
    """What a rank returns, seconds: median step, median of what it slept, sleep overshoot."""

    step_s: float
    slept_s: float
    overshoot: float
    waited: float  # share of the time that the thread worst off waited for a core


class _Sleep(torch.autograd.Function):
    """Computes nothing for a while, forward and backward; its gradient is ready made."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: "SleepLayer") -> Any:
        ctx.layer, ctx.shape, ctx.rows = layer, weight.shape, len(x)
        layer.sleep(layer.layer.forward_s * len(x) / BATCH)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.layer.sleep(ctx.layer.layer.backward_s * ctx.rows / BATCH)
        return grad, torch.zeros(ctx.shape), None


class SleepLayer(nn.Module):
    """A layer of given size and times. ``slept`` is shared by all layers of a model."""

    def __init__(self, layer: Layer, factor: float, slept: list[tuple[float, float]]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layer.num_bytes // 4))
        self.layer, self._factor, self._slept = layer, factor, slept

    def sleep(self, seconds: float) -> None:
        """Sleep, and note what was asked and what it took."""
        asked_s = seconds * self._factor
        begin_s = time.perf_counter()
        time.sleep(asked_s)
        self._slept.append((asked_s, time.perf_counter() - begin_s))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, later."""
        return _Sleep.apply(x, self.weight, self)  # type: ignore[no-any-return,no-untyped-call]


def batch_of(case: Case, num_ranks: int, base: int) -> int:
    """Samples of a micro-batch on a rank at that count."""
    return BATCH * base // num_ranks if case.rule == "fixed-global" else BATCH


def train(
    case: Case,
    rank: int,
    num_ranks: int,
    *,
    base: int,
    steps: int,
    ask: tuple[int, ...] = (),
    runs: str = "",
) -> dict[str, Any]:
    """Train; with ``ask`` under ``scaledl.track``, and what it forecasts for those counts.

    ``base`` is the count whose batch on a rank is BATCH, ``runs`` the folder of scaledl's records.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slept: list[tuple[float, float]] = []
    model, optimizer = _model(case, rank, num_ranks, slept)
    batch = batch_of(case, num_ranks, base)
    data = TensorDataset(torch.zeros(batch * case.accumulation * steps, 1))
    dist.barrier()
    if not ask:
        told = _told(_epoch(model, optimizer, DataLoader(data, batch), case), slept)
        return {"told": told._asdict()}
    environ._host_slots = lambda: None  # type: ignore[assignment,return-value]  # as devices have it
    with scaledl.track(model, run_dir=runs, report="none", epochs=2) as run:
        for _ in range(2):
            slept.clear()
            seen = _told(_epoch(model, optimizer, DataLoader(data, batch), case), slept)
        report = run.what_if(ask, batch_rule=case.rule)
    rows = [row_as_dict(row) for row in report.rows]
    return {"told": seen._asdict(), "rows": rows, "caveats": list(report.caveats)}


def row_as_dict(row: ScalingRow) -> dict[str, Any]:
    """What is scored of a forecast."""
    return {
        "num_gpus": row.num_gpus,
        "step_s": row.step_s.mean,
        "low_s": row.step_s.low,
        "high_s": row.step_s.high,
        "exposed_s": row.parts_s.comm_exposed_s,
        "compute_s": row.parts_s.compute_s,
        "basis": row.basis,
        "caveats": list(row.caveats),
    }


def probe_links() -> Any:
    """One rank of ``scaledl probe --links``, with sizes that suit links of 100 Mbit/s."""
    return msgspec.to_builtins(time_links(LINK_SIZES_BYTES))


def _model(
    case: Case, rank: int, num_ranks: int, slept: list[tuple[float, float]]
) -> tuple[nn.Module, torch.optim.Optimizer]:
    factor = 1 + case.late if rank == num_ranks - 1 else 1.0
    layers = [SleepLayer(layer, factor, slept) for layer in case.layers]
    model: nn.Module = nn.Sequential(*layers)
    if case.sharded:
        for layer in layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(
            model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, case: Case
) -> Iterator[float]:
    """Seconds of each optimizer step."""
    begin_s = time.perf_counter()
    for i, (x,) in enumerate(loader, start=1):
        ends = i % case.accumulation == 0
        hold = not ends and isinstance(model, DistributedDataParallel)
        if hold:
            with model.no_sync():  # type: ignore[operator]
                model(x.requires_grad_()).sum().backward()
            continue
        model(x.requires_grad_()).sum().backward()
        time.sleep(OPTIMIZER_S)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        now_s = time.perf_counter()
        yield now_s - begin_s
        begin_s = now_s


def _told(steps: Iterator[float], slept: list[tuple[float, float]]) -> Told:
    times_s, slept_s = [], []
    before, begin_s = _run_queue_s(), time.perf_counter()
    for step_s in steps:
        times_s.append(step_s)
        slept_s.append(sum(took for _, took in slept) + OPTIMIZER_S)
        asked_s, took_s = (sum(column) for column in zip(*slept, strict=True))
        slept.clear()
    waited = _most_waited_s(before) / (time.perf_counter() - begin_s)
    return Told(
        step_s=statistics.median(times_s[WARMUP_STEPS:]),
        slept_s=statistics.median(slept_s[WARMUP_STEPS:]),
        overshoot=took_s / asked_s - 1,
        waited=waited,
    )


def _run_queue_s() -> dict[str, float]:
    """Seconds that each of this process's threads was ready to run and had no core."""
    return {
        path.parent.name: int(path.read_text().split()[1]) / 1e9
        for path in Path("/proc/self/task").glob("*/schedstat")
    }


def _most_waited_s(before: dict[str, float]) -> float:
    """Of the thread that waited longest since then."""
    return max(after - before.get(name, 0.0) for name, after in _run_queue_s().items())
