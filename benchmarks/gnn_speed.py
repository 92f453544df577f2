"""Forward pass of the graph network on one core: 100 to 4,000 nodes, every kind of graph.

Layer graphs are made here: chains with a skip over every third layer, as residual blocks have. The
bar is on 1,000 nodes. ``calibration_ms`` beside the times tells how slow this machine is today.
"""

import argparse
import statistics
import time
from typing import get_args

import torch
from common import below, finish, machine, table

from scaledl.predictor.gnn import GraphBatch, GraphKind, GraphNetwork, collate
from scaledl.predictor.graph_features import graph_arrays
from scaledl.records import (
    ClusterSpec,
    GpuSpec,
    LayerEdge,
    LayerGraph,
    LayerNode,
    LinkSpec,
    ParallelPlan,
)

SIZES, LIMIT_MS, BAR_NODES = (100, 1000, 4000), 50.0, 1000


def graph_of(num_nodes: int) -> GraphBatch:
    nodes = tuple(
        LayerNode(fqn=str(i), kind="linear", flops_forward=1e8 + i, activation_bytes=4096)
        for i in range(num_nodes)
    )
    pairs = [(i, i + 1) for i in range(num_nodes - 1)]
    pairs += [(i, i + 3) for i in range(0, num_nodes - 3, 3)]
    edges = tuple(LayerEdge(source=str(i), target=str(j), num_bytes=4096) for i, j in pairs)
    link = LinkSpec(kind="nvlink", latency_s=1e-6, bytes_per_s=1e11)
    cluster = ClusterSpec(
        gpu=GpuSpec(name="made up"), num_gpus=8, gpus_per_node=8, intra=link, inter=link
    )
    graph = LayerGraph(nodes=nodes, edges=edges, signature="made up")
    return collate([graph_arrays(graph, [1e-4] * num_nodes, cluster, ParallelPlan())])


def forward_ms(network: GraphNetwork, batch: GraphBatch, repeats: int) -> list[float]:
    times = []
    with torch.no_grad():
        network(batch)  # the first call allocates
        for _ in range(repeats):
            begun = time.perf_counter()
            network(batch)
            times.append((time.perf_counter() - begun) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    rows, bars = [], []
    for size in SIZES:
        batch = graph_of(size)
        for kind in get_args(GraphKind):
            times = forward_ms(GraphNetwork(kind).eval(), batch, args.repeats)
            median = statistics.median(times)
            rows.append(
                {
                    "nodes": size,
                    "edges": batch.edge_index.shape[1],
                    "graph": kind,
                    "median_ms": median,
                    "max_ms": max(times),
                }
            )
            if size == BAR_NODES:
                bars.append(below(f"median ms of {size} nodes: {kind}", median, LIMIT_MS))
    print(table(rows, ("nodes", "edges", "graph", "median_ms", "max_ms")))
    print(f"calibration loop: {about['calibration_ms']} ms")
    finish("gnn_speed", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
