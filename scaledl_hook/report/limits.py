"""Which counts keep a deadline or a budget, which is best, and what to say where none does."""

from scaledl.errors import UsageError
from scaledl.records import Interval, Limits, ScalingRow
from scaledl.report.text import Words, words
from scaledl.units import format_seconds, format_usd


def counts_within(
    rows: tuple[ScalingRow, ...],
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
) -> tuple[int, ...]:
    """Counts whose rest of the run keeps the deadline and the budget.

    The upper end of the interval must keep them: an option that is late half of the time is none.
    One whose memory is in doubt is none either.
    """
    return tuple(row.num_gpus for row in rows if _keeps(row, deadline_s, budget_usd))


def _keeps(row: ScalingRow, deadline_s: float | None, budget_usd: float | None) -> bool:
    rest = row.remaining_s
    if rest is None or not _can_run(row):
        return False
    if deadline_s is not None and rest.high > deadline_s:
        return False
    if budget_usd is None:
        return True
    cost = _cost(row)
    return cost is not None and cost.high <= budget_usd


def _can_run(row: ScalingRow) -> bool:
    return row.fits is not False and "may-not-fit" not in row.caveats


def _cost(row: ScalingRow) -> Interval | None:
    """Dollars for the rest of the run."""
    rest = row.remaining_s
    if row.remaining_usd is None or rest is None:
        return None
    if rest.mean <= 0:
        return Interval(mean=0.0, low=0.0, high=0.0, level=rest.level)
    return rest.scaled(row.remaining_usd / rest.mean)


def limits_of(
    rows: tuple[ScalingRow, ...],
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    cpu_run: bool = False,
) -> Limits | None:
    """What the limits leave, and the best of it; ``None`` without a limit.

    With a deadline the best is the one that needs the fewest GPU-hours, with a budget alone the
    fastest.

    Raises:
        UsageError: the run's length or the price is unknown, so that nothing can be said.
    """
    if deadline_s is None and budget_usd is None:
        return None
    _check_answerable(rows, deadline_s, budget_usd)
    within = counts_within(rows, deadline_s=deadline_s, budget_usd=budget_usd)
    good = [row for row in rows if row.num_gpus in within]
    best = min(good, key=_hours if deadline_s is not None else _rest_s) if good else None
    asked = _asked_text(deadline_s, budget_usd)
    name = words(cpu_run)
    if best is None:
        text = (
            f"No count keeps the {asked} (at the upper end of its interval){_nearest(rows, name)}"
        )
    else:
        how = "the cheapest in time" if deadline_s is not None else "the fastest for that"
        text = (
            f"These counts keep the {asked}: {', '.join(map(str, within))}; "
            f"{how}: {name.count(best.num_gpus)}, {_rest_text(best)}."
        )
    return Limits(
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        within=within,
        best=None if best is None else best.num_gpus,
        text=text,
    )


def _check_answerable(
    rows: tuple[ScalingRow, ...], deadline_s: float | None, budget_usd: float | None
) -> None:
    """Refuse a question whose facts are unknown, rather than answer that nothing fits."""
    if all(row.remaining_s is None for row in rows):
        what = "a budget" if deadline_s is None else "a deadline"
        raise UsageError(
            f"{what} needs the run's length, which is unknown. Pass --epochs 30 to the "
            "command, or epochs= or total_steps= to track()."
        )
    if budget_usd is not None and all(row.remaining_usd is None for row in rows):
        raise UsageError(
            f"a budget of {format_usd(budget_usd)} needs a price, which is unknown. Pass "
            "--price 2.49 to the command, or usd_per_gpu_hour=2.49."
        )


def _asked_text(deadline_s: float | None, budget_usd: float | None) -> str:
    asked = [] if deadline_s is None else [f"deadline of {format_seconds(deadline_s)}"]
    asked += [] if budget_usd is None else [f"budget of {format_usd(budget_usd)}"]
    return " and the ".join(asked)


def _nearest(rows: tuple[ScalingRow, ...], name: Words) -> str:
    """The fastest and the cheapest of those that can run at all."""
    able = [row for row in rows if row.remaining_s is not None and _can_run(row)]
    if not able:
        return ": none is sure to fit the memory."
    fastest, cheapest = min(able, key=_rest_s), min(able, key=_hours)
    said = f": the fastest is {name.count(fastest.num_gpus)}, {_rest_text(fastest)}"
    if cheapest.num_gpus != fastest.num_gpus:
        said += f"; the cheapest {name.count(cheapest.num_gpus)}, {_rest_text(cheapest)}"
    return said + "."


def _rest_text(row: ScalingRow) -> str:
    """``8.2 h (7.9 h to 8.6 h), $ 210``."""
    rest, cost = row.remaining_s, _cost(row)
    if rest is None:
        return "n/a"
    said = format_seconds(rest.mean)
    if rest.low < rest.high:
        said += f" ({format_seconds(rest.low)} to {format_seconds(rest.high)})"
    return said if cost is None else f"{said}, {format_usd(cost.mean)}"


def _rest_s(row: ScalingRow) -> float:
    return row.remaining_s.mean if row.remaining_s is not None else float("inf")


def _hours(row: ScalingRow) -> tuple[float, float]:
    """GPU time of the rest; of two alike the faster first."""
    return row.num_gpus * _rest_s(row), _rest_s(row)
