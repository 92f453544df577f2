"""The state of a run in the user's checkpoint: checked as a whole before anything is changed."""

import copy
import math
from collections.abc import Mapping
from typing import Any

from scaledl.arguments import as_index, seen_text
from scaledl.errors import UsageError
from scaledl.predictor.eta import EtaEstimator
from scaledl.records import Progress

VERSION = 1
_DEEPEST = 20
# What the trial feeds: enough steps to leave the start-up and to be looked at for a change.
_TRIAL_STEPS, _TRIAL_S = 64, 0.1
_HINT = "Pass what state_dict() gave, or start without it."


def checked_state(state: object) -> dict[str, Any]:
    """The part for the ETA, a copy; what it learned is tried out, so that it cannot fail later.

    Raises:
        UsageError: no mapping, another version, a value of a wrong type, a number that cannot be.
    """
    if not isinstance(state, Mapping):
        raise UsageError(f"a state must be a mapping, got {seen_text(state)}. {_HINT}")
    version = state.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise UsageError(
            f"state has version {seen_text(version)}, this scaledl reads version {VERSION}. {_HINT}"
        )
    num_gpus = state.get("num_gpus")
    if num_gpus is not None and (as_index(num_gpus) is None or num_gpus < 1):
        raise UsageError(f"state is damaged: num_gpus is {seen_text(num_gpus)}. {_HINT}")
    eta = state.get("eta")
    if not isinstance(eta, Mapping):
        raise UsageError(f"state is damaged: no estimate in it, got {seen_text(eta)}. {_HINT}")
    try:
        _check_numbers(eta, _DEEPEST)
        eta = copy.deepcopy(dict(eta))
        _try(eta)
    except UsageError:
        raise
    except Exception as error:  # whatever a foreign value does
        raise UsageError(f"state is damaged: {seen_text(error)}. {_HINT}") from None
    return eta


def _check_numbers(value: object, depth: int) -> None:
    """Refuse what no estimator can have learned: infinite, NaN, huge, or below anything."""
    if depth == 0:
        raise UsageError(f"state is damaged: nested too deep. {_HINT}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"state is damaged: it holds the number {value}. {_HINT}")
    if isinstance(value, float | int) and not -1e15 < value < 1e15:
        raise UsageError(f"state is damaged: it holds the number {seen_text(value)}. {_HINT}")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            _check_numbers(each, depth - 1)


def _try(eta: Mapping[str, object]) -> None:
    """Go on from the state for some steps and ask: what is wrong inside it fails here."""
    estimator = EtaEstimator()
    estimator.load_state_dict(eta)
    steps = eta.get("steps")
    first = steps.get("next_step", 0) if isinstance(steps, Mapping) else 0
    for ahead in range(0, _TRIAL_STEPS, 8):
        estimator.on_steps([_TRIAL_S] * 8, first + ahead, 0)
        step = first + ahead + 8
        progress = Progress(
            step=step,
            epoch=0,
            step_in_epoch=step,
            total_steps=step + 1000,
            num_epochs=1,
            steps_per_epoch=step + 1000,
        )
        told = estimator.estimate(progress, 1e9 + step)
        if told.remaining_s is None or not math.isfinite(told.remaining_s.high):
            raise ValueError("it gives no estimate")
    estimator.state_dict()
