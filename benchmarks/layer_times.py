"""Layer times by hooks beside the profiler's sums for the same layers in the same steps.

    python benchmarks/layer_times.py --json
    python benchmarks/layer_times.py --device cuda

Each sampled step also runs under `torch.profiler`, with a range around every leaf. A layer's
forward is the sum of the operators (on CUDA: of their kernels) inside its range; its backward that
of the autograd nodes with the same sequence numbers. Compared are layers above ``--least`` seconds.
The sums have to add up too: layers and what is outside them against the measured passes.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import common
import torch
from overhead_models import WORKLOADS, train_step
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from scaledl.capture.modules import LayerTimes, LayerWindow
from scaledl.capture.names import leaves
from scaledl.capture.root import RootSensor
from scaledl.capture.timers import EventTimer, HostTimer

BATCHES = {"mlp": 1024, "resnet": 64, "bert": 32}
WARM_STEPS = 5
NODE = "autograd::engine::evaluate_function"
MAX_DIFFERENCE, MAX_SUM_ERROR, MAX_OUTSIDE = 0.05, 0.02, 0.10


class Unheard:
    """A listener that nobody needs here."""

    def on_forward_begin(self, start_s: float, training: bool) -> None: ...
    def on_forward(self, start_s: float, end_s: float, training: bool, with_grad: bool) -> None: ...
    def on_backward(self, compute_s: float, exposed_s: float) -> None: ...


def fail(error: Exception) -> None:
    raise error


@contextmanager
def ranges(model: nn.Module) -> Iterator[None]:
    """A profiler range around each leaf's forward."""
    open_ranges: dict[int, Any] = {}
    handles = []

    def enter(name: str, module: nn.Module) -> None:
        open_ranges[id(module)] = record_function(f"layer:{name}")
        open_ranges[id(module)].__enter__()

    def leave(module: nn.Module) -> None:
        open_ranges.pop(id(module)).__exit__(None, None, None)

    for name, module in leaves(model):
        handles.append(module.register_forward_pre_hook(lambda m, _args, name=name: enter(name, m)))
        handles.append(module.register_forward_hook(lambda m, _args, _out: leave(m), prepend=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def operator_sums(events: Any, on_device: bool) -> dict[tuple[str, str], float]:
    """Seconds by (layer, pass) from the profiler's events."""

    def seconds(event: Any) -> float:
        return float(event.device_time_total if on_device else event.cpu_time_total) * 1e-6

    sums: dict[tuple[str, str], float] = defaultdict(float)
    layer_of: dict[int, str] = {}

    def walk(event: Any, name: str) -> None:
        if event.sequence_nr >= 0:
            layer_of[event.sequence_nr] = name
        for child in event.cpu_children:
            walk(child, name)

    for event in events:
        if event.name.startswith("layer:"):
            name = event.name.removeprefix("layer:")
            for child in event.cpu_children:
                sums[name, "forward"] += seconds(child)
                walk(child, name)
    for event in events:
        owner = layer_of.get(event.sequence_nr)
        if event.name.startswith(NODE) and owner is not None:
            sums[owner, "backward"] += seconds(event)
    return sums


def sampled_step(
    model: nn.Module, step: Any, device: str
) -> tuple[LayerTimes, dict[tuple[str, str], float]]:
    """One step seen by both."""
    timer = EventTimer() if device == "cuda" else HostTimer()
    root = RootSensor(model, Unheard(), time.perf_counter, fail)
    root.start()
    window = LayerWindow(model, root, timer, fail, want_graph=False)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with ranges(model):  # outside our hooks: their own cost is in neither
        window.attach()
        with profile(activities=activities) as seen:
            step()
        window.detach()
    root.stop()
    if device == "cuda":
        torch.cuda.synchronize()
    times = window.read()
    assert times is not None
    return times, operator_sums(seen.events(), device == "cuda")


def measure(name: str, device: str, num_windows: int, least_s: float) -> dict[str, Any]:
    """One row: how far the two are apart over all layers and windows."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    model = workload.make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = workload.make_inputs(BATCHES[name]).to(device)
    labels = torch.randint(10, (BATCHES[name],), device=device)

    def step() -> None:
        train_step(model, optimizer, inputs, labels)

    for _ in range(WARM_STEPS):
        step()
    differences: list[float] = []
    sum_errors, outside = [], []
    for _ in range(num_windows):
        times, sums = sampled_step(model, step, device)
        for layer in times.layers:
            for part, ours in (("forward", layer.forward_s), ("backward", layer.backward_s)):
                theirs = sums.get((layer.fqn, part), 0.0)
                if ours is not None and theirs >= least_s:
                    differences.append(abs(ours - theirs) / theirs)
        whole_s = times.forward_s + times.backward_s
        layers_s = sum(x.forward_s + (x.backward_s or 0.0) for x in times.layers)
        outside_s = times.outside_forward_s + (times.outside_backward_s or 0.0)
        sum_errors.append(abs(layers_s + outside_s - whole_s) / whole_s)
        outside.append(outside_s / whole_s)
    return {
        "model": name,
        "device": device,
        "compared": len(differences),
        "median_difference": statistics.median(differences) if differences else None,
        "p90_difference": sorted(differences)[int(0.9 * len(differences))] if differences else None,
        "largest_sum_error": max(sum_errors),
        "outside_share": statistics.median(outside),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--least", type=float, default=1e-3, help="seconds of a layer's pass")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(name, args.device, args.windows, args.least) for name in BATCHES]
    print(common.table(rows, tuple(rows[0])))
    bars = []
    for row in rows:
        where = f"{row['model']} on {row['device']}"
        median = row["median_difference"]
        bars.append(common.below(f"median difference of a layer, {where}", median, MAX_DIFFERENCE))
        error, name = row["largest_sum_error"], f"layers and outside against the pass, {where}"
        bars.append(common.below(name, error, MAX_SUM_ERROR))
        if row["model"] != "mlp":
            share = row["outside_share"]
            bars.append(common.below(f"share outside layers, {where}", share, MAX_OUTSIDE))
    common.finish("layer_times", rows, bars, common.machine(), as_json=args.json)


if __name__ == "__main__":
    main()
