"""Other ways to predict a step, in the table beside ours."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.ensemble import RandomForestRegressor
from torch import Tensor, nn

from scaledl.collecting.records import Configuration
from scaledl.predictor.examples import Example

FloatArray = NDArray[np.float64]
Set = tuple[Sequence[Configuration], Sequence[Example]]

WIDTH, STEPS, LEARNING_RATE = 32, 600, 3e-3
FAMILIES = ("bert", "gpt2", "t5", "vit", "deit")


def _truth(examples: Sequence[Example]) -> FloatArray:
    return np.array([e.step_s for e in examples])


def forest(training: Set, test: Set, seed: int) -> FloatArray:
    """Random forest of log step time on hyper-parameters."""

    def table(configurations: Sequence[Configuration]) -> FloatArray:
        return np.array(
            [
                [c.batch, c.length, c.width, c.depth, c.processes]
                + [float(c.family == name) for name in FAMILIES]
                for c in configurations
            ]
        )

    model = RandomForestRegressor(n_estimators=300, random_state=seed)
    model.fit(table(training[0]), np.log(_truth(training[1])))
    return np.asarray(np.exp(model.predict(table(test[0]))))


def plain_sum(training: Set, test: Set, seed: int) -> FloatArray:
    """Alpha = beta = 1."""
    return np.array([e.sum_s + e.comm_s for e in test[1]])


def scalars(training: Set, test: Set, seed: int) -> FloatArray:
    """One alpha and one beta for all, least squares of relative errors."""
    step_s = _truth(training[1])
    table = np.array([[e.sum_s, e.comm_s] for e in training[1]]) / step_s[:, None]
    alpha, beta = nnls(table, np.ones(len(step_s)))[0]
    return np.array([alpha * e.sum_s + beta * e.comm_s for e in test[1]])


class _PerLayer(nn.Module):
    """MLP-ACC: an MLP for each layer's time, summed."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(num_inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )  # fmt: skip

    def forward(self, nodes: Tensor, mask: Tensor) -> Tensor:
        each = torch.exp(self.net(nodes)[..., 0].clamp(-20, 10) - 7.0) * mask
        return torch.log(each.sum(dim=1).clamp(min=1e-9))


class _Recurrent(nn.Module):
    """BiRNN: a GRU in both directions over the layers in their order."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(num_inputs, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, nodes: Tensor, mask: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            nodes, mask.sum(dim=1).long(), batch_first=True, enforce_sorted=False
        )
        _, last = self.rnn(packed)
        logs: Tensor = self.head(torch.cat([last[0], last[1]], dim=1))[:, 0] - 3.5
        return logs


def _sequence(make: Callable[[int], nn.Module]) -> Callable[[Set, Set, int], FloatArray]:
    def predict(training: Set, test: Set, seed: int) -> FloatArray:
        train_nodes, train_mask = _padded(training[1])
        target = torch.tensor(np.log(_truth(training[1])), dtype=torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = make(train_nodes.shape[-1])
            optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            for _ in range(STEPS):
                some = torch.randint(0, len(target), (64,))
                loss = nn.functional.huber_loss(
                    model(train_nodes[some], train_mask[some]), target[some], delta=0.1
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        with torch.no_grad():
            return np.asarray(torch.exp(model(*_padded(test[1])))).astype(np.float64)

    return predict


def _padded(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Node features without the predicted time and its share. Shapes: [G, V, F], [G, V]."""
    arrays = [e.arrays() for e in examples]
    most = max(len(a.nodes) for a in arrays)
    nodes = np.zeros((len(arrays), most, arrays[0].nodes.shape[1] - 2 + len(arrays[0].context)))
    mask = np.zeros((len(arrays), most))
    for i, a in enumerate(arrays):
        told = np.broadcast_to(a.context, (len(a.nodes), len(a.context)))
        nodes[i, : len(a.nodes)] = np.hstack([a.nodes[:, :-2], told])
        mask[i, : len(a.nodes)] = 1.0
    return torch.tensor(nodes, dtype=torch.float32), torch.tensor(mask, dtype=torch.float32)


BASELINES: dict[str, Callable[[Set, Set, int], FloatArray]] = {
    "random forest": forest,
    "MLP a layer, summed": _sequence(_PerLayer),
    "BiRNN": _sequence(_Recurrent),
    "plain sum": plain_sum,
    "fitted scalars": scalars,
}
