"""What a run's folder holds, by kind of record, read when it is first asked for."""

import statistics
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from scaledl import store
from scaledl.learned import Learned, read_learned
from scaledl.records import (
    DeviceSample,
    EpochRecord,
    LayerGraph,
    Line,
    Measurement,
    Note,
    PhaseRecord,
    ProfileWindow,
    RunEnd,
    RunInfo,
    ScalingReport,
    StepBlock,
)
from scaledl.report.console import RunLine

_STATES = {
    "finished": "finished",
    "stopped-early": "stopped early",
    "interrupted": "interrupted",
    "exception": "error",
}
_T = TypeVar("_T", bound=Line)


class RecordedRun:
    """What a run's folder holds; files are read when something is first asked for.

    Blocks, phases, notes and reports are those of the lowest rank that left a file; windows and
    epochs are those of all ranks.
    """

    def __init__(self, folder: Path, info: RunInfo | None = None) -> None:
        self.folder = Path(folder)
        self.info = store.read_info(self.folder) if info is None else info

    def __repr__(self) -> str:
        return f"<PastRun {self.info.run_id}: {self.state}>"

    @cached_property
    def _own(self) -> tuple[Line, ...]:
        ranks = store.ranks_of(self.folder)
        return tuple(store.read_lines(self.folder, ranks[0])) if ranks else ()

    @cached_property
    def _others(self) -> tuple[Line, ...]:
        """Epochs and windows of the other ranks; the rest of their lines is not kept."""
        kept: list[Line] = []
        for rank in store.ranks_of(self.folder)[1:]:
            lines = store.read_lines(self.folder, rank)
            kept += [line for line in lines if isinstance(line, EpochRecord | ProfileWindow)]
        return tuple(kept)

    def _pick(self, kind: type[_T], *, all_ranks: bool = False) -> tuple[_T, ...]:
        lines = self._own + self._others if all_ranks else self._own
        return tuple(line for line in lines if isinstance(line, kind))

    @property
    def graph(self) -> LayerGraph | None:
        """The model as it ran, if it was seen."""
        found = self._pick(LayerGraph)
        return found[-1] if found else None

    @property
    def windows(self) -> tuple[ProfileWindow, ...]:
        """Sampled steps of all ranks."""
        return self._pick(ProfileWindow, all_ranks=True)

    @property
    def epochs(self) -> tuple[EpochRecord, ...]:
        """Closed epochs of all ranks."""
        return self._pick(EpochRecord, all_ranks=True)

    @property
    def blocks(self) -> tuple[StepBlock, ...]:
        """Ordinary steps, many a record."""
        return self._pick(StepBlock)

    @property
    def phases(self) -> tuple[PhaseRecord, ...]:
        """Evaluation, named phases, pauses."""
        return self._pick(PhaseRecord)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the user was told."""
        return self._pick(Note)

    @property
    def reports(self) -> tuple[ScalingReport, ...]:
        """The what-if reports of the run itself."""
        return self._pick(ScalingReport)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The regimes that were measured."""
        return self._pick(Measurement)

    @property
    def network(self) -> Learned | None:
        """What the graph network learned from the run, if its process was there."""
        return read_learned(self.folder)

    @property
    def ended(self) -> RunEnd | None:
        """How the run ended; ``None`` while it runs, and after a kill."""
        last = self._own[-1] if self._own else None
        return last if isinstance(last, RunEnd) else None

    @property
    def state(self) -> str:
        """``finished``, ``stopped early``, ``interrupted``, ``error`` or ``not ended``."""
        return _state(store.read_tail(self.folder, min(store.ranks_of(self.folder), default=0)))

    @property
    def step_s(self) -> float | None:
        """The steady step time: of the last measurement, else the median over the blocks."""
        if self.measurements:
            return self.measurements[-1].step_s
        plain = [block.p50_s for block in self.blocks if not block.tags]
        return statistics.median(plain) if plain else None

    @property
    def _whole_epochs(self) -> list[EpochRecord]:
        return [record for record in self.epochs if record.complete]

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of the last whole epoch, the longest rank's."""
        whole = self._whole_epochs
        last = max((record.epoch for record in whole), default=None)
        return max((r.num_steps for r in whole if r.epoch == last), default=0) or None

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples of one epoch over all ranks; ranks that left no record count like the mean."""
        whole = self._whole_epochs
        last = max((record.epoch for record in whole), default=None)
        seen = [r.num_samples for r in whole if r.epoch == last]
        known = [n for n in seen if n is not None]
        if not known or len(known) < len(seen):
            return None
        return round(sum(known) / len(known) * self.info.cluster.num_gpus)

    @property
    def planned_epochs(self) -> float | None:
        """Epochs from the start to the planned end, the earlier one of ``epochs`` and steps."""
        ends: list[float] = [] if self.info.epochs is None else [float(self.info.epochs)]
        per_epoch = self.steps_per_epoch
        if self.info.total_steps is not None and per_epoch:
            ends.append(self.info.total_steps / per_epoch)
        return min(ends, default=None)

    def remaining_epochs(self, epochs: int | None = None) -> float | None:
        """Epochs that are left; all of them once the run has finished."""
        total = self.planned_epochs if epochs is None else float(epochs)
        if total is None:
            return None
        done = len({r.epoch for r in self._whole_epochs})
        return total if self.ended is not None or done >= total else total - done

    @property
    def remaining_steps(self) -> float | None:
        """Steps to the planned number; all of them once the run has ended."""
        total = self.info.total_steps
        if total is None:
            return None
        done = max((n for n in map(_last_step, self._own) if n is not None), default=0)
        return float(total if self.ended is not None or done >= total else total - done)

    @property
    def power_w(self) -> float | None:
        """Mean power of one device over the run."""
        read = [s.power_w for s in self._pick(DeviceSample) if s.power_w is not None]
        return statistics.fmean(read) if read else None

    def line(self) -> RunLine:
        """What a listing shows of this run, read from the end of one file."""
        rank = min(store.ranks_of(self.folder), default=0)
        tail = store.read_tail(self.folder, rank)
        steps = [_last_step(line) for line in tail]
        blocks = [line for line in tail if isinstance(line, StepBlock) and not line.tags]
        return RunLine(
            run=self.info.run_id,
            started_at=self.info.started_at,
            model=self.info.model,
            num_gpus=self.info.cluster.num_gpus,
            gpu=self.info.cluster.gpu.name,
            state="probe" if self.info.probe and _has_ended(tail) else _state(tail),
            last_at=max(filter(None, map(_time_of, tail)), default=None),
            num_steps=max((n for n in steps if n is not None), default=None),
            step_s=statistics.median(b.p50_s for b in blocks) if blocks else None,
        )


def _last_step(line: Line) -> int | None:
    if isinstance(line, StepBlock | EpochRecord):
        return line.first_step + line.num_steps
    return line.step if isinstance(line, RunEnd) else None


def _time_of(line: Line) -> float | None:
    """When a record was written, where it says so."""
    at_s: float | None = getattr(line, "at_s", None) or getattr(line, "made_at", None)
    return at_s


def _has_ended(lines: tuple[Line, ...]) -> bool:
    return bool(lines) and isinstance(lines[-1], RunEnd)


def _state(lines: tuple[Line, ...]) -> str:
    last = lines[-1] if lines else None
    return _STATES[last.outcome] if isinstance(last, RunEnd) else "not ended"
