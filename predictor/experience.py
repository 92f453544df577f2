"""What earlier jobs say about scaling: a learned correction of the step model's extrapolations.

A forecast for a larger count than any seen lies between two simple answers: the step stays as at
the largest count seen ("hold"), and what the step model says. How far the model may leave the first
is learned from jobs whose larger counts were measured later, and so is how far off the answer is:

    log step = log hold + clip(log(model / hold), -cap, cap) + b . (x - m)     b by ridge, own jobs
    interval = step * exp(scale(y) * quantiles of residual / scale(y)),  log scale linear in y

``cap`` and the residuals ship with the package, fitted on public measurements
(``experience.toml``); the user's own past jobs count more than those, and they alone move ``b``,
which is zero without them. The interval is a normalised conformal one (Papadopoulos et al. 2002,
"Inductive Confidence Machines for Regression") with asymmetric ends and jobs, not rows, of equal
weight. Its high end is at most ``MAX_HIGH_OVER_LOW`` times its low one.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.analytic import forecast
from scaledl.predictor.sight import Sight, look
from scaledl.records import Interval, Measurement

FloatArray = NDArray[np.float64]

OWN_WEIGHT = 4.0
"""What one of the user's jobs counts in the interval, against one of the public ones."""
RIDGE = 60.0
"""Pull of ``b`` towards zero, in tasks (a job, the counts seen and the ones asked)."""
FREE_MEAN = 0.3
"""The same of the correction common to all own jobs, as a part of ``RIDGE``."""
MAX_CORRECTION = 0.5
MAX_LEVEL = 0.98
MAX_HIGH_OVER_LOW = 2.99
CAPS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 2.0)
SKETCH = 41
_LEAST_ERROR = 0.01
_L1_FLOOR = 0.03
_L1_ROUNDS = 6


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast that was made from smaller counts, and the step that came true."""

    sight: Sight
    truth_s: float
    job: str
    task: str  # cases of one job and task share one weight

    @property
    def log_truth(self) -> float:
        """log(truth / hold)."""
        return math.log(self.truth_s / self.sight.hold_s)


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What the cases of one group taught. Residuals are in units of the scale, ascending."""

    cap: float
    num_jobs: float
    scale: tuple[float, ...]  # intercept, then one a doubt feature
    doubt_low: tuple[float, ...]
    doubt_high: tuple[float, ...]
    residuals: tuple[float, ...]
    weights: tuple[float, ...] = ()  # of the residuals; equal where empty
    slope: tuple[float, ...] = ()  # b, the common correction first
    centre: tuple[float, ...] = ()
    reach: tuple[float, ...] = ()  # largest |x - centre| seen

    def log_answer(self, sight: Sight) -> float:
        """log(step / hold)."""
        answer = min(self.cap, max(-self.cap, sight.log_model))
        if self.slope:
            off = np.array(sight.features) - self.centre
            off = np.clip(off, -np.array(self.reach), np.array(self.reach))
            moved = self.slope[0] + float(off @ np.array(self.slope[1:]))
            answer += min(MAX_CORRECTION, max(-MAX_CORRECTION, moved))
        return answer

    def log_scale(self, sight: Sight) -> float:
        """Log of the unit that residuals are in."""
        doubts = np.clip(sight.doubts, self.doubt_low, self.doubt_high)
        return self.scale[0] + float(doubts @ np.array(self.scale[1:]))

    def interval(self, sight: Sight, level: float) -> Interval:
        """The step in seconds."""
        mean_s = sight.hold_s * math.exp(self.log_answer(sight))
        # Jobs are few: the next one is one of num_jobs + 1 (rank (n+1) * level of n).
        wide = min(MAX_LEVEL, level * (1 + 1 / self.num_jobs))
        low, high = (self._quantile((1 + sign * wide) / 2) for sign in (-1, 1))
        unit = math.exp(self.log_scale(sight))
        below, above = unit * max(0.0, -low), unit * max(0.0, high)
        shrink = min(1.0, math.log(MAX_HIGH_OVER_LOW) / max(below + above, 1e-12))
        return Interval(
            mean=mean_s,
            low=mean_s * math.exp(-shrink * below),
            high=mean_s * math.exp(shrink * above),
            level=level,
        )

    def _quantile(self, share: float) -> float:
        weights = np.array(self.weights or (1.0,) * len(self.residuals))
        return weighted_quantile(np.array(self.residuals), weights, share)


class Experience(msgspec.Struct, frozen=True, kw_only=True):
    """One lesson a group of forecasts; see ``Sight.group``."""

    lessons: Mapping[str, Lesson]

    def interval(self, sight: Sight, level: float) -> Interval | None:
        """The step in seconds; ``None`` where nothing like it was ever seen."""
        lesson = self.lessons.get(sight.group)
        return None if lesson is None else lesson.interval(sight, level)

    def leads(self, sight: Sight, level: float) -> bool:
        """Whether there are jobs enough to tell an interval of this level by themselves.

        The next job is within the (n + 1) * level smallest misses of n (split conformal); fewer
        than level / (1 - level) jobs do not have so many.
        """
        lesson = self.lessons.get(sight.group)
        return lesson is not None and lesson.num_jobs * (1 - level) >= level - 1e-9

    def with_own(self, cases: Iterable[Case]) -> Self:
        """This experience and the user's own cases, which count more."""
        own: dict[str, list[Case]] = {}
        for case in cases:
            own.setdefault(case.sight.group, []).append(case)
        changed = {
            name: _taught(self.lessons[name], mine)
            for name, mine in own.items()
            if name in self.lessons
        }
        return msgspec.structs.replace(self, lessons={**self.lessons, **changed})


