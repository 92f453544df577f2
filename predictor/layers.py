"""The layer model: seconds of one pass of a layer, one model a type and direction.

ScaleDL 2025 (arXiv 2511.04162) adds up ``t_l = phi_l(h_hp, h_dev, h_struct, h_cm)`` (equations 8 to
10) with a random forest for phi. A forest knows no size and no GPU beyond those it saw. Here phi is
a smooth roofline, a q-norm of power laws in the same features x (all logarithms):

    t = (sum_k exp(q (c_k + w_k . x + d_k)))^(1/q)                                     (1)

One term is what a call costs whatever its size, one the bytes over the bandwidth, one the FLOPs
over the peak; the others are partly one, partly the other, as in small products that fill the GPU
badly. ``d_k`` is what a GPU that was measured does differently, 0 for a new one. Exponents are not
below 0 (the kernel's taps aside, where fast algorithms exist for some sizes): more FLOPs, bytes,
rows or width never take less time, a faster GPU never more. Far from the data each term stays a
power law.

A type that was never fitted gets the plain roofline.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.layer_work import (
    Direction,
    LayerWork,
    features,
    model_kind,
    node_work,
    roofline_s,
)
from scaledl.records import GpuSpec, LayerGraph

FloatArray = NDArray[np.float64]

SHARPNESS = 2.0
"""q of (1): between adding all terms up (1) and the largest alone (infinity)."""


class TypeModel(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of (1) for one type and direction.

    Shapes: ``log_scale`` [K], ``exponents`` [K, 9] in the order of ``layer_work.FEATURES``,
    ``devices`` [K] for each GPU that was measured.
    """

    log_scale: tuple[float, ...]
    exponents: tuple[tuple[float, ...], ...]
    devices: dict[str, tuple[float, ...]] = {}


class LayerModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of every type that was fitted, by ``key``. JSON holds it as it is."""

    types: dict[str, TypeModel] = {}

    def predict_s(self, works: Sequence[LayerWork], gpus: Sequence[GpuSpec]) -> FloatArray:
        """Seconds of each pass on the GPU beside it. Shape: [n]."""
        seconds = np.zeros(len(works))
        groups: dict[str, list[int]] = {}
        for i, work in enumerate(works):
            groups.setdefault(key(work.kind, work.direction), []).append(i)
        for name, members in groups.items():
            here, there = [works[i] for i in members], [gpus[i] for i in members]
            model = self.types.get(name)
            if model is None:
                seconds[members] = [roofline_s(w, g) for w, g in zip(here, there, strict=True)]
            else:
                names = [gpu.name for gpu in there]
                seconds[members] = np.exp(log_time(model, features(here, there), names))
        return seconds

    def node_times_s(
        self, graph: LayerGraph, gpu: GpuSpec, direction: Direction, dtype: str = "float32"
    ) -> FloatArray:
        """Seconds of one pass of each node, in the order of ``graph.nodes``.

        ``outside_layers`` is no layer and gets 0. Their sum is T_sum of one micro-batch.
        """
        works = [node_work(node, direction, dtype) for node in graph.nodes]
        seconds = self.predict_s(works, [gpu] * len(works))
        return np.where([node.kind == "outside" for node in graph.nodes], 0.0, seconds)


def key(kind: str, direction: Direction) -> str:
    """Name of the model that answers for a kind of layer in a direction."""
    return f"{model_kind(kind)}/{direction}"


def norm_of_terms(terms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Equation (1) from the logarithms of its terms, and each term's share in the result.

    The shares are the derivatives by the terms and sum to 1. Shapes: [n, K] to [n] and [n, K].
    """
    scaled = SHARPNESS * terms
    top = scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled - top)
    total = weights.sum(axis=1, keepdims=True)
    return (top + np.log(total))[:, 0] / SHARPNESS, weights / total


def log_time(model: TypeModel, logs: FloatArray, gpu_names: Sequence[str]) -> FloatArray:
    """Logarithm of (1). Shapes: ``logs`` [n, 9], result [n]."""
    terms = logs @ np.array(model.exponents).T + np.array(model.log_scale)
    zero = (0.0,) * len(model.log_scale)
    terms = terms + np.array([model.devices.get(name, zero) for name in gpu_names])
    return norm_of_terms(terms)[0]
