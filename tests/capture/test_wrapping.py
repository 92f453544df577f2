"""The same model bare and in every wrapper; many layers and repeated recomputation under hooks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training import hook_tables
from zoo import wide_chain

import scaledl
from scaledl.capture.modules import MAX_LAYERS
from scaledl.records import LayerGraph, ProfileWindow
from scaledl.store import read_lines


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.blocks = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(torch.tanh(self.embed(x))))


def sharded(model: nn.Module) -> nn.Module:
    for layer in (*model.blocks, model.head):
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


WRAPPED: dict[str, Callable[[nn.Module], Any]] = {
    "bare": lambda model: model,
    "ddp": DistributedDataParallel,
    "fsdp": sharded,
}
OPAQUE: dict[str, Callable[[nn.Module], Any]] = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled ddp": lambda m: torch.compile(DistributedDataParallel(m), backend="eager"),
    "ddp of compiled": lambda m: DistributedDataParallel(torch.compile(m, backend="eager")),
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sampled(
    model: nn.Module, forward: Any, folder: Path, num_steps: int = 12
) -> tuple[ProfileWindow, LayerGraph | None, str]:
    """The first sampled step of a training of ``model``, its graph, and what was told of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with scaledl.track(model, report="none", run_dir=folder) as run:
        for _ in range(num_steps):
            forward(torch.ones(3, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert run.status()["off"] == {}
    lines = list(read_lines(run.folder))
    graphs = [line for line in lines if isinstance(line, LayerGraph)]
    windows = [line for line in lines if isinstance(line, ProfileWindow) and line.layers]
    return windows[0], graphs[0] if graphs else None, scaledl.open_run(run.folder).info.model


@pytest.mark.usefixtures("group")
def test_D15_layers_have_the_same_names_and_sizes_whatever_stands_around_the_model(
    tmp_path: Path,
) -> None:
    seen = {}
    for how, wrap in WRAPPED.items():
        model = wrap(Net())
        window, graph, name = sampled(model, model, tmp_path / how)
        assert graph is not None
        sizes = {node.fqn: (node.kind, node.params) for node in graph.nodes}
        seen[how] = ([layer.fqn for layer in window.layers], sizes, graph.signature, name)
    assert seen["bare"][0] == ["embed", "blocks.0", "blocks.1", "blocks.2", "head", "Net"]
    assert seen["bare"][3] == "Net"
    assert seen["ddp"] == seen["bare"]
    assert seen["fsdp"] == seen["bare"]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("how", OPAQUE)
def test_D15_a_compiled_model_is_one_layer_of_its_own_name(how: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = OPAQUE[how](Net())
    window, _, name = sampled(model, model, tmp_path)
    assert ([layer.fqn for layer in window.layers], name) == (["Net"], "Net")


@pytest.mark.usefixtures("group")
def test_D15_tracking_the_inner_module_sees_what_tracking_the_wrapper_sees(tmp_path: Path) -> None:
    inner = Net()
    window, _, _ = sampled(inner, DistributedDataParallel(inner), tmp_path)
    names = ["embed", "blocks.0", "blocks.1", "blocks.2", "head", "Net"]
    assert [layer.fqn for layer in window.layers] == names


class Twice(nn.Module):
    """Its block may be checkpointed by two libraries, and is then recomputed twice."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), Square())
        self.head = nn.Linear(6, 2)
        self.depth = depth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        run: Any = self.block
        for _ in range(self.depth):
            run = self._checkpointed(run)
        return self.head(run(self.first(x)))

    @staticmethod
    def _checkpointed(run: Any) -> Any:
        return lambda x: checkpoint(run, x, use_reentrant=True)


class Square(nn.Module):
    """Needs its input in the backward, so that it is computed again there."""

    num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return x * x


@pytest.mark.parametrize("depth", [1, 2])
def test_H13_recomputation_is_part_of_the_backward_however_often_it_is_nested(
    depth: int, tmp_path: Path
) -> None:
    model = Twice(depth)
    window, _, _ = sampled(model, model, tmp_path, 12)
    names = ["first", "block.0", "block.1", "head", "Twice"]
    assert [(layer.fqn, layer.num_calls) for layer in window.layers] == [(n, 1) for n in names]
    assert model.block[1].num_calls == (1 + depth) * 12
    known_s = sum(layer.backward_s for layer in window.layers) + window.outside_backward_s
    assert known_s == pytest.approx(window.backward_s, rel=1e-6)


def test_H21_a_large_model_has_two_hooks_outside_sampled_steps_and_a_bound_inside(
    tmp_path: Path,
) -> None:
    model = wide_chain(MAX_LAYERS + 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = hook_tables(model)
    counts = []

    def added() -> int:
        return sum(len(hooks) - len(before[key]) for key, hooks in hook_tables(model).items())

    with scaledl.track(model, report="none", run_dir=tmp_path):
        for _ in range(20):
            model(torch.ones(1, 2)).sum().backward()
            counts.append(added())
            optimizer.step()
            optimizer.zero_grad()
    quiet = [count for count in counts if count < 10]
    assert len(quiet) >= 18, "one sampled step in twenty"
    assert max(quiet) <= 4
    assert MAX_LAYERS < max(counts) <= 4 * MAX_LAYERS + 4
    assert added() == 0
