"""The interval chart of the console: one line a GPU count, logarithmic step time."""

import math
from collections.abc import Callable

from scaledl.records import ScalingRow
from scaledl.report.text import Style, step_unit

# Beyond these a step time is no step time, and the axis would leave the range of floats.
LEAST_S, MOST_S = 1e-12, 1e15


def interval_chart(
    rows: list[ScalingRow], measured: ScalingRow | None, style: Style, *, fixed_global: bool
) -> list[str]:
    """Lines of the chart: forecasts with their interval, the measured step, the ideal.

    The ideal is the measured step divided by the growth in GPUs under a fixed global batch, and
    the measured step itself under a fixed batch per GPU. No chart where there is nothing to
    compare or a step takes no time at all.
    """
    shown = [row for row in rows if row.fits is not False]
    if len(shown) < 2:
        return []
    base = measured or shown[0]

    def ideal_s(row: ScalingRow) -> float:
        ratio = base.num_gpus / row.num_gpus if fixed_global else 1.0
        return base.step_s.mean * ratio

    ends = [(min(ideal_s(r), r.step_s.low), max(ideal_s(r), r.step_s.high)) for r in shown]
    low_s, high_s = min(low for low, _ in ends), max(high for _, high in ends)
    if not LEAST_S <= low_s <= high_s <= MOST_S:
        return []
    low_s, high_s = low_s / 1.05, high_s * 1.05
    wide = style.width >= 90
    width = min(style.width - 46, 64) if wide else max(10, style.width - 16)

    def place(value_s: float) -> int:
        """Column of a time on the logarithmic axis."""
        share = math.log(value_s / low_s) / math.log(high_s / low_s)
        return min(width - 1, max(0, round(share * (width - 1))))

    lines = []
    for row in shown:
        cells = [" "] * width
        cells[place(ideal_s(row))] = style.mark("ideal")
        if row.basis == "measured":
            cells[place(row.step_s.mean)] = style.mark("measured")
        else:
            first, last = place(row.step_s.low), place(row.step_s.high)
            cells[first : last + 1] = [style.mark("dash")] * (last + 1 - first)
            cells[first], cells[last] = style.mark("low"), style.mark("high")
            cells[place(row.step_s.mean)] = style.mark("forecast")
        lines.append(f"  {row.num_gpus:>6} {style.mark('axis')} {''.join(cells)}".rstrip())
    return [*lines, *_axis(low_s, high_s, width, place, style, wide)]


def _axis(
    low_s: float,
    high_s: float,
    width: int,
    place: Callable[[float], int],
    style: Style,
    wide: bool,
) -> list[str]:
    """The rule, the ticks and the legend (beside the ticks where there is room)."""
    unit, factor = step_unit([high_s])
    rule = f"    step {style.mark('corner')}{style.mark('dash') * (width + 1)} {unit}"
    cells = [" "] * (width + 8)
    free_from = 0
    for tick_s in _ticks(low_s, high_s):
        text = f"{tick_s * factor:g}"
        start = max(0, place(tick_s) - len(text) // 2)
        if start >= free_from:
            cells[start : start + len(text)] = list(text)
            free_from = start + len(text) + 2
    ticks = "           " + "".join(cells).rstrip()
    names = ("ideal", "measured", "forecast")
    legend = "  ".join(f"{style.mark(name)} {name}" for name in names)
    if wide:
        return [rule, f"{ticks:<{width + 13}}{legend}"]
    return [rule, ticks, f"           {legend}"]


def _ticks(low_s: float, high_s: float) -> list[float]:
    """The values 1, 2, 5 times a power of ten between the ends."""
    first, last = math.floor(math.log10(low_s)), math.ceil(math.log10(high_s))
    steps = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
    return [s for s in steps if low_s <= s <= high_s]
