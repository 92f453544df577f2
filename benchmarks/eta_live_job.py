"""One live training for ``eta_live.py``: a process of its own, told by a line of JSON what to do.

    python benchmarks/eta_live_job.py FOLDER '{"name": "plain", "seconds": 15, ...}'

All of it is real: the compute, the evaluation, the files written, the processes that compete. Only
the stalls of the input are made, by sleeping in the loader. Written to FOLDER: the run, and
``steps.json`` with the times that the training itself saw.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import scaledl

BATCH, WIDTH, TRIED = 64, 512, 12
SHORTEST, LONGEST = 4, 32  # of sequences
BUSY = "while True: pass"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What happens in a training of about ``seconds``. Shares are of its steps."""

    name: str
    seconds: float = 15.0
    epochs: int = 5
    evaluation: float = 0.1  # of an epoch's batches
    saves_an_epoch: int = 0
    stalls_an_epoch: int = 0
    accumulate: int = 1
    compiled: bool = False
    sorted_lengths: bool = False
    slow_from: float | None = None  # other processes compete from here on
    kill_at: float | None = None  # a SIGKILL, and another process goes on


class Samples(Dataset[torch.Tensor]):
    """Random vectors, or sequences whose length falls along the set."""

    def __init__(self, count: int, *, sorted_lengths: bool) -> None:
        self.count, self.sorted_lengths = count, sorted_lengths

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.sorted_lengths:
            return torch.full((WIDTH,), index / self.count)
        length = LONGEST - (LONGEST - SHORTEST) * index // self.count
        return torch.full((length, WIDTH // 4), index / self.count)


class Collate:
    """Pads and stacks; where it is told to, the input stalls for a while."""

    def __init__(self, stall_every: int) -> None:
        self.stall_every, self.num_batches = stall_every, 0

    def __call__(self, items: list[torch.Tensor]) -> torch.Tensor:
        self.num_batches += 1
        if self.stall_every and self.num_batches % self.stall_every == 0:
            time.sleep(0.3)
        return nn.utils.rnn.pad_sequence(items, batch_first=True)


class Recurrent(nn.Module):
    """Its time grows with the length of the sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(WIDTH // 4, WIDTH // 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.cells(x)[0]
        return found


def make_model(case: Case) -> nn.Module:
    if case.sorted_lengths:
        return Recurrent()
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def make_loader(case: Case, num_batches: int, *, stalls: int = 0) -> DataLoader[torch.Tensor]:
    samples = Samples(num_batches * BATCH, sorted_lengths=case.sorted_lengths)
    stall_every = max(num_batches // stalls, 2) if stalls else 0
    return DataLoader(samples, batch_size=BATCH, collate_fn=Collate(stall_every))


def batch_s(case: Case) -> float:
    """What one batch takes here, tried on a model that is thrown away."""
    model = make_model(case)
    optimizer = torch.optim.AdamW(model.parameters())
    took_s = []
    for x in make_loader(case, TRIED):
        start_s = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        took_s.append(time.perf_counter() - start_s)
    found = statistics.mean if case.sorted_lengths else statistics.median
    return float(found(took_s))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[torch.Tensor]) -> None:
    model.eval()
    for x in loader:
        model(x)
    model.train()


class Training:
    """The loop of a case; it goes on from a checkpoint where one lies in the folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.checkpoint = case, folder / "checkpoint.pt"
        self.model = make_model(case)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        saved = torch.load(self.checkpoint) if self.checkpoint.exists() else {}
        groups = round(case.seconds / case.epochs / batch_s(case) / case.accumulate)
        self.steps_an_epoch: int = saved.get("steps_an_epoch", max(groups, 8))
        self.first_epoch: int = saved.get("epoch", 0)
        self.state: dict[str, Any] = saved.get("scaledl", {})
        if saved:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
        self.ends_s: list[float] = []
        self.rivals: list[subprocess.Popen[bytes]] = []

    @property
    def total_steps(self) -> int:
        return self.case.epochs * self.steps_an_epoch

    @property
    def first_step(self) -> int:
        return self.first_epoch * self.steps_an_epoch

    @property
    def may_be_killed(self) -> bool:
        """Whether this is the first process of a case that is killed."""
        return self.case.kill_at is not None and not self.state

    def batches(self, epoch: int, loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The batches of an epoch, with what happens between them."""
        case = self.case
        each = self.steps_an_epoch // case.saves_an_epoch if case.saves_an_epoch else 0
        for index, x in enumerate(loader):
            step = epoch * self.steps_an_epoch + index // case.accumulate
            if each and index and index % each == 0:
                self.save(epoch, {})
            if case.slow_from is not None and step >= case.slow_from * self.total_steps:
                self.compete()
            if self.may_be_killed and step >= (case.kill_at or 0.0) * self.total_steps:
                os.kill(os.getpid(), signal.SIGKILL)
            yield x

    def compete(self) -> None:
        if not self.rivals:
            command = [sys.executable, "-c", BUSY]
            self.rivals = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]

    def save(self, epoch: int, state: dict[str, Any]) -> None:
        """A checkpoint, on the disk before the training goes on."""
        saved = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": epoch,
            "steps_an_epoch": self.steps_an_epoch,
            "scaledl": state,
        }
        with self.checkpoint.open("wb") as file:
            torch.save(saved, file)
            os.fsync(file.fileno())

    def run(self, folder: Path) -> dict[str, Any]:
        case, started_s = self.case, time.time()
        model = torch.compile(self.model) if case.compiled else self.model
        num_batches = self.steps_an_epoch * case.accumulate
        loader = make_loader(case, num_batches, stalls=case.stalls_an_epoch)
        held_out = make_loader(case, max(round(case.evaluation * num_batches), 1))
        tracked = scaledl.track(
            self.model,
            epochs=case.epochs,
            initial_step=self.first_step,
            run_dir=folder / "runs",
            report="none",
        )
        tracked.load_state_dict(self.state)
        with tracked as run:
            for epoch in range(self.first_epoch, case.epochs):
                for index, x in enumerate(self.batches(epoch, loader)):
                    (model(x).square().mean() / case.accumulate).backward()
                    if (index + 1) % case.accumulate == 0:
                        self.optimizer.step()
                        self.optimizer.zero_grad()
                        self.ends_s.append(time.time())
                evaluate(model, held_out)
                if case.kill_at is not None:
                    self.save(epoch + 1, run.state_dict())
            ended_s = time.time()
        return {
            "started_s": started_s,
            "ended_s": ended_s,
            "first_step": self.first_step,
            "total_steps": self.total_steps,
            "step_ends_s": self.ends_s,
        }


def main() -> None:
    folder, case = Path(sys.argv[1]), Case(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = Training(case, folder)
    try:
        seen = training.run(folder)
    finally:
        for rival in training.rivals:
            rival.kill()
            rival.wait()
    (folder / "steps.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
