"""Earlier runs of the same model: what they measured and forecast makes the word here better."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from scaledl import store
from scaledl.errors import StoreError
from scaledl.records import Line, Measurement, ScalingReport, ScalingRow

_NEWEST_RELATIVES = 50


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What other runs of one architecture left, each oldest first; ``past`` is of any model."""

    measurements: tuple[Measurement, ...] = ()
    past: tuple[Measurement, ...] = ()
    reports: tuple[ScalingReport, ...] = ()

    def told(self, measured: Measurement) -> ScalingRow | None:
        """The newest forecast of just this count and batch, made before it was measured."""
        cluster, batch = measured.cluster, measured.plan.batch_per_gpu
        for report in reversed(self.reports):
            for row in report.rows:
                num_nodes = -(-row.num_gpus // max(1, row.gpus_per_node))
                same = (row.num_gpus, num_nodes, row.batch_per_gpu) == (
                    cluster.num_gpus,
                    cluster.num_nodes,
                    batch,
                )
                if same and row.basis != "measured":
                    return row
        return None


def load_relatives(
    home: Path, signature: str, exclude: str, *, like: Measurement | None = None
) -> Family:
    """Measurements and reports of other runs of the same architecture.

    Reads the ends of at most 50 files, the most recently changed folders first. With ``like``, only
    the same kind of device, type of numbers and sharing of the host count as the same.
    """
    measurements: list[Measurement] = []
    past: list[Measurement] = []
    reports: list[ScalingReport] = []
    for tail in _tails(home, exclude) if signature else ():
        past += [line for line in tail if isinstance(line, Measurement)]
        of_run = {
            line.cluster.num_gpus: line
            for line in tail
            if isinstance(line, Measurement)
            and line.signature == signature
            and (like is None or is_same_kind(line, like))
        }
        measurements += of_run.values()
        if of_run:
            reports += [line for line in tail if isinstance(line, ScalingReport)]
    return Family(
        measurements=tuple(sorted(measurements, key=lambda m: m.at_s)),
        past=tuple(sorted(past, key=lambda m: m.at_s)),
        reports=tuple(sorted(reports, key=lambda r: r.made_at)),
    )


def _tails(home: Path, exclude: str) -> Iterator[tuple[Line, ...]]:
    for folder in store.newest_folders(home, _NEWEST_RELATIVES):
        if folder.name != exclude:
            try:
                yield store.read_tail(folder)
            except (StoreError, OSError):
                continue


def is_same_kind(one: Measurement, other: Measurement) -> bool:
    """Whether both ran on one kind of device, in one type of numbers, sharing a host or not."""
    return (
        one.cluster.gpu.name == other.cluster.gpu.name
        and one.plan.dtype == other.plan.dtype
        and one.host_shared == other.host_shared
    )
