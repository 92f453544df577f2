"""Compute at another batch, scored on public step times of one GPU.

    python benchmarks/batch_accuracy.py --data DIR [--json]

``DIR`` holds pollux, sia, neusight, layer_times_justus and deepbench. From a step at one batch the
step at another one is forecast; the truth enters nothing.

- ``steps``: one GPU of pollux and sia, no layers known: a fixed and a proportional part.
- ``layers``: training passes of whole models in neusight, with the layers of the running batch.
  The layer model is fitted anew without any operator of the asked model.

Beside it: ``proportional`` (time goes with the batch) and ``hold`` (it stays). Intervals are of
90 %; ``coverage`` is how many held, ``width`` their mean upper over lower end.
"""

import argparse
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from common import Bar, below, finish, machine, table
from layer_accuracy import _at_most, _example, groups_of
from layer_data import Example, _device, _neusight_devices, _operator, _rows, read_examples
from whatif_tables import read_tables

from scaledl.predictor.analytic import forecast
from scaledl.predictor.batch import DOUBLINGS, BatchCurve
from scaledl.predictor.devices import default_links, find_gpu
from scaledl.predictor.layer_fit import fit_layers
from scaledl.predictor.layer_work import Direction, LayerWork
from scaledl.predictor.layers import LayerModel
from scaledl.records import ClusterSpec, GpuSpec, Interval, Measurement, ParallelPlan, StepParts

PER_GPU = 300
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
Case = dict[str, object]


def measured(gpu: GpuSpec, batch: int, step_s: float, num_layers: int | None) -> Measurement:
    intra, inter = default_links(gpu, is_cpu=False)
    return Measurement(
        cluster=ClusterSpec(gpu=gpu, num_gpus=1, gpus_per_node=8, intra=intra, inter=inter),
        plan=ParallelPlan(batch_per_gpu=batch),
        step_s=step_s,
        parts=StepParts(
            compute_s=step_s, comm_exposed_s=0.0, input_wait_s=0.0, optimizer_s=0.0, other_s=0.0
        ),
        num_steps=15,
        num_layers=num_layers,
    )


def told(base: Measurement, batch: int, curve: BatchCurve | None = None) -> Interval:
    plan = ParallelPlan(batch_per_gpu=batch)
    return forecast([base], base.cluster, plan, curve=curve).step_s


def case(group: str, what: str, before: tuple[int, float], after: tuple[int, float]) -> Case:
    (b0, t0), (b1, t1) = before, after
    return {
        "group": group,
        "what": what,
        "ratio": b1 / b0,
        "truth_s": t1,
        "proportional": t0 * b1 / b0,
        "hold": t0,
    }


def step_cases(data: Path) -> Iterator[Case]:
    """Neighbouring powers of two in the batch, and up to eight times, both ways."""
    for job in read_tables(
        sorted([*(data / "pollux").glob("*.csv"), *(data / "sia").glob("*.csv")])
    ):
        seen: dict[int, list[float]] = {}
        for row in job.rows:
            if row.num_gpus == 1:
                seen.setdefault(row.batch, []).append(row.step_s)
        times = {batch: statistics.median(values) for batch, values in seen.items()}
        gpu = find_gpu(job.gpu) or GpuSpec(name=job.gpu)
        for b0, t0 in times.items():
            for b1, t1 in times.items():
                if not 1.8 <= max(b0, b1) / min(b0, b1) <= 8.2:
                    continue
                found = case("steps", f"{job.cluster} {job.model}", (b0, t0), (b1, t1))
                yield found | {"scaledl": told(measured(gpu, b0, t0, None), b1)}


def works_of(rows: list[dict[str, str]], num_layers: int) -> Counter[LayerWork]:
    """All passes of a step; the file holds one block, which counts once for each of the model's."""
    found: Counter[LayerWork] = Counter()
    for row in rows:
        in_block = row["node"] != "call_module" or re.search(r"\.(layer|h|layers)\.", row["target"])
        for way in DIRECTIONS:
            work = _operator(row, way)
            if work is not None:
                found[work] += num_layers if in_block else 1
    return found


def layers_s(model: LayerModel, works: Counter[LayerWork], gpu: GpuSpec) -> float:
    times_s = model.predict_s(list(works), [gpu] * len(works))
    return float(times_s @ np.array(list(works.values()), dtype=np.float64))


