"""Time left of a run, as a sum: steady steps, pauses in them, phases to come. With an interval.

One-off costs (start-up, compiling) are set apart and not repeated. Rates come from the steps that
this estimator saw, never from step numbers: after a resume nothing is divided by steps of an
earlier process. What cannot be known yet (an evaluation never seen) widens the interval upward.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from scaledl.predictor.believed import LEARNING_STEPS, believed
from scaledl.predictor.causes import Cause
from scaledl.predictor.doubt import again_share, alone_share, late_s, unseen_share, wander_share
from scaledl.predictor.hindsight import Hindsight, window_steps
from scaledl.predictor.horizon import epoch_end_of, run_end, trend_cost
from scaledl.predictor.level import Level
from scaledl.predictor.plan import Plan, StepCost
from scaledl.predictor.recurring import Expected, Recurring, phase_cost
from scaledl.predictor.steps import StepSeries
from scaledl.records import Basis, EpochRecord, Eta, Interval, PhaseRecord, Progress

FLUSH_STEPS = 8
STATE_VERSION = 1
PAUSED = "paused"


class _State(msgspec.Struct, kw_only=True):
    version: int = STATE_VERSION
    steps: StepSeries = msgspec.field(default_factory=StepSeries)
    phases: dict[str, Recurring] = {}
    hindsight: Hindsight = msgspec.field(default_factory=Hindsight)
    prior: Interval | None = None
    steps_per_epoch: int | None = None
    num_epochs_seen: int = 0
    epoch: int | None = None
    cause: Cause = msgspec.field(default_factory=Cause)
    seen_step: int = -1
    event_s: float | None = None


class EtaEstimator:
    """Learns from steps, phases and epochs; says how long the rest will take.

    Time is passed in; nothing is read from a clock. Memory is constant.
    """

    def __init__(self, *, level: float = 0.9) -> None:
        self._level = level
        self._z = NormalDist().inv_cdf((1 + level) / 2)
        self._state = _State()
        self._plan: Plan | None = None
        self._known: tuple[tuple[int, int, Interval | None], tuple[Level, float] | None] | None
        self._known = None  # the level, as long as no step comes
        self._pending: list[float] = []
        self._pending_first = 0
        self._pending_opens_epoch = False

    # --- taking in ------------------------------------------------------------------------------

    def prior(self, step_s: Interval) -> None:
        """Takes a forecast of the step time made before any step was seen."""
        self._state.prior = step_s

    def plan(self, step_cost: StepCost, total_steps: int) -> None:
        """Takes what a step costs beside others by the share of the run done; before any step.

        Raises:
            UsageError: a total below 1, or a cost that is no positive finite number.
        """
        self._plan = Plan(step_cost, total_steps)

    def on_steps(self, walls_s: Sequence[float], first_step: int, epoch: int) -> None:
        """Takes in wall times of consecutive steps of one epoch, phases excluded."""
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
        if record.complete:
            self._state.num_epochs_seen += 1
            self._state.steps_per_epoch = record.num_steps

    def _flush(self) -> None:
        if not self._pending:
            return
        walls, first = self._pending, self._pending_first
        opens_epoch, self._pending = self._pending_opens_epoch, []
        state, before = self._state, self._state.steps.change
        state.hindsight.settle(walls, first)
        state.steps.add(
            np.asarray(walls, dtype=float),
            first,
            opens_epoch=opens_epoch,
            costs=None if self._plan is None else self._plan.costs(first, len(walls)),
        )
        if state.steps.change is not before and state.steps.change is not None:
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
        if end is not None and self._unseen_share(progress, end) > 0:
            return "extrapolated"
        return "measured"

    def _step_level(self) -> tuple[Level, float] | None:
        """The level and the standard deviation of what is known of it, prior blended in."""
        steps = self._state.steps
        key = (steps.num_steps, len(steps.warm_s), self._state.prior)
        if self._known is None or self._known[0] != key:
            self._known = key, believed(steps.level(), self._state.prior, self._z)
        return self._known[1]

    def _step_interval(self) -> Interval | None:
        known = self._step_level()
        if known is None:
            return None
        cost = self._work(self._state.steps.next_step, self._state.steps.next_step + 1)
        mean, half = cost * known[0].mean_s, cost * self._z * known[1]
        return Interval(mean=mean, low=max(mean - half, 0.0), high=mean + half, level=self._level)

    def _work(self, start: int, stop: int) -> float:
        """Steps from ``start`` to ``stop``, each counted by its planned cost."""
        return float(stop - start) if self._plan is None else self._plan.work(start, stop)

    def _cost(self, start: int, stop: int, per_epoch: int | None, *, final: bool) -> Expected:
        """Cost of the steps from ``start`` to ``stop`` with the pauses and phases among them."""
        known = self._step_level()
        if known is None:
            return Expected()
        level, sd = known
        if final and (shift := self._state.steps.shift(stop)) is not None:
            apart = shift.level_s - level.mean_s
            sd = math.hypot(sd, math.sqrt(shift.chance * (1 - shift.chance)) * apart)
            mean_s = level.mean_s + shift.chance * apart
            level = msgspec.structs.replace(level, mean_s=mean_s)
        steps, work, state = stop - start, self._work(start, stop), self._state
        wander = wander_share(steps, level.num_steps) * level.mean_s
        again = (
            again_share(
                state.steps.num_changes, state.steps.change.ratio if state.steps.change else 1.0
            )
            * level.mean_s
        )
        drift = trend_cost(level, steps) * (work / steps if steps else 1.0)
        total = Expected(
            mean_s=work * level.mean_s + drift,
            variance=work**2 * (sd**2 + wander**2 + again**2) + (0.5 * drift) ** 2,
        )
        total += state.steps.pauses.cost(start, stop, level.mean_s)
        for kind in state.steps.epoch_starts.kinds:
            total += phase_cost(
                kind, start, stop, steps_per_epoch=per_epoch, opens=False, final=False
            )
        for name, phase in state.phases.items():
            if name == PAUSED and phase.count == 1 and phase.period(per_epoch) is None:
                continue  # a single pause off any epoch's end is taken as a one-off
            opens = name != "eval"  # an evaluation before the first step is a check, not a rhythm
            total += phase_cost(
                phase, start, stop, steps_per_epoch=per_epoch, opens=opens, final=final
            )
        return total

    def _interval(
        self, progress: Progress, end: int | None, per_epoch: int | None, now_s: float
    ) -> Interval | None:
        start = progress.step
        if end is None or start > end or self._step_level() is None:
            return None
        cost = self._cost(start, end, per_epoch, final=True)
        gone = self._gone_s(progress, per_epoch, now_s)
        mean = max(cost.mean_s - gone, 0.0)
        half = self._z * math.sqrt(cost.variance) * self._state.hindsight.factor(self._level)
        above = cost.above_s + self._unseen_share(progress, end) * mean
        above += late_s(self._state.hindsight.elapsed_s, mean)
        below = alone_share(self._state.steps.num_steps, end - start) * mean
        return Interval(
            mean=mean,
            low=max(mean - half - below, 0.0),
            high=mean + half + above,
            level=self._level,
        )

    def _unseen_share(self, progress: Progress, end: int) -> float:
        """By how much an evaluation not seen yet may lengthen what is left."""
        state = self._state
        if state.num_epochs_seen or state.phases.keys() - {PAUSED}:
            return 0.0
        return unseen_share(
            state.steps.num_steps,
            end - progress.step,
            has_epochs=(progress.num_epochs or 1) > 1 and progress.steps_per_epoch is not None,
        )

    def _gone_s(self, progress: Progress, per_epoch: int | None, now_s: float) -> float:
        """What has passed of the running step, or of a phase that is due, since the last event."""
        known = self._step_level()
        if known is None or self._state.event_s is None:
            return 0.0
        due = sum(
            phase.typical_s()
            for phase in self._state.phases.values()
            if phase.is_due(progress.step, per_epoch)
        )
        step_s = known[0].mean_s * self._work(progress.step, progress.step + 1)
        return min(max(now_s - self._state.event_s, 0.0), step_s + due)

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        """All that was learned, as plain JSON values."""
        self._flush()
        state: dict[str, object] = msgspec.to_builtins(self._state)
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
            self._state = msgspec.convert(dict(state), _State)
        except msgspec.ValidationError as error:
            raise ValueError(f"ETA state is damaged: {error}. Start without it.") from error
        self._pending, self._known = [], None
        self._state.steps.restart()
