"""What only a CUDA device can show; run by benchmarks/gpu_check.sh, left out elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import scaledl
from scaledl.records import DeviceSample, EpochRecord, Measurement, ProfileWindow
from scaledl.store import read_lines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()


def train(model: nn.Module, num_steps: int, epochs: int = 1) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(4)
    data: Any = torch.randn(num_steps * 256, 1024)
    losses = []
    for _ in range(epochs):
        for batch in torch.utils.data.DataLoader(data, batch_size=256):
            loss = model(batch.cuda()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def lines_of(folder: Path | None) -> list[Any]:
    assert folder is not None
    return list(read_lines(folder))


def test_a_tracked_training_on_a_gpu_is_bit_equal_to_a_plain_one(tmp_path: Path) -> None:
    plain = train(make_model(), 40)
    model = make_model()
    with scaledl.track(model, report="none", run_dir=tmp_path):
        tracked = train(model, 40)
    assert tracked == plain


def test_layers_are_timed_by_events_and_add_up(tmp_path: Path) -> None:
    model = make_model()
    with scaledl.track(model, epochs=2, report="none", run_dir=tmp_path) as run:
        train(model, 60, epochs=2)
    assert run.status()["off"] == {}
    lines = lines_of(run.folder)
    windows = [x for x in lines if isinstance(x, ProfileWindow) and x.layers]
    assert windows
    for window in windows:
        assert {layer.fqn for layer in window.layers} == {"0", "1", "2"}
        assert {layer.source for layer in window.layers} == {"events"}
        assert window.forward_s is not None
        total_s = sum(layer.forward_s for layer in window.layers)
        assert total_s <= window.forward_s * 1.02
        assert all(layer.backward_s for layer in window.layers)
    assert [x.num_steps for x in lines if isinstance(x, EpochRecord)] == [60, 60]
    measured = [x for x in lines if isinstance(x, Measurement)]
    assert measured[-1].parts.total_s == pytest.approx(measured[-1].step_s, rel=0.02)


def test_readings_of_the_device_are_there_or_said_to_be_missing(tmp_path: Path) -> None:
    model = make_model()
    with scaledl.track(model, report="none", run_dir=tmp_path) as run:
        train(model, 60)
    samples = [x for x in lines_of(run.folder) if isinstance(x, DeviceSample)]
    told = [key for key in run.status()["off"] if key.startswith("device")]
    assert samples or told
    for sample in samples:
        assert sample.memory_bytes is None or sample.memory_bytes > 0
        assert sample.power_w is None or 0 < sample.power_w < 2000


def test_a_profile_of_the_user_with_kernels_is_whole_beside_ours(tmp_path: Path) -> None:
    model = make_model()
    with (
        scaledl.track(model, report="none", run_dir=tmp_path) as run,
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen,
    ):
        train(model, 20)
    assert sum("gemm" in event.name.lower() for event in seen.events()) >= 20
    assert run.status()["step"] == 20


def test_no_memory_of_the_device_stays_behind(tmp_path: Path) -> None:
    model = make_model()
    train(model, 5)
    before = torch.cuda.memory_allocated()
    with scaledl.track(model, report="none", run_dir=tmp_path):
        train(model, 60)
    assert torch.cuda.memory_allocated() <= before