def cases_of(job: str, measurements: Sequence[Measurement]) -> list[Case]:
    """Each measured count of one job as a forecast from its smaller counts at the same batch."""
    cases = []
    for later in measurements:
        batch = later.plan.batch_per_gpu, later.plan.grad_accum
        earlier = [
            m
            for m in measurements
            if m.cluster.num_gpus < later.cluster.num_gpus
            and (m.plan.batch_per_gpu, m.plan.grad_accum) == batch
        ]
        if earlier and later.step_s > 0 and any(m.step_s > 0 for m in earlier):
            sight = look(earlier, forecast(earlier, later.cluster, later.plan))
            if sight is not None:
                task = f"to {later.cluster.num_gpus}"
                cases.append(Case(sight=sight, truth_s=later.step_s, job=job, task=task))
    return cases


def weighted_quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """The smallest value that at least ``share`` of the weight does not exceed."""
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    at = int(np.searchsorted(total, share * total[-1] * (1 - 1e-12)))
    return float(values[order][min(len(values) - 1, at)])


def shares(cases: Sequence[Case], *, by_task: bool) -> FloatArray:
    """Weights with a sum of 1 a job, or a job and task."""
    keys = [(c.job, c.task if by_task else "") for c in cases]
    counts: dict[tuple[str, str], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return np.array([1 / counts[key] for key in keys])


def fit(cases: Sequence[Case]) -> Experience:
    """What public cases teach: caps, scales and residuals, without a correction."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.sight.group, []).append(case)
    return Experience(lessons={name: _lesson(mine) for name, mine in sorted(groups.items())})


def _lesson(cases: Sequence[Case]) -> Lesson:
    truth = np.array([c.log_truth for c in cases])
    model = np.array([c.sight.log_model for c in cases])
    weights = shares(cases, by_task=True)

    def error(cap: float) -> float:
        off = np.abs(np.exp(np.clip(model, -cap, cap) - truth) - 1)
        return float(np.average(off, weights=weights))

    cap = min(CAPS, key=error)
    residual = truth - np.clip(model, -cap, cap)
    doubts = np.array([c.sight.doubts for c in cases])
    weights = shares(cases, by_task=False)
    scale = _fit_scale(doubts, residual, weights)
    unit = np.exp(scale[0] + doubts @ scale[1:])
    places = (np.arange(SKETCH) + 0.5) / SKETCH
    return Lesson(
        cap=cap,
        num_jobs=float(len({c.job for c in cases})),
        scale=tuple(map(float, scale)),
        doubt_low=tuple(map(float, doubts.min(axis=0))),
        doubt_high=tuple(map(float, doubts.max(axis=0))),
        residuals=tuple(weighted_quantile(residual / unit, weights, p) for p in places),
    )


def _fit_scale(doubts: FloatArray, residual: FloatArray, weights: FloatArray) -> FloatArray:
    """Ridge of log |residual| on standardised doubts; intercept first, [1 + D]."""
    middle, spread = doubts.mean(axis=0), doubts.std(axis=0) + 1e-9
    design = np.column_stack([np.ones(len(doubts)), (doubts - middle) / spread])
    target = np.log(np.maximum(_LEAST_ERROR, np.abs(residual)))
    pull = 2.0 * np.diag([0.0, *np.ones(doubts.shape[1])])
    flat = design.T * weights
    solved = np.linalg.solve(flat @ design + pull, flat @ target)
    slope = solved[1:] / spread
    return np.array([solved[0] - middle @ slope, *slope])


def _taught(lesson: Lesson, cases: Sequence[Case]) -> Lesson:
    """The lesson with a correction and residuals from own cases."""
    plain = np.array([c.log_truth - lesson.log_answer(c.sight) for c in cases])
    features = np.array([c.sight.features for c in cases])
    weights = shares(cases, by_task=True)
    centre = np.average(features, axis=0, weights=weights)
    design = np.column_stack([np.ones(len(cases)), features - centre])
    taught = msgspec.structs.replace(
        lesson,
        slope=tuple(map(float, _fit_slope(design, plain, weights))),
        centre=tuple(map(float, centre)),
        reach=tuple(map(float, np.abs(design[:, 1:]).max(axis=0))),
    )
    own = [
        (c.log_truth - taught.log_answer(c.sight)) / math.exp(taught.log_scale(c.sight))
        for c in cases
    ]
    old = lesson.num_jobs / len(lesson.residuals)
    own_weights = OWN_WEIGHT * shares(cases, by_task=False)
    return msgspec.structs.replace(
        taught,
        num_jobs=lesson.num_jobs + float(own_weights.sum()),
        residuals=(*lesson.residuals, *own),
        weights=(*(old for _ in lesson.residuals), *map(float, own_weights)),
    )


def _fit_slope(design: FloatArray, target: FloatArray, weights: FloatArray) -> FloatArray:
    """Ridge of least absolute errors by reweighting (Schlossmacher 1973), [1 + K]."""
    pull = RIDGE * np.diag([FREE_MEAN, *np.ones(design.shape[1] - 1)])
    now = weights
    solved: FloatArray = np.zeros(design.shape[1])
    for _ in range(_L1_ROUNDS):
        flat = design.T * now
        solved = np.asarray(np.linalg.solve(flat @ design + pull, flat @ target), np.float64)
        now = weights * 0.1 / np.maximum(np.abs(target - design @ solved), _L1_FLOOR)
    return solved


@cache
def shipped() -> Experience:
    """The experience that comes with the package."""
    text = files("scaledl.predictor").joinpath("experience.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Experience, strict=False)
