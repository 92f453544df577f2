"""The bars of the ETA, computed from its scores."""

import statistics
from collections.abc import Sequence

from common import Bar, below
from eta_baselines import BASELINES
from eta_scores import OURS, POINTS, Jumps, Row, Score

ERROR_POINTS = (0.05, 0.10, 0.25, 0.50)
SHARE = 0.7
MANY, SAME, WORST, WORSE_RUNS = 50, 0.001, 0.10, 0.10
LOW_COVERAGE, HIGH_COVERAGE = 0.85, 0.95
WINKLER_SHARE = 0.8
CALM = 1 / 3
SCHEDULED_WORSE = 1.1


def bars_of(rows: Sequence[Row], scores: Sequence[Score], jumps: Sequence[Jumps]) -> list[Bar]:
    """All bars; ``rows`` hold the groups ``steady`` and ``scheduled``."""
    bars: list[Bar] = []
    for point in POINTS:
        steady, scheduled = _at(rows, "steady", point), _at(rows, "scheduled", point)
        if steady and point in ERROR_POINTS:
            bars += _errors(steady, point)
            bars += _against_composer(scores, point)
        if steady:
            bars += _intervals(steady, point)
        if scheduled:
            full = [b for b in BASELINES if b in scheduled and _is_full(scheduled, b)]
            best = min(_get(scheduled[b], "mean_error") for b in full)
            ours = _get(scheduled[OURS], "mean_error")
            name = f"scheduled mean error over best baseline's {_text(scheduled, point)}"
            bars.append(below(name, ours / max(best, 1e-12), SCHEDULED_WORSE))
    return [*bars, *_calm(jumps)]


def _at(rows: Sequence[Row], label: str, point: float) -> dict[str, Row]:
    return {str(r["estimator"]): r for r in rows if r["runs"] == label and r["point"] == point}


def _get(row: Row, key: str) -> float:
    return float(str(row[key]))


def _is_full(table: dict[str, Row], name: str) -> bool:
    """Whether a baseline spoke at all runs: a mean over fewer ones is no rival."""
    return table[name]["n"] == table[OURS]["n"]


def _text(table: dict[str, Row], point: float) -> str:
    return f"at {point * 100:.0f} % ({table[OURS]['n']} runs)"


def _errors(table: dict[str, Row], point: float) -> list[Bar]:
    plain, ours, text = table["cumulative-mean"], table[OURS], _text(table, point)
    bars = [
        below(
            f"steady {kind.replace('_', ' ')} over cumulative mean's {text}",
            _get(ours, kind) / max(_get(plain, kind), 1e-12),
            SHARE,
        )
        for kind in ("mean_error", "median_error")
    ]
    full = [b for b in BASELINES if b in table and _is_full(table, b)]
    best = min(_get(table[b], "mean_error") for b in full)
    ratio = _get(ours, "mean_error") / max(best, 1e-12)
    return [*bars, below(f"steady mean error over best baseline's {text}", ratio, 1.0)]


def _against_composer(scores: Sequence[Score], point: float) -> list[Bar]:
    """On runs with many observations. Equal: within a tenth of a percentage point."""
    here = [
        s
        for s in scores
        if s.point == point
        and s.run.group == "steady"
        and s.run.num_observations > MANY
        and "composer" in s.forecasts_s
    ]
    if not here:
        return []
    worse = [s.error(OURS) - s.error("composer") for s in here]
    text = f"at {point * 100:.0f} % ({len(here)} runs)"
    ratio = statistics.fmean(s.error(OURS) for s in here) / max(
        statistics.fmean(s.error("composer") for s in here), 1e-12
    )
    return [
        below(
            f"share of runs worse than Composer {text}",
            statistics.fmean(w > SAME for w in worse),
            WORSE_RUNS,
        ),
        below(f"most points worse than Composer {text}", max(worse), WORST),
        below(f"steady mean error over Composer's {text}", ratio, 1.0),
    ]


def _intervals(table: dict[str, Row], point: float) -> list[Bar]:
    text, held = _text(table, point), _get(table[OURS], "coverage")
    inside = LOW_COVERAGE <= held <= HIGH_COVERAGE
    limits: object = [LOW_COVERAGE, HIGH_COVERAGE]
    bars = [Bar(name=f"steady coverage {text}", value=held, limit=limits, holds=inside)]  # type: ignore[typeddict-item]
    ratios = {
        name: _get(row, "mean_winkler_ours") / max(_get(row, "mean_winkler"), 1e-12)
        for name, row in table.items()
        if name != OURS and "mean_winkler" in row
    }
    composer = ratios.pop("composer", None)
    if ratios:
        name = f"Winkler over best conformal baseline's {text}"
        bars.append(below(name, max(ratios.values()), WINKLER_SHARE))
    if composer is not None:
        name = f"Winkler over Composer's, conformal, at {point * 100:.0f} %"
        name += f" ({table['composer']['n']} runs)"
        bars.append(below(name, composer, WINKLER_SHARE))
    return bars


def _calm(jumps: Sequence[Jumps]) -> list[Bar]:
    steady = [j for j in jumps if j.run.group == "steady"]
    ours, ema = (sum(j.counts[name] for j in steady) for name in (OURS, "ema-0.3"))
    return [
        below(f"visible jumps over EMA's ({ema} in {len(steady)} runs)", ours / max(ema, 1), CALM)
    ]
