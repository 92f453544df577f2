"""Trains the graph network that the package ships, on the committed set of measured transformers.

    python benchmarks/network_weights.py [--out predictor/weights/network.msgpack] [--json]

A configuration is seen as a running job is: layer times by the shipped layer model, which knows no
CPU, times the pace of the machine, the median over the other families. The table leaves out one
family after the other: ``pace`` is that alone, ``network`` with what the network learned from the
other four. The shipped file is then trained on all of them.
"""

import argparse
import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from common import below, finish, machine, table
from paper_data import Data, load

from scaledl.predictor.arrays import weights_of
from scaledl.predictor.examples import Example, example_of
from scaledl.predictor.gnn import GraphNetwork
from scaledl.predictor.shipped import Provenance, ShippedNetwork
from scaledl.predictor.training import new_network, predict_s, train
from scaledl.records import ClusterSpec, GpuSpec, LinkSpec, ParallelPlan

DATA = Path(__file__).parent / "data" / "transformers-cpu.jsonl.xz"
STEPS, LEARNING_RATE = 600, 3e-3
"""Those of paper_table.py."""
HOST = GpuSpec(name="cpu")
LOOPBACK = LinkSpec(kind="loopback", latency_s=5e-5, bytes_per_s=1e9)


def examples_of(data: Data) -> list[Example]:
    """Every measured configuration, as a running job would be an example."""
    return [
        example_of(
            one.graph,
            ClusterSpec(gpu=HOST, num_gpus=1, gpus_per_node=1, intra=LOOPBACK, inter=LOOPBACK),
            ParallelPlan(batch_per_gpu=c.batch),
            model=c.family,
            step_s=data.step_s(c),
        )
        for c, one in data.measured.items()
        if c.processes == 1
    ]


def pace_of(examples: list[Example]) -> float:
    """What the device takes over what the layer model says."""
    return float(np.median([e.step_s / e.sum_s for e in examples]))


def paced(examples: list[Example], pace: float) -> list[Example]:
    """The examples with their layer times at that pace."""
    return [
        msgspec.structs.replace(e, layer_s=tuple((pace * np.array(e.layer_s)).tolist()))
        for e in examples
    ]


def trained(examples: list[Example]) -> GraphNetwork:
    """A network that learned from them."""
    network = new_network(0)
    train(network, examples, steps=STEPS, seed=0, learning_rate=LEARNING_RATE)
    return network


def left_out(examples: list[Example]) -> list[dict[str, Any]]:
    """Each family told by the four others."""
    rows = []
    for family in sorted({e.model for e in examples}):
        known = [e for e in examples if e.model != family]
        pace = pace_of(known)
        asked = paced([e for e in examples if e.model == family], pace)
        truth_s = np.array([e.step_s for e in asked])
        network = trained(paced(known, pace))
        plain_s = np.array([e.sum_s for e in asked])
        rows.append(
            {
                "family": family,
                "num_test": len(asked),
                "pace": float(np.mean(np.abs(plain_s / truth_s - 1))),
                "network": float(np.mean(np.abs(predict_s(network, asked) / truth_s - 1))),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("predictor/weights/network.msgpack"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    examples = examples_of(load([DATA]))
    rows = left_out(examples)
    network = trained(paced(examples, pace_of(examples)))
    provenance = Provenance(
        sources=("this package's own measurements: benchmarks/data/transformers-cpu.jsonl.xz",),
        command="python benchmarks/network_weights.py",
        date=datetime.date.today().isoformat(),
        num_timings=len(examples),
    )
    shipped = ShippedNetwork(provenance=provenance, weights=weights_of(network))
    args.out.write_bytes(msgspec.msgpack.encode(shipped))
    print(table(rows, ("family", "num_test", "pace", "network")))
    gain = float(np.mean([r["network"] for r in rows]) / np.mean([r["pace"] for r in rows]))
    bars = [
        below("error of the network over that of the pace alone", gain, 1.0),
        below("size, bytes", args.out.stat().st_size, 2e5),
    ]
    finish("network_weights", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
