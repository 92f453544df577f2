"""Compute of a micro-batch of another size, from the layers of the model.

Layers do not take half the time for half the batch: small ones cost a launch whatever their size,
large ones fill the GPU better. The layer model (``layers.py``) tells the time T of all layers at
both sizes; only its ratio is used, anchored at what was measured:

    growth(b') = T(b') / T(b)

Between one and the ratio of the batches: more samples never take less time, and what a fit makes
of sizes it never saw may grow faster than they do, which layers do not.

A graph holds the sizes of the batch that ran: FLOPs and outputs go with the batch, parameters stay.
"""

import math
from collections import Counter

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.layer_work import node_work
from scaledl.predictor.layers import LayerModel
from scaledl.records import GpuSpec, LayerGraph, LayerNode

FloatArray = NDArray[np.float64]

DOUBLINGS = np.arange(-8.0, 8.5, 1.0)
"""Where the curve is computed: 1/256 to 256 times the batch; between, it is straight in logs."""


class BatchCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Time of all layers over that at ``batch``. ``log_growth`` [17] at ``DOUBLINGS``."""

    batch: float
    signature: str
    log_growth: tuple[float, ...]

    def growth(self, before: float, after: float) -> float:
        """T(after) / T(before); beyond the curve's ends as its last piece goes on.

        Batches in samples of one micro-batch.
        """
        return float(np.exp(self._log_at(after) - self._log_at(before)))

    def _log_at(self, batch: float) -> float:
        x, knots = float(np.log2(batch / self.batch)), np.array(self.log_growth)
        inside = float(np.interp(x, DOUBLINGS, knots))
        if x > DOUBLINGS[-1]:
            return inside + float((knots[-1] - knots[-2]) * (x - DOUBLINGS[-1]))
        return inside + float((knots[1] - knots[0]) * min(0.0, x - DOUBLINGS[0]))


def is_known(gpu: GpuSpec) -> bool:
    """Whether the layer model can say anything of a device: its peak and bandwidth are known."""
    return bool(gpu.peak_flops) and gpu.memory_bytes_per_s is not None


def batch_curve(
    model: LayerModel, graph: LayerGraph, gpu: GpuSpec, batch: int, dtype: str = "float32"
) -> BatchCurve | None:
    """The curve of one graph on one GPU; ``None`` where device or layers tell too little.

    Args:
        model: seconds of a layer.
        graph: as it ran with ``batch`` samples a micro-batch.
        gpu: a catalogued GPU; a CPU has no peak that is known.
        batch: samples of one micro-batch.
        dtype: type of the numbers computed with.
    """
    layers = Counter(
        msgspec.structs.replace(node, fqn="") for node in graph.nodes if node.kind != "outside"
    )
    if not layers or not is_known(gpu) or batch < 1:
        return None
    seconds = np.array([_seconds(model, layers, gpu, dtype, 2.0**x) for x in DOUBLINGS])
    here = seconds[DOUBLINGS == 0.0][0]
    if not here > 0:
        return None
    return BatchCurve(
        batch=float(batch),
        signature=graph.signature,
        log_growth=_bounded(np.log(seconds / here)),
    )


def _bounded(logs: FloatArray) -> tuple[float, ...]:
    """The curve with each of its pieces between flat and proportional, 0 at the own batch."""
    pieces = np.clip(np.diff(logs), 0.0, math.log(2.0) * np.diff(DOUBLINGS))
    from_left = np.concatenate([[0.0], np.cumsum(pieces)])
    return tuple(float(v) for v in from_left - from_left[DOUBLINGS == 0.0][0])


def _seconds(
    model: LayerModel, layers: Counter[LayerNode], gpu: GpuSpec, dtype: str, ratio: float
) -> float:
    """T_sum of ScaleDL 2025, equation 8, forward and backward, at ``ratio`` times the batch."""
    nodes = [
        msgspec.structs.replace(
            node,
            flops_forward=ratio * node.flops_forward,
            flops_backward=ratio * node.flops_backward,
            activation_bytes=max(1, round(ratio * node.activation_bytes)),
        )
        for node in layers
    ]
    works = [node_work(node, way, dtype) for way in ("forward", "backward") for node in nodes]
    times_s = model.predict_s(works, [gpu] * len(works))
    return float(times_s @ np.array(2 * list(layers.values()), dtype=np.float64))


def with_floor(fixed_share: FloatArray, growth: float) -> FloatArray:
    """Time over that of the measured batch, never below the host's own.

    A host that launches kernels one after the other needs a fixed time, hidden while the GPU takes
    longer; between the two the longer one rules, with a soft corner:

        sqrt(f^2 + (1 - f^2) growth^2)      f = fixed_share, at most 1; 1 at growth 1

    Shapes: ``fixed_share`` and result [S].
    """
    f2 = np.minimum(1.0, fixed_share) ** 2
    return np.asarray(np.sqrt(f2 + (1 - f2) * growth**2))
