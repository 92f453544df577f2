"""The public layer timings as work records: neusight, layer_times_justus, deepbench.

Each set is read from the folder of its name below the given one; a set that is not there is left
out. Devices are looked up in the catalogue, else in the set's own device table, else in ``OTHERS``.
"""

import ast
import csv
import gzip
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scaledl.predictor.devices import find_gpu
from scaledl.predictor.layer_work import Direction, LayerWork, linear_work
from scaledl.records import GpuSpec


def _gpu(name: str, tflops: float, gbytes_per_s: float, tflops16: float | None = None) -> GpuSpec:
    peaks = {"float32": tflops * 1e12}
    if tflops16:
        peaks["float16"] = tflops16 * 1e12
    return GpuSpec(name=name, memory_bytes_per_s=gbytes_per_s * 1e9, peak_flops=peaks)


OTHERS = {
    # Makers' data sheets: float32 at boost clock in TFLOP/s, bandwidth in GB/s. No blanks in names.
    "K40": _gpu("K40", 5.04, 288),
    "M40": _gpu("M40", 6.84, 288),
    "M60": _gpu("M60", 4.82, 160),  # half a board, as torch sees it
    "GTX1080Ti": _gpu("GTX1080Ti", 11.34, 484),
    "TitanX(Pascal)": _gpu("TitanX(Pascal)", 10.97, 480),
    "TitanXp": _gpu("TitanXp", 12.15, 548),
    "VegaFE": _gpu("VegaFE", 13.1, 484, 26.2),
    "MI25": _gpu("MI25", 12.29, 484, 24.6),
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One measured time. ``with_forward`` is the forward pass that the time includes as well."""

    source: str
    work: LayerWork
    gpu: GpuSpec
    time_s: float
    with_forward: LayerWork | None = None


def read_examples(folder: Path) -> list[Example]:
    """All sets below ``folder``."""
    return [*_neusight(folder / "neusight"), *_justus(folder), *_deepbench(folder / "deepbench")]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        return
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def _device(name: str, table: dict[str, GpuSpec]) -> GpuSpec:
    found = table.get(name) or OTHERS.get(name.replace(" ", "")) or find_gpu(name)
    if found is None:
        raise SystemExit(f"no peak and bandwidth known for the device {name!r}: add it to OTHERS")
    return GpuSpec(
        name=name, memory_bytes_per_s=found.memory_bytes_per_s, peak_flops=found.peak_flops
    )


def _vector(
    kind: str, direction: Direction, rows: float, width: float, passes: float, flops: float
) -> LayerWork:
    """A layer that goes over ``rows`` x ``width`` numbers ``passes`` times (4 bytes each)."""
    return LayerWork(
        kind=kind,
        direction=direction,
        flops=flops * rows * width,
        num_bytes=4 * passes * rows * width,
        rows=rows,
        width=width,
    )


def _product(
    kind: str, direction: Direction, groups: float, m: float, n: float, k: float, item: int = 4
) -> LayerWork:
    """``groups`` products [m, k] x [k, n]; backward has two for each."""
    passes = 1 if direction == "forward" else 2
    return LayerWork(
        kind=kind,
        direction=direction,
        flops=2 * groups * m * n * k * passes,
        num_bytes=item * groups * (m * k + k * n + m * n) * passes,
        rows=m,
        width=n,
        depth=k,
        groups=groups,
        dtype="float16" if item == 2 else "float32",
    )


_VECTOR_OPS = {  # kind, passes over memory, FLOPs an element
    "ln": ("normalisation", 2, 8),
    "softmax": ("activation", 2, 5),
    "gelu": ("activation", 2, 1),
    "relu": ("activation", 2, 1),
    "tanh": ("activation", 2, 1),
    "add": ("other", 3, 1),
    "mul": ("other", 3, 1),
    "div": ("other", 3, 1),
    "pow": ("other", 3, 1),
    "addu": ("other", 2, 1),
    "mulu": ("other", 2, 1),
    "divu": ("other", 2, 1),
    "powu": ("other", 2, 1),
}


def _neusight_devices(folder: Path) -> dict[str, GpuSpec]:
    devices: dict[str, GpuSpec] = {}
    for row in _rows(folder / "devices.csv"):
        gflops = float(row["SingleFLOPs"] or row["SingleFLOPsMM"])
        if row["Device"] not in devices:  # a second line of a name is a pair of cards
            devices[row["Device"]] = _gpu(row["Device"], gflops / 1e3, float(row["Mem_Bw"]))
    return devices


def _neusight(folder: Path) -> Iterator[Example]:
    devices = _neusight_devices(folder)
    for row in _rows(folder / "kernels.csv.gz"):
        op, gpu = row["op"], _device(row["device"], devices)
        if op in ("linear", "bmm"):
            b, m, n, k = (float(row[c]) for c in "BMNK")
            work = (
                linear_work(b * m, k, n)
                if op == "linear"
                else _product("attention", "forward", b, m, n, k)
            )
        elif op in _VECTOR_OPS:
            kind, passes, flops = _VECTOR_OPS[op]
            work = _vector(kind, "forward", float(row["B"]), float(row["H"]), passes, flops)
        else:
            continue
        yield Example(source="neusight", work=work, gpu=gpu, time_s=float(row["latency_ms"]) / 1e3)
    for row in _rows(folder / "op_latency.csv.gz"):
        gpu = _device(row["device"], devices)
        for direction, column in (("forward", "fwd_ms"), ("backward", "bwd_ms")):
            time_s = float(row[column] or 0) / 1e3
            found = _operator(row, "forward" if direction == "forward" else "backward")
            if found is not None and time_s > 0:
                yield Example(source="neusight-model", work=found, gpu=gpu, time_s=time_s)


_NORMS = ("LayerNorm", "layer_norm", "ln_1", "ln_2", "ln_f")
_EMBEDDINGS = ("embeddings", "wte", "wpe", "embed_tokens")
_LINEARS = (
    "dense",
    "query",
    "key",
    "value",
    "lm_head",
    "classifier",
    "decoder",
    "seq_relationship",
)
_ACTIVATIONS = ("activation", "function gelu>", "tanh of type object>", "function softmax>")


def _operator(row: dict[str, str], direction: Direction) -> LayerWork | None:
    """A line of a model's traced graph as work; ``None`` for reshapes and the like."""
    target = row["target"].rsplit(".", 1)[-1]
    shapes = ast.literal_eval(row["input_shapes"] or "[]")
    out = ast.literal_eval(row["output_shape"] or "()")
    if not shapes or not out or not math.prod(out):
        return None
    rows, width = math.prod(out[:-1]), out[-1]
    back = direction == "backward"
    if "matmul" in target:
        return _product(
            "attention", direction, math.prod(out[:-2]), out[-2], out[-1], shapes[0][-1]
        )
    if "addmm" in target:
        return linear_work(rows, shapes[1][-1], width, direction)
    if target in _LINEARS:
        return linear_work(rows, shapes[0][-1], width, direction)
    if target in _NORMS:
        return _vector("normalisation", direction, rows, width, 3 if back else 2, 8)
    if target.endswith(_EMBEDDINGS):
        return _vector("embedding", direction, rows, width, 2, 0)
    if target.endswith(_ACTIVATIONS):
        return _vector("activation", direction, rows, width, 3 if back else 2, 1)
    return None


_UPDATE_PASSES = {"SGD": 3, "Adadelta": 7, "Adagrad": 5, "Momentum": 5, "Adam": 7, "RMSProp": 5}
"""Times that an update reads or writes a tensor of the parameters' size."""


def _with_update(work: LayerWork, params: float, optimizer: str) -> LayerWork:
    """Backward pass and the optimizer's own traffic, which the set measures together."""
    extra = 4 * params * _UPDATE_PASSES.get(optimizer, 5)
    return LayerWork(
        kind=work.kind,
        direction="backward",
        flops=2 * work.flops,
        num_bytes=2 * work.num_bytes + extra,
        rows=work.rows,
        width=work.width,
        depth=work.depth,
        taps=work.taps,
    )


def _convolution(row: dict[str, str]) -> LayerWork:
    size, kernel = float(row["image_size"]), float(row["kernel_size"])
    c_in, c_out, batch = (float(row[c]) for c in ("channels_in", "channels_out", "batch"))
    covered = size if float(row["padding"]) else size - kernel + 1
    out = max(math.ceil(covered / float(row["strides"])), 1)
    rows, depth = batch * out * out, c_in * kernel * kernel
    return LayerWork(
        kind="convolution",
        direction="forward",
        flops=2 * rows * depth * c_out,
        num_bytes=4 * (batch * c_in * size * size + depth * c_out + rows * c_out),
        rows=rows,
        width=c_out,
        depth=depth,
        taps=kernel * kernel,
    )


def _justus(folder: Path) -> Iterator[Example]:
    for name in ("dense", "convolution"):
        for row in _rows(folder / "layer_times_justus" / f"{name}.csv.gz"):
            if name == "dense":
                sizes = (float(row[c]) for c in ("batch", "dim_input", "dim_output"))
                forward = linear_work(*sizes)
            else:
                forward = _convolution(row)
            plain = row["optimizer"] in ("None", "")
            work = forward
            if not plain:
                work = _with_update(forward, forward.depth * forward.width, row["optimizer"])
            yield Example(
                source="justus",
                work=work,
                gpu=_device(row["device"], {}),
                time_s=float(row["median_ms"]) / 1e3,
                with_forward=None if plain else forward,
            )


def _deepbench(folder: Path) -> Iterator[Example]:
    for row in _rows(folder / "train_ops.csv"):
        gpu = _device(row["gpu"], {})
        sizes = dict(part.split("=") for part in row["shape"].split() if "=" in part)
        item = 2 if row["precision"].startswith("16") else 4
        if row["op"] == "gemm":
            m, n, k = (float(sizes[c]) for c in "MNK")
            works = [(_product("linear", "forward", 1, m, n, k, item), float(row["fwd_ms"] or 0))]
        else:
            works = _convolution_passes(row, sizes, item)
        for work, time_ms in works:
            if time_ms > 0:
                yield Example(source="deepbench", work=work, gpu=gpu, time_s=time_ms / 1e3)


def _convolution_passes(
    row: dict[str, str], sizes: dict[str, str], item: int
) -> list[tuple[LayerWork, float]]:
    w, h, c, n, k, s, r = (float(sizes[x]) for x in ("W", "H", "C", "N", "K", "S", "R"))
    across = max((w + 2 * float(sizes["pad_w"]) - s) // float(sizes["stride_h"]) + 1, 1.0)
    down = max((h + 2 * float(sizes["pad_h"]) - r) // float(sizes["stride_v"]) + 1, 1.0)
    rows, depth = n * across * down, c * s * r

    def work(direction: Direction, passes: int) -> LayerWork:
        return LayerWork(
            kind="convolution",
            direction=direction,
            flops=2 * rows * depth * k * passes,
            num_bytes=item * (n * c * w * h + depth * k + rows * k) * passes,
            rows=rows,
            width=k,
            depth=depth,
            taps=s * r,
            dtype="float16" if item == 2 else "float32",
        )

    parts = [float(row[x]) for x in ("bwd_input_ms", "bwd_weight_ms") if row[x]]
    backward = [(work("backward", len(parts)), sum(parts))] if parts else []
    return [(work("forward", 1), float(row["fwd_ms"] or 0)), *backward]
