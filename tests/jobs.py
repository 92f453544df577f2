"""Small jobs to learn from: chains of layers on one CPU device."""

from scaledl.predictor.examples import Example
from scaledl.records import (
    ClusterSpec,
    GpuSpec,
    LayerEdge,
    LayerGraph,
    LayerNode,
    LinkSpec,
    ParallelPlan,
)

LINK = LinkSpec(kind="loopback", latency_s=1e-5, bytes_per_s=1e10)


def example(
    step_s: float, *, model: str = "a", num_layers: int = 4, batch: int = 8, gpu: str = "cpu"
) -> Example:
    """A chain of linear layers that takes ``step_s``."""
    nodes = tuple(
        LayerNode(
            fqn=f"{model}.{i}",
            kind="linear",
            params=1000,
            flops_forward=1e6 * batch * (i + 1),
            flops_backward=2e6 * batch * (i + 1),
        )
        for i in range(num_layers)
    )
    edges = tuple(
        LayerEdge(source=f"{model}.{i}", target=f"{model}.{i + 1}") for i in range(num_layers - 1)
    )
    return Example(
        model=model,
        graph=LayerGraph(nodes=nodes, edges=edges, signature=model),
        layer_s=tuple(1e-5 * batch * (i + 1) for i in range(num_layers)),
        cluster=ClusterSpec(
            gpu=GpuSpec(name=gpu), num_gpus=1, gpus_per_node=1, intra=LINK, inter=LINK
        ),
        plan=ParallelPlan(batch_per_gpu=batch),
        step_s=step_s,
    )
