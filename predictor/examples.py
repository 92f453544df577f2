"""What the graph network learns from: one job as it was, and the step time it had; no torch."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.errors import UsageError
from scaledl.predictor.collective_cost import all_gather_terms, all_reduce_terms
from scaledl.predictor.graph_features import GraphArrays, graph_arrays
from scaledl.predictor.layer_work import Direction
from scaledl.predictor.layers import LayerModel
from scaledl.predictor.shipped import shipped_layers
from scaledl.records import ClusterSpec, GpuSpec, LayerGraph, ParallelPlan

FloatArray = NDArray[np.float64]
WAYS: tuple[Direction, ...] = ("forward", "backward")


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One job with its step time.

    ``model`` names the architecture; whole models are left out by it. ``layer_s`` are predicted
    seconds of each node of the graph, forward and backward of a whole step, never measured ones of
    the same job. ``comm_s`` is T_comm, predicted likewise. ``step_s`` is the truth.
    """

    model: str
    graph: LayerGraph
    layer_s: tuple[float, ...]
    cluster: ClusterSpec
    plan: ParallelPlan
    optimizer: str = "other"
    comm_s: float = 0.0
    step_s: float

    @property
    def sum_s(self) -> float:
        """T_sum: the layers' seconds added up."""
        return float(sum(self.layer_s))

    def arrays(self) -> GraphArrays:
        """The numbers that the network reads.

        Raises:
            UsageError: not one layer time above or equal to 0 for each node.
        """
        return graph_arrays(self.graph, self.layer_s, self.cluster, self.plan, self.optimizer)


HOST = GpuSpec(name="cpu", memory_bytes_per_s=1e10, peak_flops={"float32": 1e11})
"""A core of a server, roughly: the layer model was fitted to its timings under this name."""


def timed_as(gpu: GpuSpec) -> GpuSpec:
    """The device as the layer model knows it: CPUs state neither peak nor bandwidth."""
    is_host = not gpu.peak_flops and gpu.memory_bytes_per_s is None and "cpu" in gpu.name.lower()
    return HOST if is_host else gpu


def example_of(
    graph: LayerGraph, cluster: ClusterSpec, plan: ParallelPlan, *, model: str, step_s: float
) -> Example:
    """A job as an example: its layers' times by the shipped layer model, its T_comm by the links.

    Args:
        graph: The model as it ran with one micro-batch.
        cluster: Where it ran.
        plan: How it was spread.
        model: Name of the architecture.
        step_s: The truth, without waiting for data.
    """
    shipped = shipped_layers()
    layers = LayerModel() if shipped is None else shipped.model
    gpu = timed_as(cluster.gpu)
    each_s = sum(
        (layers.node_times_s(graph, gpu, way, plan.dtype) for way in WAYS),
        np.zeros(len(graph.nodes)),
    )
    return Example(
        model=model,
        graph=graph,
        layer_s=tuple((plan.grad_accum * each_s).tolist()),
        cluster=cluster,
        plan=plan,
        comm_s=_exchange_s(graph, cluster, plan),
        step_s=step_s,
    )


def _exchange_s(graph: LayerGraph, cluster: ClusterSpec, plan: ParallelPlan) -> float:
    """T_comm: one exchange of all gradients, or two gathers and a scatter of what is sharded."""
    size, count = float(sum(node.param_bytes for node in graph.nodes)), cluster.num_gpus
    if plan.strategy not in ("fsdp", "hsdp"):
        return all_reduce_terms(size, count, cluster).seconds(cluster.intra, cluster.inter)
    gather = all_gather_terms(size, plan.shard, cluster)
    between = all_reduce_terms(size / plan.shard, plan.replicate, cluster)
    terms = gather + gather + gather + between
    return terms.seconds(cluster.intra, cluster.inter)


def checked(examples: Sequence[Example]) -> Sequence[Example]:
    """The examples, if one can learn from them.

    Raises:
        UsageError: none at all, a step time that is not above 0, a time of communication below 0,
            or nothing predicted.
    """
    if not examples:
        raise UsageError("there are 0 examples to learn from. Give at least one.")
    for example in examples:
        if not 0 < example.step_s < np.inf:
            raise UsageError(
                f"an example of {example.model!r} has the step time {example.step_s} s. Leave out "
                "steps that were not measured."
            )
        if not (0 <= example.comm_s < np.inf and 0 < example.sum_s < np.inf):
            raise UsageError(
                f"an example of {example.model!r} has T_sum {example.sum_s} s and T_comm "
                f"{example.comm_s} s. T_sum must be above 0, T_comm not below 0."
            )
    return examples
