"""Layer model on public timings: whole GPUs and whole ranges of sizes left out.

    python benchmarks/layer_accuracy.py --data DIR [--json]

``DIR`` holds neusight, layer_times_justus and deepbench, or some of them. In each set, type and
direction one GPU is left out at a time (nothing of it was measured), and one quarter of the sizes,
ordered by their roofline time (on all GPUs). Rows that do better than which it must: the plain
roofline; the roofline times the factor that fits the training data; the median training time of
the type; the model's own features in a random forest (the paper's phi), on log time.

The model's few settings (five terms, q, the firmness of its priors) were chosen on the GPUs and
sizes of these sets that are public, so their scores are a little flattered; GPUs that were not
looked at are the clean test. ``neusight-model`` holds single operators inside traced models.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import Bar, below, finish, machine, table
from layer_data import Example, read_examples
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from scaledl.predictor.layer_fit import LayerExample, fit_layers
from scaledl.predictor.layer_work import features, roofline_s
from scaledl.predictor.layers import key

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
TRAIN_PER_GPU, TEST_AT_MOST, NUM_RANGES, NUM_TREES = 800, 4000, 4, 50
METHODS = ("scaledl", "roofline", "scaled roofline", "constant", "forest")


@dataclass(frozen=True, kw_only=True)
class Group:
    """All examples of one set, type and direction; forward ones too where backward needs them."""

    name: str
    examples: list[Example]
    forwards: list[Example]

    def gpus(self) -> list[str]:
        return sorted({example.gpu.name for example in self.examples})


@dataclass(frozen=True, kw_only=True)
class Split:
    """What is left out. Indices into the group's examples."""

    what: str
    value: str
    train: IntArray
    test: IntArray


def groups_of(examples: list[Example]) -> list[Group]:
    found: dict[tuple[str, str], list[Example]] = {}
    for example in examples:
        work = example.work
        found.setdefault((example.source, key(work.kind, work.direction)), []).append(example)
    groups = []
    for (source, name), members in sorted(found.items()):
        needed = any(example.with_forward for example in members)
        forwards = found.get((source, name.replace("backward", "forward")), []) if needed else []
        groups.append(Group(name=f"{source} {name}", examples=members, forwards=forwards))
    return groups


def sizes_s(examples: Sequence[Example]) -> FloatArray:
    """Roofline time of all that an example's time includes. Shape: [n]."""
    return np.array(
        [
            roofline_s(e.work, e.gpu) + (roofline_s(e.with_forward, e.gpu) if e.with_forward else 0)
            for e in examples
        ]
    )


def splits_of(group: Group, rng: np.random.Generator) -> Iterator[Split]:
    names = np.array([example.gpu.name for example in group.examples])
    ranks = np.argsort(np.argsort(sizes_s(group.examples))) * NUM_RANGES // len(names)
    left_out = [("gpu", gpu, names == gpu) for gpu in group.gpus()] if len(set(names)) > 1 else []
    left_out += [("size", str(i), ranks == i) for i in range(NUM_RANGES)]
    for what, value, is_test in left_out:
        kept = np.flatnonzero(~is_test)
        train = [_at_most(kept[names[kept] == gpu], TRAIN_PER_GPU, rng) for gpu in group.gpus()]
        test = _at_most(np.flatnonzero(is_test), TEST_AT_MOST, rng)
        yield Split(what=what, value=value, train=np.concatenate(train), test=test)


