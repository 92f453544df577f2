"""Stamps: read only when ready, never waited for, and a device that fails ends nothing."""

from typing import Any

import pytest
import torch
from loops import Book, VirtualTime, batches, train_step
from torch import nn

import scaledl.capture.session as session
from scaledl.capture.collectives import DdpView
from scaledl.capture.modules import LayerWindow
from scaledl.capture.root import RootSensor
from scaledl.capture.session import Capture
from scaledl.capture.timers import EventTimer, HostTimer
from scaledl.capture.windows import FIRST_LAYERS, Windows
from scaledl.records import DeviceSample, LayerGraph, ProfileWindow, StepRecord


class Device:
    """A fake GPU: its events finish when we say so, a millisecond apart."""

    def __init__(self) -> None:
        self.is_done = True
        self.is_broken = False
        self.queries = 0
        self.made = 0
        self.now_ms = 0.0

    def event(self) -> "Event":
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._at_ms: float | None = None

    def record(self) -> None:
        self._device.now_ms += 1.0
        self._at_ms = self._device.now_ms

    def query(self) -> bool:
        self._device.queries += 1
        return self._device.is_done

    def elapsed_time(self, other: "Event") -> float:
        if self._device.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if not self._device.is_done:
            raise RuntimeError("CUDA error: device not ready")
        assert self._at_ms is not None
        assert other._at_ms is not None
        return other._at_ms - self._at_ms

    def synchronize(self) -> None:
        raise AssertionError("waited for the device")


class _Silent:
    def on_forward_begin(self, start_s: float, training: bool) -> None: ...
    def on_forward(self, start_s: float, end_s: float, training: bool, with_grad: bool) -> None: ...
    def on_backward(self, compute_s: float, exposed_s: float) -> None: ...


def _raise(error: Exception) -> None:
    raise error


def test_events_tell_seconds_and_come_from_a_pool():
    device = Device()
    timer = EventTimer(device.event)
    first, last = timer.mark(), timer.mark()
    assert timer.between_s(first, last) == pytest.approx(1e-3)
    timer.recycle()
    timer.mark()
    timer.mark()
    assert device.made == 2
    timer.mark()
    assert device.made == 3


def test_host_stamps_are_ready_at_once():
    time = VirtualTime()
    timer = HostTimer(time)
    first = timer.mark()
    time.spend(2.5)
    assert timer.is_ready(first)
    assert timer.between_s(first, timer.mark()) == 2.5


class Rig:
    """Windows over a small model on a fake device."""

    def __init__(self, device: Device) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        self.timer = EventTimer(device.event)
        self.root = RootSensor(self.model, _Silent(), VirtualTime(), _raise)
        self.root.start()
        self.taken: list[ProfileWindow] = []
        self.graphs: list[LayerGraph] = []
        self.num_steps = 0
        self.windows = Windows(
            rank=0,
            timer=self.timer,
            make_layer_window=lambda part, want: LayerWindow(
                self.model, self.root, self.timer, _raise, want_graph=want, part=part
            ),
            make_session=None,
            ddp=lambda: None,
            take=self.taken.append,
            take_graph=self.graphs.append,
            mark_sampled=lambda sampled: None,
            clock=VirtualTime(),
        )

    def step(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.num_steps += 1
        self.windows.boundary(StepRecord(step=self.num_steps, epoch=0, wall_s=0.1))


def test_P24_events_are_asked_first_and_read_some_steps_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: pytest.fail("synchronised"))
    device = Device()
    rig = Rig(device)
    for _ in range(FIRST_LAYERS):
        rig.step()
    device.is_done = False
    rig.step()  # the sampled one
    rig.step()
    assert rig.taken == []
    assert device.queries >= 2
    device.is_done = True
    rig.step()
    (window,) = rig.taken
    assert window.step == FIRST_LAYERS + 1
    assert [layer.source for layer in window.layers] == ["events"] * 3
    assert all(layer.forward_s == pytest.approx(1e-3) for layer in window.layers)
    assert all(layer.backward_s > 0 for layer in window.layers)
    assert window.forward_s >= sum(layer.forward_s for layer in window.layers)
    assert len(rig.graphs) == 1
    made = device.made
    for _ in range(100):
        rig.step()
    assert len(rig.taken) >= 2
    assert device.made == made, "the pool is used again"


def test_P24_window_that_is_never_ready_is_dropped_without_waiting():
    device = Device()
    rig = Rig(device)
    for _ in range(FIRST_LAYERS):
        rig.step()
    device.is_done = False
    for _ in range(50):
        rig.step()
    rig.windows.stop()
    assert rig.taken == []
    assert all(not m._forward_hooks for m in rig.model if m is not rig.model)


class CaptureBook(Book):
    def __init__(self) -> None:
        super().__init__()
        self.windows: list[ProfileWindow] = []
        self.errors: list[tuple[str, Exception]] = []
        self.capture: Capture | None = None

    def on_step(self, step: StepRecord) -> None:
        super().on_step(step)
        assert self.capture is not None
        self.capture.step_ended(step)

    def on_window(self, window: ProfileWindow) -> None:
        self.windows.append(window)

    def on_graph(self, graph: LayerGraph) -> None: ...
    def on_sample(self, sample: DeviceSample) -> None: ...

    def on_error(self, sensor: str, error: Exception) -> None:
        self.errors.append((sensor, error))


def _train_under_capture(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> tuple[CaptureBook, nn.Module]:
    monkeypatch.setattr(session, "HostTimer", lambda clock: EventTimer(device.event))
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    book = CaptureBook()
    book.capture = Capture(model, book, profile=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    book.capture.start()
    try:
        for x in batches(60, None):
            train_step(model, optimizer, x)
    finally:
        book.capture.stop()
    return book, model


def test_P25_a_timing_read_that_raises_ends_the_sensor_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
):
    device = Device()
    device.is_broken = True
    book, model = _train_under_capture(device, monkeypatch)
    assert len(book.steps) == 60
    assert book.windows == []
    assert len(book.errors) == 1, "told once, off from then on"
    assert "illegal memory access" in str(book.errors[0][1])
    assert all(not module._forward_hooks for module in model.modules())
    assert [step.tags for step in book.steps].count(("sampled",)) == 1


def test_P25_a_stamp_that_raises_ends_the_sensor_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
):
    device = Device()

    def broken() -> Any:
        raise RuntimeError("CUDA error: out of events")

    monkeypatch.setattr(device, "event", broken)
    book, model = _train_under_capture(device, monkeypatch)
    assert len(book.steps) == 60
    assert book.errors
    assert all(not module._forward_hooks for module in model.modules())


def test_events_of_a_working_device_give_windows(monkeypatch: pytest.MonkeyPatch):
    book, _ = _train_under_capture(Device(), monkeypatch)
    assert book.errors == []
    assert book.windows
    assert {layer.source for layer in book.windows[0].layers} == {"events"}


def test_ddp_view_of_something_broken_tells_nothing():
    class Broken:
        def _get_ddp_logging_data(self) -> Any:
            raise RuntimeError("no reducer yet")

    view = DdpView(Broken())  # type: ignore[arg-type]
    assert view.buckets() == ()
    assert view.times_s() is None
