"""The time left on each count, and what of it evaluation and other phases will take."""

from collections.abc import Sequence

from scaledl.records import EpochRecord, PhaseRecord, ScalingReport, ScalingRow
from scaledl.report.scaling import is_far
from scaledl.units import format_seconds

PAUSED = "paused"  # a pause that the user took is no rhythm


class PhaseTimes:
    """Phase time of the closed epochs: inside them, and in the gaps between them.

    An evaluation behind the loop over the loader lies in the gap before the next epoch; one in the
    loop lies inside. A run of n more epochs has n of the one and n + 1 of the other, since the gap
    behind the last epoch is one too. What precedes the first epoch is start-up and not counted.
    """

    def __init__(self) -> None:
        self._num_epochs = 0
        self._inside_s = 0.0
        self._between_s = 0.0

    def add(self, epoch: EpochRecord, phases: Sequence[PhaseRecord]) -> None:
        """An epoch closed; ``phases`` are all since the one before closed."""
        begins_s = epoch.at_s - epoch.duration_s
        for phase in phases:
            if phase.kind == PAUSED:
                continue
            if phase.at_s >= begins_s:
                self._inside_s += phase.duration_s
            elif self._num_epochs:
                self._between_s += phase.duration_s
        self._num_epochs += 1

    def left_s(self, epochs_left: float) -> float | None:
        """Phase time of the epochs to come; ``None`` while no phase was seen."""
        if not self._num_epochs or not self._inside_s + self._between_s:
            return None
        gaps = max(1, self._num_epochs - 1)
        between_s = self._between_s / gaps * (epochs_left + 1)
        return self._inside_s / self._num_epochs * epochs_left + between_s


def left_text(
    report: ScalingReport, *, phases_left_s: float | None = None, whole_run: bool = False
) -> str:
    """Time left now and at the advised count: ``29 epochs left: 4 h as now, 2 h on 8``.

    Nothing where nothing is left: at the end of the plan and beyond it. ``phases_left_s`` is what
    evaluation and other phases will take in the rest, taken as equal on every count; where it is
    unknown the text says that it speaks of training only.
    """
    known = [
        r for r in report.rows if r.remaining_s and r.remaining_s.mean > 0 and r.fits is not False
    ]
    if not known:
        return ""
    advised = report.recommendation.num_gpus if report.recommendation else None
    now = None if report.measured_index is None else report.rows[report.measured_index].num_gpus
    wanted = {now, advised}
    best = next((r for r in known if r.num_gpus == advised), None)
    if best is not None:
        wanted |= {r.num_gpus for r in _faster_than(best, known)[:1]}
    parts = []
    for row in sorted((r for r in known if r.num_gpus in wanted), key=lambda r: r.num_gpus != now):
        assert row.remaining_s is not None
        about = "about " if row.basis == "prior" or is_far(row, report) else ""
        where = "as now" if row.num_gpus == now else f"on {row.num_gpus}"
        whole_s = row.remaining_s.mean + (phases_left_s or 0.0)
        parts.append(f"{about}{format_seconds(whole_s)} {where}")
    said = ", ".join(parts) + _holds_text(known, phases_left_s) + "."
    epochs_left = _epochs_left(known)
    if epochs_left is None:
        return f"time left: {said}"
    count = f"{epochs_left:.4g}"
    what = f"{count} {'epoch' if count == '1' else 'epochs'}"
    what = f"the whole run of {what}" if whole_run else f"{what} left"
    return f"{what}: {said}"


def _holds_text(known: list[ScalingRow], phases_left_s: float | None) -> str:
    """What the time left holds beside training steps, where that is worth a word."""
    if phases_left_s is None:
        return " (training only)"
    most_s = max(row.remaining_s.mean for row in known if row.remaining_s is not None)
    if phases_left_s < 0.01 * most_s:
        return ""
    return f" (evaluation and the like {format_seconds(phases_left_s)})"


def _epochs_left(rows: list[ScalingRow]) -> float | None:
    """Epochs to go, the same on each count: the rest over one epoch."""
    for row in rows:
        if row.remaining_s is not None and row.epoch_s is not None and row.epoch_s.mean > 0:
            return row.remaining_s.mean / row.epoch_s.mean
    return None


def _faster_than(best: ScalingRow, rows: list[ScalingRow]) -> list[ScalingRow]:
    """Larger counts that would end sooner, ascending."""

    def left_s(row: ScalingRow) -> float:
        return row.remaining_s.mean if row.remaining_s is not None else float("inf")

    return [r for r in rows if r.num_gpus > best.num_gpus and left_s(r) < left_s(best)]