def _at_most(indices: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    return indices if len(indices) <= count else rng.choice(indices, count, replace=False)


def _example(example: Example) -> LayerExample:
    return LayerExample(
        work=example.work,
        gpu=example.gpu,
        time_s=example.time_s,
        with_forward=example.with_forward,
    )


def ours_s(group: Group, split: Split, rng: np.random.Generator) -> FloatArray:
    """Forecasts for the test examples; of forward examples only those of kept GPUs are used."""
    train = [group.examples[i] for i in split.train]
    test = [group.examples[i] for i in split.test]
    kept = [e for e in group.forwards if split.what != "gpu" or e.gpu.name != split.value]
    if split.what == "size" and kept:  # the left-out range is left out of the forward passes too
        sizes = sizes_s(kept)
        ranks = np.argsort(np.argsort(sizes)) * NUM_RANGES // len(sizes)
        kept = [e for e, rank in zip(kept, ranks, strict=True) if rank != int(split.value)]
    some = _at_most(np.arange(len(kept)), TRAIN_PER_GPU * 4, rng)
    model = fit_layers([_example(e) for e in [*(kept[i] for i in some), *train]])
    seconds = model.predict_s([e.work for e in test], [e.gpu for e in test])
    for i, example in enumerate(test):
        if example.with_forward is not None:
            seconds[i] += model.predict_s([example.with_forward], [example.gpu])[0]
    return seconds


def forecasts(group: Group, split: Split, rng: np.random.Generator) -> dict[str, FloatArray]:
    train = [group.examples[i] for i in split.train]
    test = [group.examples[i] for i in split.test]
    log_s = np.log([example.time_s for example in train])
    sizes = sizes_s(test)
    factor = float(np.exp(np.median(log_s - np.log(sizes_s(train)))))
    forest = RandomForestRegressor(NUM_TREES, random_state=0)
    forest.fit(features([e.work for e in train], [e.gpu for e in train]), log_s)
    columns = features([e.work for e in test], [e.gpu for e in test])
    return {
        "scaledl": ours_s(group, split, rng),
        "roofline": sizes,
        "scaled roofline": factor * sizes,
        "constant": np.full(len(test), np.exp(np.median(log_s))),
        "forest": np.asarray(np.exp(forest.predict(columns))),
    }


def score(group: Group, split: Split, rng: np.random.Generator) -> list[dict[str, object]]:
    truth = np.array([group.examples[i].time_s for i in split.test])
    rows: list[dict[str, object]] = []
    for method, seconds in forecasts(group, split, rng).items():
        errors = np.abs(seconds / truth - 1)
        rows.append(
            {
                "group": group.name,
                "left_out": split.what,
                "value": split.value,
                "method": method,
                "n": len(truth),
                "mre": float(errors.mean()),
                "median_error": float(np.median(errors)),
                "p90_error": float(np.quantile(errors, 0.9)),
                "rmse_ms": float(np.sqrt(np.mean((seconds - truth) ** 2)) * 1e3),
            }
        )
    return rows


def _mean(rows: Sequence[dict[str, object]]) -> float | None:
    values = [float(str(row["mre"])) for row in rows]
    return statistics.mean(values) if values else None


def summary(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Mean MRE over what was left out, a line for each group and kind of split."""
    lines: list[dict[str, object]] = []
    names = sorted({(str(row["left_out"]), str(row["group"])) for row in rows})
    for what, group in names:
        here = [row for row in rows if row["left_out"] == what and row["group"] == group]
        line: dict[str, object] = {"left out": what, "group": group}
        line["cases"] = len({row["value"] for row in here})
        for method in METHODS:
            line[method] = _mean([row for row in here if row["method"] == method])
        lines.append(line)
    return lines


def bars_of(lines: Sequence[dict[str, object]]) -> list[Bar]:
    """A third below the roofline and the forest: over all groups, and group by group."""
    bars = []
    for what in ("gpu", "size"):
        here = [line for line in lines if line["left out"] == what]
        for rival in ("roofline", "forest"):
            parts = [(float(str(line["scaledl"])), float(str(line[rival]))) for line in here]
            if not parts:
                continue
            ratio = sum(ours for ours, _ in parts) / sum(theirs for _, theirs in parts)
            bars.append(below(f"{what} left out: mean MRE over {rival}'s", ratio, 2 / 3))
            won = sum(ours <= 2 / 3 * theirs for ours, theirs in parts) / len(parts)
            name = f"{what} left out: groups not a third below {rival}"
            bars.append(below(name, 1 - won, 0.0))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the sets")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--each", action="store_true", help="one line a left-out GPU or range")
    args = parser.parse_args()
    about, rng = machine(), np.random.default_rng(0)
    rows = [
        row
        for group in groups_of(read_examples(args.data))
        for split in splits_of(group, rng)
        for row in score(group, split, rng)
    ]
    if args.each:
        print(table(rows, ("group", "left_out", "value", "method", "n", "mre", "median_error")))
    lines = summary(rows)
    print(table(lines, ("left out", "group", "cases", *METHODS)))
    finish("layer_accuracy", rows, bars_of(lines), about, as_json=args.json)


if __name__ == "__main__":
    main()
