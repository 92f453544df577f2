"""Step times of five transformers predicted before they ran, as in the ScaleDL paper's table.

    python benchmarks/paper_table.py --json                       (about half an hour on one core)
    python benchmarks/paper_table.py --data more.jsonl --seeds 1

Measured on one machine by `scaledl collect`: T5, GPT-2, BERT, ViT and DeiT with random weights, up
to 300 configurations each (batch, length, width, depth). A fifth of what is not for testing trains,
chosen by D-optimal design. `same`: all families train, and 40 other configurations of each are
predicted. `unseen`: one family is left out whole, and its 40 are predicted. The network's settings
are the first that were tried; `--tune` shows others on a training family that is left out, and
never looks at a test configuration.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from common import Bar, below, finish, machine, table
from numpy.typing import NDArray
from paper_baselines import BASELINES, Set
from paper_data import Data, Fitted, Split, examples, fit, load, splits

from scaledl.collecting.records import Configuration
from scaledl.predictor.training import new_network, predict_s, train

FloatArray = NDArray[np.float64]
Predict = Callable[[Set, Set, int], FloatArray]

DATA = (Path(__file__).parent / "data" / "transformers-cpu.jsonl.xz",)
TRAINED_FRACTION = 0.2
NETWORKS: dict[str, dict[str, Any]] = {
    "scaledl": {},
    "no graph": {"graph": "none"},
    "no global encoder": {"with_context": False},
    "TransformerConv": {"graph": "transformer_conv"},
}
STEPS, LEARNING_RATE = 600, 3e-3
PAPER_SAME, PAPER_UNSEEN = 0.0939, 0.1188


def network(options: dict[str, Any], *, steps: int, learning_rate: float) -> Predict:
    """A graph network as a predictor."""

    def predict(training: Set, test: Set, seed: int) -> FloatArray:
        model = new_network(seed, **options)
        train(model, training[1], steps=steps, seed=seed, learning_rate=learning_rate)
        return predict_s(model, test[1])

    return predict


def silent(predict: Predict) -> Predict:
    """The same without a communication model: what the network is told of it is 0."""

    def without(examples: Set) -> Set:
        return examples[0], [msgspec.structs.replace(e, comm_s=0.0) for e in examples[1]]

    return lambda training, test, seed: predict(without(training), without(test), seed)


def mre(predicted_s: FloatArray, true_s: FloatArray) -> float:
    """Mean relative error."""
    return float(np.mean(np.abs(predicted_s / true_s - 1)))


def rmse(predicted_s: FloatArray, true_s: FloatArray) -> float:
    """Root of the mean squared error, in seconds."""
    return float(np.sqrt(np.mean((predicted_s - true_s) ** 2)))


class Bench:
    """The measured data, and what was fitted on one training set or another."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.splits = splits(data)
        self.families = sorted({family for family, _ in self.splits})
        self._fitted: dict[tuple[Configuration, ...], Fitted] = {}

    def of(self, family: str) -> list[Split]:
        """The family's splits, one for each number of processes."""
        return [split for (name, _), split in self.splits.items() if name == family]

    def training(self, families: Sequence[str], kind: str, seed: int) -> tuple[Configuration, ...]:
        """``design`` or ``random``: a fifth of the rest; ``all``: the whole rest."""
        chosen: list[Configuration] = []
        for split in (s for family in families for s in self.of(family)):
            count = round(TRAINED_FRACTION * len(split.rest))
            if kind == "design":
                chosen += split.by_design(count)
            elif kind == "random":
                chosen += split.at_random(count, seed)
            else:
                chosen += split.rest
        return tuple(chosen)

    def sets(
        self, training: tuple[Configuration, ...], test: tuple[Configuration, ...]
    ) -> tuple[Set, Set]:
        """Examples of both, their layer times from a model fitted on the training ones."""
        if training not in self._fitted:
            self._fitted[training] = fit(self.data, training)
        fitted = self._fitted[training]
        return (
            (training, examples(self.data, fitted, training)),
            (test, examples(self.data, fitted, test)),
        )

    def tested(self, family: str) -> tuple[Configuration, ...]:
        """All test configurations of a family."""
        return tuple(c for split in self.of(family) for c in split.test)


def score(bench: Bench, name: str, predict: Predict, kind: str, seeds: int) -> list[dict[str, Any]]:
    """One method: a row for each split and family, means over the seeds."""
    every = bench.families
    tasks = [("same", every, every)]
    tasks += [("unseen", [f for f in every if f != left_out], [left_out]) for left_out in every]
    found: list[dict[str, Any]] = []
    for split, known, asked in tasks:
        tested = [bench.tested(family) for family in asked]
        ends = np.cumsum([len(test) for test in tested])[:-1]
        off: list[list[float]] = []
        roots: list[list[float]] = []
        for seed in range(seeds):
            sets = bench.sets(bench.training(known, kind, seed), tuple(itertools.chain(*tested)))
            true_s = np.split(np.array([e.step_s for e in sets[1][1]]), ends)
            predicted_s = np.split(predict(*sets, seed), ends)
            off.append([mre(*pair) for pair in zip(predicted_s, true_s, strict=True)])
            roots.append([rmse(*pair) for pair in zip(predicted_s, true_s, strict=True)])
        for index, family in enumerate(asked):
            found.append(
                {
                    "method": name,
                    "split": split,
                    "family": family,
                    "num_test": len(tested[index]),
                    "mre": float(np.mean([row[index] for row in off])),
                    "mre_sd": float(np.std([row[index] for row in off])),
                    "rmse_ms": float(np.mean([row[index] for row in roots])) * 1e3,
                }
            )
    return found


