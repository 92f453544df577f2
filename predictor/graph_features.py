"""A layer graph and a job as the numbers that the graph network reads; no torch.

ScaleDL 2025 (arXiv 2511.04162) gives nodes their layer type, FLOPs and predicted time, edges the
size and direction of the transfer, and the graph Z: batch size, optimizer, hardware. Sizes are
logarithms, brought to about 0 to 2.

Z holds totals of the graph as well, which the paper does not name: the mean over nodes cannot tell
how many there are, and the update of the weights grows with them and not with T_sum.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.errors import UsageError
from scaledl.predictor.layer_work import KINDS, UNKNOWN_BYTES_PER_S, model_kind, peak_flops
from scaledl.records import ClusterSpec, LayerGraph, ParallelPlan

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NODE_KINDS = (*KINDS, "outside")
OPTIMIZERS = ("sgd", "adam", "adamw", "other")
NUM_NODE_FEATURES = len(NODE_KINDS) + 6
NUM_EDGE_FEATURES = 2
NUM_TOTALS = 5
_TYPICAL_STEP_S, _LAUNCH_S, _UPDATE_PASSES = 0.1, 1e-5, 7  # only bring logarithms near 0
NUM_GLOBAL_FEATURES = len(OPTIMIZERS) + 6 + NUM_TOTALS


class GraphArrays(msgspec.Struct, frozen=True, kw_only=True):
    """One graph for the network.

    Shapes: nodes [V, NUM_NODE_FEATURES], edge_index [2, E] (from, to), edges [E, 2],
    shares [V] (each node's part of T_sum), context [NUM_GLOBAL_FEATURES].
    """

    nodes: FloatArray
    edge_index: IntArray
    edges: FloatArray
    shares: FloatArray
    context: FloatArray


def _log(values: Sequence[float]) -> FloatArray:
    """Logarithm of 1 + sizes of up to 10^15, to 0 to 2."""
    return np.log1p(np.asarray(values, dtype=np.float64)) / 17.0


def _node_features(graph: LayerGraph, layer_s: FloatArray, shares: FloatArray) -> FloatArray:
    kinds = [n.kind if n.kind == "outside" else model_kind(n.kind) for n in graph.nodes]
    one_hot = [[float(kind == name) for name in NODE_KINDS] for kind in kinds]
    sizes = [
        _log([n.flops_forward for n in graph.nodes]),
        _log([n.flops_backward for n in graph.nodes]),
        _log([n.param_bytes for n in graph.nodes]),
        _log([n.activation_bytes for n in graph.nodes]),
        np.log1p(layer_s / 1e-7) / 10.0,
        shares,
    ]
    return np.hstack([np.array(one_hot), np.array(sizes).T])


def _edges(graph: LayerGraph) -> tuple[IntArray, FloatArray]:
    """Each edge in both directions, and one from each node to itself.

    N(i) of equation 12 then holds who feeds layer i (direction 1), whom it feeds (-1) and, so that
    the layer counts in its own description, itself (0, with no bytes).
    """
    place = {node.fqn: i for i, node in enumerate(graph.nodes)}
    pairs, rows = [], []
    for edge in graph.edges:
        if edge.source in place and edge.target in place:
            source, target = place[edge.source], place[edge.target]
            size = float(_log([edge.num_bytes])[0])
            pairs += [(source, target), (target, source)]
            rows += [(size, 1.0), (size, -1.0)]
    pairs += [(i, i) for i in range(len(graph.nodes))]
    rows += [(0.0, 0.0)] * len(graph.nodes)
    return np.array(pairs, dtype=np.int64).T, np.array(rows)


def context_features(cluster: ClusterSpec, plan: ParallelPlan, optimizer: str) -> FloatArray:
    """Z: optimizer type, batch, accumulation, counts, peak and bandwidth. Shape: [10]."""
    name = optimizer.lower()
    name = name if name in OPTIMIZERS else "other"
    gpu = cluster.gpu
    return np.array(
        [
            *(float(name == known) for known in OPTIMIZERS),
            np.log(max(plan.batch_per_gpu or 1, 1)) / 5.0,
            np.log(plan.grad_accum) / 5.0,
            np.log(cluster.num_gpus) / 5.0,
            np.log(cluster.num_nodes) / 5.0,
            np.log10(peak_flops(gpu, plan.dtype)) - 13.0,
            np.log10(gpu.memory_bytes_per_s or UNKNOWN_BYTES_PER_S) - 12.0,
        ]
    )


def total_features(graph: LayerGraph, sum_s: float, cluster: ClusterSpec, dtype: str) -> FloatArray:
    """Logarithms of T_sum, and of what else a step has to do, over T_sum. Shape: [5].

    In this order: T_sum; the time to read and write parameters, gradients and two moments once
    (AdamW moves seven numbers a parameter); that to launch each node; that to move all outputs;
    that of all FLOPs at the peak.
    """
    bandwidth = cluster.gpu.memory_bytes_per_s or UNKNOWN_BYTES_PER_S
    nodes = graph.nodes
    flops = sum(node.flops_forward + node.flops_backward for node in nodes)
    seconds = (
        sum_s / _TYPICAL_STEP_S,
        _UPDATE_PASSES * sum(node.param_bytes for node in nodes) / bandwidth / sum_s,
        _LAUNCH_S * len(nodes) / sum_s,
        sum(node.activation_bytes for node in nodes) / bandwidth / sum_s,
        flops / peak_flops(cluster.gpu, dtype) / sum_s,
    )
    return np.log(np.maximum(seconds, 1e-6)) / 3.0


def graph_arrays(
    graph: LayerGraph,
    layer_s: Sequence[float] | FloatArray,
    cluster: ClusterSpec,
    plan: ParallelPlan,
    optimizer: str = "other",
) -> GraphArrays:
    """The graph with the predicted seconds of each node (forward and backward).

    Raises:
        UsageError: a graph without nodes, or not one time above or equal to 0 for each node.
    """
    times = np.asarray(layer_s, dtype=np.float64)
    if times.shape != (len(graph.nodes),) or not len(times) or not (times >= 0).all():
        raise UsageError(
            f"a graph of {len(graph.nodes)} nodes got layer times of the shape {times.shape}. Give "
            "one for each node, not below 0, and at least one node."
        )
    sum_s = max(float(times.sum()), 1e-12)
    shares = times / sum_s
    edge_index, edges = _edges(graph)
    return GraphArrays(
        nodes=_node_features(graph, times, shares),
        edge_index=edge_index,
        edges=edges,
        shares=shares,
        context=np.concatenate(
            [
                context_features(cluster, plan, optimizer),
                total_features(graph, sum_s, cluster, plan.dtype),
            ]
        ),
    )
