import numpy as np
import pytest
import torch

from scaledl.errors import UsageError
from scaledl.predictor.examples import Example
from scaledl.predictor.gnn import GraphNetwork
from scaledl.predictor.training import new_network, predict_s, train
from scaledl.records import (
    ClusterSpec,
    GpuSpec,
    LayerEdge,
    LayerGraph,
    LayerNode,
    LinkSpec,
    ParallelPlan,
)

LINK = LinkSpec(kind="nvlink", latency_s=1e-6, bytes_per_s=1e11)
CLUSTER = ClusterSpec(gpu=GpuSpec(name="g"), num_gpus=2, gpus_per_node=2, intra=LINK, inter=LINK)


def example(num_layers: int, factor: float, batch: int = 8, comm_s: float = 0.0) -> Example:
    """A chain whose step is ``factor`` times its T_sum, and its communication on top."""
    nodes = tuple(
        LayerNode(fqn=f"layer.{i}", kind="linear", flops_forward=1e6 * (i + 1))
        for i in range(num_layers)
    )
    edges = tuple(
        LayerEdge(source=f"layer.{i}", target=f"layer.{i + 1}") for i in range(num_layers - 1)
    )
    layer_s = tuple(1e-3 * (i + 1) for i in range(num_layers))
    return Example(
        model="chain",
        graph=LayerGraph(nodes=nodes, edges=edges, signature="s"),
        layer_s=layer_s,
        cluster=CLUSTER,
        plan=ParallelPlan(batch_per_gpu=batch),
        comm_s=comm_s,
        step_s=factor * sum(layer_s) + comm_s,
    )


def weights_of(network: GraphNetwork) -> list[torch.Tensor]:
    return [p.detach().clone() for p in network.parameters()]


LEARNABLE = [example(n, 1.0 + b / 32, b) for n in (2, 3, 5) for b in (1, 4, 8, 16, 32)]


def test_untrained_it_predicts_the_plain_sum() -> None:
    found = predict_s(new_network(0), [example(3, 2.0, comm_s=0.01)])
    assert found == pytest.approx([6e-3 + 0.01], rel=1e-5)


def test_training_learns_what_depends_on_the_batch() -> None:
    network = new_network(0)
    truth = np.array([each.step_s for each in LEARNABLE])
    before = np.abs(predict_s(network, LEARNABLE) / truth - 1).mean()
    history = train(network, LEARNABLE, steps=150, seed=0)
    after = np.abs(predict_s(network, LEARNABLE) / truth - 1).mean()
    assert history[-1] < history[0] / 10
    assert after < before / 5


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_state_alone() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    twins = [new_network(3), new_network(3)]
    for network in twins:
        train(network, LEARNABLE, steps=5, seed=1, batch_size=4)
    assert all(
        torch.equal(a, b) for a, b in zip(*(weights_of(each) for each in twins), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    other = new_network(4)
    assert not torch.equal(weights_of(other)[0], weights_of(new_network(3))[0])


def test_one_bad_measurement_moves_little() -> None:
    bad = example(3, 50.0)
    network = new_network(0)
    train(network, [*LEARNABLE, bad], steps=150, seed=0)
    truth = np.array([each.step_s for each in LEARNABLE])
    assert np.median(np.abs(predict_s(network, LEARNABLE) / truth - 1)) < 0.1


def test_an_example_of_weight_0_teaches_nothing() -> None:
    networks = [new_network(0), new_network(0)]
    for network, factor in zip(networks, (1.0, 50.0), strict=True):
        train(
            network,
            [*LEARNABLE, example(4, factor)],
            steps=5,
            seed=0,
            weights=[1.0] * len(LEARNABLE) + [0.0],
        )
    assert all(
        torch.allclose(a, b) for a, b in zip(*(weights_of(each) for each in networks), strict=True)
    )


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_time_that_is_none_is_refused(step_s: float) -> None:
    with pytest.raises(UsageError, match="step time"):
        train(new_network(0), [example(2, step_s)], steps=1, seed=0)


def test_no_examples_and_wrong_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="0 examples"):
        train(new_network(0), [], steps=1, seed=0)
    with pytest.raises(UsageError, match="weights"):
        train(new_network(0), LEARNABLE, steps=1, seed=0, weights=[1.0])
    with pytest.raises(UsageError, match="weights"):
        train(new_network(0), LEARNABLE[:1], steps=1, seed=0, weights=[0.0])
    assert predict_s(new_network(0), []).shape == (0,)
