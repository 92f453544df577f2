"""What `scaledl.track` costs: wall time of the same training with and without it.

    python benchmarks/overhead.py --json            (all models and modes, about 20 minutes)
    python benchmarks/overhead.py --quick

For each model and mode three jobs are started: one under `track` with its default settings, two
plain ones. Each is one continuous training of two epochs, from its first step to its last report;
they take turns of about a second, one at a time, in changing order, so that a drift of the machine
meets all of them. The ratio is tracked to plain time over all turns, leaving the block included;
the two plain jobs against each other (A/A) show what the machine's noise alone does. Entering the
block is reported apart, since a run pays it once. The waits for the other jobs look like pauses
between steps to the tracked one, which makes it do a little more work, never less.
The ratio of processor time (`cpu_ratio`, all threads) is less noisy, but blind to waiting.
"""

import argparse
import contextlib
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from common import Bar, below, bootstrap, finish, machine, table

LIMIT_RATIO = 1.01
MODELS = ("mlp", "resnet", "bert")
MODES = ("single", "ddp2")
ARMS = ("tracked", "plain", "again")
ORDERS = tuple(itertools.permutations(ARMS))
NUM_EPOCHS = 2
WARM_STEPS = 30
TURN_S = 1.0

Turn = dict[str, tuple[float, float]]  # arm -> (wall seconds, processor seconds)


# --- the worker: one rank of one job ------------------------------------------------------------


class Baton:
    """A rank's two pipes: it tells what its last turn took and waits for its next one."""

    def __init__(self, folder: str, rank: int) -> None:
        """Open both pipes; the parent opens its ends in the same order."""
        self.orders: TextIO = Path(folder, f"{rank}.orders").open()  # noqa: SIM115 -- for life
        self.replies: TextIO = Path(folder, f"{rank}.replies").open("w")  # noqa: SIM115
        self.wall_s = self.cpu_s = 0.0

    def take(self) -> list[str]:
        """Wait for an order and start the watch."""
        words = self.orders.readline().split()
        self.wall_s, self.cpu_s = time.perf_counter(), time.process_time()
        return words

    def give(self) -> None:
        """Tell what went by since the order."""
        wall_s, cpu_s = time.perf_counter() - self.wall_s, time.process_time() - self.cpu_s
        self.replies.write(f"{wall_s} {cpu_s}\n")
        self.replies.flush()


def work(args: argparse.Namespace) -> None:
    """Train one rank of one job, turn by turn."""
    import torch
    from overhead_models import WORKLOADS, Repeated, train_step
    from torch.utils.data import DataLoader

    import scaledl

    distributed = args.mode == "ddp2"
    torch.set_num_threads(1 if distributed else 2)
    torch.manual_seed(0)
    if distributed:
        torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank() if distributed else 0
    baton = Baton(args.folder, rank)
    workload = WORKLOADS[args.model]
    model = workload.make_model()
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = workload.make_inputs(256)

    def train(num_steps: int, num_epochs: int, turn: int) -> None:
        data = Repeated(inputs, num_steps * workload.batch_size)
        loader = DataLoader(data, batch_size=workload.batch_size, shuffle=True)
        done = 0
        for _ in range(num_epochs):
            for batch, labels in loader:
                if done and done % turn == 0:
                    baton.give()
                    baton.take()
                train_step(model, optimizer, batch, labels)
                done += 1

    baton.take()
    train(WARM_STEPS, 1, WARM_STEPS)
    baton.give()
    turn, num_steps = (int(word) for word in baton.take())
    tracked = args.arm == "tracked"
    block = scaledl.track(model, epochs=NUM_EPOCHS) if tracked else contextlib.nullcontext()
    with block:
        baton.give()  # what entering cost
        baton.take()
        train(num_steps, NUM_EPOCHS, turn)
    baton.give()
    baton.take()  # nobody leaves before all are done
    if distributed:
        torch.distributed.destroy_process_group()


# --- the parent: starts jobs, hands turns round, computes ratios ---------------------------------


