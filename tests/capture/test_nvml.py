"""The GPU's sensor on a driver that misbehaves: what is not there is n/a, and said once."""

import builtins
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from fakes import QUERIES, FakeGpu, FakeNvml, NVMLError_Unknown
from training import make_loader, make_model

import scaledl
from scaledl.capture.devices.base import Device, NullDevice
from scaledl.capture.devices.nvidia import open_nvidia
from scaledl.capture.sampler import Sampler
from scaledl.records import DeviceSample

FIELDS = {
    "power": "power_w",
    "energy": "energy_j",
    "clock": "sm_hz",
    "temperature": "temperature_c",
    "memory": "memory_bytes",
    "utilization": "utilization_fraction",
    "throttle": "throttled",
}
WHOLE = {
    "power_w": 250.0,
    "energy_j": 1000.0,
    "sm_hz": 1.41e9,
    "temperature_c": 61.0,
    "memory_bytes": 40.0 * 2**30,
    "utilization_fraction": 0.97,
    "throttled": "",
}


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Callable[..., Device]:
    """The sensor of the last card given, under a fake driver that has them all."""

    def of(*gpus: FakeGpu, **options: Any) -> Device:
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpus, **options))
        return open_nvidia(gpus[-1].uuid if gpus else "GPU-none", told.append)

    return of


def values(sample: DeviceSample | None) -> dict[str, Any]:
    assert sample is not None
    return {field: getattr(sample, field) for field in WHOLE}


def test_a_good_card_is_read_in_si_units(plug_in: Callable[..., Device], told: list[str]) -> None:
    device = plug_in(FakeGpu("GPU-a", "NVIDIA H100"))
    sample = device.read(5.0)
    assert values(sample) == WHOLE
    assert (sample.at_s, sample.device) == (5.0, "NVIDIA H100")
    assert told == []


