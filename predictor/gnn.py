"""The graph network: how far a step is from the sum of its layers, and of its communication.

    T_iter = alpha T_sum + beta T_comm,   {alpha, beta} = MLP([Pool(v') || MLP(Z)])

from ScaleDL 2025 (arXiv 2511.04162), with the attention of its equations 11 to 13. This file alone
of the predictor loads torch and PyTorch Geometric, which takes seconds: import it where a network
is really used, and never in every rank of a training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Optional

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, MessagePassing, TransformerConv
from torch_geometric.utils import softmax

from scaledl.predictor.graph_features import (
    NUM_EDGE_FEATURES,
    NUM_GLOBAL_FEATURES,
    NUM_NODE_FEATURES,
    GraphArrays,
)

GraphKind = Literal["scaledl", "transformer_conv", "gatv2", "none"]
"""The paper's equations, two stock layers of PyG, or the global encoder alone."""

MOST_SPREADS = 3.0
"""Features count at most so many standard deviations from the mean of what was learned from: for a
job unlike all of those a network then answers as for the nearest."""
LEAST_SPREAD = 0.05

LOG_BOUND = 4.0
"""alpha and beta stay within e^-4 to e^4 (a factor of 55), whatever a network was taught."""


class EdgeBiasAttention(MessagePassing):  # type: ignore[misc]
    """Attention over neighbours with a score for the edge (ScaleDL 2025, equations 11 to 13).

    eps_ij = (W_Q v_i)^T (W_K v_j) / sqrt(d_k) + ReLU(W_edge e_ij + b_edge)    (11)
    w_ij   = exp(eps_ij) / sum over N(i) of exp(eps_ik)                        (12)
    v'_i   = 1/L sum over heads of ReLU(sum over N(i) of w_ij W_V v_j)         (13)

    The paper calls the function of (13) sigma and does not name it; here it is ReLU. PyG's
    TransformerConv differs: it adds the edge to key and value, inside the product, and has a root
    weight. A node without neighbours gets 0.
    """

    def __init__(self, num_inputs: int, num_outputs: int, num_edge_features: int, heads: int):
        super().__init__(aggr="add", node_dim=0)
        self.heads, self.width = heads, num_outputs
        self.query = nn.Linear(num_inputs, heads * num_outputs, bias=False)
        self.key = nn.Linear(num_inputs, heads * num_outputs, bias=False)
        self.value = nn.Linear(num_inputs, heads * num_outputs, bias=False)
        self.edge = nn.Linear(num_edge_features, heads)

    def forward(self, nodes: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Shapes: [V, num_inputs], [2, E] (from j, to i), [E, features] to [V, num_outputs]."""

        def by_head(values: Tensor) -> Tensor:
            return values.view(-1, self.heads, self.width)

        summed: Tensor = self.propagate(
            edge_index,
            query=by_head(self.query(nodes)),
            key=by_head(self.key(nodes)),
            value=by_head(self.value(nodes)),
            edge_attr=edge_attr,
        )
        return torch.relu(summed).mean(dim=1)

    # propagate calls it and picks the arguments by their names
    def message(
        self,
        query_i: Tensor,
        key_j: Tensor,
        value_j: Tensor,
        edge_attr: Tensor,
        index: Tensor,
        size_i: Optional[int],  # noqa: UP045 - PyG 2.8 reads annotations, and fails on int | None
    ) -> Tensor:
        score = (query_i * key_j).sum(dim=-1) / math.sqrt(self.width)
        score = score + torch.relu(self.edge(edge_attr))
        weight: Tensor = softmax(score, index, num_nodes=size_i)
        return weight.unsqueeze(-1) * value_j


@dataclass(frozen=True, kw_only=True)
class GraphBatch:
    """Several graphs side by side.

    Shapes: nodes [V, features], edge_index [2, E], edges [E, features], shares [V],
    graph_of_node [V], context [G, features], mask [V] (False: a node that only fills up; it and
    its edges count nowhere).
    """

    nodes: Tensor
    edge_index: Tensor
    edges: Tensor
    shares: Tensor
    graph_of_node: Tensor
    context: Tensor
    mask: Tensor


def collate(graphs: Sequence[GraphArrays]) -> GraphBatch:
    """Graphs of any sizes as one batch, in their order; nothing has to be padded."""
    sizes = [len(graph.nodes) for graph in graphs]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]

    def floats(values: Sequence[object]) -> Tensor:
        return torch.cat([torch.as_tensor(value, dtype=torch.float32) for value in values])

    return GraphBatch(
        nodes=floats([graph.nodes for graph in graphs]),
        edge_index=torch.cat(
            [
                torch.as_tensor(graph.edge_index) + start
                for graph, start in zip(graphs, starts, strict=True)
            ],
            dim=1,
        ),
        edges=floats([graph.edges for graph in graphs]),
        shares=floats([graph.shares for graph in graphs]),
        graph_of_node=torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes)),
        context=floats([graph.context[None] for graph in graphs]),
        mask=torch.ones(sum(sizes), dtype=torch.bool),
    )


def _attention(kind: GraphKind, width: int, heads: int) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "scaledl":
        return EdgeBiasAttention(NUM_NODE_FEATURES, width, NUM_EDGE_FEATURES, heads)
    options = {"heads": heads, "concat": False, "edge_dim": NUM_EDGE_FEATURES}
    if kind == "transformer_conv":
        return TransformerConv(NUM_NODE_FEATURES, width, **options)  # type: ignore[no-any-return]
    return GATv2Conv(  # type: ignore[no-any-return]
        NUM_NODE_FEATURES, width, add_self_loops=False, **options
    )


class _Scale(nn.Module):
    """Features by mean and spread of a training set; as they are until one was seen."""

    mean: Tensor
    spread: Tensor
    is_set: Tensor

    def __init__(self, num_features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("spread", torch.ones(num_features))
        self.register_buffer("is_set", torch.tensor(False))

    def learn(self, values: Tensor) -> None:
        self.mean.copy_(values.mean(dim=0))
        self.spread.copy_(values.std(dim=0, correction=0).clamp(min=LEAST_SPREAD))
        self.is_set.fill_(True)

    def forward(self, values: Tensor) -> Tensor:
        scaled = (values - self.mean) / self.spread
        # one that never saw a training set must not cut features off
        return torch.where(self.is_set, scaled.clamp(-MOST_SPREADS, MOST_SPREADS), scaled)


class GraphNetwork(nn.Module):
    """Graph attention and global encoder side by side, to (alpha, beta).

    Untrained it answers exactly (1, 1): the last layer starts at 0, and alpha and beta are the
    exponentials of what it gives. ``graph`` and ``with_context`` are the ablations.
    """

    def __init__(
        self,
        graph: GraphKind = "scaledl",
        *,
        width: int = 32,
        heads: int = 4,
        with_context: bool = True,
    ):
        super().__init__()
        self.attention = _attention(graph, width, heads)
        self.encoder = (
            nn.Sequential(
                nn.Linear(NUM_GLOBAL_FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
            )
            if with_context
            else None
        )
        joined = 2 * width * (self.attention is not None) + width * with_context
        if not joined:
            raise ValueError("neither a graph nor a context: nothing is left to learn from")
        self.node_scale = _Scale(NUM_NODE_FEATURES)
        self.context_scale = _Scale(NUM_GLOBAL_FEATURES)
        last = nn.Linear(width, 2)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(nn.Linear(joined, width), nn.ReLU(), last)

    def forward(self, batch: GraphBatch) -> Tensor:
        """(alpha, beta) of each graph. Shape: [G, 2]."""
        parts = []
        if self.attention is not None:
            parts.append(self._pooled(batch))
        if self.encoder is not None:
            parts.append(self.encoder(self.context_scale(batch.context)))
        raw = self.head(torch.cat(parts, dim=1))
        return torch.exp(LOG_BOUND * torch.tanh(raw / LOG_BOUND))

    @property
    def has_scales(self) -> bool:
        """Whether features are scaled by a training set already."""
        return bool(self.context_scale.is_set)

    def learn_scales(self, batch: GraphBatch) -> None:
        """Take mean and spread of the features from a training set; they are saved as weights are.

        Once only: weights that were learned go with the scales that they were learned with.
        """
        self.node_scale.learn(batch.nodes[batch.mask])
        self.context_scale.learn(batch.context)

    def _pooled(self, batch: GraphBatch) -> Tensor:
        """Mean of the nodes, and their mean by share of T_sum. Shape: [G, 2 width].

        The paper does not name its pooling. The second tells what most of the time is spent in,
        the first how the rest is built.
        """
        real = batch.mask[batch.edge_index].all(dim=0)
        described = torch.relu(
            self.attention(  # type: ignore[misc]
                self.node_scale(batch.nodes), batch.edge_index[:, real], batch.edges[real]
            )
        )
        counted = batch.mask.to(described.dtype)
        num_graphs = len(batch.context)

        def mean(weights: Tensor) -> Tensor:
            weighed = torch.where(batch.mask[:, None], described * weights[:, None], 0.0)
            total = described.new_zeros(num_graphs).index_add(0, batch.graph_of_node, weights)
            summed = described.new_zeros(num_graphs, described.shape[1])
            summed = summed.index_add(0, batch.graph_of_node, weighed)
            return summed / total.clamp(min=1e-9)[:, None]

        shares = torch.where(batch.mask, batch.shares, 0.0)
        return torch.cat([mean(counted), mean(shares)], dim=1)


def iteration_s(alpha_beta: Tensor, sum_s: Tensor, comm_s: Tensor) -> Tensor:
    """T_iter = alpha T_sum + beta T_comm. Shapes: [G, 2], [G], [G] to [G], seconds."""
    return alpha_beta[:, 0] * sum_s + alpha_beta[:, 1] * comm_s
