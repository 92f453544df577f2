"""The bars of the what-if forecasts, computed from the scores."""

from collections.abc import Sequence

from common import Bar, below
from whatif_scores import Record, Score, macro_mean, ratio_interval

OURS, OURS_LINKED = "scaledl", "scaledl, link known"
OURS_NEW, OURS_BARE = "scaledl, new cluster", "scaledl, no experience"
IN_SAMPLE_CLUSTERS = ("aws-g4dn",)
WORSE_BY = 0.01
FLOOR_LIMIT, FLOOR_FACTOR = 0.08, 1.3
LINK_KNOWN_LIMIT = 0.20


def best_baseline(cells: Sequence[Record], baselines: Sequence[str]) -> str:
    """The single baseline with the lowest macro mean over the cells."""
    return min(baselines, key=lambda name: macro_mean(cells, name) or 0.0)


def on_grid(cells: Sequence[Record]) -> list[Record]:
    """The cells of tables with all layouts: of a ladder single clusters have too few models."""
    return [c for c in cells if c["scope"] in ("dense", "all")]


def bars_of(
    scores: Sequence[Score],
    cells: Sequence[Record],
    intervals: Sequence[Record],
    floors: dict[str, float | None],
    baselines: Sequence[str],
) -> list[Bar]:
    """All bars; ``scores`` and ``cells`` hold forecasts only, nothing in-sample."""
    rival = best_baseline(cells, baselines)
    return [
        *_overall(scores, cells, rival),
        _no_harm(cells, rival),
        *_near_floor(on_grid(cells), floors),
        *_single_count(cells),
        *_first_crossing(on_grid(cells), baselines),
        *_sharded(cells, baselines),
        *_intervals(intervals, f"{rival}, conformal"),
    ]


def _ratio(cells: Sequence[Record], name: str, rivals: Sequence[str]) -> float | None:
    mine = macro_mean(cells, name)
    others = [m for m in (macro_mean(cells, r) for r in rivals) if m is not None]
    return mine / min(others) if mine is not None and others else None


def _overall(scores: Sequence[Score], cells: Sequence[Record], rival: str) -> list[Bar]:
    _, high = ratio_interval(scores, OURS, rival)
    bars = [
        below(f"a: macro mean over {rival}'s, all cells", _ratio(cells, OURS, [rival]), 0.75),
        below(f"a: upper end of the 95 % interval of that ratio to {rival}", high, 0.75),
    ]
    clean = [c for c in cells if c["cluster"] not in IN_SAMPLE_CLUSTERS]
    if clean and len(clean) < len(cells):
        value = _ratio(clean, OURS, [rival])
        bars.append(below(f"a: the same, clusters no constant was set on ({rival})", value, 0.75))
    return bars


def _key(cell: Record) -> tuple[str, str, str, str]:
    return cell["scope"], cell["cluster"], cell["regime"], cell["group"]


def _no_harm(cells: Sequence[Record], rival: str) -> Bar:
    ours = {_key(c): c["mean_mre"] for c in cells if c["forecaster"] == OURS}
    theirs = {_key(c): c["mean_mre"] for c in cells if c["forecaster"] == rival}
    worse = sum(ours[key] > theirs[key] + WORSE_BY for key in ours)
    return below(f"b: share of cells over 1 point worse than {rival}", worse / len(ours), 0.05)


def _near_floor(cells: Sequence[Record], floors: dict[str, float | None]) -> list[Bar]:
    return [
        below(
            f"c: {c['scope']}, {c['cluster']}, {c['regime']}",
            c["mean_mre"],
            max(FLOOR_LIMIT, FLOOR_FACTOR * (floors.get(c["cluster"]) or 0.0)),
        )
        for c in cells
        if c["forecaster"] == OURS
        and c["group"] == "several counts"
        and c["regime"] != "first crossing"
    ]


def _single_count(cells: Sequence[Record]) -> list[Bar]:
    mine = [c for c in cells if c["group"] == "single count"]
    bars = [below("d: single count, over hold and pollux", _ratio(mine, OURS, RIVALS), 0.8)]
    mine = on_grid(mine)
    for cluster in sorted({c["cluster"] for c in mine}):
        own = [c for c in mine if c["cluster"] == cluster]
        bars.append(below(f"d: single count, {cluster}", _ratio(own, OURS, RIVALS), 0.8))
    return bars


RIVALS = ("hold", "pollux")


def _first_crossing(cells: Sequence[Record], baselines: Sequence[str]) -> list[Bar]:
    bars = []
    mine = [c for c in cells if c["regime"] == "first crossing" and c["group"] == "several counts"]
    for cluster in sorted({c["cluster"] for c in mine}):
        own = [c for c in mine if c["cluster"] == cluster]
        if cluster in IN_SAMPLE_CLUSTERS:
            value = macro_mean(own, OURS_LINKED)
            bars.append(below(f"e: first crossing, {cluster}, link known", value, LINK_KNOWN_LIMIT))
        else:
            value = _ratio(own, OURS, baselines)
            bars.append(below(f"e: first crossing over best baseline, {cluster}", value, 0.8))
    return bars


def _sharded(cells: Sequence[Record], baselines: Sequence[str]) -> list[Bar]:
    own = [c for c in cells if c["scope"] == "fsdp"]
    if not own:
        return []
    return [below("g: FSDP over best baseline", _ratio(own, OURS, baselines), 0.8)]


def _intervals(rows: Sequence[Record], rival: str) -> list[Bar]:
    bars = []
    both = {(r["regime"], r["forecaster"]): r for r in rows if r["scope"] == "both"}
    for (regime, name), row in both.items():
        if name != OURS:
            continue
        coverage = row["coverage"]
        bars.append(below(f"f: coverage off 0.90, {regime}", abs(coverage - 0.9), 0.05))
        bars.append(below(f"f: widest high / low, {regime}", row["max_high_over_low"], 3.0))
        other = both.get((regime, rival))
        value = row["winkler"] / other["winkler"] if other else None
        bars.append(below(f"f: Winkler over {rival}, {regime}", value, 0.8))
    return bars
