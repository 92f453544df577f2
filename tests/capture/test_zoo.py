"""Every part of the capture at once over the whole zoo: the training stays as it is without it."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zoo
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training import differences, digest, surroundings, whole

import scaledl
from scaledl.records import LayerGraph, ProfileWindow
from scaledl.store import read_lines

NUM_STEPS = 14
HEAVY = {"wide"}  # its cost is tested elsewhere; here it would only take long


class Prepared:
    """As libraries wrap a model: ``forward`` of the object itself replaced, outputs in float32."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(*args, **kwargs).float()


def prepared(model: nn.Module) -> nn.Module:
    model.forward = Prepared(model.forward)  # type: ignore[method-assign]
    return model


def sharded(model: nn.Module) -> nn.Module:
    for child in model.children():
        if next(child.parameters(), None) is not None:
            fully_shard(child)
    return fully_shard(model)


def hybrid(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "shard")))


def meshed(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=init_device_mesh("cpu", (1,)))


def with_own_hooks(model: nn.Module) -> nn.Module:
    for module in model.modules():
        module.register_forward_hook(lambda module, args, out: None)
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "ddp, static graph": lambda m: DistributedDataParallel(m, static_graph=True),
    "ddp, bucket views": lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True),
    "ddp over a mesh": meshed,
    "fsdp1": lambda m: FullyShardedDataParallel(
        m, device_id=torch.device("cpu"), use_orig_params=True
    ),
    "fsdp2": sharded,
    "hsdp": hybrid,
    "prepared": prepared,
    "own hooks": with_own_hooks,
    "compiled": lambda m: torch.compile(m, backend="eager"),
}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(
    case: zoo.Case, folder: Path | None, *, zero: bool = False, accumulate: int = 1
) -> list[str]:
    """Losses and parameters of each step, as hashes; tracked where a folder is given."""
    model = case.model
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = (
        ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.01)
        if zero
        else torch.optim.SGD(parameters, lr=0.01)
    )
    torch.manual_seed(6)
    seen = []
    batch = case.batch()
    with scaledl.track(model, report="none", run_dir=folder) if folder else nullcontext():
        for index in range(NUM_STEPS * accumulate):
            is_last = (index + 1) % accumulate == 0
            with nullcontext() if is_last else model.no_sync():  # type: ignore[operator]
                loss = case.loss(model, batch)
                loss.backward()
            if not is_last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            seen.append(digest([loss, *(whole(p) for p in model.parameters())]))
    return seen


def check(make: Callable[[], zoo.Case], folder: Path, **options: Any) -> None:
    """Bit for bit the training without, nothing left behind, and sums that add up."""
    expected = trained(make(), None, **options)
    case = make()
    trained(case, None, **options)  # what torch and the wrapper add at first use
    case = make()
    before = surroundings(case.model)
    assert trained(case, folder, **options) == expected
    after = surroundings(case.model)
    ours = {key: before[key] for key in ("global module hooks", "global optimizer hooks")}
    assert {key: after[key] for key in ours} == ours
    left = differences(before, after)
    for key in ("loader", "profiler", "threads", "signals", "streams", "torch", "at exit"):
        assert key not in left, left[key]
    (run,) = folder.iterdir()
    lines = list(read_lines(run))
    for window in (line for line in lines if isinstance(line, ProfileWindow) and line.layers):
        assert window.forward_s is not None
        known_s = sum(layer.forward_s for layer in window.layers)
        assert known_s <= window.forward_s * (1 + 1e-6)
    for graph in (line for line in lines if isinstance(line, LayerGraph)):
        names = {node.fqn for node in graph.nodes}
        assert all({edge.source, edge.target} <= names for edge in graph.edges)


@pytest.mark.parametrize("name", [name for name in zoo.ODD if name not in HEAVY])
def test_each_odd_model_trains_bit_for_bit_the_same(name: str, tmp_path: Path) -> None:
    check(lambda: zoo.make(name), tmp_path / "runs")


@pytest.mark.parametrize("how", WRAPPERS)
def test_each_wrapper_trains_bit_for_bit_the_same(how: str, tmp_path: Path) -> None:
    def make() -> zoo.Case:
        case = zoo.make("branches")
        case.model = WRAPPERS[how](case.model)
        return case

    torch._dynamo.reset()
    check(make, tmp_path / "runs")


@pytest.mark.parametrize("options", [{"zero": True}, {"accumulate": 3}], ids=["zero", "no_sync"])
def test_sharded_optimizers_and_skipped_syncs_stay_what_they_are(
    options: dict[str, Any], tmp_path: Path
) -> None:
    def make() -> zoo.Case:
        case = zoo.make("branches")
        case.model = DistributedDataParallel(case.model)
        return case

    check(make, tmp_path / "runs", **options)


@pytest.mark.parametrize("whole_model", [True, False])
def test_H10_compiled_code_has_as_many_graphs_and_breaks_as_without_us(
    whole_model: bool, tmp_path: Path
) -> None:
    def counted(folder: Path | None) -> dict[str, Any]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        case = zoo.make("branches" if whole_model else "compiled_child")
        if whole_model:
            case.model = torch.compile(case.model, backend="eager")  # type: ignore[assignment]
        trained(case, folder)
        counters = torch._dynamo.utils.counters
        return {name: dict(counters[name]) for name in ("stats", "graph_break", "recompiles")}

    assert counted(tmp_path) == counted(None)


def test_H07_H08_copies_and_pickles_made_inside_are_free_of_us(tmp_path: Path) -> None:
    case = zoo.make("residual")
    copies: list[nn.Module] = []
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.01)
    with scaledl.track(case.model, report="none", run_dir=tmp_path) as run:
        for _ in range(NUM_STEPS):
            case.loss(case.model, case.batch()).backward()
            optimizer.step()
            optimizer.zero_grad()
            copies += [copy.deepcopy(case.model), pickle.loads(pickle.dumps(case.model))]
            case.loss(copies[-1], case.batch()).backward()  # an average that is looked at
    assert run.status()["step"] == NUM_STEPS
    assert run.status()["off"] == {}
    for one in copies:
        assert list(one.state_dict()) == list(case.model.state_dict())
        case.loss(one, case.batch()).backward()
