"""What was learned of a run, and what the steps ahead will cost by it."""

import math

import msgspec

from scaledl.predictor.causes import Cause
from scaledl.predictor.doubt import again_share, unseen_share, wander_share
from scaledl.predictor.earlier import PAUSES_FEW, pauses_ahead, phase_ahead
from scaledl.predictor.foretold import Foretold
from scaledl.predictor.hindsight import Hindsight
from scaledl.predictor.horizon import trend_cost
from scaledl.predictor.level import Level
from scaledl.predictor.recurring import Expected, Recurring, phase_cost
from scaledl.predictor.sizes import Sizes
from scaledl.predictor.steps import StepSeries
from scaledl.records import Interval, Progress

STATE_VERSION = 2
PAUSED = "paused"


class Learned(msgspec.Struct, kw_only=True):
    """All that an estimator keeps, as plain values."""

    version: int = STATE_VERSION
    steps: StepSeries = msgspec.field(default_factory=StepSeries)
    sizes: Sizes = msgspec.field(default_factory=Sizes)
    phases: dict[str, Recurring] = {}
    hindsight: Hindsight = msgspec.field(default_factory=Hindsight)
    prior: Interval | None = None
    steps_per_epoch: int | None = None
    num_epochs_seen: int = 0
    epoch: int | None = None
    cause: Cause = msgspec.field(default_factory=Cause)
    seen_step: int = -1
    event_s: float | None = None


def cost_ahead(
    state: Learned,
    known: tuple[Level, float],
    foretold: Foretold,
    start: int,
    stop: int,
    *,
    per_epoch: int | None,
    final: bool,
) -> Expected:
    """Cost of the steps from ``start`` to ``stop`` with the pauses and phases among them.

    Args:
        state: What was learned.
        known: The level of a step of cost 1, and the standard deviation of what is known of it.
        foretold: A plan, an earlier run, or the sizes of batches.
        start: Steps done.
        stop: Steps at the end that is asked for.
        per_epoch: Steps of an epoch, if known.
        final: Whether ``stop`` is an end whose own phase counts.
    """
    level, sd = known
    if final and (shift := state.steps.shift(stop)) is not None:
        apart = shift.level_s - level.mean_s
        sd = math.hypot(sd, math.sqrt(shift.chance * (1 - shift.chance)) * apart)
        level = msgspec.structs.replace(level, mean_s=level.mean_s + shift.chance * apart)
    steps, work = stop - start, foretold.work(start, stop)
    ratio = state.steps.change.ratio if state.steps.change else 1.0
    spread = math.hypot(
        wander_share(steps, level.num_steps), again_share(state.steps.num_changes, ratio)
    )
    drift = trend_cost(level, steps) * (work / steps if steps else 1.0)
    untold_s = foretold.untold(start, stop) * level.mean_s
    open_s = foretold.doubt(start, stop) * level.mean_s
    total = Expected(
        mean_s=work * level.mean_s + drift,
        variance=work**2 * (sd**2 + (spread * level.mean_s) ** 2) + (0.5 * drift) ** 2 + open_s**2,
        above_s=max(untold_s, 0.0),
        below_s=max(-untold_s, 0.0),
    )
    total += _pauses(state, foretold, start, stop, level.mean_s)
    for kind in state.steps.epoch_starts.kinds:
        total += phase_cost(kind, start, stop, steps_per_epoch=per_epoch, opens=False, final=False)
    told = {} if foretold.earlier is None else foretold.earlier.phases
    for name in {**state.phases, **told}:
        total += _phase(state, foretold, name, start, stop, per_epoch=per_epoch, final=final)
    return total


def _pauses(state: Learned, foretold: Foretold, start: int, stop: int, level_s: float) -> Expected:
    """Pauses inside steps: as in the earlier run while this one had few of its own."""
    own, earlier = state.steps.pauses, foretold.earlier
    if earlier is None or sum(kind.count for kind in own.kinds) >= PAUSES_FEW:
        return own.cost(start, stop, level_s)
    whole = foretold.total_steps
    places = (state.steps.origin / whole, start / whole, stop / whole)
    return pauses_ahead(earlier, own.booked_s, *places)


def _phase(
    state: Learned,
    foretold: Foretold,
    name: str,
    start: int,
    stop: int,
    *,
    per_epoch: int | None,
    final: bool,
) -> Expected:
    """One kind of phase: as in the earlier run until this one tells its own rhythm."""
    seen, earlier = state.phases.get(name), foretold.earlier
    if earlier is not None and name in earlier.phases and name != PAUSED:
        whole = foretold.total_steps
        told = phase_ahead(earlier.phases[name], seen, start / whole, stop / whole)
        if told is not None:
            return told
    if seen is None:
        return Expected()
    if name == PAUSED and seen.count == 1 and seen.period(per_epoch) is None:
        return Expected()  # a single pause off any epoch's end is taken as a one-off
    opens = name != "eval"  # an evaluation before the first step is a check, not a rhythm
    return phase_cost(seen, start, stop, steps_per_epoch=per_epoch, opens=opens, final=final)


def unseen(state: Learned, foretold: Foretold, progress: Progress, end: int) -> float:
    """By how much an evaluation not seen yet may lengthen what is left, as a share."""
    if state.num_epochs_seen or state.phases.keys() - {PAUSED} or foretold.is_whole:
        return 0.0
    return unseen_share(
        state.steps.num_steps,
        end - progress.step,
        has_epochs=(progress.num_epochs or 1) > 1 and progress.steps_per_epoch is not None,
    )


def gone_s(
    state: Learned,
    known: tuple[Level, float] | None,
    foretold: Foretold,
    progress: Progress,
    per_epoch: int | None,
    now_s: float,
) -> float:
    """What has passed of the running step, or of a phase that is due, since the last event."""
    if known is None or state.event_s is None:
        return 0.0
    due = sum(
        phase.typical_s()
        for phase in state.phases.values()
        if phase.is_due(progress.step, per_epoch)
    )
    step_s = known[0].mean_s * foretold.work(progress.step, progress.step + 1)
    return min(max(now_s - state.event_s, 0.0), step_s + due)
