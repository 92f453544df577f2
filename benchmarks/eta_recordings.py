"""Recorded runs: read from files, cut where a process was killed, fed to the estimator."""

import csv
import gzip
import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from eta_baselines import Event

from scaledl.predictor.eta import EtaEstimator
from scaledl.records import Eta, PhaseRecord, Progress
from scaledl.report.pace import LinePolicy


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One run and its events in order of time. ``start_s`` and ``start``: where a process began."""

    run_id: str
    family: str
    schedule: str
    total: float
    duration_s: float
    unit: float  # of one logging interval, a setting known before the run
    events: tuple[Event, ...]
    start_s: float = 0.0
    start: float = 0.0

    @property
    def group(self) -> str:
        return "scheduled" if self.schedule else "steady"

    @property
    def half(self) -> str:
        """Constants are set on ``dev`` alone. A family stays whole: its runs are near-copies."""
        digest = hashlib.sha256(self.family.encode()).hexdigest()
        return "dev" if int(digest, 16) % 2 == 0 else "held"

    @property
    def num_observations(self) -> int:
        return sum(e.kind == "progress" for e in self.events)

    @property
    def is_by_epoch(self) -> bool:
        return any(e.kind == "epoch_end" for e in self.events) or self.num_observations <= 60

    def cut(self, share: float) -> "tuple[Recording, Recording] | None":
        """What a process saw that was killed at ``share``, and what its follower sees."""
        before = [e for e in self.events if e.done is not None and e.done <= share * self.total]
        if not before or not before[-1].done or before[-1].kind == "end":
            return None
        at = self.events.index(before[-1]) + 1
        last = before[-1]
        assert last.done is not None
        after = replace(self, events=self.events[at:], start_s=last.at_s, start=last.done)
        return replace(self, events=self.events[:at]), after


def read_runs(folder: Path) -> list[Recording]:
    """All runs of the folder that have a file of events."""
    with (folder / "runs.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [
        _recording(row, path)
        for row in rows
        if (path := folder / "runs" / f"{row['run_id']}.csv.gz").exists()
    ]


def _recording(row: dict[str, str], path: Path) -> Recording:
    with gzip.open(path, "rt", newline="") as text:
        events = tuple(
            Event(
                at_s=float(e["t_s"]),
                kind=e["kind"],
                done=float(e["done"]) if e["done"] else None,
            )
            for e in csv.DictReader(text)
        )
    done = [0.0, *(e.done for e in events if e.done is not None and e.kind == "progress")]
    return Recording(
        run_id=row["run_id"],
        family=f"{row['source']}/{row['workload']}",
        schedule=row.get("schedule") or "",
        total=float(row["total"]),
        duration_s=float(row["duration_s"]),
        unit=statistics.median(b - a for a, b in pairwise(done) if b > a),
        events=events,
    )


class Ours:
    """Feeds one recording to the estimator. One of its steps is one logging interval."""

    def __init__(self, run: Recording, state: Mapping[str, object] | None = None) -> None:
        self.estimator = EtaEstimator()
        if state is not None:
            self.estimator.load_state_dict(state)
        self._line = LinePolicy(is_tty=True, started_s=run.start_s)
        self._unit = run.unit
        self._total = max(round(run.total / self._unit), 1)
        self._step = round(run.start / self._unit)
        self._first = self._step if run.start else None
        self._last_s = run.start_s
        self._eval_start_s: float | None = None
        self._eval_s = 0.0

    def on_event(self, event: Event) -> None:
        """Takes in the next event."""
        if event.kind == "epoch_start" and self._first is None and not self._eval_s:
            self._last_s = event.at_s  # the clock of steps starts with the first epoch
        elif event.kind == "eval_start":
            self._eval_start_s = event.at_s
        elif event.kind == "eval_end" and self._eval_start_s is not None:
            start_s, self._eval_start_s = self._eval_start_s, None
            self._eval_s += event.at_s - start_s
            self.estimator.on_phase(
                PhaseRecord(
                    kind="eval",
                    at_s=start_s,
                    duration_s=event.at_s - start_s,
                    after_step=self._step,
                    epoch=0,
                )
            )
        elif event.kind == "progress" and event.done is not None:
            self._eval_start_s = None  # progress during an evaluation: it runs beside training
            self._on_progress(event.at_s, event.done)

    def _on_progress(self, at_s: float, done: float) -> None:
        step = round(done / self._unit)
        steps = step - self._step
        if self._first is None and steps > 5:
            self._step = self._first = step - 1  # the clock started within the run
            steps = 1
        elif self._first is None:
            self._first = 0
        wall_s = at_s - self._last_s - self._eval_s
        if steps > 0 and wall_s >= 0:
            self.estimator.on_steps([wall_s / steps] * steps, self._step, 0)
            self._step, self._last_s, self._eval_s = step, at_s, 0.0

    def estimate(self, now_s: float) -> Eta:
        """What the estimator says now."""
        progress = Progress(
            step=self._step,
            epoch=0,
            step_in_epoch=self._step,
            first_step=self._first or 0,
            total_steps=self._total,
        )
        return self.estimator.estimate(progress, now_s)

    def shown_s(self, now_s: float) -> float | None:
        """The time left that a terminal shows now."""
        shown = self._line.calm(self.estimate(now_s), now_s).eta
        return None if shown.finish_at is None else shown.finish_at - now_s
