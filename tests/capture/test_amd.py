"""AMD's sensor on a fake ``amdsmi`` with the names and units of the real one (7.0)."""

import sys
import types
from typing import Any

import pytest

from scaledl.capture.devices.amd import open_amd
from scaledl.capture.devices.base import NullDevice

PLACE = (0, 0xC1, 0)
READINGS: dict[str, Any] = {
    "amdsmi_get_power_info": {"current_socket_power": 540, "average_socket_power": "N/A"},
    "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3},
    "amdsmi_get_temp_metric": 71,
    "amdsmi_get_clock_info": {"clk": 2100},
    "amdsmi_get_gpu_memory_usage": 5 * 2**30,
    "amdsmi_get_gpu_activity": {"gfx_activity": 88},
    "amdsmi_get_violation_status": {"active_socket_thrm": False, "active_ppt_pwr": True},
    "amdsmi_get_pcie_info": {"pcie_metric": {"pcie_speed": 32000, "pcie_width": 16}},
    "amdsmi_get_gpu_total_ecc_count": {"uncorrectable_count": 0},
}
FIELDS = {
    "amdsmi_get_power_info": ("power_w", 540.0),
    "amdsmi_get_energy_count": ("energy_j", pytest.approx(30.6)),
    "amdsmi_get_temp_metric": ("temperature_c", 71.0),
    "amdsmi_get_clock_info": ("sm_hz", 2.1e9),
    "amdsmi_get_gpu_memory_usage": ("memory_bytes", 5.0 * 2**30),
    "amdsmi_get_gpu_activity": ("utilization_fraction", 0.88),
    "amdsmi_get_violation_status": ("throttled", "power cap"),
    "amdsmi_get_pcie_info": ("pcie_width", 16),
    "amdsmi_get_gpu_total_ecc_count": ("memory_errors", 0),
}


class AmdSmiLibraryException(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"Error code:\n\t{code}")
        self.err_code = code


class FakeSmi(types.ModuleType):
    """A module that stands for ``amdsmi``; handles are places on the bus."""

    def __init__(self, *cards: str) -> None:
        super().__init__("amdsmi")
        self.cards = cards
        self.failing: dict[str, int] = {}
        self.num_open = 0
        self.num_calls = 0
        self.AmdSmiTemperatureType = types.SimpleNamespace(JUNCTION=1)
        self.AmdSmiTemperatureMetric = types.SimpleNamespace(CURRENT=0)
        self.AmdSmiClkType = types.SimpleNamespace(GFX=0)
        self.AmdSmiMemoryType = types.SimpleNamespace(VRAM=0)
        for name, value in READINGS.items():
            setattr(self, name, self._query(name, value))

    def _query(self, name: str, value: Any) -> Any:
        def ask(handle: str, *_: Any) -> Any:
            assert handle == self.cards[-1], "another card was asked"
            self.num_calls += 1
            if name in self.failing:
                raise AmdSmiLibraryException(self.failing[name])
            return value

        return ask

    def amdsmi_init(self) -> None:
        self.num_open += 1

    def amdsmi_shut_down(self) -> None:
        self.num_open -= 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return list(self.cards)

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return handle

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, str]:
        return {"market_name": "AMD Instinct MI300X"}


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    module = FakeSmi("0000:05:00.0", "0000:c1:00.0")
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


def test_a_card_is_found_by_its_place_and_read_in_si_units(smi: FakeSmi) -> None:
    told: list[str] = []
    device = open_amd(PLACE, told.append)
    sample = device.read(3.0)
    assert sample is not None
    assert {field: getattr(sample, field) for field, _ in FIELDS.values()} == dict(FIELDS.values())
    assert (sample.pcie_generation, sample.device) == (5, "AMD Instinct MI300X")
    device.close()
    assert (smi.num_open, told) == (0, [])


@pytest.mark.parametrize("query", FIELDS)
@pytest.mark.parametrize("code", [2, 5, 10, 39])
def test_N01_a_query_that_fails_takes_only_its_own_reading(
    query: str, code: int, smi: FakeSmi
) -> None:
    smi.failing[query] = code
    told: list[str] = []
    device = open_amd(PLACE, told.append)
    for at_s in range(4):
        sample = device.read(float(at_s))
        assert sample is not None
        for name, (field, value) in FIELDS.items():
            assert getattr(sample, field) == (None if name == query else value)
    assert bool(told) == (code not in (2, 5))  # absent is no news


def test_N02_not_available_is_n_a_and_never_0(smi: FakeSmi) -> None:
    smi.amdsmi_get_power_info = lambda handle: {"current_socket_power": "N/A"}  # type: ignore[attr-defined]
    smi.amdsmi_get_gpu_activity = lambda handle: {"gfx_activity": "N/A"}  # type: ignore[attr-defined]
    sample = open_amd(PLACE, lambda text: None).read(0.0)
    assert sample is not None
    assert sample.power_w is sample.utilization_fraction is None


def test_a_driver_that_goes_away_is_told_once_and_asked_no_more(smi: FakeSmi) -> None:
    told: list[str] = []
    device = open_amd(PLACE, told.append)
    smi.failing["amdsmi_get_clock_info"] = 34
    assert device.read(0.0) is None
    asked = smi.num_calls
    assert device.read(1.0) is None
    assert (smi.num_calls, len(told)) == (asked, 1)


@pytest.mark.parametrize("place", [None, (0, 7, 0)])
def test_a_card_that_cannot_be_told_is_n_a_and_the_library_closed(
    place: tuple[int, int, int] | None, smi: FakeSmi
) -> None:
    device = open_amd(place, lambda text: None)
    assert isinstance(device, NullDevice)
    assert smi.num_open == 0


def test_parts_of_a_card_that_share_a_place_are_not_guessed_at(smi: FakeSmi) -> None:
    smi.cards = ("0000:c1:00.0", "0000:c1:00.1")
    assert isinstance(open_amd(PLACE, lambda text: None), NullDevice)


def test_K06_without_rocm_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise KeyError("ROCM_PATH")

    monkeypatch.setattr("scaledl.capture.devices.amd.import_module", broken)
    device = open_amd(PLACE, lambda text: None)
    assert isinstance(device, NullDevice)
    assert "pip install amdsmi" in device.reason
