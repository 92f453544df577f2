"""What an epoch's steps and phases add up to, kept until its end."""

from collections import deque

import msgspec
import numpy as np

from scaledl.records import EpochRecord, PhaseRecord, StepRecord

KEPT = 4096


class EpochTally:
    """Times of the running epoch's ordinary steps, and its phases; the newest ``KEPT`` of each."""

    def __init__(self) -> None:
        self._walls_s: deque[float] = deque(maxlen=KEPT)
        self._own_s: deque[float] = deque(maxlen=KEPT)
        self._phases: deque[PhaseRecord] = deque(maxlen=KEPT)

    def add_step(self, step: StepRecord) -> None:
        """A step; one that was sampled or restarted tells nothing about the others."""
        if step.tags:
            return
        self._walls_s.append(step.wall_s)
        if step.comm_exposed_s is not None:
            self._own_s.append(step.wall_s - step.comm_exposed_s)

    def add_phase(self, phase: PhaseRecord) -> None:
        """A phase ended."""
        self._phases.append(phase)

    def close(
        self, epoch: EpochRecord, *, at_s: float, energy_j: float | None
    ) -> tuple[EpochRecord, tuple[PhaseRecord, ...]]:
        """The record with its median times, and the phases; the next epoch starts from nothing."""
        walls_s, own_s, phases = list(self._walls_s), list(self._own_s), tuple(self._phases)
        for kept in (self._walls_s, self._own_s, self._phases):
            kept.clear()
        epoch = msgspec.structs.replace(
            epoch,
            at_s=at_s,
            step_p50_s=float(np.median(walls_s)) if walls_s else None,
            own_p50_s=float(np.median(own_s)) if own_s else None,
            energy_j=energy_j,
        )
        return epoch, phases
