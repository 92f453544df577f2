"""Drivers and cards as they come, each on a fake one: what is read, what is n/a, what is said."""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fakes import QUERIES, FakeGpu, FakeNvml, NVMLError_FunctionNotFound
from hypothesis import given
from hypothesis import strategies as st

from scaledl.capture.devices.base import Device, NullDevice
from scaledl.capture.devices.identity import visible_cards
from scaledl.capture.devices.nvidia import open_nvidia
from scaledl.capture.sampler import Sampler
from scaledl.predictor.devices import catalogue, default_links, find_gpu, find_link, wired
from scaledl.records import DeviceSample, GpuLinks

READINGS = set(DeviceSample.__struct_fields__) - {"at_s", "device"}
NVLINK = {"nvlink_tx_bytes", "nvlink_rx_bytes"}


def h100() -> FakeGpu:
    gpu = FakeGpu("GPU-a", "NVIDIA H100 80GB HBM3")
    gpu.links = ["switch"] * 18
    return gpu


def without(name: str, *queries: str) -> FakeGpu:
    gpu = FakeGpu("GPU-a", name)
    gpu.unsupported |= set(queries)
    return gpu


CARDS = {  # the card, and what of it is n/a
    "H100, NVLink": (h100(), set()),
    "A100, PCIe": (without("NVIDIA A100-PCIE-40GB"), NVLINK),
    "L4": (without("NVIDIA L4"), NVLINK),
    "GTX, consumer": (
        without("NVIDIA GeForce GTX 1060", "energy", "memory errors"),
        NVLINK | {"energy_j", "memory_errors"},
    ),
    "vGPU": (
        without("GRID A100-8C", "power", "energy", "temperature", "pcie", "memory errors"),
        NVLINK
        | {"power_w", "energy_j", "temperature_c", "memory_errors"}
        | {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"},
    ),
}


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Callable[..., Device]:
    def of(*gpus: FakeGpu) -> Device:
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpus))
        return open_nvidia(gpus[0].uuid, told.append)

    return of


def read(device: Device, at_s: float = 0.0) -> dict[str, Any]:
    sample = device.read(at_s)
    assert sample is not None
    return {name: getattr(sample, name) for name in READINGS}


