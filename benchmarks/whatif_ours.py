"""scaledl's forecasts for a task: measurements of the seen rows only, then one question a row."""

import math

from whatif_data import Job, Row, Task

from scaledl.predictor.devices import default_links, find_gpu, find_link, parse_link
from scaledl.predictor.forecaster import Forecaster
from scaledl.records import (
    ClusterSpec,
    GpuSpec,
    Interval,
    LinkSpec,
    Measurement,
    ParallelPlan,
    StepParts,
)

NUM_STEPS = 15
"""Steps behind one row: the loader of the Pollux traces averages about 15."""

KNOWN_INTER: dict[str, LinkSpec] = {
    # "50 Gbit/s Ethernet": README of the Pollux set; g4dn.12xlarge in Amazon's instance table
    "aws-g4dn": find_link("eth-50"),
    # 8 V100 a node on Azure is the NDv2 series: one 100 Gbit/s EDR port a node (Microsoft's sheet)
    "azure": find_link("ib-edr"),
    # "1.6 Tbit/s InfiniBand": README of the Sia set (8 HDR ports a DGX A100)
    "dgx": parse_link("1.6Tb/s"),
    "dgx-ext": parse_link("1.6Tb/s"),
    # "50 Gbit/s Ethernet": README of the Sia set
    "rtx": find_link("eth-50"),
}
"""The network between nodes where a document tells it; other clusters stay unknown."""


def cluster_of(job: Job, row: Row, link_known: bool) -> ClusterSpec:
    """Where a row ran. An uneven layout counts as an even one of about as many nodes."""
    gpu = find_gpu(job.gpu)
    intra, inter = default_links(gpu, is_cpu=False)
    if link_known:
        inter = KNOWN_INTER.get(job.cluster, inter)
    dense = row.num_nodes == math.ceil(row.num_gpus / job.gpus_per_node)
    return ClusterSpec(
        gpu=gpu or GpuSpec(name=job.gpu),
        num_gpus=row.num_gpus,
        gpus_per_node=job.gpus_per_node if dense else math.ceil(row.num_gpus / row.num_nodes),
        intra=intra,
        inter=inter,
    )


def plan_of(row: Row) -> ParallelPlan:
    """DDP with the row's batch."""
    return ParallelPlan(
        strategy="ddp" if row.num_gpus > 1 else "single",
        replicate=row.num_gpus,
        batch_per_gpu=row.batch,
    )


def measurement_of(job: Job, row: Row, link_known: bool) -> Measurement:
    """The row as a run would report it; at 1 GPU the "synchronisation" is overhead of the step."""
    sync_s = min(row.sync_s, 0.98 * row.step_s) if row.num_gpus > 1 else 0.0
    return Measurement(
        cluster=cluster_of(job, row, link_known),
        plan=plan_of(row),
        step_s=row.step_s,
        parts=StepParts(
            compute_s=row.step_s - sync_s,
            comm_exposed_s=sync_s,
            input_wait_s=0.0,
            optimizer_s=0.0,
            other_s=0.0,
        ),
        num_steps=NUM_STEPS,
        signature=f"{job.cluster}/{job.model}",
    )


def forecast_task(task: Task, link_known: bool) -> list[Interval]:
    """One interval an asked row, in order.

    Only seen rows of the asked batch are learned: a job knows the batch it runs with, and equal
    batches are what the count is compared over.
    """
    made: dict[int, Forecaster] = {}
    answers: dict[tuple[int, int, int], Interval] = {}
    for row in task.asked:
        if row.setting in answers:
            continue
        if row.batch not in made:
            made[row.batch] = Forecaster()
            for old in task.seen:
                if old.batch == row.batch:
                    made[row.batch].learn(measurement_of(task.job, old, link_known))
        cluster = cluster_of(task.job, row, link_known)
        answers[row.setting] = made[row.batch].predict(cluster, plan_of(row)).step_s
    return [answers[row.setting] for row in task.asked]
