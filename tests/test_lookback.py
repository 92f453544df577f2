"""Runs of the same job in one folder: the second one knows what the first one took."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import make_loader

import scaledl
from scaledl.lookback import look_back
from scaledl.records import ClusterSpec, Eta, GpuSpec, LinkSpec
from scaledl.setting import job_of
from scaledl.store import read_info

LINK = LinkSpec(kind="test", latency_s=1e-6, bytes_per_s=1e9)


def cluster(num_gpus: int = 1, name: str = "cpu") -> ClusterSpec:
    return ClusterSpec(
        gpu=GpuSpec(name=name), num_gpus=num_gpus, gpus_per_node=1, intra=LINK, inter=LINK
    )


def make_net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 3))


def train(model: nn.Module, folder: Path, epochs: int = 6, **options: Any) -> Eta | None:
    """One run; returns what it said before its first step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = make_loader()
    options = {"report": "none", "run_dir": folder, "epochs": epochs, "profile": False} | options
    with scaledl.track(model, **options) as run:
        before = run.eta
        for _ in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    return before


def test_a_second_run_has_a_forecast_before_its_first_step(tmp_path: Path) -> None:
    assert train(make_net(), tmp_path) is None
    told = train(make_net(), tmp_path)
    assert told is not None
    assert told.basis == "prior"
    assert told.remaining_s is not None
    assert told.remaining_s.low < 0.7 * told.remaining_s.mean
    assert told.remaining_s.high > 1.3 * told.remaining_s.mean


@pytest.mark.parametrize("other", [{"learner": "off"}, {"epochs": 2}])
def test_without_a_like_run_nothing_is_said_before_the_first_step(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    train(make_net(), tmp_path)
    told = train(make_net(), tmp_path, **other)
    assert told is None or told.remaining_s is None


def test_another_model_is_another_job(tmp_path: Path) -> None:
    train(make_net(), tmp_path)
    assert train(make_net(width=9), tmp_path) is None


def test_the_job_is_the_parameters_whatever_wraps_the_model() -> None:
    model = make_net()
    assert job_of(model) == job_of(nn.DataParallel(model)) == job_of(make_net()) != ""
    assert job_of(nn.ReLU()) == job_of(nn.LazyLinear(3)) == ""


def test_a_damaged_or_foreign_folder_is_passed_over(tmp_path: Path) -> None:
    train(make_net(), tmp_path)
    (first,) = list(tmp_path.iterdir())
    (tmp_path / "zz").mkdir()
    (tmp_path / "zz" / "run.json").write_text("{")
    job = job_of(make_net())
    name = read_info(first).cluster.gpu.name
    assert look_back(tmp_path, job, cluster(name=name), exclude="") is not None
    assert look_back(tmp_path, job, cluster(name=name), exclude=first.name) is None
    assert look_back(tmp_path, "", cluster(name=name), exclude="") is None
    assert look_back(tmp_path, job, cluster(name="other"), exclude="") is None
    assert look_back(tmp_path / "none", job, cluster(name=name), exclude="") is None
