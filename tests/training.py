"""Small trainings, bit for bit repeatable, and what a process looks like before and after one."""

import atexit
import gc
import hashlib
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.autograd.profiler as profiler_entries
import torch.nn.modules.module as module_globals
import torch.optim.optimizer as optimizer_globals
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import scaledl

NUM_STEPS = 50
BATCHES = 10
BATCH_SIZE = 8
KINDS = ("plain", "accumulation", "amp", "workers")

Tracked = Callable[[nn.Module], AbstractContextManager[Any]]


def no_tracking(model: nn.Module) -> AbstractContextManager[Any]:
    return nullcontext()


def quietly(**options: Any) -> Tracked:
    """``track`` that prints nothing."""
    return lambda model: scaledl.track(model, **{"report": "none", **options})


def make_model(width: int = 16) -> nn.Module:
    """Everything that random numbers or running statistics could give away."""
    return nn.Sequential(
        nn.Linear(12, width),
        nn.BatchNorm1d(width),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 3),
    )


def make_loader(num_batches: int = BATCHES, **options: Any) -> "DataLoader[Any]":
    made = torch.Generator().manual_seed(5)
    x = torch.randn(num_batches * BATCH_SIZE, 12, generator=made)
    y = torch.randint(3, (num_batches * BATCH_SIZE,), generator=made)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH_SIZE, shuffle=True, **options)


