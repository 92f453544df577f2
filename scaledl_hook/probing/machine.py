"""How many ranks this machine has room for, without touching CUDA."""

import os
from collections.abc import Mapping
from importlib import import_module


def num_gpus_here(environ: Mapping[str, str] = os.environ) -> int:
    """NVIDIA GPUs of this machine that a command started here would see; 0 without a driver."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no module, another one of that name, no driver: in each case none
        return 0
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except Exception:
        return 0
    finally:
        nvml.nvmlShutdown()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    named = [entry for entry in visible.split(",") if entry.strip() not in ("", "-1")]
    return min(count, len(named))


def num_cores_here() -> int:
    """Cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return os.cpu_count() or 1
