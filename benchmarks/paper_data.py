"""Measured configurations as examples for the predictors: nothing measured of a test one enters.

T_sum is the sum of what the layer model predicts for each layer and of a term for what is outside
them (the optimizer, the loss, Python), both fitted on the training configurations. Times are
brought to the machine's usual speed by the calibration kernel that ran beside each one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from scaledl.collecting.files import read
from scaledl.collecting.plan import rows
from scaledl.collecting.records import Collected, Configuration
from scaledl.predictor.design import choose
from scaledl.predictor.examples import Example
from scaledl.predictor.layer_fit import LayerExample, fit_layers
from scaledl.predictor.layer_work import Direction, node_work
from scaledl.predictor.layers import LayerModel, key
from scaledl.records import ClusterSpec, GpuSpec, LinkSpec, ParallelPlan

FloatArray = NDArray[np.float64]

MOST_OF_A_TYPE = 1500
"""Layer passes a type and direction that the layer model is fitted on; more tell little."""
HOST = GpuSpec(name="host core", memory_bytes_per_s=1e10, peak_flops={"float32": 1e11})
LOOPBACK = LinkSpec(kind="loopback", latency_s=5e-5, bytes_per_s=1e9)


@dataclass(frozen=True, kw_only=True)
class Data:
    """What was measured, once each, and the noise of measuring it twice.

    ``floor`` is the mean relative difference between two measurements of one configuration.
    """

    measured: dict[Configuration, Collected]
    usual_s: float
    floor: float
    num_repeats: int

    def step_s(self, configuration: Configuration) -> float:
        """The step at the machine's usual speed."""
        return usual_step_s(self.measured[configuration], self.usual_s)

    def speed(self, configuration: Configuration) -> float:
        """What brings times of this measurement to the usual speed."""
        return self.usual_s / float(np.mean(self.measured[configuration].calibration_s))


def usual_step_s(one: Collected, usual_s: float) -> float:
    """A measured step, scaled by how fast the calibration kernel ran beside it."""
    return one.step_s * usual_s / float(np.mean(one.calibration_s))


def load(paths: Sequence[Path]) -> Data:
    """All measurements of some files."""
    every = [one for path in paths for one in read(path)[1]]
    usual_s = float(np.median([np.mean(one.calibration_s) for one in every]))
    measured = {o.task.configuration: o for o in every if o.task.role != "repeat"}
    off = [
        abs(usual_step_s(o, usual_s) / usual_step_s(measured[o.task.configuration], usual_s) - 1)
        for o in every
        if o.task.role == "repeat" and o.task.configuration in measured
    ]
    floor = float(np.mean(off)) if off else float("nan")
    return Data(measured=measured, usual_s=usual_s, floor=floor, num_repeats=len(off))


@dataclass(frozen=True, kw_only=True)
class Split:
    """Configurations of one family (and number of processes), test ones apart."""

    test: tuple[Configuration, ...]
    rest: tuple[Configuration, ...]

    def by_design(self, count: int) -> tuple[Configuration, ...]:
        """The D-optimal choice of the rest."""
        return tuple(self.rest[i] for i in choose(rows(self.rest), count=count).chosen)

    def at_random(self, count: int, seed: int) -> tuple[Configuration, ...]:
        """As many of the rest, at random."""
        order = np.random.default_rng(seed).permutation(len(self.rest))
        return tuple(self.rest[i] for i in order[:count])


def splits(data: Data) -> dict[tuple[str, int], Split]:
    """By family and processes; who is tested on was set before anything was measured."""
    groups: dict[tuple[str, int], list[Configuration]] = {}
    for c in data.measured:
        groups.setdefault((c.family, c.processes), []).append(c)
    return {
        name: Split(
            test=tuple(c for c in group if data.measured[c].task.role == "test"),
            rest=tuple(c for c in group if data.measured[c].task.role != "test"),
        )
        for name, group in sorted(groups.items())
    }


# --- what is fitted on the training configurations -----------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Layer model, the term outside the layers, and that of communication."""

    layers: LayerModel
    outside: FloatArray
    comm: FloatArray