def fit_without(data: Path, model: str) -> LayerModel:
    """Kernels, single layers and the operators of all whole models but the asked one."""
    folder, rng = data / "neusight", np.random.default_rng(0)
    examples = [e for e in read_examples(data) if e.source != "neusight-model"]
    devices = _neusight_devices(folder)
    for row in _rows(folder / "op_latency.csv.gz"):
        for way, column in zip(DIRECTIONS, ("fwd_ms", "bwd_ms"), strict=True):
            time_s, work = float(row[column] or 0) / 1e3, _operator(row, way)
            if row["model"] != model and work is not None and time_s > 0:
                gpu = _device(row["device"], devices)
                source = "neusight-model"
                examples.append(Example(source=source, work=work, gpu=gpu, time_s=time_s))
    chosen = []
    for group in groups_of(examples):
        names = np.array([example.gpu.name for example in group.examples])
        for gpu_name in group.gpus():
            some = _at_most(np.flatnonzero(names == gpu_name), PER_GPU, rng)
            chosen += [_example(group.examples[i]) for i in some]
    return fit_layers(chosen)


def layer_cases(data: Path) -> Iterator[Case]:
    folder = data / "neusight"
    devices, models = _neusight_devices(folder), cache(lambda name: fit_without(data, name))
    graphs: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in _rows(folder / "op_latency.csv.gz"):
        if row["mode"] == "train":
            graphs.setdefault((row["device"], row["model"], row["batch"]), []).append(row)
    whole = [
        row
        for row in _rows(folder / "model_latency.csv")
        if row["mode"] == "train" and not row["parallel"]
    ]
    for one in whole:
        for other in whole:
            keys = [(r["device"], r["model"], r["batch"]) for r in (one, other)]
            if keys[0][:2] != keys[1][:2] or keys[0] == keys[1] or not set(keys) <= set(graphs):
                continue
            gpu, num = _device(one["device"], devices), int(float(one["num_layer"]))
            works = [works_of(graphs[key], num) for key in keys]
            times = [layers_s(models(one["model"]), each, gpu) for each in works]
            b0, b1 = int(one["batch"]), int(other["batch"])
            t0, t1 = float(one["e2e_ms"]) / 1e3, float(other["e2e_ms"]) / 1e3
            slope = math.log(times[1] / times[0]) / math.log2(b1 / b0)
            slope = min(max(slope, 0.0), math.log(2))  # as ``batch_curve`` bounds it
            curve = BatchCurve(
                batch=float(b0), signature="", log_growth=tuple(slope * x for x in DOUBLINGS)
            )
            # leaf modules: as many as the works are passes of, forward and backward
            base = measured(gpu, b0, t0, sum(works[0].values()) // 2)
            found = case("layers", f"{one['device']} {one['model']}", (b0, t0), (b1, t1))
            yield found | {"scaledl": told(base, b1, curve), "two parts": told(base, b1).mean}


def scores(cases: list[Case]) -> list[dict[str, object]]:
    """A line for each group and distance: mean relative error by method, and how intervals held."""
    lines: list[dict[str, object]] = []
    kinds = sorted(
        {(str(c["group"]), round(abs(math.log2(float(str(c["ratio"])))))) for c in cases}
    )
    for group, doublings in kinds:
        here = [
            c
            for c in cases
            if c["group"] == group and round(abs(math.log2(float(str(c["ratio"]))))) == doublings
        ]
        spans = [(c["scaledl"], float(str(c["truth_s"]))) for c in here]
        pairs = [(span, truth) for span, truth in spans if isinstance(span, Interval)]
        line: dict[str, object] = {"group": group, "doublings": doublings, "n": len(here)}
        line["scaledl"] = statistics.mean(abs(s.mean / t - 1) for s, t in pairs)
        for method in ("two parts", "proportional", "hold"):
            known = [c for c in here if method in c]
            line[method] = (
                statistics.mean(
                    abs(float(str(c[method])) / float(str(c["truth_s"])) - 1) for c in known
                )
                if known
                else None
            )
        line["coverage"] = statistics.mean(t in s for s, t in pairs)
        line["width"] = statistics.mean(s.high / s.low for s, _ in pairs)
        lines.append(line)
    return lines


def bars_of(lines: list[dict[str, object]]) -> list[Bar]:
    bars = []
    for group in sorted({str(line["group"]) for line in lines}):
        here = [line for line in lines if line["group"] == group]

        def mean(name: str, rows: list[dict[str, object]] = here) -> float:
            total = sum(int(str(r["n"])) for r in rows)
            return sum(float(str(r[name])) * int(str(r["n"])) for r in rows) / total

        rival = min(mean("proportional"), mean("hold"))
        bars.append(below(f"{group}: error over the better baseline's", mean("scaledl") / rival, 1))
        bars.append(below(f"{group}: share of intervals that missed", 1 - mean("coverage"), 0.15))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    about = machine()
    lines = scores([*step_cases(args.data), *layer_cases(args.data)])
    columns = ("group", "doublings", "n", "scaledl", "two parts", "proportional", "hold")
    print(table(lines, (*columns, "coverage", "width")))
    finish("batch_accuracy", lines, bars_of(lines), about, as_json=args.json)


if __name__ == "__main__":
    main()