@pytest.mark.parametrize("kind", CARDS)
def test_N01_each_kind_of_card_gives_all_that_it_has_and_not_a_word(
    kind: str, plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu, missing = CARDS[kind]
    values = read(plug_in(gpu))
    assert {name for name, value in values.items() if value is None} == missing
    assert told == []


def test_traffic_is_told_in_bytes(plug_in: Callable[..., Device]) -> None:
    values = read(plug_in(h100()))
    assert values["pcie_tx_bytes_per_s"] == values["pcie_rx_bytes_per_s"] == 2e6
    assert values["nvlink_tx_bytes"] == values["nvlink_rx_bytes"] == 5000 * 1024.0
    assert (values["pcie_generation"], values["pcie_width"]) == (4, 16)


def test_an_old_driver_without_fields_and_event_reasons_still_gives_the_rest(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    def unknown(*arguments: Any) -> Any:
        raise NVMLError_FunctionNotFound

    gpu = h100()
    gpu.readings["throttle"] = 0x40
    device = plug_in(gpu)
    module: Any = sys.modules["pynvml"]
    module.nvmlDeviceGetFieldValues = unknown
    module.nvmlDeviceGetCurrentClocksEventReasons = unknown
    for at_s in range(5):
        values = read(device, at_s)
        assert values["throttled"] == "temperature"
        assert {name for name, value in values.items() if value is None} == NVLINK
    assert told == []


def test_a_driver_that_calls_throttling_events_is_read_too(
    plug_in: Callable[..., Device],
) -> None:
    device = plug_in(h100())
    module: Any = sys.modules["pynvml"]
    module.nvmlDeviceGetCurrentClocksEventReasons = lambda gpu: 0x8 | 0x1
    assert read(device)["throttled"] == "hardware slowdown"


def test_N14_what_the_driver_denies_is_told_once_all_together_and_asked_once(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = h100()
    gpu.denied |= {"power", "energy"}
    device = plug_in(gpu)
    for at_s in range(5):
        values = read(device, at_s)
        assert values["power_w"] is values["energy_j"] is None
        assert values["temperature_c"] == 61.0
    assert gpu.num_calls["power"] == 1
    assert len(told) == 1
    assert "power, energy" in told[0]


def test_a_card_that_is_lost_is_n_a_from_then_on_told_once_and_asked_no_more(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = h100()
    device = plug_in(gpu)
    assert read(device)["power_w"] == 250.0
    gpu.lost_from = sum(gpu.num_calls.values()) + 4  # in the middle of the next reading
    assert [device.read(float(at_s)) for at_s in range(5)] == [None] * 5
    asked = sum(gpu.num_calls.values())
    assert device.read(9.0) is None
    assert sum(gpu.num_calls.values()) == asked
    assert len(told) == 1
    assert "GPU is lost" in told[0]


def test_a_card_of_which_every_query_fails_is_one_loss_and_one_word(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = FakeGpu("GPU-a")
    device = plug_in(gpu)
    read(device)
    for query in QUERIES:
        gpu.fail(query)
    samples = [device.read(float(at_s)) for at_s in range(6)]
    assert samples[-1] is None
    assert len(told) == 1
    assert "Unknown Error" in told[0]


def test_N03_a_reading_that_was_given_up_comes_back_when_the_driver_answers_again(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = FakeGpu("GPU-a").fail("power", on=range(2, 5))
    device = plug_in(gpu)
    powers = [read(device, at_s)["power_w"] for at_s in range(20)]
    assert powers[0] == powers[-1] == 250.0
    assert None in powers
    assert gpu.num_calls["power"] < 20  # it rested
    assert len(told) == 1


def test_uncorrected_memory_errors_that_rise_are_told_once_and_old_ones_are_not(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = h100()
    gpu.readings["memory errors"] = 3  # from before the run
    device = plug_in(gpu)
    read(device)
    assert told == []
    for count in (3, 5, 6):
        gpu.readings["memory errors"] = count
        assert read(device)["memory_errors"] == count
    assert len(told) == 1
    assert "from 3 to 5" in told[0]


def sums(samples: list[DeviceSample]) -> Sampler:
    sampler = Sampler(NullDevice("none"), lambda sample: None, lambda error: None)
    for sample in samples:
        sampler._add(sample)
    return sampler


def at(at_s: float, power_w: float | None, energy_j: float | None) -> DeviceSample:
    return DeviceSample(at_s=at_s, device="x", power_w=power_w, energy_j=energy_j)


def test_N02_a_counter_that_falls_silent_is_bridged_by_power_and_said() -> None:
    sampler = sums([at(0, 100, 0.0), at(5, 100, 500.0), at(10, 100, None), at(15, 100, None)])
    assert sampler.energy_j == pytest.approx(1500.0)
    assert sampler.energy_source == "counter and power"
    sampler._add(at(20, 100, 2000.0))
    assert (sampler.energy_j, sampler.energy_source) == (pytest.approx(2000.0), "counter")


def test_N02_energy_is_n_a_once_a_card_tells_no_more() -> None:
    sampler = sums([at(0, 100, 0.0), at(5, 100, 500.0), *[at(9, None, None)] * 4])
    assert (sampler.energy_j, sampler.energy_source) == (None, "n/a")


# --- which card ----------------------------------------------------------------------------------

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]


@pytest.mark.parametrize(
    ("visible", "places"),
    [
        ("2,0", [2, 0]),
        ("GPU-cc33,GPU-aa11", [2, 0]),
        ("GPU-c", [2]),
        ("GPU-a", []),  # two begin so
        ("MIG-GPU-ab22/1/0", [1]),
        ("", []),
        ("-1", []),
        ("0,9,1", [0]),
        ("0,0", []),
        ("all", []),
        (None, [0, 1, 2]),
    ],
)
def test_N04_visible_devices_are_read_as_cuda_reads_them(
    visible: str | None, places: list[int]
) -> None:
    assert visible_cards(visible, UUIDS, in_pci_order=True) == places


@pytest.mark.parametrize("visible", ["0", None, "1,2"])
def test_N05_numbers_say_nothing_where_cuda_may_order_otherwise(visible: str | None) -> None:
    assert visible_cards(visible, UUIDS, in_pci_order=False) == []


@given(st.text(max_size=20))
def test_N04_no_text_in_the_visible_devices_breaks_it(visible: str) -> None:
    places = visible_cards(visible, UUIDS, in_pci_order=True)
    assert len(set(places)) == len(places) <= 3


# --- how they are wired --------------------------------------------------------------------------


def cabled(num: int, per_pair: int) -> list[FakeGpu]:
    """A ring of cards with so many NVLinks (3.0) to each neighbour."""
    gpus = [FakeGpu(f"GPU-{i}") for i in range(num)]
    for i, gpu in enumerate(gpus):
        near = {(i - 1) % num, (i + 1) % num} - {i}
        gpu.links = [gpus[j] for j in sorted(near) for _ in range(per_pair)]
        gpu.link_version = 4
    return gpus


def wires(plug_in: Callable[..., Device], gpus: list[FakeGpu]) -> GpuLinks:
    links = plug_in(*gpus).links()
    assert links is not None
    return links


def test_a_switch_and_a_ring_of_cables_are_nvlink(plug_in: Callable[..., Device]) -> None:
    switched = wires(plug_in, [h100(), h100()])
    assert (switched.nvlink, switched.num_nvlinks) == ("nvlink4", 18)
    assert switched.nvlink_bytes_per_s == 25e9
    ring = wires(plug_in, cabled(4, 2))
    assert (ring.nvlink, ring.num_nvlinks) == ("nvlink3", 4)


def test_pairs_with_a_bridge_among_four_cards_are_pcie(plug_in: Callable[..., Device]) -> None:
    gpus = [*cabled(2, 12), *cabled(2, 12)]
    for number, gpu in enumerate(gpus):
        gpu.uuid, gpu.socket = f"GPU-{number}", number // 2
    links = wires(plug_in, gpus)
    assert (links.nvlink, links.pcie_generation, links.across_sockets) == (None, 4, True)


def test_the_weakest_slot_counts_and_an_idle_link_is_not_taken_for_slow(
    plug_in: Callable[..., Device],
) -> None:
    one, two = FakeGpu("GPU-a", **{"pcie generation": 1}), FakeGpu("GPU-b")
    two.readings["max pcie width"] = 8
    links = wires(plug_in, [one, two])
    assert (links.pcie_generation, links.pcie_width) == (4, 8)


def test_a_driver_that_tells_nothing_of_the_wiring_is_none(
    plug_in: Callable[..., Device],
) -> None:
    gpu = without("x", "max pcie generation", "max pcie width")
    assert plug_in(gpu).links() is None


@given(
    kind=st.sampled_from([None, *(e.kind for e in catalogue().link)]),
    num=st.integers(0, 40),
    speed=st.none() | st.floats(0, 1e12),
    generation=st.none() | st.integers(0, 9),
    width=st.none() | st.integers(0, 32),
    across=st.none() | st.booleans(),
    gpu=st.sampled_from([None, "H100-SXM", "A100-PCIe-40GB", "L4", "MI300X"]),
)
def test_wiring_however_read_never_narrows_the_doubt(
    kind: str | None,
    num: int,
    speed: float | None,
    generation: int | None,
    width: int | None,
    across: bool | None,
    gpu: str | None,
) -> None:
    default, _ = default_links(find_gpu(gpu) if gpu else None, is_cpu=False)
    links = GpuLinks(
        nvlink=kind,
        num_nvlinks=num,
        nvlink_bytes_per_s=speed,
        pcie_generation=generation,
        pcie_width=width,
        across_sockets=across,
    )
    link = wired(links, default)
    assert link.rel_sigma >= default.rel_sigma
    assert not link.measured
    assert link.bytes_per_s >= 1.0


def test_fewer_lines_than_the_class_has_are_a_lower_rate() -> None:
    default = find_link("pcie4")
    bridge = GpuLinks(nvlink="nvlink3", num_nvlinks=4, nvlink_bytes_per_s=14.0625e9)
    link = wired(bridge, default)
    assert link.kind == "nvlink3"
    assert link.bytes_per_s == pytest.approx(200e9 * 4 * 14.0625 / 300)
    narrow = wired(GpuLinks(pcie_generation=4, pcie_width=8), default)
    assert narrow == msgspec.structs.replace(default, bytes_per_s=8e9)


def test_a_board_with_nvlink_whose_cables_are_not_told_stays_what_it_is() -> None:
    default, _ = default_links(find_gpu("H100-SXM"), is_cpu=False)
    assert wired(GpuLinks(pcie_generation=5, pcie_width=16), default) == default