def methods(seeds: int) -> list[tuple[str, Predict, str, int]]:
    """Name, predictor, how its training set is chosen, seeds."""
    ours = network({}, steps=STEPS, learning_rate=LEARNING_RATE)
    rows: list[tuple[str, Predict, str, int]] = [
        (name, network(options, steps=STEPS, learning_rate=LEARNING_RATE), "design", seeds)
        for name, options in NETWORKS.items()
    ]
    rows.append(("no communication model", silent(ours), "design", seeds))
    rows += [("random selection", ours, "random", seeds), ("random, 5 times", ours, "all", seeds)]
    for name, predict in BASELINES.items():
        fixed = name in ("plain sum", "fitted scalars")
        rows.append((name, predict, "design", 1 if fixed else seeds))
    return rows


def overall(rows: Sequence[dict[str, Any]], method: str, split: str, what: str = "mre") -> float:
    """Mean over the families."""
    return float(np.mean([r[what] for r in rows if r["method"] == method and r["split"] == split]))


def bars(rows: Sequence[dict[str, Any]], floor: float) -> list[Bar]:
    """What has to hold."""

    def of(method: str, split: str) -> float:
        return overall(rows, method, split)

    others = ("random forest", "MLP a layer, summed", "BiRNN")
    best = min(of(name, "unseen") for name in others)
    spread = max(r["mre_sd"] for r in rows if r["method"] in ("scaledl", "no graph"))
    baselines = [m for m in BASELINES if m != "scaledl"]
    worse = [
        (r["family"], r["split"])
        for r in rows
        if r["method"] == "scaledl"
        and any(
            o["rmse_ms"] < r["rmse_ms"]
            for o in rows
            if o["method"] in baselines and (o["family"], o["split"]) == (r["family"], r["split"])
        )
    ]
    gain = of("random selection", "same") / of("scaledl", "same")
    more = of("random, 5 times", "same") / of("scaledl", "same")
    return [
        below("MRE, same", of("scaledl", "same"), max(0.05, 1.5 * floor)),
        below("MRE, unseen", of("scaledl", "unseen"), max(0.08, 2 * floor)),
        below("families and splits with a baseline of lower RMSE", len(worse), 0),
        below("1 / gain of D-optimal over random, or over 5 times as many",
              min(1.4 / gain, 1.0 / more), 1.0),
        below("MRE against no graph, unseen, beyond the spread",
              of("scaledl", "unseen") + spread, of("no graph", "unseen")),
        below("MRE against the forest's, unseen",
              of("scaledl", "unseen") / of("random forest", "unseen"), 1 / 6),
        below("MRE against the best of forest, MLP and BiRNN, unseen",
              of("scaledl", "unseen") / best, 1 / 2.5),
    ]  # fmt: skip


def tune(bench: Bench) -> None:
    """Errors on a training family that was left out, for some settings; no test one is used."""
    for steps in (300, 600, 1200):
        for rate in (3e-3, 1e-2):
            off = []
            for family in bench.families:
                known = [f for f in bench.families if f != family]
                validation = bench.training([family], "design", 0)
                sets = bench.sets(bench.training(known, "design", 0), validation)
                predicted_s = network({}, steps=steps, learning_rate=rate)(*sets, 0)
                off.append(mre(predicted_s, np.array([e.step_s for e in sets[1][1]])))
            print(f"steps {steps} learning rate {rate}: {np.mean(off):.4f} {np.round(off, 3)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", type=Path, default=DATA, help="of `scaledl collect`")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", action="store_true", help="print what settings were chosen by")
    parser.add_argument("--methods", nargs="+", help="only these rows, and no bars")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    bench = Bench(load(args.data))
    data = bench.data
    print(
        f"{len(data.measured)} configurations; two measurements of one differ by "
        f"{100 * data.floor:.1f} % on average ({data.num_repeats} repeated)"
    )
    if args.tune:
        tune(bench)
        return
    rows: list[dict[str, Any]] = []
    for name, predict, kind, seeds in methods(args.seeds):
        if args.methods and name not in args.methods:
            continue
        rows += score(bench, name, predict, kind, seeds)
        print(
            f"{name}: same {100 * overall(rows, name, 'same'):.1f} %, "
            f"unseen {100 * overall(rows, name, 'unseen'):.1f} %",
            flush=True,
        )
    print(table(rows, list(rows[0])))
    found = [] if args.methods else bars(rows, data.floor)
    finish("paper_table", rows, found, about, as_json=args.json)


if __name__ == "__main__":
    main()
