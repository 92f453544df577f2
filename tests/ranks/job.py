"""One rank of a real gloo job: runs every scenario and writes what it saw as JSON.

    RANK=0 WORLD_SIZE=2 python job.py FOLDER [SCENARIO...]

All scenarios share one job, because starting processes is what takes the time.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from training import digest, hook_tables

import scaledl

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH, STEPS = 4, 30
COLLECTIVES = ("barrier", "all_reduce", "broadcast", "all_gather", "all_gather_object", "gather")

Seen = dict[str, Any]


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 3))


def make_loader(num_batches: int, *, split: bool = True) -> "DataLoader[Any]":
    made = torch.Generator().manual_seed(5)
    size = num_batches * BATCH * (WORLD if split else 1)
    data = TensorDataset(torch.randn(size, 12, generator=made), torch.arange(size) % 3)
    sampler = DistributedSampler(data, WORLD, RANK, shuffle=False) if split else None
    return DataLoader(data, BATCH, sampler=sampler)


@contextlib.contextmanager
def watched(model: nn.Module, seen: Seen, folder: Path, **options: Any) -> Iterator[Any]:
    """``track`` with its words and its run caught in ``seen``."""
    said, own = io.StringIO(), sys.stderr
    sys.stderr = said
    try:
        with scaledl.track(model, run_dir=folder / "runs", **options) as run:
            yield run
    finally:
        sys.stderr = own
    seen.update(said=said.getvalue(), run_id=run.run_id, off=run.status()["off"])


def fit(
    model: nn.Module,
    loader: Any,
    epochs: int = 1,
    *,
    accumulate: int = 1,
    slow_s: float = 0.0,
) -> list[str]:
    """A plain loop; the losses, exact to the last bit."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(epochs):
        for index, (x, y) in enumerate(loader):
            time.sleep(slow_s)
            last = (index + 1) % accumulate == 0
            quiet = contextlib.nullcontext() if last else model.no_sync()
            with quiet:
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
            losses.append(loss.item().hex())
            if last:
                optimizer.step()
                optimizer.zero_grad()
    return losses


def result_of(model: nn.Module, losses: list[str]) -> list[str]:
    return [*losses, digest(model.state_dict()), digest(torch.get_rng_state())]


# --- scenarios ------------------------------------------------------------------------------------


def ddp(folder: Path, seen: Seen) -> None:
    model = Ddp(make_model())
    before = repr(hook_tables(model))
    with watched(model, seen, folder, epochs=2) as run:
        fit(model, make_loader(STEPS), 2)
        seen["rows"] = [(row.num_gpus, row.basis) for row in run.what_if([1, 2, 4]).rows]
    seen["hooks_equal"] = repr(hook_tables(model)) == before
    seen["grad_bytes"] = sum(p.numel() * 4 for p in model.parameters())


def equal(folder: Path, seen: Seen) -> None:
    for name, accumulate in (("plain", 1), ("no_sync", 3)):
        bare = Ddp(make_model())
        seen[f"{name}_without"] = result_of(
            bare, fit(bare, make_loader(STEPS), accumulate=accumulate)
        )
        model = Ddp(make_model())
        with watched(model, seen, folder):
            losses = fit(model, make_loader(STEPS), accumulate=accumulate)
        seen[f"{name}_with"] = result_of(model, losses)
        seen[f"{name}_keys"] = list(bare.state_dict()) == list(model.state_dict())


def no_collective(folder: Path, seen: Seen) -> None:
    counts = dict.fromkeys(COLLECTIVES, 0)

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(dist, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return original(*args, **kwargs)

        return count

    model = Ddp(make_model())
    originals = {name: getattr(dist, name) for name in COLLECTIVES}
    for name in COLLECTIVES:
        setattr(dist, name, counted(name))
    try:
        with watched(model, seen, folder, epochs=1):
            fit(model, make_loader(STEPS))
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    seen["counts"] = counts


def slow_rank(folder: Path, seen: Seen) -> None:
    model = Ddp(make_model())
    # Several epochs, so that rank 0 finds the other's record of one of them.
    with watched(model, seen, folder, epochs=4):
        fit(model, make_loader(12), 4, slow_s=0.05 if RANK == 1 else 0.0)


def uneven(folder: Path, seen: Seen) -> None:
    num_batches = 20 if RANK == 0 else 26
    for name in ("without", "with"):
        model = Ddp(make_model())
        context: Any = watched(model, seen, folder) if name == "with" else contextlib.nullcontext()
        with context, model.join():
            losses = fit(model, make_loader(num_batches, split=False))
        seen[name] = result_of(model, losses)


def same_data(folder: Path, seen: Seen) -> None:
    model = Ddp(make_model())
    with watched(model, seen, folder, epochs=2):
        fit(model, make_loader(STEPS, split=False), 2, slow_s=0.03)


def fsdp(folder: Path, seen: Seen) -> None:
    def sharded() -> nn.Module:
        model = make_model()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model)

    bare = sharded()
    seen["without"] = fit(bare, make_loader(STEPS))
    model = sharded()
    with watched(model, seen, folder):
        seen["with"] = fit(model, make_loader(STEPS))


def slow_stop(folder: Path, seen: Seen) -> None:
    from scaledl.capture import windows
    from scaledl.capture.profile import ProfileSession

    kept, most_s = ProfileSession.stop, windows.STOP_MOST_S
    seen["stops"] = 0

    def stop(self: ProfileSession) -> Any:
        seen["stops"] += 1
        time.sleep(0.4 if RANK == 1 else 0.0)
        return kept(self)

    ProfileSession.stop = stop  # type: ignore[method-assign]
    windows.STOP_MOST_S = 0.3
    try:
        model = Ddp(make_model())
        with watched(model, seen, folder):
            fit(model, make_loader(100))
    finally:
        ProfileSession.stop = kept  # type: ignore[method-assign]
        windows.STOP_MOST_S = most_s


def energy(folder: Path, seen: Seen) -> None:
    from scaledl.capture.sampler import Sampler

    kept = Sampler.energy_j
    Sampler.energy_j = property(lambda self: 100.0 * (RANK + 1))  # type: ignore[assignment]
    try:
        model = Ddp(make_model())
        with watched(model, seen, folder, epochs=4):
            fit(model, make_loader(12), 4, slow_s=0.02)
    finally:
        Sampler.energy_j = kept  # type: ignore[method-assign]


def quiet(folder: Path, seen: Seen) -> None:
    model = Ddp(make_model())
    with watched(model, seen, folder, epochs=1):
        fit(model, make_loader(12))


SCENARIOS = {
    f.__name__: f
    for f in (
        ddp,
        equal,
        no_collective,
        slow_rank,
        uneven,
        same_data,
        fsdp,
        slow_stop,
        energy,
        quiet,
    )
}


def main() -> None:
    folder = Path(sys.argv[1])
    store = dist.FileStore(str(folder / "meeting"), WORLD)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    for name in sys.argv[2:]:
        seen: Seen = {}
        SCENARIOS[name](folder / name, seen)
        (folder / f"{name}.{RANK}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
