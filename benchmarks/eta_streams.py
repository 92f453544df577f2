"""Made-up streams with a known truth: lasting changes of the pace, schedules with their plan."""

from collections.abc import Callable
from itertools import product

import numpy as np
from common import Bar, below
from eta_baselines import BASELINES, Event
from eta_recordings import Ours, Recording
from eta_scores import OURS, Row

TOTAL, STEP_S = 2000, 0.5
RATIOS, NOISES, PLACES, SEEDS = (0.5, 0.8, 1.2, 1.5, 3.0), (0.02, 0.1), (0.2, 0.5), range(3)
AFTER, FOLLOWED_LIMIT = 30, 0.10
SHOWN_FOR = 100  # steps: longer than a terminal holds a value
PLANNED_AT, PLANNED_LIMIT = 0.10, 0.05

StepCost = Callable[[float], float]
SCHEDULES: dict[str, StepCost] = {
    "batch 4x at half": lambda done: 4.0 if done >= 0.5 else 1.0,
    "batch ramp": lambda done: 1.0 + min(int(16 * done), 8),
    "image sizes": lambda done: 1.0 if done < 0.4 else (2.2 if done < 0.8 else 3.5),
    "growing windows": lambda done: 1.0 + 0.1 * int(12 * done),
    "sorted inputs": lambda done: float(30**-done),
}


def stream(step_cost: StepCost, noise: float, seed: int) -> Recording:
    """A run whose steps cost what the function says, with log-normal noise."""
    rng = np.random.default_rng(seed)
    costs = np.array([step_cost(i / TOTAL) for i in range(TOTAL)])
    ends_s = np.cumsum(STEP_S * costs * np.exp(rng.normal(0, noise, TOTAL)))
    events = tuple(
        Event(at_s=float(at_s), kind="progress", done=float(i + 1)) for i, at_s in enumerate(ends_s)
    )
    return Recording(
        run_id="",
        family="",
        schedule="",
        total=TOTAL,
        duration_s=float(ends_s[-1]),
        unit=1.0,
        events=events,
    )


def change_rows() -> list[Row]:
    """Error of the shown value so many observations after a lasting change."""
    rows: list[Row] = []
    for ratio, noise in product(RATIOS, NOISES):
        errors: dict[str, list[float]] = {}
        for place, seed in product(PLACES, SEEDS):
            run = stream(lambda d, r=ratio, p=place: r if d >= p else 1.0, noise, seed)  # type: ignore[misc]
            for name, error in _errors_at(run, round(place * TOTAL) + AFTER).items():
                errors.setdefault(name, []).append(error)
        rows += [
            {
                "runs": f"synthetic change to {ratio:g}, noise {noise:g}, after {AFTER}",
                "n": len(found),
                "estimator": name,
                "mean_error": float(np.mean(found)),
                "worst_error": max(found),
            }
            for name, found in errors.items()
        ]
    return rows


def _errors_at(run: Recording, step: int) -> dict[str, float]:
    ours, others = Ours(run), {name: rule(run.total) for name, rule in BASELINES.items()}
    shown_s: float | None = None
    for i, event in enumerate(run.events[:step]):
        ours.on_event(event)
        if i >= step - SHOWN_FOR:
            shown_s = ours.shown_s(event.at_s)
        for rule in others.values():
            rule.on_event(event)
    truth_s = run.duration_s - run.events[step - 1].at_s
    told = {OURS: shown_s} | {name: rule.left_s() for name, rule in others.items()}
    return {name: abs(left_s / truth_s - 1) for name, left_s in told.items() if left_s is not None}


def plan_rows() -> list[Row]:
    """Error at a tenth of a scheduled run whose plan was given."""
    rows: list[Row] = []
    for label, step_cost in SCHEDULES.items():
        found = []
        for noise, seed in product(NOISES, SEEDS):
            run = stream(step_cost, noise, seed)
            ours = Ours(run)
            ours.estimator.plan(step_cost, TOTAL)
            step = round(PLANNED_AT * TOTAL)
            for event in run.events[:step]:
                ours.on_event(event)
            at_s = run.events[step - 1].at_s
            left = ours.estimate(at_s).remaining_s
            found.append(1.0 if left is None else abs(left.mean / (run.duration_s - at_s) - 1))
        rows.append(
            {
                "runs": f"synthetic {label}, plan given",
                "point": PLANNED_AT,
                "n": len(found),
                "estimator": OURS,
                "mean_error": float(np.mean(found)),
                "worst_error": max(found),
            }
        )
    return rows


def stream_bars(changes: list[Row], plans: list[Row]) -> list[Bar]:
    """The shown value after a change, and a schedule with its plan; the worst stream counts."""
    late = max(float(str(r["worst_error"])) for r in changes if r["estimator"] == OURS)
    planned = max(float(str(r["worst_error"])) for r in plans)
    num_changes = sum(int(str(r["n"])) for r in changes if r["estimator"] == OURS)
    num_plans = sum(int(str(r["n"])) for r in plans)
    return [
        below(
            f"shown value {AFTER} observations after a lasting change ({num_changes} streams)",
            late,
            FOLLOWED_LIMIT,
        ),
        below(
            f"schedule with its plan at {PLANNED_AT * 100:.0f} % ({num_plans} streams)",
            planned,
            PLANNED_LIMIT,
        ),
    ]
