"""Training of the graph network on step times. Loads torch: import it where a network is used.

The loss is the Huber loss of log(predicted / measured): errors count by their ratio, and one bad
measurement like an absolute error. The paper (ScaleDL 2025, arXiv 2511.04162) does not name its
loss, optimizer or learning rate; here AdamW (Loshchilov and Hutter 2019) with a cosine schedule
(Loshchilov and Hutter 2017, eq. 5) is used.

Nothing global changes: random numbers come from a generator of their own or from a fork of torch's,
and the number of threads is put back.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scaledl.errors import UsageError
from scaledl.predictor.examples import Example, checked
from scaledl.predictor.gnn import GraphBatch, GraphNetwork, collate, iteration_s

FloatArray = NDArray[np.float64]

HUBER = 0.1
"""Where the loss turns from square to straight: a miss of 10 %."""
WEIGHT_DECAY = 1e-3
LEAST_FOR_SCALES = 12
"""Fewer examples do not tell how features spread."""
MAX_GRADIENT = 1.0


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Shapes: sum_s, comm_s, step_s, weights [G]."""

    graphs: GraphBatch
    sum_s: Tensor
    comm_s: Tensor
    step_s: Tensor
    weights: Tensor


def new_network(seed: int, **options: Any) -> GraphNetwork:
    """A network whose first weights depend on the seed alone. ``options`` as in GraphNetwork."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GraphNetwork(**options)


def train(
    network: GraphNetwork,
    examples: Sequence[Example],
    *,
    steps: int,
    seed: int,
    learning_rate: float = 3e-3,
    weights: Sequence[float] | None = None,
    batch_size: int = 64,
) -> tuple[float, ...]:
    """Teach the network in place; the loss of each step. The same arguments give the same weights.

    Graphs are put into batches once, at random; each pass takes the batches in a new order.

    Args:
        network: Learns on from what it knows.
        examples: At least one.
        steps: Gradient steps, one batch each.
        seed: Of batches and their order.
        learning_rate: At the start; falls to 0 along half a cosine.
        weights: How much each example counts, not below 0; 1 by default. Shape: [n].
        batch_size: Graphs of a batch, at most.

    Raises:
        UsageError: no examples, a time that is no time, or weights that do not match.
    """
    counts = _checked_weights(weights, len(checked(examples)))
    generator = torch.Generator().manual_seed(seed)
    with _one_thread():
        order = torch.randperm(len(examples), generator=generator).tolist()
        parts = np.array_split(order, math.ceil(len(order) / batch_size))
        batches = [_batch([examples[i] for i in part], counts[part]) for part in parts]
        if not network.has_scales and len(examples) >= LEAST_FOR_SCALES:
            network.learn_scales(collate([example.arrays() for example in examples]))
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
        network.train()
        history: list[float] = []
        queue: list[int] = []
        for _ in range(steps):
            queue = queue or torch.randperm(len(batches), generator=generator).tolist()
            history.append(_one_step(network, optimizer, batches[queue.pop()]))
            schedule.step()
        network.eval()
    return tuple(history)


def predict_s(network: GraphNetwork, examples: Sequence[Example]) -> FloatArray:
    """Step time of each example, whose own ``step_s`` is not looked at. Shape: [n], seconds."""
    if not examples:
        return np.zeros(0)
    batch = _batch(examples, np.ones(len(examples)))
    network.eval()
    with _one_thread(), torch.no_grad():
        return np.asarray(iteration_s(network(batch.graphs), batch.sum_s, batch.comm_s)).astype(
            np.float64
        )


def _one_step(network: GraphNetwork, optimizer: torch.optim.Optimizer, batch: _Batch) -> float:
    predicted = iteration_s(network(batch.graphs), batch.sum_s, batch.comm_s)
    off = torch.log(predicted / batch.step_s)
    each = torch.nn.functional.huber_loss(off, torch.zeros_like(off), delta=HUBER, reduction="none")
    loss = (each * batch.weights).sum() / batch.weights.sum().clamp(min=1e-12)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
    optimizer.step()
    return float(loss.detach())


def _batch(examples: Sequence[Example], weights: FloatArray) -> _Batch:
    def floats(values: Sequence[float] | FloatArray) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=torch.float32)

    return _Batch(
        graphs=collate([example.arrays() for example in examples]),
        sum_s=floats([example.sum_s for example in examples]),
        comm_s=floats([example.comm_s for example in examples]),
        step_s=floats([example.step_s for example in examples]),
        weights=floats(weights),
    )


def _checked_weights(weights: Sequence[float] | None, num_examples: int) -> FloatArray:
    counts = np.ones(num_examples) if weights is None else np.asarray(weights, dtype=np.float64)
    if counts.shape != (num_examples,):
        raise UsageError(f"weights have the shape {counts.shape}. Give one for each example.")
    if not (np.isfinite(counts).all() and (counts >= 0).all() and counts.sum() > 0):
        raise UsageError(f"weights must be finite, not below 0 and not all 0, got {counts}.")
    return counts


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and the cores belong to a training."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
