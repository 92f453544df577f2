import math
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from scaledl.errors import UsageError
from scaledl.predictor.gnn import (
    EdgeBiasAttention,
    GraphBatch,
    GraphKind,
    GraphNetwork,
    collate,
    iteration_s,
)
from scaledl.predictor.graph_features import (
    NUM_EDGE_FEATURES,
    NUM_GLOBAL_FEATURES,
    NUM_NODE_FEATURES,
    GraphArrays,
    graph_arrays,
)
from scaledl.records import (
    ClusterSpec,
    GpuSpec,
    LayerEdge,
    LayerGraph,
    LayerNode,
    LinkSpec,
    ParallelPlan,
)

KINDS = get_args(GraphKind)
LINK = LinkSpec(kind="nvlink", latency_s=1e-6, bytes_per_s=1e11)
CLUSTER = ClusterSpec(gpu=GpuSpec(name="g"), num_gpus=2, gpus_per_node=2, intra=LINK, inter=LINK)


def chain(num_layers: int, seed: int = 0) -> GraphArrays:
    rng = np.random.default_rng(seed)
    nodes = tuple(
        LayerNode(
            fqn=f"layer.{i}",
            kind=("linear", "normalisation", "activation")[i % 3],
            params=100,
            flops_forward=float(rng.uniform(1e6, 1e9)),
            flops_backward=float(rng.uniform(1e6, 1e9)),
            activation_bytes=int(rng.integers(1000, 1_000_000)),
        )
        for i in range(num_layers)
    )
    edges = tuple(
        LayerEdge(source=f"layer.{i}", target=f"layer.{i + 1}", num_bytes=1000 * i)
        for i in range(num_layers - 1)
    )
    graph = LayerGraph(nodes=nodes, edges=edges, signature="s")
    return graph_arrays(graph, rng.uniform(1e-5, 1e-2, num_layers), CLUSTER, ParallelPlan())


def taught(kind: GraphKind = "scaledl", with_context: bool = True) -> GraphNetwork:
    """A network whose last layer is no longer 0, so that its inputs show."""
    torch.manual_seed(0)
    network = GraphNetwork(kind, with_context=with_context).eval()
    for parameter in network.head[-1].parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return network


def answer(network: GraphNetwork, batch: GraphBatch) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(network(batch))


