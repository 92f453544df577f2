"""scaledl's forecasts for a task: measurements of the seen rows only, then one question a row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from whatif_data import Job, Row, Task, comparable, exposed_s

from scaledl.predictor.analytic import forecast
from scaledl.predictor.devices import default_links, find_gpu, find_link, parse_link
from scaledl.predictor.experience import Experience
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.sight import Sight, look
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
    inside = row.gpus_per_node or job.gpus_per_node
    dense = row.num_nodes == math.ceil(row.num_gpus / inside)
    return ClusterSpec(
        gpu=gpu or GpuSpec(name=job.gpu),
        num_gpus=row.num_gpus,
        gpus_per_node=inside if dense else math.ceil(row.num_gpus / row.num_nodes),
        intra=intra,
        inter=inter,
    )


def plan_of(row: Row) -> ParallelPlan:
    """The row's strategy with its micro-batch."""
    sharded = row.strategy == "fsdp"
    return ParallelPlan(
        strategy=row.strategy if row.num_gpus > 1 else "single",
        replicate=1 if sharded else row.num_gpus,
        shard=row.num_gpus if sharded else 1,
        batch_per_gpu=max(1, round(row.batch / row.grad_accum)),
        grad_accum=row.grad_accum,
    )


def measurement_of(job: Job, row: Row, seen: Sequence[Row], link_known: bool) -> Measurement:
    """The row as a run would report it; at 1 GPU the "synchronisation" is overhead of the step."""
    sync_s = min(exposed_s(row, seen), 0.98 * row.step_s) if row.num_gpus > 1 else 0.0
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
        num_layers=row.num_layers,
        param_bytes=row.param_bytes,
        signature=f"{job.cluster}/{job.model}",
    )


@dataclass(frozen=True, kw_only=True)
class Told:
    """An asked row, what the step model says of it, and what experience knows it by."""

    task: Task
    row: Row
    model: Interval
    sight: Sight | None

    def answer(self, experience: Experience) -> Interval:
        """The forecast as the package gives it: sizes are unknown, so experience has its say."""
        lived = experience.interval(self.sight, self.model.level) if self.sight else None
        return self.model if lived is None else lived


def tell(task: Task, link_known: bool) -> list[Told]:
    """One a row asked for, in order.

    Only seen rows of the asked batch are learned: a job knows the batch it runs with, and equal
    batches are what the count is compared over. Where that batch was never seen, all are.
    """
    made: dict[tuple[int, int], tuple[Measurement, ...]] = {}
    answers: dict[tuple[int, ...], Told] = {}
    for row in task.asked:
        if row.setting in answers:
            continue
        batch = row.batch, row.grad_accum
        if batch not in made:
            learning = Forecaster(Experience(lessons={}))
            for old in comparable(task.seen, row):
                learning.learn(measurement_of(task.job, old, task.seen, link_known))
            made[batch] = learning.measurements
        seen = made[batch]
        model = forecast(seen, cluster_of(task.job, row, link_known), plan_of(row))
        answers[row.setting] = Told(task=task, row=row, model=model.step_s, sight=look(seen, model))
    return [replace(answers[row.setting], row=row) for row in task.asked]
