import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledl.errors import UsageError
from scaledl.predictor.layer_fit import LayerExample, fit_layers
from scaledl.predictor.layer_work import (
    FEATURES,
    KINDS,
    LayerWork,
    features,
    linear_work,
    node_work,
    roofline_s,
)
from scaledl.predictor.layers import LayerModel
from scaledl.records import GpuSpec, LayerGraph, LayerNode


def gpu(name: str, tflops: float, gbytes_per_s: float) -> GpuSpec:
    return GpuSpec(
        name=name, memory_bytes_per_s=gbytes_per_s * 1e9, peak_flops={"float32": tflops * 1e12}
    )


SLOW, MIDDLE, FAST = gpu("slow", 5, 250), gpu("middle", 10, 500), gpu("fast", 20, 1500)


def truth_s(work: LayerWork, device: GpuSpec) -> float:
    """A launch, then the sum of compute at 60 % and memory at 80 % of the device's numbers."""
    compute_s = work.flops / (0.6 * device.peak_flops["float32"])
    memory_s = work.num_bytes / (0.8 * float(device.memory_bytes_per_s or 0))
    return 1e-5 + float(np.hypot(compute_s, memory_s))


def examples(devices: list[GpuSpec], count: int = 150, seed: int = 0) -> list[LayerExample]:
    rng = np.random.default_rng(seed)
    found = []
    for device in devices:
        for _ in range(count):
            rows, d_in, d_out = np.exp(rng.uniform(np.log(8), np.log(8192), size=3))
            for direction in ("forward", "backward"):
                work = linear_work(rows, d_in, d_out, direction)
                noise = float(np.exp(0.03 * rng.normal()))
                found.append(
                    LayerExample(work=work, gpu=device, time_s=noise * truth_s(work, device))
                )
    return found


@pytest.fixture(scope="module")
def fitted() -> LayerModel:
    return fit_layers(examples([SLOW, MIDDLE]))


def mean_relative_error(model: LayerModel | None, tests: list[LayerExample]) -> float:
    works, devices = [e.work for e in tests], [e.gpu for e in tests]
    if model is None:
        predicted = np.array([roofline_s(w, d) for w, d in zip(works, devices, strict=True)])
    else:
        predicted = model.predict_s(works, devices)
    return float(np.mean(np.abs(predicted / [e.time_s for e in tests] - 1)))


def test_linear_features_are_those_of_equation_10() -> None:
    work = linear_work(rows=32, d_in=100, d_out=50)
    assert work.flops == 2 * 32 * 100 * 50 + 32 * 50
    assert work.num_bytes == 4 * (32 * 100 + (100 * 50 + 50) + 32 * 50)
    logs = dict(zip(FEATURES, features([work], [MIDDLE])[0], strict=True))
    assert logs["width"] == pytest.approx(np.log(50))
    assert logs["peak"] == pytest.approx(-np.log(10e12))


def test_shape_of_a_recorded_linear_layer_is_found_again() -> None:
    node = LayerNode(
        fqn="a",
        kind="linear",
        params=100 * 50,
        param_bytes=4 * 100 * 50,
        flops_forward=2.0 * 32 * 100 * 50,
        activation_bytes=4 * 32 * 50,
    )
    work = node_work(node, "forward")
    assert (work.rows, work.width, work.depth) == (32, 50, 100)
    assert work.num_bytes == 4 * (32 * 100 + 100 * 50 + 32 * 50)


def test_a_gpu_that_was_never_measured_is_forecast_three_times_better_than_by_the_roofline(
    fitted: LayerModel,
) -> None:
    unseen = examples([FAST], seed=1)
    assert mean_relative_error(fitted, unseen) < mean_relative_error(None, unseen) / 3


def test_work_thirty_times_beyond_what_was_seen_is_forecast_within_a_quarter(
    fitted: LayerModel,
) -> None:
    works = [linear_work(rows, 16384, 16384) for rows in (16384, 65536)]
    larger = [LayerExample(work=w, gpu=SLOW, time_s=truth_s(w, SLOW)) for w in works]
    assert mean_relative_error(fitted, larger) < 0.25


@settings(max_examples=60, deadline=None)
@given(
    flops=st.floats(1e3, 1e14),
    num_bytes=st.floats(1e3, 1e11),
    more=st.floats(1.01, 100.0),
    direction=st.sampled_from(["forward", "backward"]),
)
def test_more_flops_or_bytes_or_a_slower_gpu_never_take_less_time(
    flops: float, num_bytes: float, more: float, direction: str
) -> None:
    model = MONOTONE
    base = LayerWork(
        kind="linear",
        direction="forward" if direction == "forward" else "backward",
        flops=flops,
        num_bytes=num_bytes,
        rows=64,
        width=512,
        depth=512,
    )
    more_flops = msgspec.structs.replace(base, flops=flops * more)
    more_bytes = msgspec.structs.replace(base, num_bytes=num_bytes * more)
    unknown = gpu("unknown", 8, 400)
    slower = gpu("unknown too", 8 / more, 400 / more)
    times = model.predict_s(
        [base, more_flops, more_bytes, base], [unknown, unknown, unknown, slower]
    )
    assert (times[1:] >= times[0] * (1 - 1e-12)).all()


