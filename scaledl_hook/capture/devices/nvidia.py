"""One NVIDIA GPU through NVML (module ``pynvml``, package ``nvidia-ml-py``).

Each query is tried on its own: one that the driver does not support is off from then on and reads
as n/a; any other failure is tried again a few times first. Nothing here creates a CUDA context.
"""

from collections.abc import Callable
from typing import Any

from scaledl.capture.devices.base import Device, NullDevice
from scaledl.records import DeviceSample

_MAX_FAILURES = 3
_THROTTLE = (
    ("nvmlClocksThrottleReasonHwThermalSlowdown", 0x40, "temperature"),
    ("nvmlClocksThrottleReasonSwThermalSlowdown", 0x20, "temperature"),
    ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown", 0x80, "power brake"),
    ("nvmlClocksThrottleReasonSwPowerCap", 0x4, "power cap"),
)


class NvidiaDevice:
    """Reads one GPU by its UUID, so that CUDA's and NVML's different orders do not matter."""

    def __init__(self, nvml: Any, handle: Any, name: str, on_lost: Callable[[str], None]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._on_lost = on_lost
        self._failures: dict[str, int] = {}
        self.name = name

    def read(self, at_s: float) -> DeviceSample | None:
        nvml, h = self._nvml, self._handle
        power_mw = self._ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(h))
        energy_mj = self._ask("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(h))
        sm_mhz = self._ask("clock", lambda: nvml.nvmlDeviceGetClockInfo(h, 1))  # 1: SM
        sample = DeviceSample(
            at_s=at_s,
            device=self.name,
            power_w=_scaled(power_mw, 1e-3),
            energy_j=_scaled(energy_mj, 1e-3),
            temperature_c=_scaled(
                self._ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(h, 0)), 1.0
            ),
            sm_hz=_scaled(sm_mhz, 1e6),
            memory_bytes=_scaled(
                self._ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(h).used), 1.0
            ),
            utilization_fraction=_scaled(
                self._ask("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(h).gpu), 1e-2
            ),
            throttled=self._throttle(),
        )
        return sample

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except Exception:  # a lost driver cannot be shut down either; nothing is left to give back
            return

    def _ask(self, what: str, query: Callable[[], Any]) -> Any:
        if self._failures.get(what, 0) >= _MAX_FAILURES:
            return None
        try:
            value = query()
        except Exception as error:
            unsupported = "NotSupported" in type(error).__name__
            count = _MAX_FAILURES if unsupported else self._failures.get(what, 0) + 1
            self._failures[what] = count
            if count >= _MAX_FAILURES and not unsupported:
                self._on_lost(
                    f"{what} of {self.name} unreadable ({error}); it is n/a from here on. "
                    "Training continues."
                )
            return None
        self._failures.pop(what, None)
        return value

    def _throttle(self) -> str | None:
        nvml, h = self._nvml, self._handle
        mask = self._ask("throttle", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h))
        if not isinstance(mask, int):
            return None
        for attribute, default, reason in _THROTTLE:
            if mask & getattr(nvml, attribute, default):
                return reason
        return ""


def open_nvidia(uuid: str, on_lost: Callable[[str], None]) -> Device:
    """The GPU with this UUID, or a :class:`NullDevice` that says why there is none."""
    try:
        import pynvml as nvml
    except Exception as error:  # a broken optional module may raise anything at import
        return NullDevice(f"module pynvml does not load ({error}): pip install nvidia-ml-py")
    if not hasattr(nvml, "_nvmlGetFunctionPointer"):
        return NullDevice(
            "a foreign module named pynvml is installed: "
            "pip uninstall pynvml nvidia-ml-py3 && pip install --force-reinstall nvidia-ml-py"
        )
    try:
        nvml.nvmlInit()
    except Exception as error:
        return NullDevice(
            f"no NVIDIA driver found ({error}): power, clocks and energy are off. "
            "Times and forecasts still work."
        )
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        name = nvml.nvmlDeviceGetName(handle)
        name = name.decode() if isinstance(name, bytes) else str(name)
    except Exception as error:
        nvml.nvmlShutdown()
        return NullDevice(f"NVML does not know this GPU ({error}): its readings are off.")
    return NvidiaDevice(nvml, handle, name, on_lost)


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor
