"""What `scaledl.track` costs: wall time of the same training with and without it.

    python benchmarks/overhead.py --json            (all models and modes, about 13 minutes)
    python benchmarks/overhead.py --quick

For each model and mode one warm process trains in short segments, three to a block: one under
`track` with its default settings, from its first step to its last report, and two plain ones. The
order within a block goes through all six permutations. The ratio is tracked to plain time over all
blocks; the two plain arms against each other (A/A) show what the machine's noise alone does.
Entering the block is reported apart, since a long run pays it once; leaving it is in the ratio.
The ratio of processor time (`cpu_ratio`) is less noisy, but blind to waiting.
"""

import argparse
import contextlib
import gc
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import Bar, below, bootstrap, finish, machine, table

LIMIT_RATIO = 1.01
MODELS = ("mlp", "resnet", "bert")
MODES = ("single", "ddp2")
ORDERS = tuple(itertools.permutations(("tracked", "plain", "again")))
EPOCHS_PER_SEGMENT = 2
WARM_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Times of one segment; ``total_s`` is the loop and leaving the block, not entering it."""

    arm: str
    start_s: float
    loop_s: float
    stop_s: float
    cpu_s: float

    @property
    def total_s(self) -> float:
        """What a run pays in each of its segments."""
        return self.loop_s + self.stop_s


Block = dict[str, Segment]


# --- the worker: one warm process (or rank) ----------------------------------------------------


class Trainer:
    """One model with its optimizer, in this process or as one rank of a DDP job."""

    def __init__(self, name: str, *, distributed: bool) -> None:
        """Build the model; join the process group if there is one."""
        import torch
        from overhead_models import WORKLOADS

        torch.set_num_threads(1 if distributed else 2)
        torch.manual_seed(0)
        if distributed:
            torch.distributed.init_process_group("gloo")
        self.distributed = distributed
        self.rank = torch.distributed.get_rank() if distributed else 0
        self.workload = WORKLOADS[name]
        model = self.workload.make_model()
        self.model = torch.nn.parallel.DistributedDataParallel(model) if distributed else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.inputs = self.workload.make_inputs(256)

    def loader(self, num_steps: int) -> Any:
        """A loader of one epoch of ``num_steps``."""
        from overhead_models import Repeated
        from torch.utils.data import DataLoader

        batch = self.workload.batch_size
        return DataLoader(Repeated(self.inputs, num_steps * batch), batch_size=batch, shuffle=True)

    def agree(self, value: int) -> int:
        """Rank 0's value on every rank; also lets all ranks start a segment together."""
        import torch

        if not self.distributed:
            return value
        shared = torch.tensor([value])
        torch.distributed.broadcast(shared, 0)
        return int(shared.item())

    def segment(self, arm: str, loader: Any) -> Segment:
        """Train two epochs; the loop is the same in every arm."""
        from overhead_models import train_step

        import scaledl

        gc.collect()
        self.agree(0)
        entered = time.perf_counter()
        tracked = arm == "tracked"
        block = (
            scaledl.track(self.model, epochs=EPOCHS_PER_SEGMENT)
            if tracked
            else contextlib.nullcontext()
        )
        with block:
            first, cpu_first = time.perf_counter(), time.process_time()
            for _ in range(EPOCHS_PER_SEGMENT):
                for inputs, labels in loader:
                    train_step(self.model, self.optimizer, inputs, labels)
            last = time.perf_counter()
        left, cpu_left = time.perf_counter(), time.process_time()
        return Segment(
            arm=arm,
            start_s=first - entered,
            loop_s=last - first,
            stop_s=left - last,
            cpu_s=cpu_left - cpu_first,
        )


def num_steps_per_epoch(step_s: float, seconds: float, num_blocks: int) -> int:
    """Steps in one epoch, so that an arm has 1,000 steps or ``seconds``, whichever is less.

    A third of ``seconds`` is the least: short steps are cheap, and more of them say more.
    """
    arm_s = min(seconds, max(1000 * step_s, seconds / 3))
    return max(10, math.ceil(arm_s / step_s / num_blocks / EPOCHS_PER_SEGMENT))


