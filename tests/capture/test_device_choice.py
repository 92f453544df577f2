"""Which card is read, and that CUDA is never touched first nor waited for; all on fakes."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import FakeGpu, FakeNvml
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


def test_N05_without_a_uuid_a_card_is_taken_only_where_the_order_leaves_no_doubt(
    open_card: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = FakeGpu("GPU-one", "one"), FakeGpu("GPU-two", "two")
    assert open_card("", cards[0])[0].name == "one"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    device, told = open_card("", *cards)
    assert isinstance(device, NullDevice)
    assert told == [device.reason]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert open_card("", *cards)[0].name == "two"


def cut_card(uuid: str = f"GPU-{CARD}") -> tuple[FakeGpu, FakeGpu]:
    """A card in two slices, with a gap in their numbers, and the second of them."""
    parent = FakeGpu(uuid, power=390_000, mig=[1, 1])
    one, two = FakeGpu("MIG-1", "A100 MIG 3g"), FakeGpu("MIG-7", "A100 MIG 1g", memory=3 * 2**30)
    one.instances, two.instances = (2, 0), (9, 0)
    parent.slices = {1: one, 4: two}
    return parent, two


@pytest.mark.parametrize(
    ("told_by_torch", "visible"),
    [
        ("MIG-7", ""),
        ("7", ""),  # bare, and no card has it
        (CARD, "MIG-7"),  # the parent's
        (CARD, f"MIG-GPU-{CARD}/9/0"),  # as drivers before 470 write it
    ],
)
def test_N06_a_slice_of_a_card_is_found_and_shows_only_what_is_its_own(
    told_by_torch: str,
    visible: str,
    open_card: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    parent, _ = cut_card()
    device, told = open_card(told_by_torch, FakeGpu("GPU-b"), parent)
    sample = device.read(1.0)
    assert sample is not None
    assert (sample.memory_bytes, sample.device) == (3 * 2**30, "A100 MIG 1g")
    assert sample.power_w is sample.energy_j is sample.utilization_fraction is None
    assert device.links() is None
    assert set(parent.num_calls) <= {"mig"}, "the parent's power is that of all slices"
    assert len(told) == 1
    assert "whole card's" in told[0]


@pytest.mark.parametrize("visible", ["", "0", f"MIG-GPU-{CARD}/5/0"])
def test_N06_a_slice_that_cannot_be_told_from_its_neighbours_is_n_a_and_said(
    visible: str, open_card: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device, told = open_card(CARD, cut_card()[0])
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
    package = Path(scaledl.__file__).parent
    alone = package / "probing" / "links.py"  # a program of its own: no training is beside it
    for path in set(package.rglob("*.py")) - {alone}:
        assert "synchronize(" not in path.read_text(), path
