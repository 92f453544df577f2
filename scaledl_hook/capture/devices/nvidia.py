"""One NVIDIA GPU through NVML (module ``pynvml``, package ``nvidia-ml-py``).

Nothing here creates a CUDA context, starts a process or touches a card's memory. A query the
binding or the driver does not know is off like one the card does not have.
"""

from collections.abc import Mapping
from typing import Any

from scaledl.capture.devices.base import Device, Failure, NullDevice, Queries, Tell
from scaledl.capture.devices.identity import NoCardError, find_card, text_of
from scaledl.capture.devices.wiring import read_links
from scaledl.records import DeviceSample, GpuLinks

# Bits of nvmlClocksEventReason*, the most telling first. Idle (1) and clocks set by the user (2,
# 0x100) are no throttling. The general slowdown (8) comes alone on older drivers.
_THROTTLE = (
    (0x40, "temperature"),
    (0x20, "temperature"),
    (0x80, "power brake"),
    (0x08, "hardware slowdown"),
    (0x04, "power cap"),
)
_ABSENT = ("NotSupported", "FunctionNotFound", "ArgumentVersionMismatch", "VgpuEccNotSupported")
_LOST = ("GpuIsLost", "ResetRequired", "GpuNotFound")
_SM_CLOCK, _DIE, _UNCORRECTED, _SINCE_BOOT, _PCIE_TX, _PCIE_RX = 1, 0, 1, 0, 0, 1
_NVLINK_DATA_TX, _NVLINK_DATA_RX, _ALL_LINKS = 138, 139, 0xFFFFFFFF


class NvidiaDevice:
    """Reads one GPU, or of a MIG slice the memory, which alone is its own."""

    def __init__(self, nvml: Any, handle: Any, name: str, is_slice: bool, tell: Tell) -> None:
        self._nvml = nvml
        self._handle = handle
        self._is_slice = is_slice
        self._tell = tell
        self._queries = Queries(name, failure_of, tell)
        self._first_errors: int | None = None
        self._told_errors = False
        self.name = name

    def read(self, at_s: float) -> DeviceSample | None:
        if self._queries.is_lost:
            return None
        nvml, h, ask = self._nvml, self._handle, self._queries.ask
        memory = ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(h).used, 1.0)
        if self._is_slice:
            sample = DeviceSample(at_s=at_s, device=self.name, memory_bytes=memory)
        else:
            sample = DeviceSample(
                at_s=at_s,
                device=self.name,
                memory_bytes=memory,
                power_w=ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(h), 1e-3),
                energy_j=ask("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(h), 1e-3),
                sm_hz=ask("clock", lambda: nvml.nvmlDeviceGetClockInfo(h, _SM_CLOCK), 1e6),
                temperature_c=ask(
                    "temperature", lambda: nvml.nvmlDeviceGetTemperature(h, _DIE), 1.0
                ),
                utilization_fraction=ask(
                    "utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(h).gpu, 1e-2
                ),
                throttled=self._throttle(),
                **self._traffic(),
                memory_errors=self._memory_errors(),
            )
        self._queries.end_reading()
        return None if self._queries.is_lost else sample

    def links(self) -> GpuLinks | None:
        return None if self._is_slice else read_links(self._nvml, self._handle)

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except Exception:  # a lost driver cannot be shut down either; nothing is left to give back
            return

    def _traffic(self) -> dict[str, Any]:
        """PCIe in bytes a second (NVML: KB over 20 ms), NVLink as counters (NVML: KiB)."""
        nvml, h, ask = self._nvml, self._handle, self._queries.ask
        tx = ask("PCIe sent", lambda: nvml.nvmlDeviceGetPcieThroughput(h, _PCIE_TX), 1e3)
        rx = ask("PCIe received", lambda: nvml.nvmlDeviceGetPcieThroughput(h, _PCIE_RX), 1e3)
        return {
            "pcie_tx_bytes_per_s": tx,
            "pcie_rx_bytes_per_s": rx,
            "pcie_generation": ask(
                "PCIe generation", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(h)
            ),
            "pcie_width": ask("PCIe width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(h)),
            "nvlink_tx_bytes": ask("NVLink sent", lambda: self._field(_NVLINK_DATA_TX), 1024.0),
            "nvlink_rx_bytes": ask("NVLink received", lambda: self._field(_NVLINK_DATA_RX), 1024.0),
        }

    def _field(self, field: int) -> int:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [(field, _ALL_LINKS)])
        if value.nvmlReturn != 0:
            raise self._nvml.NVMLError(value.nvmlReturn)
        return int(value.value.ullVal)

    def _throttle(self) -> str | None:
        nvml, h = self._nvml, self._handle

        def mask() -> int:
            new = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
            try:
                if new is not None:
                    return int(new(h))
            except Exception as error:
                if failure_of(error) != "absent":
                    raise
            return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h))  # before driver 535

        bits = self._queries.ask("throttle", mask)
        if bits is None:
            return None
        return next((reason for bit, reason in _THROTTLE if bits & bit), "")

    def _memory_errors(self) -> int | None:
        nvml, h = self._nvml, self._handle
        count: int | None = self._queries.ask(
            "memory errors",
            lambda: int(nvml.nvmlDeviceGetTotalEccErrors(h, _UNCORRECTED, _SINCE_BOOT)),
        )
        if count is not None and self._first_errors is None:
            self._first_errors = count
        rose = count is not None and self._first_errors is not None and count > self._first_errors
        if rose and not self._told_errors:
            self._told_errors = True
            self._tell(
                f"uncorrected memory errors (ECC) of {self.name} rose from {self._first_errors} to "
                f"{count} during the run: results may be wrong. Have this card checked."
            )
        return count


def failure_of(error: Exception) -> Failure:
    """What an error of the binding means for the query that met it."""
    name = type(error).__name__
    if isinstance(error, AttributeError) or name.endswith(_ABSENT):
        return "absent"
    if name.endswith("NoPermission"):
        return "denied"
    return "lost" if name.endswith(_LOST) else "failed"


def open_nvidia(
    uuid: str, tell: Tell, *, index: int = 0, environ: Mapping[str, str] | None = None
) -> Device:
    """The GPU with this UUID, or a :class:`NullDevice` that says why there is none.

    Args:
        uuid: As CUDA tells it, with or without ``GPU-`` or ``MIG-``; empty where it does not.
        tell: Takes what a user should hear.
        index: CUDA's number of the device, used with ``environ`` where the UUID is not enough.
        environ: ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` are read from it.
    """
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
        card = find_card(nvml, uuid, index, environ or {})
        name = text_of(nvml.nvmlDeviceGetName(card.handle))
    except Exception as error:
        nvml.nvmlShutdown()
        reason = (
            str(error) if isinstance(error, NoCardError) else f"NVML does not know it ({error})"
        )
        return NullDevice(f"this GPU: {reason}, its readings are off.")
    if card.is_slice:
        tell(f"slice {name}: memory is its own; power and energy are the whole card's, so n/a.")
    return NvidiaDevice(nvml, card.handle, name, card.is_slice, tell)
