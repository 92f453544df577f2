"""The estimate as the run goes on: fed with steps and phases, brought up to date once a second."""

from collections.abc import Callable

import msgspec

from scaledl.limit import with_end
from scaledl.lookback import LookBack
from scaledl.predictor.eta import EtaEstimator
from scaledl.predictor.plan import StepCost
from scaledl.records import EpochRecord, Eta, PhaseRecord, Progress, StepRecord

RECORD_S = 30.0
# A plan is laid anew where the run turns out longer or shorter by more than this share: what
# accumulation and uneven epochs shift is less.
OTHER_LENGTH = 0.02


class Pulse:
    """Holds the estimator and its latest word.

    Args:
        keep: Takes the estimates worth recording: one for each percent of the run, or where its
            length is unknown one every half minute.
        step_cost: What a step costs beside others, by the share of the run that is done.
        limit_s: When the job's time limit ends it, in Unix seconds.
    """

    def __init__(
        self,
        keep: Callable[[Eta], None],
        step_cost: StepCost | None = None,
        limit_s: float | None = None,
    ) -> None:
        self.estimator = EtaEstimator()
        self.eta: Eta | None = None
        self._keep = keep
        self._mark: int | None = None
        self._step_cost = step_cost
        self._limit_s = limit_s
        self._past: LookBack | None = None
        self._laid_steps: int | None = None

    def know(self, past: LookBack) -> None:
        """Takes what earlier runs of the job say, before the first step."""
        self._past = past
        if past.step_s is not None:
            self.estimator.prior(past.step_s)

    def add_steps(self, fresh: list[StepRecord], progress: Progress) -> None:
        """Steps that ended since the last call."""
        self._lay(progress.total_steps)
        feed(self.estimator, fresh)

    def _lay(self, total_steps: int | None) -> None:
        """Lay the plan and the earlier run's course over the run's length, once it is known."""
        if not total_steps or (self._step_cost is None and self._past is None):
            return
        before = self._laid_steps
        if before is not None and abs(total_steps - before) <= OTHER_LENGTH * before:
            return
        self._laid_steps = total_steps
        if self._step_cost is not None:
            self.estimator.plan(self._step_cost, total_steps)
        if self._past is not None and self._past.course is not None:
            self.estimator.expect(self._past.course, total_steps)

    def add_phase(self, phase: PhaseRecord) -> None:
        """A phase ended."""
        self.estimator.on_phase(phase)

    def add_epoch(self, epoch: EpochRecord) -> None:
        """An epoch ended."""
        self.estimator.on_epoch(epoch)

    def beat(self, progress: Progress, at_s: float) -> None:
        """A new estimate at ``at_s``, in Unix seconds; before the first step an earlier run's."""
        if progress.step <= progress.first_step:
            if self._past is None or self._past.step_s is None:
                return
            progress = self._with_length(progress)
            self._lay(progress.total_steps)
        self.eta = eta = with_end(self.estimator.estimate(progress, at_s), progress, self._limit_s)
        total = progress.total_steps
        passed = int(100 * progress.step / total) if total else int(eta.at_s // RECORD_S)
        if passed != self._mark:
            self._mark = passed
            self._keep(eta)

    def _with_length(self, progress: Progress) -> Progress:
        """Before a loader was seen: as long as the earlier run, if it had as many epochs."""
        past = self._past
        if past is None or past.course is None or progress.total_steps is not None:
            return progress
        if progress.num_epochs is None or past.epochs != progress.num_epochs:
            return progress
        return msgspec.structs.replace(progress, total_steps=past.course.total_steps)


def feed(estimator: EtaEstimator, steps: list[StepRecord]) -> None:
    """Hand runs of ordinary steps of one epoch to the estimator.

    A sampled step is handed on with the time of its neighbours: it took its turn, but its own time
    holds what sampling cost.
    """
    walls: list[float] = []
    sizes: list[float] = []
    for index, step in enumerate(steps):
        wall_s = step.wall_s
        if step.tags and (walls or index + 1 < len(steps)):
            wall_s = min(wall_s, walls[-1] if walls else steps[index + 1].wall_s)
        walls.append(wall_s)
        sizes.append(step.num_elements or 0)
        last = index + 1 == len(steps)
        if last or steps[index + 1].epoch != step.epoch:
            estimator.on_steps(walls, step.step - len(walls), step.epoch, sizes)
            walls, sizes = [], []
