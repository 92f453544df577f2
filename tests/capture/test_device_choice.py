"""Which card is read, and that CUDA is never touched first nor waited for; all on fakes."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import QUERIES, FakeGpu, FakeNvml
from training import make_loader, make_model, quietly, train

import scaledl
from scaledl.capture.devices.base import Device, NullDevice
from scaledl.capture.sampler import open_device

CARD = "6d3a1b2c-0000-1111-2222-333344445555"


@pytest.fixture
def open_card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Device, list[str]]]:
    """The sensor of CUDA's current card, whose uuid torch tells, under a fake driver."""

    def of(told_by_torch: str, *gpus: FakeGpu) -> tuple[Device, list[str]]:
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpus))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.version, "hip", None)
        properties = types.SimpleNamespace(uuid=told_by_torch)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        told: list[str] = []
        return open_device(torch.device("cuda", 0), told.append), told

    return of


@pytest.mark.parametrize("visible", [f"GPU-{CARD}", "MIG-GPU-x/1/0", "2,0", "", "-1", "all"])
def test_N04_the_card_is_found_by_its_uuid_whatever_the_visible_devices_say(
    visible: str, open_card: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device, told = open_card(CARD, FakeGpu("GPU-other", "other"), FakeGpu(f"GPU-{CARD}", "ours"))
    assert device.name == "ours"
    assert told == []


def test_N04_a_card_without_a_uuid_is_n_a_and_said(open_card: Callable[..., Any]) -> None:
    device, told = open_card("", FakeGpu("GPU-other"))
    assert isinstance(device, NullDevice)
    assert told == [device.reason]


def test_N06_a_slice_of_a_card_shows_only_what_is_its_own(open_card: Callable[..., Any]) -> None:
    piece = FakeGpu("MIG-7", "NVIDIA A100 MIG 1g.10gb", memory=3 * 2**30)
    piece.unsupported |= set(QUERIES) - {"memory"}
    parent = FakeGpu("GPU-a", power=390_000)
    device, told = open_card("MIG-7", parent, FakeGpu("MIG-2"), piece)
    sample = device.read(1.0)
    assert sample is not None
    assert (sample.memory_bytes, sample.device) == (3 * 2**30, "NVIDIA A100 MIG 1g.10gb")
    assert sample.power_w is sample.energy_j is sample.utilization_fraction is None
    assert parent.num_calls == {}, "the parent's power is that of all slices"
    assert told == []


def test_N06_a_slice_that_the_driver_does_not_know_by_that_id_is_n_a_and_said(
    open_card: Callable[..., Any],
) -> None:
    device, told = open_card(CARD, FakeGpu("GPU-a"), FakeGpu(f"MIG-{CARD}"))
    assert isinstance(device, NullDevice)
    assert "its readings are off" in told[0]


def test_P19_tracking_never_initialises_cuda_nor_looks_for_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("CUDA was touched first by scaledl")

    for name in ("init", "_lazy_init", "current_device", "get_device_properties", "device_count"):
        monkeypatch.setattr(torch.cuda, name, touched)
    train("plain", quietly(run_dir=tmp_path), num_steps=2)


def test_P26_nothing_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader = make_model(), make_loader(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = scaledl.track(model, report="none", run_dir=tmp_path, epochs=3)
    package = str(Path(scaledl.__file__).parent)

    def guarded(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert not sys._getframe(1).f_code.co_filename.startswith(package), "it waited"
            return original(*args, **kwargs)

        return call

    # Each of these waits for all the work before it; torch's own loops call them too.
    accelerator = getattr(torch, "accelerator", torch.cuda)  # younger than the oldest torch
    for owner, names in {
        torch.cuda: ("synchronize",),
        accelerator: ("synchronize",),
        torch.Tensor: ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"),
    }.items():
        for name in names:
            monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))
    with run:
        for _ in range(3):
            for x, y in loader:
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert run.status()["step"] == 12
    for path in Path(scaledl.__file__).parent.rglob("*.py"):
        assert "synchronize(" not in path.read_text(), path
