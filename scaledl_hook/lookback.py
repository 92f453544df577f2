"""Earlier runs of the same job, read once before the first step: their pace and their course."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from scaledl import store
from scaledl.errors import StoreError
from scaledl.predictor.earlier import Earlier, earlier_of
from scaledl.records import (
    ClusterSpec,
    EpochRecord,
    Interval,
    Line,
    PhaseRecord,
    RunEnd,
    RunInfo,
    ScalingReport,
    StepBlock,
)

_NEWEST_RUNS = 50
_READ_RUNS = 4  # of the same job, until one is found that got to its end
_MOST_BYTES = 16 * 2**20  # of one run's records: before the first step nobody should wait
_WHOLE = 0.95
_EITHER_WAY = 0.6  # share by which a pace known from another run alone may be off


class LookBack(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier runs of a job say before its first step.

    ``step_s`` is of this count of GPUs, measured or forecast by an earlier what-if report.
    ``epochs`` is what the run with the ``course`` was planned for.
    """

    run_id: str
    step_s: Interval | None = None
    course: Earlier | None = None
    epochs: int | None = None


def look_back(home: Path, job: str, cluster: ClusterSpec, *, exclude: str) -> LookBack | None:
    """The newest run of the same job that got furthest; ``None`` where there is none.

    Args:
        home: Folder of the runs.
        job: What names the job; empty where nothing does.
        cluster: Where it runs now.
        exclude: The id of the run itself.
    """
    found = [_read(folder, info) for folder, info in _runs(home, job, cluster, exclude)]
    read = [run for run in found if run is not None]
    if not read:
        return None
    same = [run for run in read if run.is_same]
    whole = [run for run in read if run.course is not None]
    best = max(whole, key=lambda run: min(run.covered, _WHOLE), default=None)
    step_s = same[0].step_s if same else _forecast(read, cluster)
    if best is None and step_s is None:
        return None
    return LookBack(
        run_id=(best or read[0]).info.run_id,
        step_s=None if step_s is None else _wide(step_s),
        course=None if best is None else best.course,
        epochs=None if best is None else best.info.epochs,
    )


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    info: RunInfo
    is_same: bool  # as many GPUs of the same kind
    step_s: float | None
    course: Earlier | None
    reports: tuple[ScalingReport, ...]

    @property
    def covered(self) -> float:
        return 0.0 if self.course is None else self.course.covered


def _runs(
    home: Path, job: str, cluster: ClusterSpec, exclude: str
) -> list[tuple[Path, tuple[RunInfo, bool]]]:
    """Runs of the job, those on as many GPUs first, each newest first."""
    runs: list[tuple[Path, tuple[RunInfo, bool]]] = []
    for folder in store.newest_folders(home, _NEWEST_RUNS) if job else ():
        if folder.name == exclude:
            continue
        try:
            info = store.read_info(folder)
        except StoreError:
            continue
        if info.job == job and info.cluster.gpu.name == cluster.gpu.name:
            runs.append((folder, (info, info.cluster.num_gpus == cluster.num_gpus)))
    runs.sort(key=lambda run: not run[1][1])
    return runs[:_READ_RUNS]


def _read(folder: Path, about: tuple[RunInfo, bool]) -> _Read | None:
    info, is_same = about
    try:
        if (folder / "rank0.jsonl").lstat().st_size > _MOST_BYTES:
            return None
        lines = list(store.read_lines(folder, 0))
    except (StoreError, OSError):
        return None
    blocks = [line for line in lines if isinstance(line, StepBlock)]
    total = _planned_steps(info, lines)
    course = None
    if total is not None:
        course = earlier_of(blocks, [x for x in lines if isinstance(x, PhaseRecord)], total)
    return _Read(
        info=info,
        is_same=is_same,
        step_s=_pace(blocks),
        course=course,
        reports=tuple(line for line in lines if isinstance(line, ScalingReport)),
    )


def _planned_steps(info: RunInfo, lines: Sequence[Line]) -> int | None:
    """How long the run was meant to be; where it ended, if it ended as planned.

    A probe has no course to learn from.
    """
    if info.probe:
        return None
    last = lines[-1] if lines else None
    if isinstance(last, RunEnd) and last.outcome == "finished":
        return last.step or None
    ends = [info.total_steps] if info.total_steps else []
    whole = [x.num_steps for x in lines if isinstance(x, EpochRecord) and x.complete]
    if info.epochs and whole:
        ends.append(info.epochs * whole[-1])
    return min(ends, default=None)


def _pace(blocks: Sequence[StepBlock]) -> float | None:
    num_steps = sum(block.num_steps for block in blocks)
    if not num_steps:
        return None
    return sum(block.p50_s * block.num_steps for block in blocks) / num_steps


def _forecast(read: Sequence[_Read], cluster: ClusterSpec) -> float | None:
    """What the newest report of these runs forecast for this count."""
    for run in read:
        for report in reversed(run.reports):
            for row in report.rows:
                if row.num_gpus == cluster.num_gpus:
                    return row.step_s.mean
    return None


def _wide(step_s: float) -> Interval | None:
    if step_s <= 0:
        return None
    off_s = _EITHER_WAY * step_s
    return Interval(mean=step_s, low=step_s - off_s, high=step_s + off_s)
