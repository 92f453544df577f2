"""Time left of a run, as a sum: steady steps, pauses in them, phases to come. With an interval.

One-off costs (start-up, compiling) are set apart and not repeated. Rates come from the steps that
this estimator saw, never from step numbers: after a resume nothing is divided by steps of an
earlier process. What cannot be known yet (an evaluation never seen) widens the interval upward.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from statistics import NormalDist

import msgspec
import numpy as np

from scaledl.predictor.ahead import STATE_VERSION, Learned, cost_ahead, gone_s, unseen
from scaledl.predictor.believed import LEARNING_STEPS, believed
from scaledl.predictor.doubt import alone_share, late_s
from scaledl.predictor.earlier import Earlier
from scaledl.predictor.foretold import Foretold
from scaledl.predictor.hindsight import window_steps
from scaledl.predictor.horizon import epoch_end_of, run_end
from scaledl.predictor.level import Floats, Level
from scaledl.predictor.plan import StepCost
from scaledl.predictor.recurring import Expected, Recurring
from scaledl.predictor.steps import StepSeries
from scaledl.records import Basis, EpochRecord, Eta, Interval, PhaseRecord, Progress

FLUSH_STEPS = 8


class EtaEstimator:
    """Learns from steps, phases and epochs; says how long the rest will take.

    Time is passed in; nothing is read from a clock. Memory is constant.
    """

    def __init__(self, *, level: float = 0.9) -> None:
        self._level = level
        self._z = NormalDist().inv_cdf((1 + level) / 2)
        self._state = Learned()
        self._foretold = Foretold(self._state.sizes)
        self._known: tuple[tuple[int, int, Interval | None], tuple[Level, float] | None] | None
        self._known = None  # the level, as long as no step comes
        self._pending: list[float] = []
        self._pending_sizes: list[float] = []
        self._pending_first = 0
        self._pending_opens_epoch = False

    # --- taking in ------------------------------------------------------------------------------

    def prior(self, step_s: Interval) -> None:
        """Takes a forecast of the step time made before any step was seen."""
        self._state.prior = step_s

    def plan(self, step_cost: StepCost, total_steps: int) -> None:
        """Takes what a step costs beside others by the share of the run done; the last word holds.

        Raises:
            UsageError: a total below 1, or a cost that is no positive finite number.
        """
        with self._replanned():
            self._foretold.lay(step_cost, total_steps, by_user=True)

    def expect(self, earlier: Earlier, total_steps: int) -> None:
        """Takes the course of an earlier run of the same job, laid over so many steps."""
        with self._replanned():
            self._foretold.expect(earlier, total_steps)

    @contextmanager
    def _replanned(self) -> Iterator[None]:
        """Steps seen so far are counted by the old plan before, by the new one after."""
        self._flush()
        self._state.steps.rescale(self._foretold.costs)
        try:
            yield
        finally:
            self._state.steps.rescale(self._foretold.costs, inverse=True)
            self._known = None

    def on_steps(
        self,
        walls_s: Sequence[float],
        first_step: int,
        epoch: int,
        sizes: Sequence[float] = (),
    ) -> None:
        """Takes in wall times of consecutive steps of one epoch, phases excluded.

        ``sizes``: elements of each step's batches, 0 or nothing where they are not known.
        """
        if not len(walls_s):
            return
        state = self._state
        opens_epoch = state.epoch is not None and epoch > state.epoch
        follows = first_step == self._pending_first + len(self._pending)
        if self._pending and (opens_epoch or not follows):
            self._flush()
        if not self._pending:
            self._pending_first, self._pending_opens_epoch = first_step, opens_epoch
        state.epoch = epoch
        self._pending.extend(walls_s)
        self._pending_sizes.extend(sizes or [0.0] * len(walls_s))
        if len(self._pending) >= FLUSH_STEPS:
            self._flush()

    def on_phase(self, phase: PhaseRecord) -> None:
        """Takes in an evaluation, a named phase or a pause."""
        self._flush()
        state = self._state
        seen = state.phases.get(phase.kind)
        is_new = seen is None
        if seen is None:
            origin = state.steps.origin if state.steps.num_steps else phase.after_step
            seen = state.phases[phase.kind] = Recurring(origin=origin)
        seen.add(phase.after_step, phase.duration_s)
        state.hindsight.pass_phase(phase.duration_s, is_new_kind=is_new)
        state.event_s = phase.at_s + phase.duration_s
        state.cause.note_phase(phase.kind, seen)

    def on_epoch(self, record: EpochRecord) -> None:
        """Takes in a closed epoch: its length, and that what comes once an epoch was seen."""
        self._flush()
        opens_run = record.first_step == self._state.steps.origin
        cut = opens_run and record.first_step != record.epoch * record.num_steps  # a resume
        is_whole = record.complete and not cut
        is_first = self._state.sizes.is_open
        self._state.sizes.course.close_epoch(record.num_steps if is_whole else None)
        if is_first and not self._state.sizes.is_open:
            self._state.hindsight.forget()  # forecasts made before the sizes were known
        if record.complete:
            self._state.num_epochs_seen += 1
            self._state.steps_per_epoch = record.num_steps

    def _flush(self) -> None:
        if not self._pending:
            return
        walls, first = self._pending, self._pending_first
        opens_epoch, self._pending = self._pending_opens_epoch, []
        sizes, self._pending_sizes = np.asarray(self._pending_sizes, dtype=float), []
        state, before = self._state, self._state.steps.change
        state.hindsight.settle(walls, first)
        walls_s = np.asarray(walls, dtype=float)
        if (sizes > 0).all():
            self._note_sizes(sizes, walls_s, first)
        costs = self._foretold.costs(first, len(walls))
        state.steps.add(walls_s, first, opens_epoch=opens_epoch, costs=costs)
        if costs is not None and self._foretold.note(first, costs, walls_s):
            with self._replanned():
                state.cause.note_refuted(self._foretold.give_up())
        if state.steps.change is not before and state.steps.change is not None:
            state.sizes.forget_times(state.steps.change.step)
            state.cause.note_steps(
                state.steps.change,
                first_epoch=state.steps_per_epoch if state.num_epochs_seen == 1 else None,
            )
        if state.hindsight.is_point(state.steps.num_steps):
            start = state.steps.next_step
            stop = start + window_steps(state.steps.num_steps)
            cost = self._cost(start, stop, state.steps_per_epoch, final=False)
            half = self._z * math.sqrt(cost.variance)
            state.hindsight.open(start, state.steps.num_steps, cost.mean_s, half)

    def _note_sizes(self, sizes: Floats, walls_s: Floats, first: int) -> None:
        """Takes sizes in before the steps they explain: a larger batch is no change of the pace."""
        state, before = self._state, self._state.sizes.course.change
        state.sizes.add(first, sizes, None if state.steps.is_warming else walls_s)
        if (found := state.sizes.news()) is not None:
            with nullcontext() if self._foretold.plan is not None else self._replanned():
                state.sizes.adopt(found)
        if state.sizes.matters and state.sizes.course.change not in (before, None):
            state.cause.note_sizes(state.sizes.course.change)

    # --- giving out -----------------------------------------------------------------------------

    def estimate(self, progress: Progress, now_s: float) -> Eta:
        """Time left of the run and of its epoch, as far as they can be known."""
        self._flush()
        state = self._state
        if progress.step != state.seen_step:
            state.event_s, state.seen_step = now_s, progress.step
        if (known := self._step_level()) is not None:
            state.cause.note_trend(known[0])
        per_epoch = progress.steps_per_epoch or state.steps_per_epoch
        state.sizes.course.per_epoch = per_epoch
        end, epoch_end = run_end(progress), epoch_end_of(progress)
        remaining = self._interval(progress, end, per_epoch, now_s)
        return Eta(
            at_s=now_s,
            step=progress.step,
            basis=self._basis(progress, end),
            step_s=self._step_interval(),
            remaining_s=remaining,
            finish_at=None if remaining is None else now_s + remaining.mean,
            epoch_remaining_s=self._interval(progress, epoch_end, per_epoch, now_s),
            changed_because=state.cause.shown(now_s),
        )

    def _basis(self, progress: Progress, end: int | None) -> Basis:
        if self._state.steps.num_steps < LEARNING_STEPS:
            return "prior"
        unsure = end is not None and unseen(self._state, self._foretold, progress, end) > 0
        if unsure or self._foretold.is_unconfirmed:
            return "extrapolated"
        return "measured"

    def _step_level(self) -> tuple[Level, float] | None:
        """The level and the standard deviation of what is known of it, prior blended in."""
        steps = self._state.steps
        key = (steps.num_steps, len(steps.warm_s), self._state.prior)
        if self._known is None or self._known[0] != key:
            prior = self._state.prior
            if prior is not None:
                prior = prior.scaled(1 / self._foretold.mean_cost())
            level = steps.level()
            if level is not None and self._foretold.is_by_size:
                # Beside sizes a trend of the pace is most likely a share that is a little off.
                level = msgspec.structs.replace(level, slope_s=0.0, decay=0.0)
            self._known = key, believed(level, prior, self._z)
        return self._known[1]

    def _step_interval(self) -> Interval | None:
        known = self._step_level()
        if known is None:
            return None
        cost = self._foretold.work(self._state.steps.next_step, self._state.steps.next_step + 1)
        mean, half = cost * known[0].mean_s, cost * self._z * known[1]
        return Interval(mean=mean, low=max(mean - half, 0.0), high=mean + half, level=self._level)

    def _cost(self, start: int, stop: int, per_epoch: int | None, *, final: bool) -> Expected:
        """Cost of the steps from ``start`` to ``stop`` with the pauses and phases among them."""
        known = self._step_level()
        if known is None:
            return Expected()
        return cost_ahead(
            self._state, known, self._foretold, start, stop, per_epoch=per_epoch, final=final
        )

    def _interval(
        self, progress: Progress, end: int | None, per_epoch: int | None, now_s: float
    ) -> Interval | None:
        start = progress.step
        if end is None or start > end or self._step_level() is None:
            return None
        cost = self._cost(start, end, per_epoch, final=True)
        gone = gone_s(self._state, self._step_level(), self._foretold, progress, per_epoch, now_s)
        mean = max(cost.mean_s - gone, 0.0)
        half = self._z * math.sqrt(cost.variance) * self._state.hindsight.factor(self._level)
        above = cost.above_s + unseen(self._state, self._foretold, progress, end) * mean
        above += late_s(self._state.hindsight.elapsed_s, mean)
        below = cost.below_s + alone_share(self._state.steps.num_steps, end - start) * mean
        return Interval(
            mean=mean,
            low=max(mean - half - below, 0.0),
            high=mean + half + above,
            level=self._level,
        )

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        """All that was learned, as plain JSON values; of no plan, whatever plan was in force."""
        self._flush()
        state: dict[str, object] = msgspec.to_builtins(self._state)
        if self._foretold.plan is not None:
            steps = msgspec.convert(state["steps"], StepSeries)
            steps.rescale(self._foretold.costs)
            steps.rescale(self._state.sizes.costs, inverse=True)
            state["steps"] = msgspec.to_builtins(steps)
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from what an earlier process learned; its start-up is expected once more.

        Raises:
            ValueError: the state is of another version or damaged.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"ETA state has version {state.get('version')!r}, this scaledl reads "
                f"{STATE_VERSION}. Start without it."
            )
        try:
            self._state = msgspec.convert(dict(state), Learned)
        except msgspec.ValidationError as error:
            raise ValueError(f"ETA state is damaged: {error}. Start without it.") from error
        self._pending, self._pending_sizes, self._known = [], [], None
        self._foretold.sizes = self._state.sizes
        if self._foretold.plan is not None:
            self._state.steps.rescale(self._state.sizes.costs)
            self._state.steps.rescale(self._foretold.costs, inverse=True)
        self._state.steps.restart()
