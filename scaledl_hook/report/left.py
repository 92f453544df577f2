"""What evaluation and other phases will take in the rest of a run, from those seen so far."""

from collections.abc import Sequence

from scaledl.records import EpochRecord, PhaseRecord

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
