"""The estimate as the run goes on: fed with steps and phases, brought up to date once a second."""

from collections.abc import Callable

from scaledl.predictor.eta import EtaEstimator
from scaledl.predictor.plan import StepCost
from scaledl.records import EpochRecord, Eta, PhaseRecord, Progress, StepRecord

RECORD_S = 30.0
# With a plan of step costs: after so many steps the run's length, which it is laid over, is known.
SETTLED_STEPS = 20


class Pulse:
    """Holds the estimator and its latest word.

    Args:
        keep: Takes the estimates worth recording: one for each percent of the run, or where its
            length is unknown one every half minute.
        step_cost: What a step costs beside others, by the share of the run that is done.
    """

    def __init__(self, keep: Callable[[Eta], None], step_cost: StepCost | None = None) -> None:
        self.estimator = EtaEstimator()
        self.eta: Eta | None = None
        self._keep = keep
        self._mark: int | None = None
        self._step_cost = step_cost
        self._waiting: list[StepRecord] = []  # until the plan is laid

    def add_steps(self, fresh: list[StepRecord], progress: Progress) -> None:
        """Steps that ended since the last call."""
        if self._step_cost is not None:
            fresh = self._waiting = [*self._waiting, *fresh]
            if progress.step - progress.first_step < SETTLED_STEPS:
                return
            if progress.total_steps is not None:
                self.estimator.plan(self._step_cost, progress.total_steps)
            self._step_cost, self._waiting = None, []
        feed(self.estimator, fresh)

    def add_phase(self, phase: PhaseRecord) -> None:
        """A phase ended."""
        self.estimator.on_phase(phase)

    def add_epoch(self, epoch: EpochRecord) -> None:
        """An epoch ended."""
        self.estimator.on_epoch(epoch)

    def beat(self, progress: Progress, at_s: float) -> None:
        """A new estimate at ``at_s``, in Unix seconds; none before the first step."""
        if progress.step <= progress.first_step or self._waiting:
            return
        self.eta = eta = self.estimator.estimate(progress, at_s)
        total = progress.total_steps
        passed = int(100 * progress.step / total) if total else int(eta.at_s // RECORD_S)
        if passed != self._mark:
            self._mark = passed
            self._keep(eta)


def feed(estimator: EtaEstimator, steps: list[StepRecord]) -> None:
    """Hand runs of ordinary steps of one epoch to the estimator.

    A sampled step is handed on with the time of its neighbours: it took its turn, but its own time
    holds what sampling cost.
    """
    walls: list[float] = []
    for index, step in enumerate(steps):
        wall_s = step.wall_s
        if step.tags and (walls or index + 1 < len(steps)):
            wall_s = min(wall_s, walls[-1] if walls else steps[index + 1].wall_s)
        walls.append(wall_s)
        last = index + 1 == len(steps)
        if last or steps[index + 1].epoch != step.epoch:
            estimator.on_steps(walls, step.step - len(walls), step.epoch)
            walls = []
