"""``scaledl.estimate``: how long a training would take, before anything of it ran."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from scaledl.arguments import amount, seen_text, whole_number
from scaledl.capture.dry import dry_run
from scaledl.capture.environ import read_environment
from scaledl.capture.names import class_name
from scaledl.config import TrackConfig
from scaledl.errors import StoreError, UsageError
from scaledl.learning.launch import state_file
from scaledl.predictor.batch import is_known
from scaledl.predictor.devices import default_links, find_gpu
from scaledl.predictor.examples import Example, example_of
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.untried import doubt_after, untried
from scaledl.predictor.whatif import answer_rows
from scaledl.query import build_query
from scaledl.records import (
    BatchRule,
    ClusterSpec,
    Coverage,
    LinkSpec,
    ParallelPlan,
    ScalingReport,
)
from scaledl.report import scaling
from scaledl.setting import cluster_of
from scaledl.store import home_dir

if TYPE_CHECKING:
    from torch import nn

GPUS_PER_NODE = 8
MODEL_VERSION = "untried-1"


def estimate(
    model: "nn.Module",
    batch: Any,
    cluster: ClusterSpec | str | None = None,
    *,
    gpus: Iterable[int] | int | str | None = None,
    epochs: int | None = None,
    num_samples: int | None = None,
    steps_per_epoch: int | None = None,
    usd_per_gpu_hour: float | None = None,
    batch_rule: BatchRule = "fixed-per-gpu",
    gpus_per_node: int | None = None,
    inter: LinkSpec | str | None = None,
    strategies: Iterable[str] | str | None = None,
    level: float = 0.9,
    home: str | None = None,
) -> ScalingReport:
    """What a training of ``model`` would take, told without running it.

    One forward of a copy without data shows the layers; the layer model and, where earlier runs on
    this kind of device taught it, the graph network tell the step; links come from the catalogue.
    Every row has the basis "prior" and an interval as wide as such a guess is. Nothing of the model
    changes, and no device is touched. The first run under ``scaledl.track`` is far surer.

    Args:
        model: As it would be trained.
        batch: What the model is called with for one micro-batch of one rank: a tensor, a tuple of
            arguments, or a dict of named ones. Meta tensors will do.
        cluster: A GPU by name (``"A100"``), or a whole cluster; by default where the model is.
        gpus: Counts, as ``[1, 2, 4]`` or ``"1,2,8-64"``.
        epochs: Length of the training; shows the whole time.
        num_samples: Samples of one epoch over all ranks.
        steps_per_epoch: Optimizer steps of an epoch on one GPU, where no samples are counted.
        usd_per_gpu_hour: Price of one GPU.
        batch_rule: What stays fixed when the count changes.
        gpus_per_node: Of the machines in question; 8 where only a GPU is named.
        inter: Link between nodes, a record or text such as ``"200Gb/s"``.
        strategies: Ways to spread the job to compare at every count: ddp, fsdp, hsdp.
        level: Probability of the intervals.
        home: Where earlier runs are kept; by default as for ``track``.

    Raises:
        UsageError: the model does not run on this batch, an argument cannot be, or nothing is
            known of the device.
    """
    dry = dry_run(model, batch)
    here, is_cpu, host_slots = _where(model, cluster, usd_per_gpu_hour)
    plan = ParallelPlan(batch_per_gpu=dry.batch, dtype=dry.dtype)
    one = here.with_num_gpus(1)
    example = example_of(dry.graph, one, plan, model=class_name(model), step_s=1.0)
    step_s, sigma = _told(example, home)
    base = untried(dry.graph, one, plan, step_s=step_s, host_slots=host_slots, is_cpu=is_cpu)
    epochs = None if epochs is None else whole_number("epochs", epochs)
    query = build_query(
        gpus,
        1,
        batch_rule=batch_rule,
        gpus_per_node=gpus_per_node,
        inter=inter,
        num_samples=_positive("num_samples", num_samples),
        steps_per_epoch=_positive("steps_per_epoch", steps_per_epoch),
        remaining_epochs=epochs,
        usd_per_gpu_hour=here.usd_per_gpu_hour,
        level=amount("level", level),
        strategies=strategies,
    )
    forecaster = Forecaster()
    forecaster.suppose(base, sigma)
    forecaster.know_layers(dry.graph, one.gpu, dry.batch, dry.dtype)
    rows, compared = answer_rows(forecaster, base, query)
    report = scaling.build(
        rows,
        base=base,
        run="",
        batch_rule=batch_rule,
        coverage=Coverage(nominal=level, seen=None, n=0),
        made_at=time.time(),
        level=level,
        compared=compared,
        model_version=MODEL_VERSION,
    )
    return msgspec.structs.replace(report, measured_index=None)


def _positive(name: str, value: int | None) -> int | None:
    return None if value is None else whole_number(name, value)


def _where(
    model: "nn.Module", cluster: ClusterSpec | str | None, price: float | None
) -> tuple[ClusterSpec, bool, int | None]:
    """The cluster, whether its devices are the host's, and how many processes that carries."""
    if isinstance(cluster, str):
        gpu = find_gpu(cluster)
        if gpu is None:
            raise UsageError(
                f"no GPU {seen_text(cluster)} in the catalogue. Write a name such as 'A100' or "
                "'H100', or give a scaledl.ClusterSpec."
            )
        intra, inter = default_links(gpu, is_cpu=False)
        cluster = ClusterSpec(
            gpu=gpu, num_gpus=1, gpus_per_node=GPUS_PER_NODE, intra=intra, inter=inter
        )
    elif cluster is not None and not isinstance(cluster, ClusterSpec):
        raise UsageError(
            f"cluster must be a GPU's name or a scaledl.ClusterSpec, got {seen_text(cluster)}."
        )
    config = TrackConfig(cluster=cluster, usd_per_gpu_hour=price)
    environment = read_environment(model)
    found = cluster_of(environment, config)
    is_cpu = environment.is_cpu if cluster is None else "cpu" in found.gpu.name.lower()
    return found, is_cpu, environment.host_slots if is_cpu else None


def _told(example: Example, home: str | None) -> tuple[float, float]:
    """Seconds of the step and the log-sd of their error: by the network, else by the layers.

    Raises:
        UsageError: nobody measured the device, and no data sheet tells of it.
    """
    gpu = example.cluster.gpu
    file = state_file(home_dir(home), gpu.name)
    if file.exists():
        from scaledl.predictor.online import OnlineLearner

        try:
            learner = OnlineLearner.load(file)
        except StoreError:
            learner = None
        told_s = None if learner is None else learner.predict_s(example)
        if learner is not None and told_s is not None:
            return told_s, doubt_after(learner.first_errors)
    if not is_known(gpu):
        raise UsageError(
            f"nothing is known of {seen_text(gpu.name)}: no data sheet, and no run on it yet. "
            "Train any model on it under scaledl.track for a minute, or name a GPU: cluster='A100'."
        )
    return example.sum_s, doubt_after(())
