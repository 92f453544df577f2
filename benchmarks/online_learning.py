"""The graph network learning beside a run: a recorded stream of windows, told before learned.

    python benchmarks/online_learning.py [--file benchmarks/data/online_windows.json.gz] [--json]

Six small models that trained in turn on a CPU (``online_recording.py``), ten windows each; half way
through the fourth another process began to compute on the same core. Each window is told, then
learned. Rows: ``scaledl`` (the learner as it runs beside a training), ``no learning`` (the shipped
network at the pace of the first window), ``full refit`` (a network fitted anew on all windows so
far before each one, which no training could afford), ``untrained`` (the learner from a network that
answers 1), and ``last`` (the model's last window; of a new model the sum of its layers at that
pace), which knows no other batch and no other model.

``late`` is the error from a model's sixth window on, the disturbed ones aside.
"""

import argparse
import gzip
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from common import below, finish, machine, table
from online_recording import Recording

from scaledl.predictor.examples import Example, example_of
from scaledl.predictor.gnn import GraphNetwork
from scaledl.predictor.online import OnlineLearner
from scaledl.predictor.shipped import shipped_network
from scaledl.predictor.training import new_network, predict_s, train
from scaledl.records import ClusterSpec, GpuSpec, LinkSpec, ParallelPlan

FILE = Path(__file__).parent / "data" / "online_windows.json.gz"
LATE = 5
REFIT_STEPS, REFIT_RATE = 300, 1e-2
LINK = LinkSpec(kind="loopback", latency_s=5e-5, bytes_per_s=1e9)
HOST = ClusterSpec(gpu=GpuSpec(name="cpu"), num_gpus=1, gpus_per_node=1, intra=LINK, inter=LINK)


def stream(recordings: list[Recording]) -> list[tuple[Recording, int, Example]]:
    """Every window in turn: the recording, which of its windows, the example."""
    return [
        (
            one,
            index,
            example_of(
                one.graph,
                HOST,
                ParallelPlan(batch_per_gpu=one.batch),
                model=one.model,
                step_s=step_s,
            ),
        )
        for one in recordings
        for index, step_s in enumerate(one.window_s)
    ]


def paced(example: Example, pace: float) -> Example:
    return msgspec.structs.replace(
        example, layer_s=tuple((pace * np.array(example.layer_s)).tolist())
    )


def learned(examples: list[Example], network: GraphNetwork | None) -> Iterator[float | None]:
    """What the learner tells of each window; the seconds of each update are kept on the side."""
    learner = OnlineLearner(network)
    for example in examples:
        begin_s = time.process_time()
        lesson = learner.learn(example)
        UPDATES_S.append(time.process_time() - begin_s)
        yield lesson.told_s
    LEARNERS.append(learner)


UPDATES_S: list[float] = []
LEARNERS: list[OnlineLearner] = []


def unlearned(examples: list[Example]) -> Iterator[float | None]:
    """The shipped network at the pace of the first window."""
    network = shipped_network() or new_network(0)
    pace = examples[0].step_s / examples[0].sum_s
    yield None
    for example in examples[1:]:
        yield float(predict_s(network, [paced(example, pace)])[0])


def refitted(examples: list[Example]) -> Iterator[float | None]:
    """A network fitted anew on all windows before each one; equal windows once, at their newest."""
    pace = examples[0].step_s / examples[0].sum_s
    yield None
    for at in range(1, len(examples)):
        network = shipped_network() or new_network(0)
        seen = [paced(e, pace) for e in examples[:at]]
        train(network, seen, steps=REFIT_STEPS, seed=0, learning_rate=REFIT_RATE)
        yield float(predict_s(network, [paced(examples[at], pace)])[0])


def held(examples: list[Example]) -> Iterator[float | None]:
    """The model's last window."""
    pace, last = examples[0].step_s / examples[0].sum_s, {}
    for at, example in enumerate(examples):
        yield last.get(example.model, pace * example.sum_s if at else None)
        last[example.model] = example.step_s


def forgotten(recordings: list[Recording], examples: list[Example]) -> tuple[float, float]:
    """Mean error on the first model's windows once it was learned, and after all the others.

    A learner of its own sees only the first model; the other one has seen them all.
    """
    first = examples[: len(recordings[0].window_s)]
    alone = OnlineLearner(shipped_network())
    for example in first:
        alone.learn(example)

    def error(learner: OnlineLearner) -> float:
        told_s = learner.predict_s(first[-1]) or 0.0
        return statistics.fmean(abs(told_s / e.step_s - 1) for e in first)

    return error(alone), error(LEARNERS[0])


def scores(
    name: str, told: list[float | None], windows: list[tuple[Recording, int, Example]]
) -> dict[str, Any]:
    """Mean errors of one way, over all windows that anything was told of."""
    errors, first, late = [], [], []
    for told_s, (one, index, example) in zip(told, windows, strict=True):
        if told_s is None:
            continue
        error = abs(told_s / example.step_s - 1)
        errors.append(error)
        if index == 0:
            first.append(error)
        if index >= LATE and one.changes_at is None:
            late.append(error)
    return {
        "method": name,
        "windows": len(errors),
        "all": statistics.fmean(errors),
        "new_model": statistics.fmean(first),
        "late": statistics.fmean(late),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    recordings = msgspec.json.decode(gzip.decompress(args.file.read_bytes()), type=list[Recording])
    windows = stream(recordings)
    examples = [example for _, _, example in windows]
    ways = {
        "scaledl": learned(examples, shipped_network()),
        "untrained": learned(examples, new_network(0)),
        "no learning": unlearned(examples),
        "full refit": refitted(examples),
        "last": held(examples),
    }
    rows = [scores(name, list(told), windows) for name, told in ways.items()]
    print(table(rows, ("method", "windows", "all", "new_model", "late")))
    by_name = {row["method"]: row for row in rows}
    updates_s = UPDATES_S[: len(examples)]
    before, after = forgotten(recordings, examples)
    print(
        f"an update takes {statistics.median(updates_s):.2f} s of a core, at most "
        f"{max(updates_s):.2f} s; the first model is {before:.1%} off once it was learned, "
        f"{after:.1%} after five others"
    )
    ours = by_name["scaledl"]
    bars = [
        below("late error over the full refit's",
              ours["late"] / by_name["full refit"]["late"], 1.1),
        below("error over no learning's", ours["all"] / by_name["no learning"]["all"], 1.0),
        below("first model's error after five others, over before", after / before, 1.2),
        below("longest update, seconds of a core", max(updates_s), 1.0),
    ]  # fmt: skip
    finish("online_learning", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
