"""What a training keeps in memory: parameters, gradients and optimizer states, counted.

Only sizes are read, never values: no tensor is made, moved or waited for. Sharded tensors count
whole, as if one rank held the model.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from scaledl.capture.environ import cuda_is_up
from scaledl.records import Holdings, ParallelPlan

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def read_holdings(
    model: nn.Module, optimizers: Sequence[Optimizer], plan: ParallelPlan
) -> Holdings:
    """Bytes of the whole model's parameters, gradients and optimizer states.

    FSDP2's tensors tell their whole size. FSDP1's are plain shards, so all that is counted of them
    is multiplied by the size of the shard group.
    """
    shards = plan.shard if any(_is_fsdp1(m) for m in model.modules()) else 1
    params = list(model.parameters())
    known = {id(p) for p in params}
    masters = [p for o in optimizers for p in _params_of(o) if id(p) not in known]
    states = [t for o in optimizers for state in o.state.values() for t in _tensors(state)]
    ddp = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    return Holdings(
        param_bytes=shards * _whole_bytes(params),
        trainable_bytes=shards * _whole_bytes(p for p in params if p.requires_grad),
        state_bytes=shards * _whole_bytes([*states, *masters]),
        optimizer=type(optimizers[0]).__name__ if optimizers else "",
        largest_unit_bytes=shards * _largest_unit(model),
        keeps_gathered=any(_keeps_gathered(m) for m in model.modules()),
        buckets_are_gradients=any(getattr(m, "gradient_as_bucket_view", False) for m in ddp),
    )


def with_peak(counted: Holdings, device: torch.device) -> Holdings:
    """The same with the most that was ever held for this process, and the limit.

    On a GPU what the allocator reserved; the driver's own share is not in it. On the host the
    process's largest resident size, libraries included, against the machine's or cgroup's memory.
    """
    if device.type == "cuda":
        if not cuda_is_up():
            return counted
        total = torch.cuda.get_device_properties(device).total_memory
        peak = torch.cuda.max_memory_reserved(device)
        return msgspec.structs.replace(counted, peak_bytes=peak, capacity_bytes=total)
    if device.type == "cpu":
        return msgspec.structs.replace(
            counted, peak_bytes=_resident_peak(), capacity_bytes=_host_bytes()
        )
    return counted


def _whole_bytes(tensors: Iterable[torch.Tensor]) -> float:
    """Bytes of tensors, each once; a distributed tensor counts as the whole it stands for."""
    sizes = {id(t): t.numel() * t.element_size() for t in tensors}
    return float(sum(sizes.values()))


def _params_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _tensors(state: Any) -> list[torch.Tensor]:
    values = state.values() if isinstance(state, dict) else ()
    return [v for v in values if isinstance(v, torch.Tensor)]


def _is_fsdp1(module: nn.Module) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def _keeps_gathered(module: nn.Module) -> bool:
    """FSDP1 tells by its public ``sharding_strategy``; of FSDP2 nothing public does."""
    strategy = getattr(module, "sharding_strategy", None) if _is_fsdp1(module) else None
    return "GRAD_OP" in getattr(strategy, "name", "")


def _largest_unit(model: nn.Module) -> float:
    """Parameters of the largest FSDP unit, or of what would be one: a block, or all but blocks."""
    wrapped = [
        m for m in model.modules() if _is_fsdp1(m) or hasattr(m, "set_reshard_after_forward")
    ]
    blocks = [m for m in wrapped if m is not model] or [
        block for module in model.modules() if isinstance(module, nn.ModuleList) for block in module
    ]
    inner = [set(map(id, block.parameters())) for block in blocks]
    counted = set().union(*inner) if inner else set()
    rest = _whole_bytes(p for p in model.parameters() if id(p) not in counted)
    return max([rest, *(_whole_bytes(block.parameters()) for block in blocks)])


def _resident_peak() -> float | None:
    """``ru_maxrss``: kilobytes, on macOS bytes. Windows has no such module."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _host_bytes() -> float:
    """Memory of the machine, or of the container where that is less."""
    total = float(psutil.virtual_memory().total)
    try:
        return min(total, float(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return total
