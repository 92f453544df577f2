"""Forecasts of recorded runs at fixed points, what came true, and the scores by group."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eta_baselines import BASELINES, Baseline
from eta_recordings import Ours, Recording

from scaledl.records import Interval

OURS = "scaledl"
POINTS = (0.01, 0.02, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90)
RESUME_AT = 0.4
RESUME_POINTS = (0.41, 0.45, 0.50, 0.75)
LEVEL = 0.9
JUMP = 0.10
WATCHED_FROM, WATCHED_TO = 0.01, 0.95  # of the run: near the end each second is a large share
NEEDED = tuple(name for name in BASELINES if name != "composer")  # it is silent at the start

Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Score:
    """All forecasts of one run at one point, and what came true. Errors are shares of it."""

    run: Recording
    point: float
    truth_s: float
    forecasts_s: dict[str, float]
    interval: Interval

    def error(self, name: str) -> float:
        return abs(self.forecasts_s[name] / self.truth_s - 1)


@dataclass(frozen=True, kw_only=True)
class Jumps:
    """How often the shown time left moved by more than a tenth, besides running down."""

    run: Recording
    counts: dict[str, int]


def points_of(run: Recording, points: Sequence[float]) -> dict[int, list[float]]:
    """Points by the index of the last observation at or before them."""
    wanted: dict[int, list[float]] = {}
    seen = [(i, e.done) for i, e in enumerate(run.events) if e.kind == "progress" and e.done]
    for point in points:
        before = [i for i, done in seen if done <= point * run.total]
        if before:
            wanted.setdefault(before[-1], []).append(point)
    return wanted


def score_run(
    run: Recording, points: Sequence[float] = POINTS, ours: Ours | None = None
) -> list[Score]:
    """Forecasts at the points, each from the events before it."""
    ours = ours or Ours(run)
    others = {name: rule(run.total, run.start_s, run.start) for name, rule in BASELINES.items()}
    wanted, scores = points_of(run, points), []
    for i, event in enumerate(run.events):
        ours.on_event(event)
        for rule in others.values():
            rule.on_event(event)
        if i in wanted:
            at = _forecast(run, wanted[i], ours, others, event.at_s)
            scores += at
    return scores


def _forecast(
    run: Recording, points: list[float], ours: Ours, others: dict[str, Baseline], now_s: float
) -> list[Score]:
    interval = ours.estimate(now_s).remaining_s
    known = {n: left for n, rule in others.items() if (left := rule.left_s()) is not None}
    truth_s = run.duration_s - now_s
    if interval is None or truth_s <= 0 or any(name not in known for name in NEEDED):
        return []
    forecasts_s = {OURS: interval.mean, **known}
    return [
        Score(run=run, point=p, truth_s=truth_s, forecasts_s=forecasts_s, interval=interval)
        for p in points
    ]


def score_resumed(run: Recording) -> list[Score]:
    """A process is killed, its follower loads the state; other tools start afresh."""
    parts = run.cut(RESUME_AT)
    if parts is None:
        return []
    before, after = parts
    first = Ours(before)
    for event in before.events:
        first.on_event(event)
    return score_run(after, RESUME_POINTS, Ours(after, first.estimator.state_dict()))


def count_jumps(run: Recording) -> Jumps:
    """Jumps of the shown value between neighbouring observations."""
    ours, ema = Ours(run), BASELINES["ema-0.3"](run.total)
    counts, before, before_s = {OURS: 0, "ema-0.3": 0}, dict[str, float](), 0.0
    for event in run.events:
        ours.on_event(event)
        ema.on_event(event)
        if event.kind != "progress" or event.done is None:
            continue
        shown = {OURS: ours.shown_s(event.at_s), "ema-0.3": ema.left_s()}
        inside = WATCHED_FROM <= event.done / run.total <= WATCHED_TO
        for name, left_s in shown.items():
            due_s = before.get(name, 0.0) - (event.at_s - before_s)
            if inside and left_s is not None and due_s > 0:
                counts[name] += abs(left_s - due_s) > JUMP * due_s
        before, before_s = {n: s for n, s in shown.items() if s is not None}, event.at_s
    return Jumps(run=run, counts=counts)


# --- summaries ------------------------------------------------------------------------------------


def summarise(label: str, scores: Sequence[Score]) -> list[Row]:
    """One row a point and estimator. ``composer_n``: runs at which Composer says anything."""
    rows: list[Row] = []
    for point in sorted({s.point for s in scores}):
        here = [s for s in scores if s.point == point]
        for name in (OURS, *BASELINES):
            known = [s for s in here if name in s.forecasts_s]
            if not known:
                continue
            row: Row = {"runs": label, "point": point, "n": len(known), "estimator": name}
            row |= _errors(s.error(name) for s in known)
            row |= _intervals(known)
            if name != OURS:  # the same runs, so that both can be compared
                row["mean_winkler_ours"] = row["mean_winkler"]
                row |= _conformal(known, name)
            rows.append(row)
    return rows


def _errors(values: Iterable[float]) -> Row:
    errors = sorted(values)
    return {
        "mean_error": statistics.fmean(errors),
        "median_error": statistics.median(errors),
        "p90_error": errors[min(int(0.9 * len(errors)), len(errors) - 1)],
    }


def _intervals(scores: Sequence[Score]) -> Row:
    widths = [(s.interval.high - s.interval.low) / s.truth_s for s in scores]
    return {
        "coverage": statistics.fmean(s.truth_s in s.interval for s in scores),
        "mean_width": statistics.fmean(widths),
        "median_width": statistics.median(widths),
        "mean_winkler": statistics.fmean(
            winkler(s.interval.low, s.interval.high, s.truth_s) for s in scores
        ),
    }


def winkler(low_s: float, high_s: float, truth_s: float) -> float:
    """Width plus 2 / alpha times the miss, relative to the truth (Winkler 1972)."""
    miss_s = max(low_s - truth_s, truth_s - high_s, 0.0)
    return (high_s - low_s + 2 / (1 - LEVEL) * miss_s) / truth_s


def _conformal(scores: Sequence[Score], name: str) -> Row:
    """A baseline with split conformal intervals, calibrated on the runs of all other families.

    The score is |log(truth / forecast)|, its quantile the k-th smallest of n with
    k = ceil((n + 1) * level), the largest where k exceeds n (Papadopoulos et al. 2002).
    """
    spreads = [(s.run.family, abs(math.log(s.truth_s / s.forecasts_s[name]))) for s in scores]
    found, inside, widths = [], [], []
    for score in scores:
        others = sorted(spread for family, spread in spreads if family != score.run.family)
        if not others:
            return {}
        rank = min(math.ceil((len(others) + 1) * LEVEL), len(others))
        factor = math.exp(others[rank - 1])
        low_s, high_s = score.forecasts_s[name] / factor, score.forecasts_s[name] * factor
        found.append(winkler(low_s, high_s, score.truth_s))
        inside.append(low_s <= score.truth_s <= high_s)
        widths.append((high_s - low_s) / score.truth_s)
    return {
        "coverage": statistics.fmean(inside),
        "mean_width": statistics.fmean(widths),
        "median_width": statistics.median(widths),
        "mean_winkler": statistics.fmean(found),
    }