def work(args: argparse.Namespace) -> None:
    """Run all segments of one model and mode; rank 0 writes them to ``args.out``."""
    trainer = Trainer(args.models[0], distributed=args.modes[0] == "ddp2")
    warm = trainer.loader(WARM_STEPS)
    trainer.segment("plain", warm)
    first_tracked = trainer.segment("tracked", warm)  # imports, first window: the one-off cost
    step_s = trainer.segment("plain", warm).loop_s / WARM_STEPS / EPOCHS_PER_SEGMENT
    num_steps = trainer.agree(num_steps_per_epoch(step_s, args.seconds, args.pairs))
    loader = trainer.loader(num_steps)
    blocks = [
        [asdict(trainer.segment(arm, loader)) for arm in ORDERS[index % len(ORDERS)]]
        for index in range(args.pairs)
    ]
    if trainer.rank == 0:
        found = {
            "first_start_s": first_tracked.start_s,
            "steps_per_segment": num_steps * EPOCHS_PER_SEGMENT,
            "blocks": blocks,
        }
        Path(args.out).write_text(json.dumps(found))
    if trainer.distributed:
        import torch

        torch.distributed.destroy_process_group()


# --- the parent: starts workers, computes ratios -----------------------------------------------


def run_worker(model: str, mode: str, args: argparse.Namespace) -> dict[str, Any]:
    """What one worker measured.

    Raises:
        RuntimeError: the worker failed; the message ends with its last lines.
    """
    threads = "1" if mode == "ddp2" else "2"
    launcher = [sys.executable]
    if mode == "ddp2":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "segments.json"), Path(folder, "log.txt")
        options = ["--models", model, "--modes", mode, "--out", str(out)]
        options += ["--seconds", str(args.seconds), "--pairs", str(args.pairs)]
        env = {**os.environ, "OMP_NUM_THREADS": threads, "SCALEDL_HOME": folder}
        with log.open("w") as stream:
            status = subprocess.run(
                [*launcher, __file__, "--worker", *options],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
            ).returncode
        if status != 0:
            raise RuntimeError(f"{model} {mode} failed:\n{log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def tracked_ratio(blocks: Sequence[Block]) -> float:
    """Tracked time over the mean of the two plain arms."""
    plain_s = sum(b["plain"].total_s + b["again"].total_s for b in blocks) / 2
    return sum(b["tracked"].total_s for b in blocks) / plain_s


def loop_ratio(blocks: Sequence[Block]) -> float:
    """The same without leaving the block."""
    plain_s = sum(b["plain"].loop_s + b["again"].loop_s for b in blocks) / 2
    return sum(b["tracked"].loop_s for b in blocks) / plain_s


def cpu_ratio(blocks: Sequence[Block]) -> float:
    """The same of processor time, over all threads of the process."""
    plain_s = sum(b["plain"].cpu_s + b["again"].cpu_s for b in blocks) / 2
    return sum(b["tracked"].cpu_s for b in blocks) / plain_s


def noise_ratio(blocks: Sequence[Block]) -> float:
    """One plain arm over the other: 1 but for noise."""
    return sum(b["again"].total_s for b in blocks) / sum(b["plain"].total_s for b in blocks)


def score(model: str, mode: str, found: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    blocks: list[Block] = [{s["arm"]: Segment(**s) for s in block} for block in found["blocks"]]
    low, high = bootstrap(blocks, tracked_ratio)
    noise_low, noise_high = bootstrap(blocks, noise_ratio)
    num_steps = found["steps_per_segment"] * len(blocks)
    plain_s = sum(b["plain"].loop_s for b in blocks)
    return {
        "model": model,
        "mode": mode,
        "pairs": len(blocks),
        "steps": num_steps,
        "plain_s": plain_s,
        "step_ms": plain_s / num_steps * 1e3,
        "ratio": tracked_ratio(blocks),
        "low": low,
        "high": high,
        "loop_ratio": loop_ratio(blocks),
        "cpu_ratio": cpu_ratio(blocks),
        "noise_ratio": noise_ratio(blocks),
        "noise_low": noise_low,
        "noise_high": noise_high,
        "first_start_ms": found["first_start_s"] * 1e3,
        "start_ms": statistics.median(b["tracked"].start_s for b in blocks) * 1e3,
        "stop_ms": statistics.median(b["tracked"].stop_s for b in blocks) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, in each arm")
    parser.add_argument("--pairs", type=int, default=12, help="blocks of three segments")
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    if args.quick:
        args.seconds, args.pairs = 1.5, 3

    about = machine()
    print(f"overhead on {about['cpu']}, calibration loop {about['calibration_ms']} ms")
    rows: list[dict[str, Any]] = []
    for model, mode in itertools.product(args.models, args.modes):
        rows.append(score(model, mode, run_worker(model, mode, args)))
        print(f"{model} {mode}: ratio {rows[-1]['ratio']:.4f}", flush=True)
    print(table(rows, list(rows[0])))
    bars: list[Bar] = [
        below(f"upper end of the ratio, {row['model']} {row['mode']}", row["high"], LIMIT_RATIO)
        for row in rows
    ]
    finish("overhead", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
