"""What one rank writes: steps gathered into blocks, and every other record as it comes."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scaledl.means import mean_parts
from scaledl.records import Line, RunInfo, StepBlock, StepRecord
from scaledl.store import RunWriter

BLOCK_STEPS = 100
BLOCK_S = 30.0
_MAX_HELD = 2000


class Journal:
    """Holds records until the run's id is known, then hands them to the run's file.

    Args:
        runs: Folder in which the run's folder stands.
        rank: This rank.
        on_trouble: Told once when recording had to stop.
    """

    def __init__(self, runs: Path, rank: int, on_trouble: Callable[[str], None]) -> None:
        self._runs = runs
        self._rank = rank
        self._on_trouble = on_trouble
        self._held: deque[Line] = deque(maxlen=_MAX_HELD)
        self._writer: RunWriter | None = None
        self._steps: list[StepRecord] = []
        self._block_start_s: float | None = None
        self.run_id: str | None = None

    @property
    def folder(self) -> Path | None:
        """The run's folder, once the id is known."""
        return self._runs / self.run_id if self.run_id is not None else None

    def open(self, run_id: str) -> None:
        """The id is known: create the file and write what was held."""
        if self._writer is not None:
            return
        self.run_id = run_id
        self._writer = RunWriter(self._runs / run_id, self._rank, on_trouble=self._on_trouble)
        while self._held:
            self._writer.append(self._held.popleft())

    def write_info(self, info: RunInfo) -> None:
        """The head of the run's folder; rank 0 only."""
        if self._writer is not None:
            self._writer.write_info(info)

    def write(self, line: Line) -> None:
        """One record. Never raises and never waits."""
        if self._writer is None:
            self._held.append(line)
        else:
            self._writer.append(line)

    def add_step(self, step: StepRecord, at_s: float) -> None:
        """One step; closes the block when it is full, old, or of another epoch."""
        if self._steps and self._steps[-1].epoch != step.epoch:
            self.close_block(at_s)
        if self._block_start_s is None:
            self._block_start_s = at_s
        self._steps.append(step)
        if len(self._steps) >= BLOCK_STEPS or at_s - self._block_start_s >= BLOCK_S:
            self.close_block(at_s)

    def close_block(self, at_s: float) -> None:
        """Write the steps gathered so far as one block."""
        steps, self._steps, self._block_start_s = self._steps, [], None
        if steps:
            self.write(summarise(steps, at_s))

    def close(self) -> None:
        """Write what is left and end the writer's thread."""
        if self._writer is not None:
            self._writer.close()


def summarise(steps: list[StepRecord], at_s: float) -> StepBlock:
    """One block over consecutive steps."""
    means = mean_parts(steps)
    walls = np.array([s.wall_s for s in steps])
    middle, high = np.quantile(walls, [0.5, 0.95])
    samples = [s.num_samples for s in steps]
    return StepBlock(
        first_step=steps[0].step - 1,
        num_steps=len(steps),
        epoch=steps[0].epoch,
        at_s=at_s,
        mean_s=float(walls.mean()),
        p50_s=float(middle),
        p95_s=float(high),
        input_wait_s=means.input_wait_s,
        optimizer_s=means.optimizer_s,
        forward_s=means.forward_s,
        backward_s=means.backward_s,
        comm_exposed_s=means.comm_exposed_s,
        num_samples=None if None in samples else sum(n for n in samples if n is not None),
        num_micro_batches=sum(s.num_micro_batches for s in steps),
        tags=tuple(sorted(set.intersection(*(set(s.tags) for s in steps)))),
    )