@pytest.mark.parametrize("query", FIELDS)
def test_N01_a_query_the_card_does_not_have_is_asked_once_and_n_a_from_then_on(
    query: str, plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = FakeGpu("GPU-a")
    gpu.unsupported.add(query)
    device = plug_in(gpu)
    for at_s in range(5):
        assert values(device.read(float(at_s))) == {**WHOLE, FIELDS[query]: None}
    assert gpu.num_calls[query] == 1
    assert told == []  # absent is no news


def test_N01_a_card_that_has_nothing_at_all_still_gives_a_sample(
    plug_in: Callable[..., Device],
) -> None:
    gpu = FakeGpu("GPU-a")
    gpu.unsupported.update(QUERIES)
    assert set(values(plug_in(gpu).read(0.0)).values()) == {None}


def test_N01_a_driver_without_the_function_itself_is_met(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    device = plug_in(FakeGpu("GPU-a"))
    for name in QUERIES.values():
        delattr(sys.modules["pynvml"], name)
    for at_s in range(4):
        assert set(values(device.read(float(at_s))).values()) == {None}


def run_sampler(
    device: Device, readings: int, wall: Callable[[], float] = time.time
) -> tuple[Sampler, list[DeviceSample]]:
    """A sampler that has taken so many samples."""
    samples: list[DeviceSample] = []
    errors: list[Exception] = []

    def take(sample: DeviceSample) -> None:
        samples.append(sample)
        if len(samples) >= readings:
            sampler._stop.set()

    sampler = Sampler(device, take, errors.append, period_s=0.0, wall=wall)
    sampler._run()
    assert errors == []
    return sampler, samples


def test_N02_without_an_energy_counter_power_is_integrated_and_said_to_be(
    plug_in: Callable[..., Device],
) -> None:
    gpu = FakeGpu("GPU-a")
    gpu.unsupported.add("energy")
    clock = iter([100.0, 102.0, 105.0, 106.0])
    sampler, samples = run_sampler(plug_in(gpu), 4, wall=lambda: next(clock))
    assert [sample.energy_j for sample in samples] == [None] * 4
    assert sampler.energy_j == pytest.approx(250.0 * 6.0)
    assert sampler.energy_source == "power"


def test_N02_without_counter_and_power_energy_is_n_a_and_never_0(
    plug_in: Callable[..., Device],
) -> None:
    gpu = FakeGpu("GPU-a")
    gpu.unsupported.update({"energy", "power"})
    sampler, _ = run_sampler(plug_in(gpu), 4)
    assert sampler.energy_j is None
    assert sampler.power_w is None
    assert sampler.energy_source == "n/a"


def test_N03_one_failure_later_costs_one_reading_and_is_no_news(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = FakeGpu("GPU-a").fail("power", on=[5])
    device = plug_in(gpu)
    powers = [values(device.read(float(at_s)))["power_w"] for at_s in range(8)]
    assert powers == [250.0] * 4 + [None] + [250.0] * 3
    assert told == []


def test_N03_a_driver_that_is_gone_is_told_once_for_each_reading_and_asked_no_more(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = FakeGpu("GPU-a", "H100").fail("temperature").fail("power", on=range(5, 1000))
    device = plug_in(gpu)
    for at_s in range(40):
        sample = values(device.read(float(at_s)))
    assert sample == {**WHOLE, "temperature_c": None, "power_w": None}
    assert gpu.num_calls["temperature"] <= 10  # it was retried, but not for ever
    assert [text for text in told if "temperature" in text] == told[:1]
    assert [text for text in told if "power" in text] == told[1:]
    assert len(told) == 2
    assert "Unknown Error" in told[0]
    assert "Training continues" in told[0]
    assert "H100" in told[0]


def test_N05_a_card_is_found_by_its_uuid_whatever_the_drivers_order(
    plug_in: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = FakeGpu("GPU-one", "one", power=100_000), FakeGpu("GPU-two", "two", power=200_000)
    for order in ((one, two), (two, one)):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(order))
        for gpu, power_w in ((one, 100.0), (two, 200.0)):
            device = open_nvidia(gpu.uuid, lambda text: None)
            assert (device.name, values(device.read(0.0))["power_w"]) == (gpu.name, power_w)


def test_N05_a_card_the_driver_does_not_know_is_no_other_card(
    plug_in: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = FakeNvml([FakeGpu("GPU-other")])
    monkeypatch.setitem(sys.modules, "pynvml", module)
    device = open_nvidia("GPU-mine", lambda text: None)
    assert isinstance(device, NullDevice)
    assert "Not Found" in device.reason
    assert module.num_open == 0  # the driver was given back


def test_N11_energy_is_the_difference_of_the_counter_however_coarse_power_is(
    plug_in: Callable[..., Device],
) -> None:
    gpu = FakeGpu("GPU-a")
    counter_mj = iter(range(5_000_000, 10_000_000, 250_000))  # 250 J a reading
    original = gpu.ask
    gpu.ask = lambda query: next(counter_mj) if query == "energy" else original(query)  # type: ignore[method-assign]
    sampler, samples = run_sampler(plug_in(gpu), 11)
    assert [sample.energy_j for sample in samples[:2]] == [5000.0, 5250.0]
    assert sampler.energy_j == pytest.approx(2500.0)


def test_N14_a_first_reading_that_fails_does_not_switch_the_sensor_off(
    plug_in: Callable[..., Device], told: list[str]
) -> None:
    gpu = FakeGpu("GPU-a")
    for query in QUERIES:
        gpu.fail(query, on=[1])
    device = plug_in(gpu)
    assert set(values(device.read(0.0)).values()) == {None}
    assert values(device.read(1.0)) == WHOLE
    assert told == []


def test_N14_why_a_sensor_is_off_stands_in_the_status_and_is_said_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gpu = FakeGpu("GPU-a", "H100").fail("power").fail("temperature")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([gpu]))
    monkeypatch.setattr(
        "scaledl.capture.session.open_device", lambda device, told: open_nvidia("GPU-a", told)
    )
    monkeypatch.setattr(Sampler.__init__, "__defaults__", (0.001, lambda: 0.0))
    with scaledl.track(make_model(), run_dir=tmp_path) as run:
        for _ in make_loader():
            while gpu.num_calls.get("throttle", 0) < 10:
                time.sleep(0.001)
    said = capfd.readouterr().err
    for lost in ("power of H100 unreadable", "temperature of H100 unreadable"):
        assert said.count(lost) == 1
        assert any(lost in text for text in run.status()["off"].values())


def test_a_foreign_module_of_that_name_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    foreign = types.ModuleType("pynvml")
    foreign.nvmlInit = lambda: pytest.fail("it was used")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", foreign)
    device = open_nvidia("GPU-a", told.append)
    assert isinstance(device, NullDevice)
    assert "foreign module named pynvml" in device.reason
    assert "nvidia-ml-py" in device.reason
    assert device.read(0.0) is None
    device.close()


@pytest.mark.parametrize("error", [ImportError("gone"), KeyError("odd"), OSError("no library")])
def test_K06_a_module_that_breaks_at_import_is_met_whatever_it_raises(
    error: Exception, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pynvml":
            raise error
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    device = open_nvidia("GPU-a", told.append)
    assert isinstance(device, NullDevice)
    assert "nvidia-ml-py" in device.reason


def test_a_machine_without_a_driver_says_what_still_works(plug_in: Callable[..., Device]) -> None:
    device = plug_in(init_error=NVMLError_Unknown())
    assert isinstance(device, NullDevice)
    assert "no NVIDIA driver found" in device.reason
    assert "still work" in device.reason


@pytest.mark.parametrize("mask", [0x40, 0x20, 0x80, 0x4, 0x1, 0x0])
def test_throttling_is_told_by_its_cause(mask: int, plug_in: Callable[..., Device]) -> None:
    expected = {0x40: "temperature", 0x20: "temperature", 0x80: "power brake", 0x4: "power cap"}
    sample = plug_in(FakeGpu("GPU-a", throttle=mask)).read(0.0)
    assert values(sample)["throttled"] == expected.get(mask, "")


def test_closing_gives_the_driver_back_and_survives_a_lost_one(
    plug_in: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = plug_in(FakeGpu("GPU-a"))
    module: Any = sys.modules["pynvml"]
    assert module.num_open == 1
    device.close()
    assert module.num_open == 0

    def gone() -> None:
        raise NVMLError_Unknown

    module.nvmlShutdown = gone
    device.close()
