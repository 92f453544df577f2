"""Ranks that share a machine: predictor/host.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.predictor.analytic import forecast
from scaledl.predictor.anchor import build_anchor
from scaledl.predictor.devices import default_links, find_gpu
from scaledl.predictor.host import GPU_LOG_SLOPE, fit_host
from scaledl.records import ClusterSpec, GpuSpec, Measurement, ParallelPlan, StepParts


def cluster(num_gpus: int, gpus_per_node: int = 8) -> ClusterSpec:
    gpu = find_gpu("V100-SXM2-16GB")
    intra, inter = default_links(gpu, is_cpu=False)
    return ClusterSpec(
        gpu=gpu or GpuSpec(name="v"),
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        intra=intra,
        inter=inter,
    )


def plan(num_gpus: int) -> ParallelPlan:
    strategy = "ddp" if num_gpus > 1 else "single"
    return ParallelPlan(strategy=strategy, replicate=num_gpus, batch_per_gpu=32)


def measured(num_gpus: int, own_s: float, input_s: float = 0.0, inside: int = 8) -> Measurement:
    parts = StepParts(
        compute_s=own_s - input_s,
        comm_exposed_s=0.0,
        input_wait_s=input_s,
        optimizer_s=0.0,
        other_s=0.0,
    )
    return Measurement(
        cluster=cluster(num_gpus, inside),
        plan=plan(num_gpus),
        step_s=own_s,
        parts=parts,
        num_steps=100,
        num_layers=100,
        param_bytes=1_000_000,
    )


def slope(*seen: Measurement) -> float:
    return fit_host([build_anchor(m) for m in seen]).value


def test_one_count_leaves_the_prior() -> None:
    assert slope(measured(1, 1.0)) == pytest.approx(GPU_LOG_SLOPE)


@given(st.floats(0.0, 0.5), st.floats(0.0, 0.4))
def test_late_input_is_found_in_whichever_part_it_shows(growth: float, input_s: float) -> None:
    shown = slope(measured(1, 1.0), measured(8, 1.0 + growth, input_s))
    assert shown == pytest.approx(slope(measured(1, 1.0), measured(8, 1.0 + growth)))


def test_growth_with_the_ranks_of_a_machine_goes_on_inside_it_only() -> None:
    seen = [measured(1, 1.0), measured(2, 1.15), measured(4, 1.32)]
    inside = forecast(seen, cluster(8), plan(8)).step_s.mean
    assert 1.45 < inside < 1.6
    full = [measured(8, 1.5), measured(1, 1.0)]
    assert forecast(full, cluster(32), plan(32)).step_s.mean < 1.6, "no more ranks a machine"


def test_fewer_ranks_a_machine_are_faster() -> None:
    seen = [measured(1, 1.0), measured(2, 1.15), measured(4, 1.32)]
    spread = forecast(seen, cluster(4, gpus_per_node=1), plan(4)).step_s.mean
    assert spread < 1.2


def test_flat_steps_are_not_forecast_to_grow_much() -> None:
    seen = [measured(1, 1.0), measured(2, 1.0), measured(4, 1.0)]
    assert forecast(seen, cluster(8), plan(8)).step_s.mean < 1.03
