"""Earlier runs of the same model: what they measured makes forecasts here better."""

from pathlib import Path

from scaledl import store
from scaledl.errors import StoreError
from scaledl.records import Measurement

_NEWEST_RELATIVES = 50


def load_relatives(
    home: Path, signature: str, exclude: str, *, like: Measurement | None = None
) -> list[Measurement]:
    """Measurements of other runs of the same architecture, oldest first.

    Reads the ends of at most 50 files, the most recently changed folders first. With ``like``, only
    the same kind of device, type of numbers and sharing of the host count as the same.
    """
    if not signature:
        return []
    found: list[Measurement] = []
    for folder in store.newest_folders(home, _NEWEST_RELATIVES):
        if folder.name == exclude:
            continue
        try:
            tail = store.read_tail(folder)
        except (StoreError, OSError):
            continue
        of_run = {
            line.cluster.num_gpus: line
            for line in tail
            if isinstance(line, Measurement) and line.signature == signature
        }
        found += [m for m in of_run.values() if like is None or _same_kind(m, like)]
    return sorted(found, key=lambda m: m.at_s)


def _same_kind(one: Measurement, other: Measurement) -> bool:
    return (
        one.cluster.gpu.name == other.cluster.gpu.name
        and one.plan.dtype == other.plan.dtype
        and one.host_shared == other.host_shared
    )
