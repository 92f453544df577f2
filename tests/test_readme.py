"""K07: what README.md shows is what happens. Its snippets run as they stand, on small stand-ins."""

import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from kineto import document, training, write
from samples import write_run
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import scaledl
from scaledl.cli import main
from scaledl.errors import StoreError
from scaledl.records import Eta, RunInfo, ScalingReport

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"`(scaledl [^`=]+)`", README.replace("\n", " "))
NUM_BATCHES = 4


class Stack(nn.Module):
    """A model with ``layers``, as the FSDP2 snippet wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def batches(num: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.ones(2, 6), torch.zeros(2, 6)) for _ in range(num)]


def train(model: nn.Module) -> None:
    """One epoch; the optimizer is made after the model was sharded."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in batches(NUM_BATCHES):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


class Engine:
    """An engine that hides its optimizer."""

    def train_batch(self, batch: Any) -> None:
        return


def stand_ins() -> dict[str, Any]:
    """Everything that a snippet takes from the user's own script."""
    model = Stack()
    return {
        "scaledl": scaledl,
        "model": model,
        "loader": torch.utils.data.DataLoader(batches(NUM_BATCHES), batch_size=None),
        "loss_fn": nn.functional.mse_loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "DistributedDataParallel": lambda model, device_ids: DistributedDataParallel(model),
        "local_rank": 0,
        "batch": torch.ones(2, 6),
        "fully_shard": fully_shard,
        "train": train,
        "my_iterable": batches(40),
        "engine": Engine(),
        "evaluate": lambda: None,
    }


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run_snippet(number: int) -> tuple[dict[str, Any], RunInfo, int]:
    """What one snippet left in its names, what its run says of itself, and its last step."""
    names = stand_ins()
    exec(compile(SNIPPETS[number], f"README.md, snippet {number + 1}", "exec"), names)
    run = scaledl.open_run("latest")
    assert run.ended is not None
    return names, run.info, run.ended.step


@pytest.mark.usefixtures("group")
def test_K07_the_snippets_of_the_readme_run_as_they_stand() -> None:
    assert len(SNIPPETS) == 5
    _, info, step = run_snippet(0)
    assert (info.epochs, step) == (30, 30 * NUM_BATCHES)
    _, info, step = run_snippet(1)
    assert (info.plan.strategy, info.cluster.usd_per_gpu_hour, step) == ("ddp", 2.49, NUM_BATCHES)
    _, info, step = run_snippet(2)
    assert (info.plan.strategy, info.total_steps, step) == ("fsdp", 20_000, NUM_BATCHES)
    assert run_snippet(4)[2] == 12_040


def test_K07_the_estimate_of_the_readme_is_told_without_a_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exec(SNIPPETS[3], stand_ins())
    assert "8 GPUs" in capsys.readouterr().out
    with pytest.raises(StoreError):
        scaledl.open_run("latest")


def test_K07_what_can_be_asked_of_a_run_answers_with_the_kinds_that_the_readme_names() -> None:
    names, _, _ = run_snippet(4)
    run = names["run"]
    assert isinstance(run.eta, Eta)
    report = run.what_if(gpus=[8, 16, 32])
    assert isinstance(report, ScalingReport)
    assert {8, 16, 32} <= {row.num_gpus for row in report.rows}
    assert "off" in run.status()


def test_K07_the_options_of_the_readme_are_those_of_track_with_their_defaults() -> None:
    table = README.split("| option | default |")[1].split("\n\n")[0]
    told = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    real = [name for name in inspect.signature(scaledl.track).parameters if name != "model"]
    assert sorted(told) == sorted(real)


@pytest.mark.parametrize("command", COMMANDS)
def test_K07_the_commands_of_the_readme_are_understood(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run(tmp_path / "scaledl-home")
    write(tmp_path / "trace.json.gz", document(training()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code in (None, 0, 3), said.err  # 3: the answer is no
    assert said.out