def _outside_features(one: Collected) -> list[float]:
    """A constant, layers, parameter tensors, parameters: what Python and the optimizer go by."""
    return [1.0, float(len(one.graph.nodes)), float(one.num_tensors), float(one.num_params)]


def _comm_features(one: Collected) -> list[float]:
    size = 4.0 * one.num_params
    return [1.0 + size // 2**20 / 25, size]


def _relative_nnls(features: Sequence[list[float]], values: Sequence[float]) -> FloatArray:
    """Least squares of relative errors, no coefficient below 0."""
    table, target = np.array(features), np.maximum(np.array(values), 1e-6)
    scale = np.abs(table).max(axis=0)
    return np.asarray(nnls(table / scale / target[:, None], np.ones(len(target)))[0] / scale)


def fit(data: Data, training: Sequence[Configuration], seed: int = 0) -> Fitted:
    """Everything but the network, from the training configurations alone."""
    ours = [data.measured[c] for c in training]
    passes: dict[str, list[LayerExample]] = {}
    outside_s = []
    for c, one in zip(training, ours, strict=True):
        speed = data.speed(c)
        nodes = {node.fqn: node for node in one.graph.nodes}
        known_s = 0.0
        for timing in one.layers:
            pairs: list[tuple[Direction, float | None]] = [
                ("forward", timing.forward_s),
                ("backward", timing.backward_s),
            ]
            for direction, time_s in pairs:
                known_s += time_s or 0.0
                if time_s and timing.fqn in nodes:
                    work = node_work(nodes[timing.fqn], direction)
                    example = LayerExample(work=work, gpu=HOST, time_s=time_s * speed)
                    passes.setdefault(key(work.kind, direction), []).append(example)
        outside_s.append(max(0.0, one.step_s - known_s - (one.comm_s or 0.0)) * speed)
    generator = np.random.default_rng(seed)
    chosen = [
        group[i]
        for group in passes.values()
        for i in generator.permutation(len(group))[:MOST_OF_A_TYPE]
    ]
    talking = [(one, data.speed(c)) for c, one in zip(training, ours, strict=True) if one.comm_s]
    comm = (
        _relative_nnls([_comm_features(o) for o, _ in talking], [o.comm_s * s for o, s in talking])
        if talking
        else np.zeros(2)
    )
    return Fitted(
        layers=fit_layers(chosen),
        outside=_relative_nnls([_outside_features(one) for one in ours], outside_s),
        comm=comm,
    )


def examples(data: Data, fitted: Fitted, configurations: Sequence[Configuration]) -> list[Example]:
    """What the network reads of each; of a measurement only the graph and the truth enter."""
    return [_example(data, fitted, c) for c in configurations]


def _example(data: Data, fitted: Fitted, c: Configuration) -> Example:
    one = data.measured[c]
    layer_s = sum(
        (fitted.layers.node_times_s(one.graph, HOST, way) for way in ("forward", "backward")),
        np.zeros(len(one.graph.nodes)),
    )
    outside_s = float(np.dot(_outside_features(one), fitted.outside))
    is_outside = np.array([node.kind == "outside" for node in one.graph.nodes])
    layer_s = np.where(is_outside, outside_s / max(1, is_outside.sum()), layer_s)
    if not is_outside.any():
        layer_s = layer_s + outside_s / len(layer_s)
    return Example(
        model=c.family,
        graph=one.graph,
        layer_s=tuple(layer_s.tolist()),
        cluster=ClusterSpec(
            gpu=HOST,
            num_gpus=c.processes,
            gpus_per_node=c.processes,
            intra=LOOPBACK,
            inter=LOOPBACK,
        ),
        plan=ParallelPlan(
            strategy="ddp" if c.processes > 1 else "single",
            replicate=c.processes,
            batch_per_gpu=c.batch,
        ),
        optimizer="adamw",
        comm_s=float(np.dot(_comm_features(one), fitted.comm)) if c.processes > 1 else 0.0,
        step_s=data.step_s(c),
    )