MONOTONE = fit_layers(examples([SLOW, MIDDLE, FAST], count=40, seed=3))


def test_time_is_smooth_where_memory_and_compute_meet(fitted: LayerModel) -> None:
    works = [linear_work(rows, 512, 512) for rows in np.exp(np.linspace(0, 12, 400))]
    logs = np.log(fitted.predict_s(works, [MIDDLE] * 400))
    bends = np.abs(np.diff(logs, n=2))
    assert bends.max() < 0.01
    kinks = np.abs(np.diff(np.log([roofline_s(w, MIDDLE) for w in works]), n=2))
    assert kinks.max() > bends.max()


@pytest.mark.parametrize("kind", [*KINDS, "a type of tomorrow"])
def test_a_type_never_fitted_gets_the_roofline(kind: str) -> None:
    work = LayerWork(kind=kind, direction="forward", flops=1e9, num_bytes=1e7)
    assert LayerModel().predict_s([work], [FAST])[0] == roofline_s(work, FAST)


def test_forward_and_backward_have_models_of_their_own(fitted: LayerModel) -> None:
    assert set(fitted.types) == {"linear/forward", "linear/backward"}


def test_backward_is_learnt_from_whole_steps_that_include_the_forward() -> None:
    forward = [e for e in examples([MIDDLE]) if e.work.direction == "forward"]
    steps = []
    for example in examples([MIDDLE], seed=7):
        if example.work.direction == "backward":
            first = linear_work(example.work.rows, example.work.depth, example.work.width)
            time_s = truth_s(first, MIDDLE) + truth_s(example.work, MIDDLE)
            steps.append(
                LayerExample(work=example.work, gpu=MIDDLE, time_s=time_s, with_forward=first)
            )
    model = fit_layers([*forward, *steps])
    backward = [e for e in examples([MIDDLE], seed=9) if e.work.direction == "backward"]
    assert mean_relative_error(model, backward) < 0.08


def test_a_device_that_falls_short_of_its_data_sheet_is_learnt() -> None:
    lame = [
        msgspec.structs.replace(e, gpu=gpu("lame", 10, 500), time_s=2 * e.time_s)
        for e in examples([MIDDLE])
    ]
    model = fit_layers([*examples([SLOW, MIDDLE]), *lame])
    assert mean_relative_error(model, lame) < 0.15
    assert mean_relative_error(model, examples([MIDDLE], seed=2)) < 0.15


def test_one_wild_measurement_in_ten_does_not_spoil_the_rest() -> None:
    seen = examples([MIDDLE])
    wild = [
        msgspec.structs.replace(e, time_s=50 * e.time_s) if i % 10 == 0 else e
        for i, e in enumerate(seen)
    ]
    assert mean_relative_error(fit_layers(wild), examples([MIDDLE], seed=4)) < 0.2


def test_a_fit_on_another_type_leaves_the_earlier_ones_as_they_were(fitted: LayerModel) -> None:
    other = LayerExample(
        work=LayerWork(kind="pooling", direction="forward", flops=1e6, num_bytes=1e6),
        gpu=SLOW,
        time_s=1e-3,
    )
    model = fit_layers([other], start=fitted)
    assert model.types["linear/forward"] == fitted.types["linear/forward"]
    assert "pooling/forward" in model.types


def test_the_model_survives_json(fitted: LayerModel) -> None:
    again = msgspec.json.decode(msgspec.json.encode(fitted), type=LayerModel)
    works = [linear_work(64, 64, 64)]
    assert again.predict_s(works, [SLOW])[0] == fitted.predict_s(works, [SLOW])[0]


def test_node_times_leave_out_what_is_no_layer(fitted: LayerModel) -> None:
    nodes = (
        LayerNode(fqn="a", kind="linear", params=10, flops_forward=1e9, activation_bytes=400),
        LayerNode(fqn="outside_layers", kind="outside"),
    )
    graph = LayerGraph(nodes=nodes, edges=(), signature="s")
    times = fitted.node_times_s(graph, SLOW, "forward")
    assert times[0] > 0
    assert times[1] == 0


def test_a_time_of_zero_is_refused() -> None:
    bad = LayerExample(work=linear_work(1, 1, 1), gpu=SLOW, time_s=0.0)
    with pytest.raises(UsageError, match=r"0\.0"):
        fit_layers([bad])
