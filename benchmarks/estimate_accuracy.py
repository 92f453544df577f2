"""How far off a step is that was never run: whole models on GPUs, told from their layers alone.

    python benchmarks/estimate_accuracy.py --data DIR [--json]

``DIR`` holds neusight, layer_times_justus and deepbench. Truth: forward and backward of whole
transformers in neusight, one GPU. The layer model is fitted without the asked model and without any
timing of the asked GPU, as for a user whose GPU nobody measured. Beside it: ``roofline`` (no fit)
and ``mean rate`` (FLOPs over the mean FLOP rate of the other GPUs, each of its own peak). Intervals
are those that ``scaledl.estimate`` gives before it has seen anything of a device; their width comes
from the other GPUs' errors, and is scored on the GPU left out.
"""

import argparse
import math
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from batch_accuracy import PER_GPU, layers_s, works_of
from common import below, finish, machine, table
from layer_accuracy import _at_most, _example, groups_of
from layer_data import Example, _device, _neusight_devices, _operator, _rows, read_examples

from scaledl.predictor.draws import normal_quantile
from scaledl.predictor.examples import WAYS
from scaledl.predictor.layer_fit import fit_layers
from scaledl.predictor.layer_work import peak_flops
from scaledl.predictor.layers import LayerModel
from scaledl.predictor.untried import doubt_of

COLUMNS = ("device", "model", "batch", "truth_s", "scaledl", "roofline", "mean_rate", "inside")


def fit_without(data: Path, model: str, device: str) -> LayerModel:
    """The layer model from everything but one model's operators and one GPU."""
    folder, rng = data / "neusight", np.random.default_rng(0)
    devices = _neusight_devices(folder)
    examples = [e for e in read_examples(data) if e.source != "neusight-model"]
    for row in _rows(folder / "op_latency.csv.gz"):
        for way, column in zip(WAYS, ("fwd_ms", "bwd_ms"), strict=True):
            time_s, work = float(row[column] or 0) / 1e3, _operator(row, way)
            if row["model"] != model and work is not None and time_s > 0:
                gpu = _device(row["device"], devices)
                examples.append(Example(source="neusight", work=work, gpu=gpu, time_s=time_s))
    left_out = _device(device, devices).name
    chosen = []
    for group in groups_of([e for e in examples if e.gpu.name != left_out]):
        names = np.array([example.gpu.name for example in group.examples])
        for gpu_name in group.gpus():
            some = _at_most(np.flatnonzero(names == gpu_name), PER_GPU, rng)
            chosen += [_example(group.examples[i]) for i in some]
    return fit_layers(chosen)


def cases(data: Path) -> list[dict[str, Any]]:
    """One row a whole model on one GPU at one batch."""
    folder = data / "neusight"
    devices = _neusight_devices(folder)
    fitted = cache(lambda model, device: fit_without(data, model, device))
    graphs: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in _rows(folder / "op_latency.csv.gz"):
        if row["mode"] == "train":
            graphs.setdefault((row["device"], row["model"], row["batch"]), []).append(row)
    found: list[dict[str, Any]] = []
    for row in _rows(folder / "model_latency.csv"):
        key = row["device"], row["model"], row["batch"]
        if row["mode"] != "train" or row["parallel"] or key not in graphs:
            continue
        gpu = _device(row["device"], devices)
        works = works_of(graphs[key], int(float(row["num_layer"])))
        found.append(
            {
                "device": row["device"],
                "model": row["model"],
                "batch": int(row["batch"]),
                "truth_s": float(row["e2e_ms"]) / 1e3,
                "told_s": layers_s(fitted(row["model"], row["device"]), works, gpu),
                "roofline_s": layers_s(LayerModel(), works, gpu),
                "ideal_s": sum(w.flops * n for w, n in works.items()) / peak_flops(gpu, "float32"),
            }
        )
        print(f"{key}: {found[-1]['told_s'] / found[-1]['truth_s'] - 1:+.1%}", flush=True)
    return found


def scored(rows: list[dict[str, Any]]) -> None:
    """Errors, and whether intervals set on the other GPUs held, put into the rows."""
    z = normal_quantile(0.9)
    for row in rows:
        others = [r for r in rows if r["device"] != row["device"]]
        rate = statistics.fmean(r["truth_s"] / r["ideal_s"] for r in others)
        sigma = doubt_of([math.log(r["truth_s"] / r["told_s"]) for r in others])
        truth_s = row["truth_s"]
        row["scaledl"] = abs(row["told_s"] / truth_s - 1)
        row["roofline"] = abs(row["roofline_s"] / truth_s - 1)
        row["mean_rate"] = abs(rate * row["ideal_s"] / truth_s - 1)
        row["inside"] = abs(math.log(truth_s / row["told_s"])) <= z * sigma
        row["sigma"] = sigma


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    about = machine()
    rows = cases(args.data)
    scored(rows)
    print(table(rows, COLUMNS))
    mean = {name: statistics.fmean(r[name] for r in rows) for name in COLUMNS[4:]}
    logs = [math.log(r["truth_s"] / r["told_s"]) for r in rows]
    print(f"{len(rows)} steps: mean error {mean}; log-sd about 0 {doubt_of(logs):.2f}")
    bars = [
        below("mean error over the best baseline's",
              mean["scaledl"] / min(mean["roofline"], mean["mean_rate"]), 1.0),
        below("1 - coverage of the 90 % interval", 1 - mean["inside"], 0.15),
    ]  # fmt: skip
    finish("estimate_accuracy", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
