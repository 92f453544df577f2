"""One AMD GPU through the public functions of ``amdsmi``, which comes with ROCm.

Readings that one release of the library names otherwise are looked for under both names; a value
it has not is the text "N/A" and read as missing.
"""

from importlib import import_module
from typing import Any

from scaledl.capture.devices.base import Device, Failure, NullDevice, Queries, Tell
from scaledl.records import DeviceSample, GpuLinks

_NOT_THERE = (2, 3, 5)  # AMDSMI_STATUS_NOT_SUPPORTED, NOT_YET_IMPLEMENTED, FAIL_LOAD_SYMBOL
_NO_PERMISSION, _GONE = 10, (31, 34)  # NO_PERM; NOT_FOUND, DRIVER_NOT_LOADED
_HOT = ("active_prochot_thrm", "active_socket_thrm", "active_vr_thrm", "active_hbm_thrm")
_GENERATION_BY_MT_PER_S = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


class AmdDevice:
    """Reads one GPU by its place on the PCI bus."""

    def __init__(self, smi: Any, handle: Any, name: str, tell: Tell) -> None:
        self._smi = smi
        self._handle = handle
        self._queries = Queries(name, failure_of, tell)
        self.name = name

    def read(self, at_s: float) -> DeviceSample | None:
        if self._queries.is_lost:
            return None
        smi, h, ask = self._smi, self._handle, self._queries.ask
        sample = DeviceSample(
            at_s=at_s,
            device=self.name,
            power_w=ask("power", lambda: _power_w(smi.amdsmi_get_power_info(h))),
            energy_j=ask("energy", lambda: _energy_j(smi.amdsmi_get_energy_count(h))),
            temperature_c=ask("temperature", self._temperature, 1.0),
            sm_hz=ask("clock", self._clock, 1e6),
            memory_bytes=ask("memory", self._memory, 1.0),
            utilization_fraction=ask(
                "utilization", lambda: _told(smi.amdsmi_get_gpu_activity(h), "gfx_activity"), 1e-2
            ),
            throttled=ask("throttle", lambda: _throttle(smi.amdsmi_get_violation_status(h))),
            pcie_generation=ask("PCIe generation", self._pcie_generation),
            pcie_width=ask("PCIe width", lambda: _told(self._pcie(), "pcie_width")),
            memory_errors=ask(
                "memory errors",
                lambda: _told(smi.amdsmi_get_gpu_total_ecc_count(h), "uncorrectable_count"),
            ),
        )
        self._queries.end_reading()
        return None if self._queries.is_lost else sample

    def links(self) -> GpuLinks | None:
        return None

    def close(self) -> None:
        try:
            self._smi.amdsmi_shut_down()
        except Exception:  # nothing is left to give back
            return

    def _temperature(self) -> Any:
        smi = self._smi
        now = smi.AmdSmiTemperatureMetric.CURRENT
        return smi.amdsmi_get_temp_metric(self._handle, smi.AmdSmiTemperatureType.JUNCTION, now)

    def _clock(self) -> Any:
        smi = self._smi
        return _told(smi.amdsmi_get_clock_info(self._handle, smi.AmdSmiClkType.GFX), "clk")

    def _memory(self) -> Any:
        smi = self._smi
        return smi.amdsmi_get_gpu_memory_usage(self._handle, smi.AmdSmiMemoryType.VRAM)

    def _pcie(self) -> Any:
        return self._smi.amdsmi_get_pcie_info(self._handle)["pcie_metric"]

    def _pcie_generation(self) -> int | None:
        return _GENERATION_BY_MT_PER_S.get(_told(self._pcie(), "pcie_speed") or 0)


def failure_of(error: Exception) -> Failure:
    """What an error of the library means for the query that met it."""
    code = getattr(error, "err_code", None)
    if isinstance(error, AttributeError | KeyError) or code in _NOT_THERE:
        return "absent"
    if code == _NO_PERMISSION:
        return "denied"
    return "lost" if code in _GONE else "failed"


def open_amd(place: tuple[int, int, int] | None, tell: Tell) -> Device:
    """The GPU at this PCI domain, bus and device, or a :class:`NullDevice` that says why not."""
    try:
        smi = import_module("amdsmi")
    except Exception as error:  # without ROCm's library the import raises a KeyError
        return NullDevice(
            f"module amdsmi does not load ({type(error).__name__}: {error}): power and energy are "
            "n/a. Install the amdsmi of your ROCm release (pip install amdsmi)."
        )
    try:
        smi.amdsmi_init()
    except Exception as error:
        return NullDevice(
            f"no AMD driver found ({_line(error)}): power, clocks and energy are off. "
            "Times and forecasts still work."
        )
    try:
        cards = smi.amdsmi_get_processor_handles()
        found = [card for card in cards if _place(smi.amdsmi_get_gpu_device_bdf(card)) == place]
        if len(found) != 1:  # the parts of a partitioned card share one place
            raise LookupError(f"{len(found)} of {len(cards)} cards could be it")
        name = str(smi.amdsmi_get_gpu_asic_info(found[0])["market_name"])
    except Exception as error:
        _shut(smi)
        return NullDevice(f"this GPU: amdsmi does not tell it ({_line(error)}), readings are off.")
    return AmdDevice(smi, found[0], name, tell)


def _shut(smi: Any) -> None:
    try:
        smi.amdsmi_shut_down()
    except Exception:  # a driver that goes away while it is closed has nothing to give back
        return


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _place(bdf: str) -> tuple[int, int, int]:
    """``0000:c1:00.0`` as numbers, without the function."""
    domain, bus, device = bdf.rsplit(".", 1)[0].split(":")
    return int(domain, 16), int(bus, 16), int(device, 16)


def _told(values: dict[str, Any], *names: str) -> Any:
    """The first of these names that has a number."""
    numbers = [values[name] for name in names if isinstance(values.get(name), int | float)]
    return numbers[0] if numbers else None


def _power_w(values: dict[str, Any]) -> float | None:
    watts = _told(values, "current_socket_power", "average_socket_power")
    return None if not watts else float(watts)  # cards without the sensor answer 0


def _energy_j(values: dict[str, Any]) -> float | None:
    """Ticks times the size of a tick in microjoules; ROCm before 6.2 calls the ticks power."""
    ticks, tick_uj = _told(values, "energy_accumulator", "power"), values["counter_resolution"]
    return None if ticks is None else float(ticks) * float(tick_uj) * 1e-6


def _throttle(values: dict[str, Any]) -> str | None:
    known = [values.get(name) for name in (*_HOT, "active_ppt_pwr")]
    if not any(isinstance(value, bool) for value in known):
        return None
    if any(values.get(name) is True for name in _HOT):
        return "temperature"
    return "power cap" if values.get("active_ppt_pwr") is True else ""
