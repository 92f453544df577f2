"""What is run and where: the cluster and loader as told or detected, names, places of errors."""

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from torch.utils.data import DataLoader

from scaledl._version import __version__
from scaledl.arguments import seen_text
from scaledl.capture.environ import Environment
from scaledl.capture.names import canonical, class_name, unwrap
from scaledl.capture.session import torch_version
from scaledl.config import TrackConfig
from scaledl.errors import UsageError
from scaledl.linkbook import LinkBook
from scaledl.predictor.devices import default_links, find_gpu, wired
from scaledl.records import ClusterSpec, GpuLinks, GpuSpec, ParallelPlan, RunInfo

if TYPE_CHECKING:
    from torch import nn


def cluster_of(
    environment: Environment,
    config: TrackConfig,
    links: GpuLinks | None = None,
    book: LinkBook = LinkBook(),  # noqa: B008 (frozen)
) -> ClusterSpec:
    """The user's cluster where given, else GPU and links from the catalogue.

    ``links`` is what the driver tells of the wiring inside this machine; ``book`` what was measured
    of links of this kind.
    """
    if config.cluster is not None:
        cluster = msgspec.structs.replace(config.cluster, num_gpus=environment.world_size)
    else:
        known = find_gpu(environment.device_name)
        intra, inter = default_links(known, environment.is_cpu)
        if links is not None:
            intra = wired(links, intra)
        cluster = book.known(
            ClusterSpec(
                gpu=known or GpuSpec(name=environment.device_name),
                num_gpus=environment.world_size,
                gpus_per_node=environment.ranks_per_node,
                intra=intra,
                inter=inter,
            )
        )
    if config.usd_per_gpu_hour is not None:
        cluster = msgspec.structs.replace(cluster, usd_per_gpu_hour=config.usd_per_gpu_hour)
    return cluster


def run_info(
    config: TrackConfig,
    run_id: str,
    model: str,
    started_at: float,
    *,
    cluster: ClusterSpec,
    plan: ParallelPlan,
    job: str = "",
) -> RunInfo:
    """What a run's folder says of the run as a whole; ``started_at`` in Unix seconds."""
    return RunInfo(
        run_id=run_id,
        started_at=started_at,
        model=model,
        cluster=cluster,
        plan=plan,
        scaledl_version=__version__,
        torch_version=torch_version(),
        epochs=config.epochs,
        total_steps=config.total_steps,
        job=job,
        probe=config.probe_steps is not None,
    )


def with_loader(config: TrackConfig, loader: object) -> TrackConfig:
    """The options, with a notice where the named loader is of a kind that is not seen by itself.

    Raises:
        UsageError: nothing that gives batches.
    """
    if loader is None:
        return config
    if isinstance(loader, str | bytes) or not (
        isinstance(loader, Iterable) or hasattr(loader, "__getitem__")
    ):
        raise UsageError(
            f"loader must be the DataLoader that feeds the training, got {seen_text(loader)}."
        )
    if isinstance(loader, DataLoader):
        return config
    text = (
        f"loader= is a {type(loader).__name__}, and only torch's DataLoader is seen by itself. "
        "Loop over run.loader(...) with it instead."
    )
    return dataclasses.replace(config, notices=(*config.notices, ("loader-kind", text)))


def model_name(model: "nn.Module") -> str:
    """Class name of the user's module inside its wrappers."""
    return class_name(model)


def job_of(model: "nn.Module") -> str:
    """What names the job: a digest of the parameters' names and whole shapes, wrappers left out.

    Empty where there are none, or their shapes are not known yet (lazy modules).
    """
    digest = hashlib.sha256()
    try:
        shapes = [(canonical(n), tuple(p.shape)) for n, p in unwrap(model).named_parameters()]
    except RuntimeError:
        return ""
    digest.update(repr(sorted(shapes)).encode())
    return digest.hexdigest()[:16] if shapes else ""


def place_of(error: Exception) -> str:
    """Error type and the line of ours that raised it, without any path."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    file = trace.tb_frame.f_code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{type(error).__name__} in {file}:{trace.tb_lineno}"
