"""Live ETA and what-if scaling reports for PyTorch training loops.

    import scaledl

    with scaledl.track(model, epochs=30) as run:
        for epoch in range(30):
            for batch in loader:
                ...

Public names load on first use, so that ``import scaledl`` costs next to nothing and touches neither
torch nor CUDA nor NVML.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scaledl._version import __version__

if TYPE_CHECKING:
    from scaledl.errors import ScaledlError
    from scaledl.estimating import estimate
    from scaledl.past import PastRun, list_runs, open_run
    from scaledl.records import (
        ClusterSpec,
        Eta,
        GpuSpec,
        Interval,
        LinkSpec,
        ParallelPlan,
        ScalingReport,
        StepForecast,
    )
    from scaledl.tracker import Tracker, track

_HOME = {
    "ScaledlError": "scaledl.errors",
    "estimate": "scaledl.estimating",
    "open_run": "scaledl.past",
    "list_runs": "scaledl.past",
    "PastRun": "scaledl.past",
    "ClusterSpec": "scaledl.records",
    "Eta": "scaledl.records",
    "GpuSpec": "scaledl.records",
    "Interval": "scaledl.records",
    "LinkSpec": "scaledl.records",
    "ParallelPlan": "scaledl.records",
    "ScalingReport": "scaledl.records",
    "StepForecast": "scaledl.records",
    "Tracker": "scaledl.tracker",
    "track": "scaledl.tracker",
}

__all__ = [
    "ClusterSpec",
    "Eta",
    "GpuSpec",
    "Interval",
    "LinkSpec",
    "ParallelPlan",
    "PastRun",
    "ScaledlError",
    "ScalingReport",
    "StepForecast",
    "Tracker",
    "__version__",
    "estimate",
    "list_runs",
    "open_run",
    "track",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'scaledl' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