def steps(model: nn.Module, loader: Any, epochs: int = 1) -> None:
    """A plain training loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def seed_all(seed: int = 7) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def digest(value: Any) -> str:
    """A hash of tensors, arrays, dicts, lists and plain values, exact to the last bit."""
    seen = hashlib.sha256()
    _feed(seen, value)
    return seen.hexdigest()[:16]


def _feed(seen: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().clone().contiguous()  # numpy pins the memory it looks at
        seen.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        seen.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        seen.update(value.tobytes())
    elif isinstance(value, dict):
        for key in value:
            seen.update(repr(key).encode())
            _feed(seen, value[key])
    elif isinstance(value, list | tuple):
        seen.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(seen, item)
    else:
        seen.update(repr(value).encode())


def random_state() -> str:
    return digest([torch.get_rng_state(), list(np.random.get_state()), random.getstate()])


@dataclass
class Trace:
    """What a training did, step by step."""

    losses: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    gradients: list[str] = field(default_factory=list)
    random: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    optimizer: list[str] = field(default_factory=list)
    scaler: list[str] = field(default_factory=list)

    def note(self, loss: torch.Tensor, model: nn.Module, optimizer: Any, scaler: Any) -> None:
        self.losses.append(digest(loss))
        self.parameters.append(digest([whole(p) for p in model.parameters()]))
        self.buffers.append(digest(list(model.buffers())))
        self.gradients.append(digest([whole(p.grad) for p in model.parameters()]))
        self.random.append(random_state())
        self.keys.append(digest(list(model.state_dict())))
        self.modes.append(digest([m.training for m in model.modules()]))
        self.optimizer.append(digest([whole(v) for v in _leaves(optimizer.state_dict())]))
        self.scaler.append(digest(scaler.state_dict()) if scaler is not None else "")

    def as_dict(self) -> dict[str, list[str]]:
        return dict(vars(self))


def whole(value: Any) -> Any:
    """The local part of a sharded tensor, anything else as it is."""
    return value.to_local() if hasattr(value, "to_local") else value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield repr(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def train(
    kind: str,
    tracked: Tracked,
    *,
    num_steps: int = NUM_STEPS,
    model: nn.Module | None = None,
    loader: Any = None,
    on_batch: Callable[[int], None] = lambda step: None,
    trace: Trace | None = None,
) -> Trace:
    """One training from a fixed seed: an evaluation after each epoch, a global draw each step."""
    seed_all()
    model = model if model is not None else make_model()
    seed_all()  # so that a model made before is no other start
    workers = {"num_workers": 1} if kind == "workers" else {}
    loader = loader if loader is not None else make_loader(**workers)
    held_out = make_loader(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if kind == "amp" else None
    accumulate = 4 if kind == "accumulation" else 1
    trace = trace if trace is not None else Trace()
    steps = 0
    with tracked(model):
        while steps < num_steps:
            model.train()
            for index, (x, y) in enumerate(loader):
                on_batch(steps)
                random.random()
                np.random.rand()
                with torch.autocast("cpu", torch.bfloat16, enabled=kind == "amp"):
                    loss = nn.functional.cross_entropy(model(x), y) / accumulate
                (scaler.scale(loss) if scaler is not None else loss).backward()
                # ten batches in groups of four: the last group has two
                if (index + 1) % accumulate and index + 1 < len(loader):
                    continue
                if scaler is None:
                    optimizer.step()
                else:
                    if steps == 11:  # not finite: the scaler skips this step
                        next(model.parameters()).grad.fill_(float("inf"))
                    scaler.step(optimizer)
                    scaler.update()
                trace.note(loss, model, optimizer, scaler)
                optimizer.zero_grad()
                steps += 1
                if steps == num_steps:
                    break
            model.eval()
            with torch.no_grad():
                for x, y in held_out:
                    loss = nn.functional.cross_entropy(model(x), y)
            trace.note(loss, model, optimizer, scaler)
    return trace


def hook_tables(*roots: nn.Module) -> dict[str, Any]:
    """Every table of hooks of every module, as (ids, functions)."""
    tables: dict[str, Any] = {}
    for number, root in enumerate(roots):
        for name, module in root.named_modules():
            for key, value in vars(module).items():
                if "hooks" in key and isinstance(value, dict):
                    tables[f"{number}.{name}.{key}"] = [(k, id(v)) for k, v in value.items()]
    return tables


def surroundings(*things: Any) -> dict[str, Any]:
    """What must be as it was once a tracked block is left, whichever way."""
    modules = [thing for thing in things if isinstance(thing, nn.Module)]
    logger = logging.getLogger("scaledl")
    root = logging.getLogger()
    return {
        "hooks": hook_tables(*modules),
        "global module hooks": {
            name: list(value)
            for name, value in vars(module_globals).items()
            if name.startswith("_global_") and isinstance(value, dict)
        },
        "global optimizer hooks": [
            list(optimizer_globals._global_optimizer_pre_hooks),
            list(optimizer_globals._global_optimizer_post_hooks),
        ],
        "attributes": [
            {n: sorted(vars(m)) for n, m in thing.named_modules()}
            if isinstance(thing, nn.Module)
            else sorted(vars(thing))
            for thing in things
        ],
        "own methods": [
            {k: id(v) for k, v in vars(type(thing)).items() if callable(v)} for thing in things
        ],
        "loader": id(DataLoader.__dict__["__iter__"]),
        "profiler": [
            id(getattr(profiler_entries, name, None))
            for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
        ],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "files": open_files(),
        "excepthooks": [sys.excepthook, threading.excepthook, sys.unraisablehook],
        "traces": [sys.gettrace(), sys.getprofile(), list(gc.callbacks), gc.isenabled()],
        "streams": [id(sys.stdout), id(sys.stderr), id(sys.stdin)],
        "logging": [list(root.handlers), root.level, list(logger.handlers), logger.level],
        "warnings": list(warnings.filters),
        "at exit": atexit._ncallbacks(),
        "torch": [
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.backends.cudnn.benchmark,
            torch.cuda.is_initialized(),
            torch._C._autograd._profiler_enabled(),
        ],
        "folder": os.getcwd(),
    }


def open_files() -> list[str]:
    """What each open descriptor of this process points to."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the listing's own, gone by now
            continue
    return sorted(found)


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The entries that are not as they were."""
    return {key: (before[key], after[key]) for key in before if before[key] != after[key]}
