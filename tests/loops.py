"""Training loops in virtual time: real loaders, modules, optimizers; a clock only we move."""

import math
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from scaledl.capture.border import Border
from scaledl.capture.clock import StepClock
from scaledl.capture.loaders import LoaderSensor, TrackedIterable
from scaledl.capture.optimizers import OptimizerSensor
from scaledl.capture.root import RootSensor
from scaledl.records import EpochRecord, PhaseRecord, StepRecord

FETCH_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.5, 2.0, 4.0, 1.0
STEP_S = FETCH_S + FORWARD_S + BACKWARD_S + OPTIMIZER_S


class VirtualTime:
    """A clock that stands still until somebody spends time."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


class Book:
    """A sink that keeps everything the clock delivers."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.phases: list[PhaseRecord] = []
        self.epochs: list[EpochRecord] = []
        self.guesses: list[tuple[str, str]] = []

    def on_step(self, step: StepRecord) -> None:
        self.steps.append(step)

    def on_phase(self, phase: PhaseRecord) -> None:
        self.phases.append(phase)

    def on_epoch(self, epoch: EpochRecord) -> None:
        self.epochs.append(epoch)

    def on_guess(self, key: str, text: str) -> None:
        self.guesses.append((key, text))

    @property
    def steps_by_epoch(self) -> list[int]:
        return [epoch.num_steps for epoch in self.epochs]

    @property
    def batches_by_epoch(self) -> list[int]:
        return [epoch.num_batches for epoch in self.epochs]

    @property
    def accounted_s(self) -> float:
        return sum(s.wall_s for s in self.steps) + sum(p.duration_s for p in self.phases)


class Watched(Book):
    """All sensors around one model, on one clock, as ``Capture`` wires them.

    With ``holds`` the clock hears of most events late, in one go.
    """

    holds = False

    def __init__(self, model: nn.Module, time: VirtualTime, **options: Any) -> None:
        super().__init__()
        self.time = time
        self._clock = StepClock(self, time(), **options)
        self.border = Border(self._clock, _raise)
        if self.holds:
            self.border.hold(math.inf, 2**30)
        self._root = RootSensor(model, self.border, time, _raise)
        self._optimizers = OptimizerSensor(model, self.border.on_optimizer, time, _raise)
        self._optimizers.model_ran = lambda: self.clock.model_ran
        self._loaders = LoaderSensor(self.border, time)

    @property
    def clock(self) -> StepClock:
        """The clock, brought up to now."""
        self.border.call(lambda: None)
        return self._clock

    def __enter__(self) -> Self:
        self._root.start()
        self._optimizers.start()
        self._loaders.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.clock.stop(self.time())
        self._loaders.stop()
        self._optimizers.stop()
        self._root.stop()

    def loader(self, iterable: Any) -> TrackedIterable:
        return TrackedIterable(iterable, self.border, self.time)


def _raise(error: Exception) -> None:
    raise error


class _Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, time: VirtualTime, forward_s: float, backward_s: float):
        ctx.time, ctx.backward_s = time, backward_s
        time.spend(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor):
        ctx.time.spend(ctx.backward_s)
        return grad, None, None, None


class SlowNet(nn.Module):
    """A linear layer whose forward and backward take a known time."""

    def __init__(self, time: VirtualTime, width: int = 3, num_layers: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(num_layers)))
        self.time = time

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Spend.apply(self.layers(x), self.time, FORWARD_S, BACKWARD_S)


def slow(optimizer: Any, time: VirtualTime, seconds: float = OPTIMIZER_S) -> Any:
    """``optimizer`` whose every step takes a known time."""
    optimizer.register_step_post_hook(lambda *args: time.spend(seconds))
    return optimizer


def sgd(model: nn.Module, time: VirtualTime, **options: Any) -> torch.optim.SGD:
    return slow(torch.optim.SGD(model.parameters(), lr=0.01, **options), time)


class Points(Dataset[torch.Tensor]):
    def __init__(self, num: int, width: int = 3) -> None:
        self.num, self.width = num, width

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.width,), float(index + 1))


class Stream(IterableDataset[torch.Tensor]):
    """``says`` items and yields ``gives``; says nothing where ``None``. Every worker gives all."""

    def __init__(self, gives: int, says: int | None = None, width: int = 3) -> None:
        self.gives, self.says, self.width = gives, says, width

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.gives):
            yield torch.full((self.width,), float(index + 1))

    def __len__(self) -> int:
        if self.says is None:
            raise TypeError("this stream has no length")
        return self.says


class Collate:
    """Stacks and spends the time of a fetch; without a clock it can travel to workers."""

    def __init__(self, time: VirtualTime | None) -> None:
        self.time = time

    def __call__(self, items: list[torch.Tensor]) -> torch.Tensor:
        if self.time is not None:
            self.time.spend(FETCH_S)
        return torch.stack(items)


def batches(num: int, time: VirtualTime | None, **options: Any) -> "DataLoader[torch.Tensor]":
    """A loader of ``num`` batches of two."""
    return DataLoader(Points(2 * num), batch_size=2, collate_fn=Collate(time), **options)


def train_step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


def evaluate(model: nn.Module, loader: Any) -> None:
    model.eval()
    with torch.no_grad():
        for x in loader:
            model(x)
    model.train()