class Job:
    """One training under the parent's baton."""

    def __init__(self, model: str, mode: str, arm: str, root: Path) -> None:
        """Start it; its output goes to a file."""
        self.name = f"{model} {mode} {arm}"
        folder = root / arm
        folder.mkdir()
        self.num_ranks = 2 if mode == "ddp2" else 1
        for rank in range(self.num_ranks):
            os.mkfifo(folder / f"{rank}.orders")
            os.mkfifo(folder / f"{rank}.replies")
        launcher = [sys.executable]
        if mode == "ddp2":
            launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        options = ["--worker", "--model", model, "--mode", mode, "--arm", arm]
        threads = "1" if mode == "ddp2" else "2"
        env = {**os.environ, "OMP_NUM_THREADS": threads, "SCALEDL_HOME": str(folder)}
        self.log = folder / "log.txt"
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                [*launcher, __file__, *options, "--folder", str(folder)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
            )
        self.orders = [(folder / f"{r}.orders").open("w") for r in range(self.num_ranks)]
        self.replies = [(folder / f"{r}.replies").open() for r in range(self.num_ranks)]

    def turn(self, order: str = "go") -> tuple[float, float]:
        """Let every rank run to its next reply; the slowest wall and the summed processor time.

        Raises:
            RuntimeError: the job ended early; the message holds its last lines.
        """
        self.say(order)
        told = [reply.readline().split() for reply in self.replies]
        if not all(told):
            raise RuntimeError(f"{self.name} failed:\n{self.log.read_text()[-3000:]}")
        return max(float(t[0]) for t in told), sum(float(t[1]) for t in told)

    def say(self, order: str) -> None:
        """Send an order without waiting."""
        for pipe in self.orders:
            pipe.write(order + "\n")
            pipe.flush()


def run(model: str, mode: str, seconds: float) -> dict[str, Any]:
    """All turns of one model and mode."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {arm: Job(model, mode, arm, Path(folder)) for arm in ARMS}
        try:
            warm_s = [job.turn()[0] for job in jobs.values()]
            return measure(jobs, *plan(min(warm_s) / WARM_STEPS, seconds))
        finally:
            for job in jobs.values():
                job.process.kill()
                job.process.wait()


def measure(jobs: dict[str, Job], turn: int, per_epoch: int) -> dict[str, Any]:
    """Hand the turns round until all jobs are through."""
    start_s = {arm: job.turn(f"{turn} {per_epoch}")[0] for arm, job in jobs.items()}
    num_turns = NUM_EPOCHS * per_epoch // turn
    turns: list[Turn] = []
    for index in range(num_turns):
        order = ORDERS[index % len(ORDERS)]
        turns.append({arm: jobs[arm].turn() for arm in order})
    for job in jobs.values():
        job.say("end")
        job.process.wait(60)
    return {"turns": turns, "steps": turn * num_turns, "start_s": start_s["tracked"]}


def plan(step_s: float, seconds: float) -> tuple[int, int]:
    """Steps of one turn, and of one epoch: 1,000 steps or ``seconds`` in all, at least a third."""
    arm_s = min(seconds, max(1000 * step_s, seconds / 3))
    turn = max(1, round(min(TURN_S, arm_s / 8) / step_s))
    per_epoch = math.ceil(arm_s / step_s / NUM_EPOCHS / turn) * turn
    return turn, per_epoch


def ratio(turns: Sequence[Turn], index: int = 0) -> float:
    """Tracked over the mean of the two plain jobs; ``index`` 0: wall time, 1: processor time."""
    plain = sum(t["plain"][index] + t["again"][index] for t in turns) / 2
    return sum(t["tracked"][index] for t in turns) / plain


def noise(turns: Sequence[Turn]) -> float:
    """One plain job over the other: 1 but for noise."""
    return sum(t["again"][0] for t in turns) / sum(t["plain"][0] for t in turns)


def score(model: str, mode: str, found: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    turns: list[Turn] = found["turns"]
    low, high = bootstrap(turns, ratio)
    cpu_low, cpu_high = bootstrap(turns, lambda drawn: ratio(drawn, 1))
    noise_low, noise_high = bootstrap(turns, noise)
    plain_s = sum(t["plain"][0] for t in turns)
    return {
        "model": model,
        "mode": mode,
        "turns": len(turns),
        "steps": found["steps"],
        "plain_s": plain_s,
        "step_ms": plain_s / found["steps"] * 1e3,
        "ratio": ratio(turns),
        "low": low,
        "high": high,
        "cpu_ratio": ratio(turns, 1),
        "cpu_low": cpu_low,
        "cpu_high": cpu_high,
        "noise_ratio": noise(turns),
        "noise_low": noise_low,
        "noise_high": noise_high,
        "start_ms": found["start_s"] * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, in each job")
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean nothing")
    parser.add_argument("--json", action="store_true")
    for name in ("--model", "--mode", "--arm", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    about = machine()
    print(f"overhead on {about['cpu']}, calibration loop {about['calibration_ms']} ms")
    rows: list[dict[str, Any]] = []
    for model, mode in itertools.product(args.models, args.modes):
        rows.append(score(model, mode, run(model, mode, 3.0 if args.quick else args.seconds)))
        print(f"{model} {mode}: ratio {rows[-1]['ratio']:.4f}", flush=True)
    print(table(rows, list(rows[0])))
    bars: list[Bar] = [
        below(f"upper end of the ratio, {row['model']} {row['mode']}", row["high"], LIMIT_RATIO)
        for row in rows
    ]
    finish("overhead", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
