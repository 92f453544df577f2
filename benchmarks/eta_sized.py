"""Made-up streams whose steps cost by the size of their batch, with the sizes a loader shows.

A step costs a fixed part and a part in proportion to its elements; where attention rules, a part
with their square. Sizes are told step by step as a loader yields them, nothing of those to come.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
from common import Bar, below
from eta_baselines import BASELINES, Event
from eta_scores import OURS, Row
from numpy.typing import NDArray

from scaledl.predictor.eta import EtaEstimator
from scaledl.records import EpochRecord, Eta, Progress

Floats = NDArray[np.float64]
Order = Callable[[int, np.random.Generator], Floats]

EPOCH, STEP_S, ELEMENTS = 200, 0.5, 4096
EPOCHS, FIXED, NOISES, SEEDS = (8, 12, 20), (0.1, 0.5), (0.03, 0.1), range(1)
AT, LIMIT, WORST_LIMIT = 0.10, 0.05, 0.10
LOW_COVERAGE = 0.85
BLIND = "scaledl, sizes not told"


def _falling(ratio: float) -> Floats:
    """Sizes of one epoch, sorted from long to short. Shapes: result [EPOCH]."""
    return np.ceil(ELEMENTS * ratio ** -(np.arange(EPOCH) / EPOCH))


def _drawn(rng: np.random.Generator) -> Floats:
    return np.ceil(ELEMENTS * np.exp(rng.normal(0, 0.5, EPOCH)))


def _each(make: Callable[[int], Floats], num_epochs: int) -> Floats:
    return np.concatenate([make(epoch) for epoch in range(num_epochs)])


SEEN: dict[str, Order] = {
    "sorted long to short, each epoch": lambda n, rng: np.tile(_falling(30), n),
    "sorted short to long, each epoch": lambda n, rng: np.tile(_falling(30)[::-1], n),
    "sorted in the first epoch only": lambda n, rng: _each(
        lambda epoch: rng.permutation(_falling(30)) if epoch else _falling(30), n
    ),
    "buckets in random order": lambda n, rng: _each(lambda epoch: _drawn(rng), n),
    "sorted, cost with the square": lambda n, rng: np.tile(_falling(4), n),
}
"""What comes was seen by a tenth of the run, or follows from what was."""

UNSEEN: dict[str, Order] = {
    "batch 4x at half": lambda n, rng: np.repeat([512.0, 2048.0], n * EPOCH // 2),
    "windows that grow by epoch": lambda n, rng: np.repeat(512.0 + 128 * np.arange(n), EPOCH),
}
"""Nothing shows it before it comes: told after it came, by the same share of the run later."""


class Run:
    """One stream: sizes and times of its steps. Shapes: both [steps]."""

    def __init__(self, name: str, num_epochs: int, fixed: float, noise: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = (SEEN | UNSEEN)[name](num_epochs, rng)
        x = self.sizes / self.sizes.mean()
        costs = fixed + (1 - fixed) * (x**2 if "square" in name else x)
        self.walls_s = STEP_S * costs * np.exp(rng.normal(0, noise, len(x)))
        self.num_epochs = num_epochs

    def left_s(self, step: int) -> float:
        return float(self.walls_s[step:].sum())

    def eta(self, step: int, *, told: bool) -> Eta:
        """What is said after ``step`` steps."""
        estimator, now_s = EtaEstimator(), 0.0
        for i in range(step):
            now_s += float(self.walls_s[i])
            size = [float(self.sizes[i])] if told else []
            estimator.on_steps([float(self.walls_s[i])], i, i // EPOCH, size)
            if (i + 1) % EPOCH == 0:
                estimator.on_epoch(self._epoch(i // EPOCH, now_s))
            if i % 100 == 99:
                estimator.estimate(self._progress(i + 1), now_s)
        return estimator.estimate(self._progress(step), now_s)

    def _epoch(self, epoch: int, now_s: float) -> EpochRecord:
        took_s = float(self.walls_s[epoch * EPOCH : (epoch + 1) * EPOCH].sum())
        return EpochRecord(
            epoch=epoch,
            rank=0,
            first_step=epoch * EPOCH,
            num_steps=EPOCH,
            num_batches=EPOCH,
            duration_s=took_s,
            train_s=took_s,
            at_s=now_s,
        )

    def _progress(self, step: int) -> Progress:
        return Progress(
            step=step,
            epoch=step // EPOCH,
            step_in_epoch=step % EPOCH,
            total_steps=len(self.sizes),
            num_epochs=self.num_epochs,
            steps_per_epoch=EPOCH,
        )

    def baselines_s(self, step: int) -> dict[str, float]:
        """What the estimators of other tools say of the time left."""
        rules = {name: rule(float(len(self.sizes))) for name, rule in BASELINES.items()}
        for done, at_s in enumerate(np.cumsum(self.walls_s[:step]).tolist(), start=1):
            for rule in rules.values():
                rule.on_event(Event(at_s=at_s, kind="progress", done=float(done)))
        said = {name: rule.left_s() for name, rule in rules.items()}
        return {name: left_s for name, left_s in said.items() if left_s is not None}


def sized_rows() -> list[Row]:
    """One row a schedule and estimator; what no loader shows is scored before and after it came."""
    rows: list[Row] = []
    for name in SEEN:
        rows += _rows(f"sizes told: {name}", name, AT)
    for name in UNSEEN:
        rows += _rows(f"sizes told, not foreseeable: {name}", name, AT)
        rows += _rows(f"sizes told, came at half: {name}", name, 0.5 + AT)
    return rows


def _rows(label: str, name: str, point: float) -> list[Row]:
    errors: dict[str, list[float]] = {}
    inside: dict[str, list[bool]] = {}
    for num_epochs, fixed, noise, seed in product(EPOCHS, FIXED, NOISES, SEEDS):
        run = Run(name, num_epochs, fixed, noise, seed)
        step = round(point * len(run.sizes))
        truth_s = run.left_s(step)
        for who, told in ((OURS, True), (BLIND, False)):
            left = run.eta(step, told=told).remaining_s
            errors.setdefault(who, []).append(1.0 if left is None else abs(left.mean / truth_s - 1))
            inside.setdefault(who, []).append(left is not None and truth_s in left)
        for who, left_s in run.baselines_s(step).items():
            errors.setdefault(who, []).append(abs(left_s / truth_s - 1))
    return [
        {
            "runs": f"synthetic {label}",
            "point": point,
            "n": len(found),
            "estimator": who,
            "mean_error": float(np.mean(found)),
            "worst_error": max(found),
            **({"coverage": float(np.mean(inside[who]))} if who in inside else {}),
        }
        for who, found in errors.items()
    ]


def sized_bars(rows: list[Row]) -> list[Bar]:
    """The mean and the worst error at a tenth of the run, and how often the interval held."""
    ours = [r for r in rows if r["estimator"] == OURS and "sizes told: " in str(r["runs"])]
    count = sum(int(str(r["n"])) for r in ours)
    text = f"sizes from the loader at {AT * 100:.0f} % ({count} streams)"
    mean, worst, held = (
        [float(str(r[key])) for r in ours] for key in ("mean_error", "worst_error", "coverage")
    )
    return [
        below(f"{text}, mean error of the worst schedule", max(mean), LIMIT),
        below(f"{text}, worst error", max(worst), WORST_LIMIT),
        below(f"{text}, share outside the interval", 1 - float(np.mean(held)), 1 - LOW_COVERAGE),
    ]
