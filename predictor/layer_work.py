"""What a layer has to do in one pass, as numbers: the features of the layer model.

ScaleDL 2025 (arXiv 2511.04162) describes a layer by h_hp (batch size, length), h_struct (its
configuration) and h_cm (FLOPs, bytes), equations 8 to 10. Here every layer is seen as a product
``[rows, depth] x [depth, width]``, or ``groups`` of them: batch and length are its rows, the
configuration its width and depth. Layers of all types then share one form.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.records import GpuSpec, LayerNode

FloatArray = NDArray[np.float64]
Direction = Literal["forward", "backward"]

KINDS = (
    "linear",
    "convolution",
    "attention",
    "normalisation",
    "embedding",
    "activation",
    "recurrent",
    "pooling",
    "other",
)
"""Types with a model of their own; any other kind counts as ``other``."""

UNKNOWN_PEAK_FLOPS, UNKNOWN_BYTES_PER_S = 10e12, 500e9
"""Of a device that states neither: a GPU of the middle class (P100, RTX 2080 Ti)."""

FEATURES = ("flops", "num_bytes", "rows", "width", "depth", "groups", "taps", "peak", "bandwidth")
"""Columns of ``features``; all are logarithms, the last two of the reciprocals."""


class LayerWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pass of one layer for one micro-batch on one rank.

    ``flops`` counts a multiply-add as two. ``num_bytes`` is all that must be read or written once:
    inputs, parameters, outputs. ``taps`` is the number of positions a convolution's kernel has.
    """

    kind: str
    direction: Direction
    flops: float
    num_bytes: float
    rows: float = 1.0
    width: float = 1.0
    depth: float = 1.0
    groups: float = 1.0
    taps: float = 1.0
    dtype: str = "float32"


def model_kind(kind: str) -> str:
    """The type whose model answers for ``kind``."""
    return kind if kind in KINDS else "other"


def linear_work(
    rows: float, d_in: float, d_out: float, direction: Direction = "forward", item_bytes: int = 4
) -> LayerWork:
    """A linear layer with bias (ScaleDL 2025, eq. 10).

    FLOPs = 2 b d_in d_out + b d_out,  Params = d_in d_out + d_out

    The backward pass has two products of that size, for the input's and the weights' gradient.
    """
    params = d_in * d_out + d_out
    flops = 2 * rows * d_in * d_out + rows * d_out
    passes = 1 if direction == "forward" else 2
    return LayerWork(
        kind="linear",
        direction=direction,
        flops=flops * passes,
        num_bytes=item_bytes * (rows * d_in + params + rows * d_out) * passes,
        rows=rows,
        width=d_out,
        depth=d_in,
    )


def node_work(node: LayerNode, direction: Direction, dtype: str = "float32") -> LayerWork:
    """The work of a layer as capture recorded it.

    From FLOPs, parameters and output follow the rows (eq. 10: F = 2 rows * params), the width
    (output over rows) and the depth (params over width); for attention FLOPs over the output give
    the length of its keys. Bytes: output, parameters and an input of the size that these imply.
    """
    item_bytes = 2 if "16" in dtype else 4
    out = max(node.activation_bytes / item_bytes, 1.0)
    rows, width, depth, inputs = 1.0, out, 1.0, out
    if node.kind in ("linear", "convolution", "recurrent") and node.params and node.flops_forward:
        rows = max(node.flops_forward / (2 * node.params), 1.0)
        width = max(out / rows, 1.0)
        depth = max(node.params / width, 1.0)
        inputs = rows * depth if node.kind == "linear" else out
    elif node.kind == "attention" and node.flops_forward:
        width = max(node.flops_forward / (4 * out), 1.0)
        rows, inputs = out, 3 * out
    passes = 1.0 if direction == "forward" else 2.0
    flops = node.flops_forward if direction == "forward" else node.flops_backward
    return LayerWork(
        kind=model_kind(node.kind),
        direction=direction,
        flops=flops,
        num_bytes=(item_bytes * (inputs + out) + node.param_bytes) * passes,
        rows=rows,
        width=width,
        depth=depth,
        dtype=dtype,
    )


def peak_flops(gpu: GpuSpec, dtype: str) -> float:
    """Peak of the type, else of float32, else that of a middle-class GPU; FLOP/s."""
    return gpu.peak_flops.get(dtype) or gpu.peak_flops.get("float32") or UNKNOWN_PEAK_FLOPS


def roofline_s(work: LayerWork, gpu: GpuSpec) -> float:
    """The time that cannot be beaten (Williams, Waterman, Patterson 2009, "Roofline").

    max(FLOPs / peak, bytes / bandwidth)
    """
    bandwidth = gpu.memory_bytes_per_s or UNKNOWN_BYTES_PER_S
    return max(work.flops / peak_flops(gpu, work.dtype), work.num_bytes / bandwidth)


def features(works: Sequence[LayerWork], gpus: Sequence[GpuSpec]) -> FloatArray:
    """Logarithms of equations 8 to 10, a row for each pair. Shape: [n, 9], as in ``FEATURES``.

    Sizes below 1 count as 1: a layer without FLOPs has no compute term to speak of.
    """
    table = np.array(
        [
            (
                work.flops,
                work.num_bytes,
                work.rows,
                work.width,
                work.depth,
                work.groups,
                work.taps,
                1 / peak_flops(gpu, work.dtype),
                1 / (gpu.memory_bytes_per_s or UNKNOWN_BYTES_PER_S),
            )
            for work, gpu in zip(works, gpus, strict=True)
        ]
    ).reshape(len(works), len(FEATURES))
    table[:, :-2] = np.maximum(table[:, :-2], 1.0)
    return np.asarray(np.log(table))
