"""Where the job runs: ranks, nodes, launcher, device. Reads, never initialises anything."""

import os
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from scaledl.records import ParallelPlan, Strategy


class Environment(NamedTuple):
    """Facts of the job. ``is_cpu``: the model's parameters live on the host.

    ``host_slots``: how many processes with this one's threads the host's cores carry (CPU runs).
    """

    rank: int
    world_size: int
    ranks_per_node: int
    launcher: str
    backend: str
    device_name: str
    is_cpu: bool
    host_slots: int | None = None


def read_environment(model: nn.Module) -> Environment:
    """What torch.distributed says where it is up, else what the launcher's variables say."""
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        backend = str(dist.get_backend())
    else:
        rank, world_size, backend = _number("RANK", 0), _number("WORLD_SIZE", 1), ""
    local = _number("LOCAL_WORLD_SIZE", 0) or _number("SLURM_NTASKS_PER_NODE", 0)
    device = device_of(model)
    is_cpu = device.type == "cpu"
    return Environment(
        rank=rank,
        world_size=max(1, world_size),
        ranks_per_node=_ranks_per_node(local, world_size, device),
        launcher=find_launcher(),
        backend=backend,
        device_name=_device_name(device),
        is_cpu=is_cpu,
        host_slots=_host_slots() if is_cpu else None,
    )


def find_launcher() -> str:
    """The launcher by its own variables: torchrun, slurm, kubernetes, ray, mpi or none."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    if "SLURM_JOB_ID" in env and "SLURM_PROCID" in env:
        return "slurm"
    if "OMPI_COMM_WORLD_RANK" in env or "PMI_RANK" in env:
        return "mpi"
    if "RAY_JOB_ID" in env:
        return "ray"
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in env else "none"


def device_of(model: nn.Module) -> torch.device:
    """Where the first parameter lives; the host for a model without any."""
    first = next(model.parameters(), None)
    return first.device if first is not None else torch.device("cpu")


def read_plan(model: nn.Module, world_size: int) -> tuple[ParallelPlan, str]:
    """How the model is spread, and a remark where that cannot be forecast (else empty)."""
    dtype = next((str(p.dtype).removeprefix("torch.") for p in model.parameters()), "float32")
    strategy: Strategy = "single"
    replicate = shard = 1
    remark = ""
    for module in model.modules():
        kind = type(module)
        if isinstance(module, DataParallel):
            remark = "DataParallel: layer detail and what-if are off; DistributedDataParallel works"
        elif isinstance(module, DistributedDataParallel):
            strategy, replicate = "ddp", module.process_group.size()
        elif _is_fsdp(kind):
            strategy, shard = "fsdp", world_size
    ways = _mesh_of(model)
    if strategy == "fsdp" and len(ways) == 2:
        strategy, replicate, shard = "hsdp", ways[0], ways[1]
    if strategy == "single" and world_size > 1:
        # Gradients may be averaged by hand, or the wrapper stands around what was given to track.
        strategy, replicate = "ddp", world_size
    plan = ParallelPlan(strategy=strategy, replicate=replicate, shard=shard, dtype=dtype)
    return plan, remark


def _is_fsdp(kind: type) -> bool:
    return any(base.__name__ in ("FSDPModule", "FullyShardedDataParallel") for base in kind.__mro__)


def _mesh_of(model: nn.Module) -> tuple[int, ...]:
    """Shape of the device mesh of the first sharded parameter (FSDP2)."""
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            return tuple(mesh.shape)
    return ()


def _ranks_per_node(local: int, world_size: int, device: torch.device) -> int:
    if local > 0:
        return min(local, max(1, world_size))
    if device.type == "cuda" and cuda_is_up():
        return max(1, min(torch.cuda.device_count(), world_size))
    return max(1, world_size)


def _host_slots() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    return max(1, cores // max(1, torch.get_num_threads()))


def _device_name(device: torch.device) -> str:
    if device.type == "cuda" and cuda_is_up():
        return torch.cuda.get_device_name(device)
    return device.type


def cuda_is_up() -> bool:
    """Whether the user's program has initialised CUDA; scaledl is never the first to do it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default
