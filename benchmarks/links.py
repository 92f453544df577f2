"""All-reduce times of this machine's own processes (gloo), idle and in the middle of training work.

    torchrun --standalone --nproc-per-node 2 benchmarks/links.py [--json]

The catalogue entry "loopback" (predictor/devices.toml) comes from this program. Each size is timed
alone, and right after a backward pass of a small network: there the processes arrive at different
times and their threads share the cores, which is what a job pays.
"""

import argparse
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from common import finish, machine, table
from torch import nn

SIZES_BYTES = tuple(4 * 4**k for k in range(4, 12))  # 1 KiB to 16 MiB


def timed(size_bytes: int, repeats: int, work: nn.Module | None) -> list[float]:
    """Seconds of each all-reduce, waiting for the slower rank included."""
    values = torch.ones(size_bytes // 4)
    x = torch.randn(64, 256)
    seconds = []
    for _ in range(repeats):
        if work is not None:
            work(x).square().mean().backward()
        else:
            dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(values, async_op=True).wait()
        seconds.append(time.perf_counter() - begin)
    return seconds[repeats // 5 :]


def fit(sizes: list[float], seconds: list[float], ranks: int) -> tuple[float, float]:
    """Alpha (seconds a hop) and beta (bytes per second) of the ring by relative least squares."""
    hops = 2 * (ranks - 1)
    design = np.column_stack([np.full(len(sizes), hops), hops / ranks * np.array(sizes)])
    weight = 1 / np.array(seconds)
    (alpha, slope), *_ = np.linalg.lstsq(design * weight[:, None], np.ones(len(sizes)), rcond=None)
    return float(alpha), float(1 / slope)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    work = nn.Sequential(*[nn.Linear(256, 256) for _ in range(12)])
    results = []
    for name, module in (("idle", None), ("training", work)):
        medians = []
        for size in SIZES_BYTES:
            seconds = timed(size, args.repeats, module)
            medians.append(statistics.median(seconds))
            high = float(np.quantile(seconds, 0.9))
            results.append(
                {"case": name, "size_bytes": size, "median_s": medians[-1], "p90_s": high}
            )
        alpha, beta = fit([float(s) for s in SIZES_BYTES], medians, ranks)
        results.append({"case": f"{name}, fitted", "alpha_s": alpha, "bytes_per_s": beta})
    if dist.get_rank() == 0:
        columns = ("case", "size_bytes", "median_s", "p90_s", "alpha_s", "bytes_per_s")
        print(f"{ranks} gloo processes, {machine()['cpu']}")
        print(table([{c: r.get(c) for c in columns} for r in results], columns))
        finish("links", results, [], machine(), as_json=args.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
