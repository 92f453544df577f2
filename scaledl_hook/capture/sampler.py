"""A daemon thread that reads the device every few seconds."""

import os
import threading
import time
from collections.abc import Callable

import torch

from scaledl.capture.devices.amd import open_amd
from scaledl.capture.devices.base import Device, NullDevice
from scaledl.capture.devices.cpu import CpuDevice
from scaledl.capture.devices.nvidia import open_nvidia
from scaledl.capture.environ import cuda_is_up
from scaledl.records import DeviceSample, GpuLinks


def open_device(device: torch.device, on_notice: Callable[[str], None]) -> Device:
    """The sensor for the device that the model lives on.

    A GPU is asked about only once the user's program has initialised CUDA itself.
    """
    if device.type == "cpu":
        return CpuDevice()
    if device.type != "cuda":
        return NullDevice(f"no sensor for {device.type} yet: power and energy are n/a")
    if not cuda_is_up():
        return NullDevice("CUDA is not initialised yet")
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is None:
        uuid = str(getattr(properties, "uuid", ""))
        opened = open_nvidia(uuid, on_notice, index=device.index or 0, environ=os.environ)
    else:
        opened = open_amd(_place_of(properties), on_notice)
    if isinstance(opened, NullDevice):
        on_notice(opened.reason)
    return opened


def _place_of(properties: object) -> tuple[int, int, int] | None:
    """PCI domain, bus and device, where torch tells them."""
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, name, None) for name in names)
    if domain is None or bus is None or device is None:
        return None
    return int(domain), int(bus), int(device)


_MAX_SILENT = 3


class Sampler:
    """Calls ``take`` with a sample every ``period_s``; keeps running sums of power and energy."""

    def __init__(
        self,
        device: Device,
        take: Callable[[DeviceSample], None],
        on_error: Callable[[Exception], None],
        period_s: float = 5.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._device = device
        self._take = take
        self._on_error = on_error
        self._period_s = period_s
        self._wall = wall
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._counter_j: float | None = None  # as it stood at last
        self._counted_j: float | None = None
        self._last_power: tuple[float, float] | None = None  # (time, watts)
        self._bridged_j: float | None = None  # by power, where the counter is silent
        self._num_silent = 0
        self._power_sum_w = 0.0
        self._power_count = 0
        self._peak_memory_bytes: float | None = None

    def start(self) -> None:
        """Start reading, unless there is nothing to read."""
        if isinstance(self._device, NullDevice):
            return
        self._thread = threading.Thread(target=self._run, name="scaledl-sampler", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop; a driver call that hangs is left behind on its daemon thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._device.close()

    @property
    def power_w(self) -> float | None:
        """Mean power so far; n/a without a reading."""
        return self._power_sum_w / self._power_count if self._power_count else None

    @property
    def energy_j(self) -> float | None:
        """Energy since the first reading: by the device's counter, else by integrated power.

        A device that has stopped telling either makes it n/a: what is known would be too little.
        """
        if self._num_silent > _MAX_SILENT:
            return None
        if self._counted_j is None or self._bridged_j is None:
            return self._bridged_j if self._counted_j is None else self._counted_j
        return self._counted_j + self._bridged_j

    @property
    def energy_source(self) -> str:
        """Where :attr:`energy_j` comes from: ``counter``, ``power``, both, or ``n/a``."""
        if self.energy_j is None:
            return "n/a"
        if self._counted_j is None:
            return "power"
        return "counter" if self._bridged_j is None else "counter and power"

    def links(self) -> GpuLinks | None:
        """How the GPUs of this machine are wired, where the driver tells."""
        return self._device.links()

    @property
    def peak_memory_bytes(self) -> float | None:
        """Largest memory reading."""
        return self._peak_memory_bytes

    def _run(self) -> None:
        while True:
            try:
                sample = self._device.read(self._wall())
                if sample is None:
                    self._num_silent += 1
                else:
                    self._add(sample)
                    self._take(sample)
            except Exception as error:
                self._on_error(error)
                return
            if self._stop.wait(self._period_s):
                return

    def _add(self, sample: DeviceSample) -> None:
        if sample.energy_j is None and sample.power_w is None:
            self._num_silent += 1
        else:
            self._num_silent = 0
        self._add_energy(sample)
        if sample.power_w is not None:
            self._last_power = (sample.at_s, sample.power_w)
            self._power_sum_w += sample.power_w
            self._power_count += 1
        if sample.memory_bytes is not None:
            self._peak_memory_bytes = max(self._peak_memory_bytes or 0.0, sample.memory_bytes)

    def _add_energy(self, sample: DeviceSample) -> None:
        if sample.energy_j is not None:
            if self._counter_j is not None:
                # A driver that was loaded again counts from 0: that span is left out.
                gained_j = max(0.0, sample.energy_j - self._counter_j)
                self._counted_j = (self._counted_j or 0.0) + gained_j
                self._bridged_j = None  # the counter went on while it was silent
            else:
                self._counted_j, self._bridged_j = self._bridged_j or 0.0, None
            self._counter_j = sample.energy_j
        elif sample.power_w is not None and self._last_power is not None:
            before_s, before_w = self._last_power
            span_s = max(0.0, sample.at_s - before_s)
            area_j = span_s * (before_w + sample.power_w) / 2
            self._bridged_j = (self._bridged_j or 0.0) + area_j
