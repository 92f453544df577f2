"""How long a what-if question takes: twelve counts, a model of a thousand layers.

    python benchmarks/whatif_speed.py [--layers 1000] [--json]

Asked are what ``run.what_if`` computes, forecasts, memory and advice; with one measured count, with
three, and with three strategies side by side. The median of 15 repeats, after one that is not
counted. The bars are on the time of the processor, which other programs on the machine do not
lengthen; the wall time stands beside it.
"""

import argparse
import statistics
import time

import msgspec
from common import below, finish, machine, table

from scaledl.predictor.devices import default_links, find_gpu
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.whatif import answer_rows
from scaledl.records import (
    BucketTiming,
    ClusterSpec,
    GpuSpec,
    Holdings,
    LayerGraph,
    LayerNode,
    Measurement,
    ParallelPlan,
    StepParts,
    WhatIfQuery,
)
from scaledl.report.scaling import build

COUNTS = tuple(2**i for i in range(12))
LIMIT_MS = 50.0
REPEATS = 15


def graph_of(num_layers: int) -> LayerGraph:
    node = LayerNode(
        fqn="",
        kind="linear",
        params=1_000_000,
        param_bytes=4_000_000,
        flops_forward=4e9,
        flops_backward=8e9,
        activation_bytes=8_000_000,
    )
    kinds = ("linear", "normalisation", "activation", "attention")
    nodes = tuple(
        msgspec.structs.replace(node, fqn=f"layers.{i}", kind=kinds[i % len(kinds)])
        for i in range(num_layers)
    )
    return LayerGraph(nodes=nodes, edges=(), signature="speed")


def measured(num_gpus: int, graph: LayerGraph) -> Measurement:
    gpu = find_gpu("A100-80GB") or GpuSpec(name="A100-80GB")
    intra, inter = default_links(gpu, is_cpu=False)
    parts = StepParts(
        compute_s=0.2, comm_exposed_s=0.01, input_wait_s=0.0, optimizer_s=0.01, other_s=0.0
    )
    total = sum(node.param_bytes for node in graph.nodes)
    buckets = max(1, total // (25 * 2**20))
    return Measurement(
        cluster=ClusterSpec(gpu=gpu, num_gpus=num_gpus, gpus_per_node=8, intra=intra, inter=inter),
        plan=ParallelPlan(
            strategy="ddp" if num_gpus > 1 else "single", replicate=num_gpus, batch_per_gpu=32
        ),
        step_s=parts.total_s,
        parts=parts,
        num_steps=200,
        step_sigma_s=0.002,
        buckets=tuple(
            BucketTiming(num_bytes=25 * 2**20, ready_s=0.1 * i / buckets, duration_s=0.0005)
            for i in range(buckets)
        ),
        num_layers=len(graph.nodes),
        param_bytes=total,
        signature=graph.signature,
        holdings=Holdings(
            param_bytes=float(total), trainable_bytes=float(total), state_bytes=2.0 * total
        ),
    )


def ask_ms(forecaster: Forecaster, base: Measurement, query: WhatIfQuery) -> tuple[float, float]:
    """Milliseconds of the processor and of the wall."""
    start_s, cpu_s = time.perf_counter(), time.process_time()
    rows, compared = answer_rows(forecaster, base, query)
    build(
        rows,
        base=base,
        run="speed",
        batch_rule=query.batch_rule,
        coverage=forecaster.coverage,
        made_at=0.0,
        compared=compared,
    )
    return (time.process_time() - cpu_s) * 1e3, (time.perf_counter() - start_s) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    about, graph = machine(), graph_of(args.layers)
    plain = WhatIfQuery(gpus=COUNTS, num_samples=1_281_167, remaining_epochs=10.0)
    side = msgspec.structs.replace(plain, strategies=("ddp", "fsdp", "hsdp"))
    rows = []
    for name, counts, query in (
        ("one count seen", (4,), plain),
        ("three counts seen", (1, 2, 4), plain),
        ("three strategies", (4,), side),
    ):
        forecaster = Forecaster()
        for count in counts:
            forecaster.learn(measured(count, graph))
        base = forecaster.measurements[-1]
        forecaster.know_layers(graph, base.cluster.gpu, base.plan.batch_per_gpu)
        first_ms, _ = ask_ms(forecaster, base, query)
        times = [ask_ms(forecaster, base, query) for _ in range(REPEATS)]
        rows.append(
            {
                "question": name,
                "layers": args.layers,
                "counts": len(COUNTS),
                "first_ms": first_ms,
                "median_ms": statistics.median(cpu for cpu, _ in times),
                "wall_ms": statistics.median(wall for _, wall in times),
            }
        )
    print(table(rows, ("question", "layers", "counts", "first_ms", "median_ms", "wall_ms")))
    bars = [
        below(
            f"{row['question']}: median of the processor's time, ms",
            float(str(row["median_ms"])),
            LIMIT_MS,
        )
        for row in rows
    ]
    finish("whatif_speed", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
