"""What `scaledl.track` costs: wall time of the same training with and without it.

    python benchmarks/overhead.py --json            (all models and modes, about 12 minutes)
    python benchmarks/overhead.py --quick
    python benchmarks/overhead.py --device cuda --models resnet50 gpt2 --modes single --compile

One warm process (or two ranks) trains one model. Under `track` with its default settings runs one
continuous training of two epochs, sampled steps, estimates and both reports included. It takes
turns of some 0.4 s with two plain loops over the same model and optimizer, in changing order; for
their turns the sensors are taken off. So a drift of the machine meets all three, and nothing but
scaledl differs: two processes that do exactly the same differ by up to 5 % for as long as they
live, which is why all is done in one. The ratio is tracked to plain time over all turns, leaving
the block included; one plain loop against the other (A/A) shows what the machine's noise alone
does. Entering the block is reported apart, since a run pays it once. The other loops' turns look
like pauses to the tracked one, which makes it do a little more work, never less.
The ratio of processor time (`cpu_ratio`, all threads) is blind to waiting.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import Bar, below, bootstrap, finish, machine, table

LIMIT_RATIO = 1.01
MODELS = ("mlp", "resnet", "bert")
GPU_MODELS = ("resnet50", "gpt2", "bert_base", "vit", "t5")
MODES = ("single", "ddp2")
ARMS = ("tracked", "plain", "again")
ORDERS = tuple(itertools.permutations(ARMS))
NUM_EPOCHS = 2
WARM_STEPS = 30
TURN_S = 0.4

Turn = dict[str, list[float]]  # arm -> [wall seconds, processor seconds, steps]


# --- the worker: one process, or one rank of two --------------------------------------------------


class Trainer:
    """One model with its optimizer; runs given numbers of steps in one arm or another."""

    def __init__(
        self, name: str, *, distributed: bool, device: str = "cpu", compiled: bool = False
    ) -> None:
        """Build the model; join the process group if there is one."""
        import gpu_models
        import overhead_models
        import torch

        torch.set_num_threads(1 if distributed else 2)
        torch.manual_seed(0)
        if distributed:
            torch.distributed.init_process_group("gloo")
        self.distributed = distributed
        self.rank = torch.distributed.get_rank() if distributed else 0
        self.device = device
        self.workload = (gpu_models.WORKLOADS | overhead_models.WORKLOADS)[name]
        model = self.workload.make_model().to(device)
        if compiled:
            model.compile()
        self.model = torch.nn.parallel.DistributedDataParallel(model) if distributed else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.inputs = self.workload.make_inputs(256)

    def batches(self, num_steps: int, num_epochs: int) -> Iterator[Any]:
        """Batches of so many epochs from one loader."""
        from overhead_models import Repeated
        from torch.utils.data import DataLoader

        size = self.workload.batch_size
        data = Repeated(self.inputs, num_steps * size)
        loader = DataLoader(data, batch_size=size, shuffle=True)
        for _ in range(num_epochs):
            yield from loader

    def largest(self, value: float) -> float:
        """The largest value over the ranks, so that all do the same."""
        import torch

        if not self.distributed:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return float(shared.item())

    def run(self, batches: Iterator[Any], num_steps: int) -> list[float]:
        """Train; wall and processor seconds it took, and the steps."""
        import torch
        from overhead_models import train_step

        on_gpu = self.device == "cuda"
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        with torch.autocast(self.device, torch.bfloat16, enabled=on_gpu):
            for inputs, labels in itertools.islice(batches, num_steps):
                there = inputs.to(self.device), labels.to(self.device)
                train_step(self.model, self.optimizer, *there)
        if on_gpu:
            torch.cuda.synchronize()  # of the benchmark: a turn ends when its work is done
        return [time.perf_counter() - wall_s, time.process_time() - cpu_s, float(num_steps)]


class Sensors:
    """Takes the sensors of an open block off and puts them back; reaches into its inside."""

    def __init__(self, run: Any) -> None:
        """Find the sensors that sit on the model and on torch."""
        self._capture = run._core.capture
        self._parts = (self._capture._root, self._capture._optimizers)

    @property
    def is_sampling(self) -> bool:
        """Whether the running step is a sampled one, with hooks on the layers."""
        return bool(self._capture.clock.sampled)

    def off(self) -> None:
        """The model and torch are as without `track`."""
        for part in self._parts:
            part.stop()

    def on(self) -> None:
        """Go on where `off` was called."""
        for part in self._parts:
            part.start()


def work(args: argparse.Namespace) -> None:
    """All turns of one model and mode; rank 0 writes them to ``args.out``."""
    import scaledl

    trainer = Trainer(
        args.model,
        distributed=args.mode == "ddp2",
        device=args.device,
        compiled=args.compile,
    )
    trainer.run(trainer.batches(WARM_STEPS, 1), WARM_STEPS)
    warm_s = trainer.largest(trainer.run(trainer.batches(WARM_STEPS, 1), WARM_STEPS)[0])
    turn, per_epoch = plan(warm_s / WARM_STEPS, args.seconds)
    num_turns = NUM_EPOCHS * per_epoch // turn
    # Opened before the block: no sensor is on them.
    plain = {arm: trainer.batches(turn * num_turns, 1) for arm in ARMS[1:]}
    for arm in plain:
        trainer.run(plain[arm], 1)
    entered_s = time.perf_counter()
    block = scaledl.track(trainer.model, epochs=NUM_EPOCHS)
    run = block.__enter__()
    start_s = time.perf_counter() - entered_s
    sensors, tracked = Sensors(run), trainer.batches(per_epoch, NUM_EPOCHS)
    turns: list[Turn] = []
    for index in range(num_turns - 1):
        took: Turn = {"tracked": [0.0, 0.0, 0.0]}
        for arm in ORDERS[index % len(ORDERS)]:
            trainer.largest(0.0)  # the ranks begin a turn together
            if arm == "tracked":
                took[arm] = add(took[arm], trainer.run(tracked, turn))
                continue
            while trainer.largest(float(sensors.is_sampling)):  # its hooks sit on the layers
                took["tracked"] = add(took["tracked"], trainer.run(tracked, 1))
            sensors.off()
            took[arm] = trainer.run(plain[arm], turn)
            sensors.on()
        turns.append(took)
    left_s, left_cpu_s = time.perf_counter(), time.process_time()
    block.__exit__(None, None, None)
    turns[-1]["tracked"][0] += time.perf_counter() - left_s
    turns[-1]["tracked"][1] += time.process_time() - left_cpu_s
    if trainer.rank == 0:
        found = {"turns": turns, "steps": turn * len(turns), "start_s": start_s}
        Path(args.out).write_text(json.dumps(found))
    if trainer.distributed:
        import torch

        torch.distributed.destroy_process_group()


def add(one: list[float], other: list[float]) -> list[float]:
    """Times and steps of two pieces of a turn."""
    return [a + b for a, b in zip(one, other, strict=True)]


def plan(step_s: float, seconds: float) -> tuple[int, int]:
    """Steps of one turn, and of one epoch, for ``seconds`` in all."""
    turn = max(1, round(min(TURN_S, seconds / 8) / step_s))
    per_epoch = math.ceil(seconds / step_s / NUM_EPOCHS / turn) * turn
    return turn, per_epoch


# --- the parent: starts workers, computes ratios --------------------------------------------------


def run_worker(model: str, mode: str, seconds: float, more: Sequence[str] = ()) -> dict[str, Any]:
    """What one worker measured.

    Raises:
        RuntimeError: the worker failed; the message ends with its last lines.
    """
    threads = "1" if mode == "ddp2" else "2"
    launcher = [sys.executable]
    if mode == "ddp2":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "turns.json"), Path(folder, "log.txt")
        options = ["--model", model, "--mode", mode, "--out", str(out), "--seconds", str(seconds)]
        options += more
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


def per_step(turns: Sequence[Turn], arm: str, index: int = 0) -> float:
    """Seconds a step in one arm; ``index`` 0: wall time, 1: processor time."""
    return sum(t[arm][index] for t in turns) / sum(t[arm][2] for t in turns)


def ratio(turns: Sequence[Turn], index: int = 0) -> float:
    """Tracked over the mean of the two plain loops."""
    plain = per_step(turns, "plain", index) + per_step(turns, "again", index)
    return 2 * per_step(turns, "tracked", index) / plain


def noise(turns: Sequence[Turn]) -> float:
    """One plain loop over the other: 1 but for noise."""
    return per_step(turns, "again") / per_step(turns, "plain")


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
    parser.add_argument("--models", nargs="+", choices=MODELS + GPU_MODELS, default=MODELS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: in bf16")
    parser.add_argument("--compile", action="store_true", help="under torch.compile")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seconds", type=float, default=40.0, help="in each arm")
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean nothing")
    parser.add_argument("--json", action="store_true")
    for name in ("--model", "--mode", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    about = machine()
    print(f"overhead on {about['cpu']}, calibration loop {about['calibration_ms']} ms")
    rows: list[dict[str, Any]] = []
    seconds = 4.0 if args.quick else args.seconds
    more = ["--device", args.device, *(["--compile"] if args.compile else [])]
    for model, mode in itertools.product(args.models, args.modes):
        rows.append(score(model, mode, run_worker(model, mode, seconds, more)))
        print(f"{model} {mode}: ratio {rows[-1]['ratio']:.4f}", flush=True)
    print(table(rows, list(rows[0])))
    bars: list[Bar] = [
        below(f"upper end of the ratio, {row['model']} {row['mode']}", row["high"], LIMIT_RATIO)
        for row in rows
    ]
    finish("overhead", rows, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