def test_attention_is_that_of_equations_11_to_13() -> None:
    torch.manual_seed(1)
    heads, width, count = 3, 5, 6
    layer = EdgeBiasAttention(4, width, 2, heads)
    nodes, edge_attr = torch.randn(count, 4), torch.randn(9, 2)
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 1, 3], [1, 2, 0, 4, 3, 3, 3, 1, 0]])
    expected = torch.zeros(count, width)
    for i in range(count):
        into = [e for e in range(9) if edge_index[1, e] == i]
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            q = layer.query.weight[part] @ nodes[i]
            eps, values = [], []
            for e in into:
                j = edge_index[0, e]
                k = layer.key.weight[part] @ nodes[j]
                bias = layer.edge.weight[h] @ edge_attr[e] + layer.edge.bias[h]
                eps.append(q @ k / math.sqrt(width) + torch.clamp(bias, min=0))
                values.append(layer.value.weight[part] @ nodes[j])
            if into:
                weights = torch.softmax(torch.stack(eps), dim=0)
                mixed = (weights[:, None] * torch.stack(values)).sum(0)
                expected[i] += torch.clamp(mixed, min=0) / heads
    found = layer(nodes, edge_index, edge_attr)
    torch.testing.assert_close(found, expected)
    assert (found[5] == 0).all()  # no neighbours


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_network_changes_nothing(kind: GraphKind) -> None:
    found = answer(GraphNetwork(kind), collate([chain(5), chain(9)]))
    assert (found == 1.0).all()
    iteration = iteration_s(torch.tensor(found), torch.tensor([2.0, 3]), torch.tensor([0.5, 1]))
    assert iteration.tolist() == [2.5, 4.0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_nodes_and_edges_changes_nothing(kind: GraphKind) -> None:
    network, batch = taught(kind), collate([chain(12)])
    rng = np.random.default_rng(0)
    order, edge_order = rng.permutation(12), rng.permutation(batch.edge_index.shape[1])
    place = torch.as_tensor(np.argsort(order))
    mixed = replace(
        batch,
        nodes=batch.nodes[order],
        shares=batch.shares[order],
        edge_index=place[batch.edge_index][:, edge_order],
        edges=batch.edges[edge_order],
    )
    np.testing.assert_allclose(answer(network, mixed), answer(network, batch), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_whatever_it_holds(kind: GraphKind) -> None:
    network, batch = taught(kind), collate([chain(6), chain(4, seed=1)])
    real, filling = len(batch.nodes), 7
    numbers = torch.arange(filling)
    wild = torch.stack([numbers + real, numbers % real])  # from padding into real nodes
    padded = replace(
        batch,
        nodes=torch.cat([batch.nodes, torch.full((filling, NUM_NODE_FEATURES), torch.nan)]),
        shares=torch.cat([batch.shares, torch.ones(filling)]),
        graph_of_node=torch.cat([batch.graph_of_node, numbers % 2]),
        mask=torch.cat([batch.mask, torch.zeros(filling, dtype=torch.bool)]),
        edge_index=torch.cat([batch.edge_index, wild, wild.flip(0)], dim=1),
        edges=torch.cat([batch.edges, torch.randn(2 * filling, NUM_EDGE_FEATURES)]),
    )
    np.testing.assert_allclose(answer(network, padded), answer(network, batch), rtol=1e-5)


def test_graphs_of_a_batch_do_not_see_each_other() -> None:
    network, first, second = taught(), chain(6), chain(15, seed=1)
    together = answer(network, collate([first, second]))
    alone = np.vstack([answer(network, collate([graph])) for graph in (first, second)])
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_edges_matter_to_every_graph_and_to_none_without_one() -> None:
    batch = collate([chain(8)])
    other = replace(batch, edges=batch.edges + 3.0)
    for kind in KINDS:
        network = taught(kind)
        same = np.allclose(answer(network, batch), answer(network, other), rtol=1e-6)
        assert same == (kind == "none"), kind


def test_the_context_matters_unless_it_is_switched_off() -> None:
    batch = collate([chain(8)])
    other = replace(batch, context=torch.ones(1, NUM_GLOBAL_FEATURES))
    assert not np.allclose(answer(taught(), batch), answer(taught(), other))
    blind = taught(with_context=False)
    assert np.array_equal(answer(blind, batch), answer(blind, other))


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_steps_learn_what_the_jobs_show(kind: GraphKind) -> None:
    torch.manual_seed(0)
    network = GraphNetwork(kind)
    graphs = [chain(n, seed=n) for n in (4, 6, 9)]
    batch = collate(graphs)
    target = torch.tensor([1.5, 0.5])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        loss = (network(batch) - target).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02


def test_answers_stay_within_bounds_whatever_was_taught() -> None:
    network = taught()
    with torch.no_grad():
        network.head[-1].bias.copy_(torch.tensor([1e6, -1e6]))
    alpha, beta = answer(network, collate([chain(3)]))[0]
    assert alpha == pytest.approx(math.exp(4), rel=1e-5)
    assert beta == pytest.approx(math.exp(-4), rel=1e-5)


def test_a_network_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is left"):
        GraphNetwork("none", with_context=False)


def test_layer_times_must_match_the_nodes() -> None:
    graph = LayerGraph(nodes=(LayerNode(fqn="a", kind="linear"),), edges=(), signature="s")
    with pytest.raises(UsageError, match=r"\(2,\)"):
        graph_arrays(graph, [1.0, 2.0], CLUSTER, ParallelPlan())


def test_edges_go_both_ways_and_tell_the_direction() -> None:
    arrays = chain(2)
    assert arrays.edge_index.T.tolist() == [[0, 1], [1, 0], [0, 0], [1, 1]]
    assert arrays.edges[:, 1].tolist() == [1.0, -1.0, 0.0, 0.0]
    assert arrays.nodes.shape == (2, NUM_NODE_FEATURES)
    assert arrays.context.shape == (NUM_GLOBAL_FEATURES,)


def test_scaledl_and_its_forecaster_load_neither_torch_nor_pyg() -> None:
    code = (
        "import sys, scaledl, scaledl.predictor.forecaster, scaledl.predictor.layers\n"
        "import scaledl.predictor.design, scaledl.predictor.graph_features\n"
        "print([m for m in ('torch', 'torch_geometric') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
