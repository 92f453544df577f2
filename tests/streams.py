"""Streams of steps and phases in virtual time, with known truth, for the ETA's tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from scaledl.predictor.eta import EtaEstimator
from scaledl.records import EpochRecord, PhaseRecord, Progress

START_S = 1_700_000_000.0


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A training run. Shares and costs are what the names say; everything repeats by ``seed``."""

    steps_per_epoch: int = 200
    num_epochs: int = 10
    step_s: float = 0.1
    noise: float = 0.05
    wander: float = 0.0  # random walk of the level, share a step
    first_step_s: float = 0.0  # extra
    eval_s: float = 0.0  # after each epoch
    more_eval_s: tuple[float, ...] = ()  # further loaders right after it
    eval_growth: float = 0.0
    save_s: float = 0.0
    save_every: int = 0
    stall_s: float = 0.0
    stall_every: int = 0
    stall_share: float = 0.0  # random stalls: share of steps, each stall_s
    cold_factor: float = 1.0  # of the first epoch
    drift: float = 0.0  # growth of the step time over the run
    change_at: int = 0
    change_ratio: float = 1.0
    seed: int = 0

    @property
    def total(self) -> int:
        return self.steps_per_epoch * self.num_epochs

    def walls_s(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        n = self.total
        walls = self.step_s * np.exp(rng.normal(0, self.noise, n) - self.noise**2 / 2)
        walls *= np.exp(np.cumsum(rng.normal(0, self.wander, n)))
        walls *= np.linspace(1, 1 + self.drift, n)
        walls[: self.steps_per_epoch] *= self.cold_factor
        if self.change_at:
            walls[self.change_at :] *= self.change_ratio
        if self.save_every:
            walls[self.save_every - 1 :: self.save_every] += self.save_s
        if self.stall_every:
            walls[self.stall_every - 1 :: self.stall_every] += self.stall_s
        if self.stall_share:
            walls[rng.random(n) < self.stall_share] += self.stall_s
        walls[0] += self.first_step_s
        return walls

    def evals_s(self) -> list[list[float]]:
        """Durations of the evaluations after each epoch."""
        return [
            [s * (1 + self.eval_growth * epoch) for s in (self.eval_s, *self.more_eval_s) if s]
            for epoch in range(self.num_epochs)
        ]

    def with_seed(self, seed: int) -> "Stream":
        return replace(self, seed=seed)


@dataclass
class Moment:
    """The run after ``progress.step`` steps: its time, the truth and what naive tools saw."""

    progress: Progress
    now_s: float
    left_s: float
    epoch_left_s: float
    estimator: EtaEstimator
    times_s: list[float] = field(default_factory=list)  # of each step, with what followed it

    @property
    def mean_left_s(self) -> float:
        """Cumulative mean of what this process saw."""
        left = self.progress.total_steps - self.progress.step
        return sum(self.times_s) / len(self.times_s) * left

    @property
    def ema_left_s(self) -> float:
        """Smoothed with 0.3, bias-corrected: what tqdm shows."""
        time_s = weight = 0.0
        for value in self.times_s:
            time_s, weight = time_s + 0.3 * (value - time_s), weight + 0.3 * (1 - weight)
        return time_s / weight * (self.progress.total_steps - self.progress.step)

    @property
    def median_left_s(self) -> float:
        left = self.progress.total_steps - self.progress.step
        return float(np.median(self.times_s[-1000:])) * left


def play(
    stream: Stream,
    at: Callable[[int], bool] | set[int],
    *,
    estimator: EtaEstimator | None = None,
    first_step: int = 0,
    batch: int = 7,
) -> Iterator[Moment]:
    """Feeds the stream from ``first_step`` on and yields at the asked steps, phases included."""
    estimator = estimator or EtaEstimator()
    wanted = at if callable(at) else at.__contains__
    walls, evals = stream.walls_s().tolist(), stream.evals_s()
    size, total = stream.steps_per_epoch, stream.total
    after = [0.0] * (total + 1)
    for epoch, durations in enumerate(evals):
        after[(epoch + 1) * size] = sum(durations)
    costs = [wall + after[i + 1] for i, wall in enumerate(walls)]
    ends = np.concatenate([[0.0], np.cumsum(costs)])
    now_s, sent, epoch_began_s = START_S, first_step, START_S
    for step in range(first_step + 1, total + 1):
        epoch = (step - 1) // size
        now_s += walls[step - 1]
        is_end = step % size == 0
        if step - sent >= batch or is_end or wanted(step):
            estimator.on_steps(walls[sent:step], sent, epoch)
            sent = step
        if is_end:
            for duration_s in evals[epoch]:
                estimator.on_phase(
                    PhaseRecord(
                        kind="eval", at_s=now_s, duration_s=duration_s, after_step=step, epoch=epoch
                    )
                )
                now_s += duration_s
            first = max(first_step, epoch * size)
            estimator.on_epoch(
                EpochRecord(
                    epoch=epoch,
                    rank=0,
                    first_step=first,
                    num_steps=size,
                    num_batches=size,
                    duration_s=now_s - epoch_began_s,
                    train_s=sum(walls[first:step]),
                    at_s=now_s,
                    complete=first == epoch * size,
                )
            )
            epoch_began_s = now_s
        if wanted(step):
            epoch_end = min((step // size + 1) * size, total)
            yield Moment(
                progress=progress_of(stream, step, first_step),
                now_s=now_s,
                left_s=float(ends[total] - ends[step]),
                epoch_left_s=float(ends[epoch_end] - ends[step]),
                estimator=estimator,
                times_s=costs[first_step:step],
            )


def progress_of(stream: Stream, step: int, first_step: int = 0) -> Progress:
    return Progress(
        step=step,
        epoch=min(step // stream.steps_per_epoch, stream.num_epochs - 1),
        step_in_epoch=step % stream.steps_per_epoch,
        first_step=first_step,
        total_steps=stream.total,
        num_epochs=stream.num_epochs,
        steps_per_epoch=stream.steps_per_epoch,
        limited_by="epochs",
    )


def errors(stream: Stream, at: set[int]) -> dict[str, list[float]]:
    """Signed relative errors of the time left: ours and the naive ones, by name."""
    found: dict[str, list[float]] = {"ours": [], "mean": [], "ema": [], "median": []}
    for moment in play(stream, at):
        eta = moment.estimator.estimate(moment.progress, moment.now_s)
        assert eta.remaining_s is not None
        found["ours"].append(eta.remaining_s.mean / moment.left_s - 1)
        found["mean"].append(moment.mean_left_s / moment.left_s - 1)
        found["ema"].append(moment.ema_left_s / moment.left_s - 1)
        found["median"].append(moment.median_left_s / moment.left_s - 1)
    return found
