"""What hidden collectives cost: predictor/exchange.py in a forecast."""

import msgspec

from scaledl.predictor.analytic import forecast
from scaledl.predictor.devices import default_links, find_gpu
from scaledl.predictor.exchange import HIDDEN_SHARE
from scaledl.records import ClusterSpec, GpuSpec, Measurement, ParallelPlan, StepParts


def cluster(num_gpus: int, gpu: str = "H100-SXM") -> ClusterSpec:
    intra, inter = default_links(find_gpu(gpu), is_cpu=False)
    return ClusterSpec(
        gpu=find_gpu(gpu) or GpuSpec(name=gpu),
        num_gpus=num_gpus,
        gpus_per_node=8,
        intra=intra,
        inter=inter,
    )


def sharded(num_gpus: int) -> ParallelPlan:
    return ParallelPlan(strategy="fsdp", shard=num_gpus, batch_per_gpu=16)


def measured(num_gpus: int, **more: object) -> Measurement:
    """A step of a second whose exchange is hidden."""
    told = Measurement(
        cluster=cluster(num_gpus),
        plan=sharded(num_gpus),
        step_s=1.0,
        parts=StepParts(
            compute_s=1.0, comm_exposed_s=0.0, input_wait_s=0.0, optimizer_s=0.0, other_s=0.0
        ),
        num_steps=100,
        num_layers=240,
        param_bytes=2_600_000_000,
    )
    return msgspec.structs.replace(told, **more)


def test_traffic_that_stays_hidden_still_lengthens_the_step_of_more_gpus() -> None:
    told = forecast([measured(16)], cluster(128), sharded(128))
    before = forecast([measured(16)], cluster(16), sharded(16))
    assert told.parts.compute_s == before.parts.compute_s
    assert told.parts.comm_hidden_s > 0
    assert 0.01 < told.step_s.mean - 1.0 < HIDDEN_SHARE


def test_a_measured_step_is_not_charged_again_for_what_it_hid() -> None:
    told = forecast([measured(16)], cluster(16), sharded(16))
    assert told.step_s.mean == 1.0


def test_cpu_processes_are_not_charged_for_hidden_traffic() -> None:
    def growth(**more: object) -> float:
        told = forecast([measured(16, **more)], cluster(128), sharded(128))
        return told.parts.comm_exposed_s

    assert growth(host_shared=True) < growth()


def test_a_network_nobody_told_of_does_not_make_a_crossing_ruinous_on_nvlink_machines() -> None:
    told = forecast([measured(8)], cluster(16), sharded(16))
    assert told.step_s.mean < 1.2
