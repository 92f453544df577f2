"""Times all-reduces of several sizes, as one of the ranks of a process group. Loads torch.

``python -m scaledl.probing.links OUT`` under torchrun; rank 0 writes. The ranks are this program's
own: no training is beside them.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from scaledl.errors import UsageError
from scaledl.probe_records import LinkTiming, TimedLinks

SIZES_BYTES = tuple(2**10 * 4**k for k in range(9))  # 1 KiB to 64 MiB
WARM, TRIAL, LEAST, MOST = 2, 3, 5, 20
LEAST_SIZES = 2
BUDGET_S = 40.0  # of all sizes and groups together
_WIDTH = 256


def ranks_per_node(num_ranks: int, environ: Mapping[str, str] = os.environ) -> int:
    """Ranks of one machine as the launcher tells; all of them where it does not.

    Raises:
        UsageError: the machines have unlike numbers of ranks.
    """
    told = environ.get("LOCAL_WORLD_SIZE") or environ.get("SLURM_NTASKS_PER_NODE") or ""
    inside = min(num_ranks, int(told)) if told.isdigit() and int(told) else num_ranks
    if num_ranks % inside:
        raise UsageError(
            f"{num_ranks} ranks, {inside} a machine: the machines have unlike numbers of ranks. "
            "Start as many on each."
        )
    return inside


def time_links(
    sizes_bytes: tuple[int, ...] = SIZES_BYTES, budget_s: float = BUDGET_S
) -> TimedLinks:
    """Open the process group, time both kinds of link apart, and close it.

    The environment is torchrun's (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``).
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS") or 1)))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        num_ranks = dist.get_world_size()
        inside = ranks_per_node(num_ranks)
        groups = _groups(num_ranks, inside)
        share_s = budget_s / max(1, len(groups))
        timings = [
            timing
            for size, group in groups
            for timing in _timings(size, sizes_bytes, share_s, partial(_duration_s, group, device))
        ]
    finally:
        dist.destroy_process_group()
    return TimedLinks(
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        is_host=not on_gpu,
        num_ranks=num_ranks,
        ranks_per_node=inside,
        timings=tuple(timings),
    )


def _groups(num_ranks: int, inside: int) -> list[tuple[int, Any]]:
    """Size and group: the ranks of one machine, where it has several; all, where on several."""
    found: list[tuple[int, Any]] = []
    if inside > 1:
        # every rank makes all groups, in one order; each keeps that of its own machine
        made = [
            dist.new_group(list(range(first, first + inside)))
            for first in range(0, num_ranks, inside)
        ]
        found.append((inside, made[dist.get_rank() // inside]))
    if num_ranks > inside:
        found.append((num_ranks, dist.group.WORLD))
    return found


def _timings(
    group_size: int,
    sizes_bytes: tuple[int, ...],
    budget_s: float,
    duration_s: Callable[[int, float], float],
) -> list[LinkTiming]:
    """From the smallest size up, as far as the budget goes; two sizes at least.

    The next size is foretold from the last one's duration, which all ranks have alike: a clock of
    their own would make them stop at different sizes, and hang.
    """
    share_s, left_s = budget_s / len(sizes_bytes), budget_s
    timings: list[LinkTiming] = []
    for num_bytes in sizes_bytes:
        if len(timings) >= LEAST_SIZES:
            last = timings[-1]
            if last.duration_s * num_bytes / last.num_bytes * (WARM + TRIAL + LEAST) > left_s:
                break
        took_s = duration_s(num_bytes, share_s)
        timings.append(LinkTiming(group_size=group_size, num_bytes=num_bytes, duration_s=took_s))
        left_s -= took_s * (WARM + TRIAL) + max(took_s * LEAST, min(share_s, took_s * MOST))
    return timings


def _duration_s(group: Any, device: torch.device, num_bytes: int, share_s: float) -> float:
    """Median over calls of the transfer: the time of the rank that came last and waited for nobody.

    Of several machines timed at once the slowest counts.
    """
    values = torch.zeros(num_bytes // 4, device=device)
    before = _work(device)
    for _ in range(WARM):
        _timed(values, group, device, before)
    begin_s = time.perf_counter()
    for _ in range(TRIAL):
        _timed(values, group, device, before)
    each_s = torch.tensor([(time.perf_counter() - begin_s) / TRIAL], device=device)
    dist.broadcast(each_s, src=0)  # all ranks must make as many calls
    repeats = int(min(MOST, max(LEAST, share_s / max(float(each_s), 1e-9))))
    own_s = [_timed(values, group, device, before) for _ in range(repeats)]
    last_s = torch.tensor(own_s, dtype=torch.float64, device=device)
    dist.all_reduce(last_s, op=dist.ReduceOp.MIN, group=group)
    slowest_s = torch.tensor([statistics.median(last_s.tolist())], device=device)
    dist.all_reduce(slowest_s, op=dist.ReduceOp.MAX)
    return float(slowest_s)


def _timed(
    values: torch.Tensor, group: Any, device: torch.device, before: Callable[[], None]
) -> float:
    before()
    begin_s = time.perf_counter()
    dist.all_reduce(values, group=group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin_s


def _work(device: torch.device) -> Callable[[], None]:
    """What comes before each call.

    On the host a backward pass, as in a job: it uses the same cores and caches. On a GPU an empty
    queue.
    """
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(4)])
    x = torch.randn(64, _WIDTH)

    def backward() -> None:
        model(x).square().mean().backward()

    return backward


def main(out: Path) -> None:
    """Time, and on rank 0 write what was found."""
    found = time_links()
    if os.environ.get("RANK", "0") == "0":
        out.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
