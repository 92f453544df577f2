"""A daemon thread that reads the device every few seconds."""

import threading
import time
from collections.abc import Callable

import torch

from scaledl.capture.devices.base import Device, NullDevice
from scaledl.capture.devices.cpu import CpuDevice
from scaledl.capture.devices.nvidia import open_nvidia
from scaledl.capture.environ import cuda_is_up
from scaledl.records import DeviceSample


def open_device(device: torch.device, on_notice: Callable[[str], None]) -> Device:
    """The sensor for the device that the model lives on.

    A GPU is asked about only once the user's program has initialised CUDA itself.
    """
    if device.type == "cpu":
        return CpuDevice()
    if device.type == "cuda" and torch.version.hip is None:
        if not cuda_is_up():
            return NullDevice("CUDA is not initialised yet")
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        opened = open_nvidia(
            uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}", on_notice
        )
        if isinstance(opened, NullDevice):
            on_notice(opened.reason)
        return opened
    return NullDevice(f"no sensor for {device.type} yet: power and energy are n/a")


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
        self._first_energy_j: float | None = None
        self._last_energy_j: float | None = None
        self._last_power: tuple[float, float] | None = None  # (time, watts)
        self._integrated_j: float | None = None
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
        """Energy since the first reading: by the device's counter, else by integrated power."""
        if self._first_energy_j is None or self._last_energy_j is None:
            return self._integrated_j
        return max(0.0, self._last_energy_j - self._first_energy_j)

    @property
    def energy_source(self) -> str:
        """Where :attr:`energy_j` comes from: ``counter``, ``power`` or ``n/a``."""
        if self._first_energy_j is not None:
            return "counter"
        return "n/a" if self._integrated_j is None else "power"

    @property
    def peak_memory_bytes(self) -> float | None:
        """Largest memory reading."""
        return self._peak_memory_bytes

    def _run(self) -> None:
        while True:
            try:
                sample = self._device.read(self._wall())
                if sample is not None:
                    self._add(sample)
                    self._take(sample)
            except Exception as error:
                self._on_error(error)
                return
            if self._stop.wait(self._period_s):
                return

    def _add(self, sample: DeviceSample) -> None:
        if sample.energy_j is not None:
            if self._first_energy_j is None:
                self._first_energy_j = sample.energy_j
            self._last_energy_j = sample.energy_j
        if sample.power_w is not None:
            if self._last_power is not None:
                before_s, before_w = self._last_power
                span_s = max(0.0, sample.at_s - before_s)
                area_j = span_s * (before_w + sample.power_w) / 2
                self._integrated_j = (self._integrated_j or 0.0) + area_j
            self._last_power = (sample.at_s, sample.power_w)
            self._power_sum_w += sample.power_w
            self._power_count += 1
        if sample.memory_bytes is not None:
            self._peak_memory_bytes = max(self._peak_memory_bytes or 0.0, sample.memory_bytes)
