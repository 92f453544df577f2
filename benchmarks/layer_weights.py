"""Fits the layer model that the package ships, on public layer timings.

    python benchmarks/layer_weights.py --data DIR [--out predictor/weights/layers.json] [--json]

``DIR`` holds neusight, layer_times_justus and deepbench; those of a CPU are the committed ones of
this package. Of each set, type, direction and GPU at most 800 timings are drawn with a fixed seed.
How well such a fit forecasts GPUs and sizes that were left out is told by ``layer_accuracy.py``;
the bar here only says that the shipped file is the fit.
"""

import argparse
import datetime
from pathlib import Path

import msgspec
import numpy as np
from common import below, finish, machine, table
from layer_accuracy import _at_most, _example, groups_of
from layer_data import read_examples
from paper_data import load

from scaledl.predictor.devices import find_gpu
from scaledl.predictor.examples import HOST, WAYS
from scaledl.predictor.layer_fit import LayerExample, fit_layers
from scaledl.predictor.layer_work import node_work
from scaledl.predictor.layers import LayerModel, TypeModel
from scaledl.predictor.shipped import Provenance, ShippedLayers

HOST_DATA = Path(__file__).parent / "data" / "transformers-cpu.jsonl.xz"
PER_GPU = 800
DIGITS = 4
SOURCES = (
    "NeuSight (MIT), commit 6945927d: kernels and operators of PyTorch 2.1",
    "ml-performance-prediction (Apache-2.0), commit e649f32d: dense and convolution layers",
    "DeepBench (Apache-2.0), commit da81ba78: matrix products and convolutions of training",
    "this package's own measurements: benchmarks/data/transformers-cpu.jsonl.xz",
)


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def plain(model: TypeModel) -> TypeModel:
    """The fit in few digits; GPUs under the catalogue's names, the mean where two share one."""
    devices: dict[str, list[tuple[float, ...]]] = {}
    for name, terms in model.devices.items():
        known = find_gpu(name)
        devices.setdefault(known.name if known else name, []).append(terms)
    return TypeModel(
        log_scale=tuple(map(rounded, model.log_scale)),
        exponents=tuple(tuple(map(rounded, row)) for row in model.exponents),
        devices={
            name: tuple(rounded(v) for v in np.mean(terms, axis=0))
            for name, terms in sorted(devices.items())
        },
    )


def host_examples(rng: np.random.Generator) -> list[LayerExample]:
    """Layer passes on one core, at the machine's usual speed.

    Of types that GPUs were timed on too: what a core alone tells says nothing of a GPU.
    """
    data = load([HOST_DATA])
    passes: dict[tuple[str, str], list[LayerExample]] = {}
    for configuration, one in data.measured.items():
        nodes = {node.fqn: node for node in one.graph.nodes}
        speed = data.speed(configuration)
        for timing in one.layers:
            times_s = (timing.forward_s, timing.backward_s)
            for way, time_s in zip(WAYS, times_s, strict=True):
                if time_s and timing.fqn in nodes and configuration.processes == 1:
                    work = node_work(nodes[timing.fqn], way)
                    found = LayerExample(work=work, gpu=HOST, time_s=time_s * speed)
                    passes.setdefault((work.kind, way), []).append(found)
    return [
        group[i] for group in passes.values() for i in _at_most(np.arange(len(group)), PER_GPU, rng)
    ]


def fit(data: Path) -> ShippedLayers:
    rng, chosen = np.random.default_rng(0), []
    for group in groups_of(read_examples(data)):
        names = np.array([example.gpu.name for example in group.examples])
        for gpu in group.gpus():
            some = _at_most(np.flatnonzero(names == gpu), PER_GPU, rng)
            chosen += [_example(group.examples[i]) for i in some]
    seen = {(e.work.kind, e.work.direction) for e in chosen}
    chosen += [e for e in host_examples(rng) if (e.work.kind, e.work.direction) in seen]
    model = fit_layers(chosen)
    types = {name: plain(each) for name, each in sorted(model.types.items())}
    about = Provenance(
        sources=SOURCES,
        command="python benchmarks/layer_weights.py --data DIR",
        date=datetime.date.today().isoformat(),
        num_timings=len(chosen),
    )
    return ShippedLayers(provenance=about, model=LayerModel(types=types))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--out", type=Path, default=Path("predictor/weights/layers.json"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    about = machine()
    found = fit(args.data)
    args.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    rows = [
        {"type": name, "terms": len(each.log_scale), "gpus": len(each.devices)}
        for name, each in found.model.types.items()
    ]
    print(table(rows, ("type", "terms", "gpus")))
    size = args.out.stat().st_size
    finish("layer_weights", rows, [below("size, bytes", size, 1e5)], about, as_json=args.json)


if __name__ == "__main__":
    main()
