import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledl.predictor.analytic import forecast
from scaledl.predictor.batch import batch_curve, with_floor
from scaledl.predictor.devices import find_gpu
from scaledl.predictor.layers import LayerModel
from scaledl.predictor.shipped import shipped_layers, shipped_network
from scaledl.records import (
    ClusterSpec,
    GpuSpec,
    LayerGraph,
    LayerNode,
    LinkSpec,
    Measurement,
    ParallelPlan,
    StepParts,
)

A100 = find_gpu("A100-80GB") or GpuSpec(name="A100-80GB")
LINK = LinkSpec(kind="nvlink", latency_s=3e-6, bytes_per_s=235e9)


def graph(flops: float, *, num_layers: int = 20) -> LayerGraph:
    """Linear layers 1024 x 1024 in float32 of ``flops`` in the forward."""
    rows = flops / (2 * 1024 * 1024)
    nodes = tuple(
        LayerNode(
            fqn=f"{i}",
            kind="linear",
            params=1024 * 1024,
            param_bytes=4 * 1024 * 1024,
            flops_forward=flops,
            flops_backward=2 * flops,
            activation_bytes=round(4 * rows * 1024),
        )
        for i in range(num_layers)
    )
    return LayerGraph(nodes=nodes, edges=(), signature="toy")


def measured(step_s: float = 0.1, num_layers: int | None = 20) -> Measurement:
    return Measurement(
        cluster=ClusterSpec(gpu=A100, num_gpus=1, gpus_per_node=8, intra=LINK, inter=LINK),
        plan=ParallelPlan(batch_per_gpu=32),
        step_s=step_s,
        parts=StepParts(
            compute_s=step_s, comm_exposed_s=0.0, input_wait_s=0.0, optimizer_s=0.0, other_s=0.0
        ),
        num_steps=100,
        num_layers=num_layers,
    )


def shipped() -> LayerModel:
    found = shipped_layers()
    assert found is not None
    return found.model


def test_the_shipped_layers_say_where_they_come_from_and_hold_numbers_only() -> None:
    found = shipped_layers()
    assert found is not None
    assert len(found.provenance.sources) == 4
    assert "layer_weights.py" in found.provenance.command
    for model in found.model.types.values():
        assert np.isfinite(model.log_scale).all()
        exponents = np.array(model.exponents)
        assert (exponents[:, :6] >= 0).all()  # more work never takes less time
        assert (exponents[:, 7:] >= 0).all()  # nor does a slower GPU


def test_small_layers_hardly_grow_with_the_batch_and_large_ones_do() -> None:
    small = batch_curve(shipped(), graph(1e6), A100, 32)
    large = batch_curve(shipped(), graph(1e12), A100, 32)
    assert small is not None
    assert large is not None
    assert small.growth(32, 64) < 1.2
    assert large.growth(32, 64) == pytest.approx(2, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(st.floats(1e5, 1e13), st.integers(1, 512), st.integers(1, 512), st.integers(1, 512))
def test_growth_is_monotone_one_at_the_own_batch_and_multiplies(
    flops: float, own: int, first: int, second: int
) -> None:
    curve = batch_curve(shipped(), graph(flops), A100, own)
    assert curve is not None
    assert curve.growth(own, own) == 1
    low, high = sorted((first, second))
    assert curve.growth(low, high) >= 1 - 1e-9
    both = curve.growth(own, first) * curve.growth(first, second)
    assert both == pytest.approx(curve.growth(own, second))


def test_an_unknown_device_or_an_empty_graph_has_no_curve() -> None:
    assert batch_curve(shipped(), graph(1e9), GpuSpec(name="cpu"), 32) is None
    empty = LayerGraph(nodes=(), edges=(), signature="")
    assert batch_curve(shipped(), empty, A100, 32) is None


def test_compute_never_falls_below_what_the_host_needs() -> None:
    share = np.array([0.0, 0.3, 1.0])
    assert with_floor(share, 1.0) == pytest.approx(1.0)
    assert with_floor(share, 0.0) == pytest.approx(share)
    assert (with_floor(share, 0.01) >= share).all()


def test_the_own_batch_is_reproduced_and_doubt_grows_with_the_distance() -> None:
    base = measured()
    curve = batch_curve(shipped(), graph(1e11), A100, 32)
    spans = [
        forecast([base], base.cluster, ParallelPlan(batch_per_gpu=b), curve=curve).step_s
        for b in (32, 64, 256)
    ]
    assert spans[0].mean == base.step_s
    widths = [span.high / span.low for span in spans]
    assert widths == sorted(widths)
    assert spans[1].mean > 1.5 * base.step_s


def test_two_measured_batches_win_over_the_layers() -> None:
    base = measured()
    twin = msgspec.structs.replace(
        base, plan=ParallelPlan(batch_per_gpu=64), step_s=0.12, parts=measured(0.12).parts
    )
    curve = batch_curve(shipped(), graph(1e13), A100, 32)
    asked = ParallelPlan(batch_per_gpu=128)
    told = [forecast([base, twin], base.cluster, asked, curve=c).step_s.mean for c in (None, curve)]
    assert told[0] == told[1] == pytest.approx(0.16, rel=0.05)


def test_the_shipped_network_is_there_and_another_each_time() -> None:
    one, other = shipped_network(), shipped_network()
    assert one is not None
    assert other is not None
    assert one is not other
    assert all(bool(p.isfinite().all()) for p in one.parameters())


def test_without_its_file_there_is_no_shipped_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaledl.predictor.shipped.NETWORK_FILE", "weights/none.msgpack")
    assert shipped_network() is None
