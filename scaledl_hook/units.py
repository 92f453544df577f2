"""Numbers to short text and back. Text shows as many digits as the doubt allows, never more."""

import math
import re
import time

from scaledl.errors import UsageError


def format_seconds(value_s: float | None) -> str:
    """A duration in two units at most: ``215 ms``, ``1.4 s``, ``9.0 min``, ``3 h 10 min``.

    >>> format_seconds(0.2154), format_seconds(11400), format_seconds(None)
    ('215 ms', '3 h 10 min', 'n/a')
    """
    if value_s is None or not math.isfinite(value_s):
        return "n/a"
    sign, s = ("-", -value_s) if value_s < 0 else ("", value_s)
    if s == 0:
        return "0 s"
    if s < 0.9995e-3:
        return f"{sign}{s * 1e6:.0f} us"
    if s < 0.9995:
        return f"{sign}{s * 1e3:.3g} ms" if s < 0.09995 else f"{sign}{s * 1e3:.0f} ms"
    if s < 99.5:
        return f"{sign}{s:.1f} s" if s < 9.95 else f"{sign}{s:.0f} s"
    minutes = s / 60
    if minutes < 9.95:
        return f"{sign}{minutes:.1f} min"
    if round(minutes) < 60:
        return f"{sign}{minutes:.0f} min"
    whole = round(minutes)
    hours, rest = divmod(whole, 60)
    if hours < 24:
        return f"{sign}{hours} h {rest:02d} min"
    days, hours = divmod(round(s / 3600), 24)
    return f"{sign}{days} d {hours} h"


LATEST_S = 253402300799.0  # the end of 9999, as far as calendars of four digits go
# A rounding that hides nothing: the largest of these that the doubt is at least as wide as.
_GRIDS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0)


def format_about(value_s: float, half_width_s: float) -> str:
    """A duration with no more digits than its doubt allows, in whole seconds at the finest.

    >>> format_about(15030, 750), format_about(15030, 4000), format_about(33.7, 6)
    ('4 h 10 min', '4 h', '35 s')
    """
    if not math.isfinite(value_s):
        return "n/a"
    if value_s < 1.0:
        return "under 1 s"
    grid_s = max((g for g in _GRIDS_S if g <= min(half_width_s, value_s)), default=1.0)
    text = format_seconds(max(1, math.floor(value_s / grid_s + 0.5)) * grid_s)
    if grid_s >= 3600.0:
        text = text.removesuffix(" 00 min").removesuffix(" 0 h")
    return text.replace(".0 s", " s").replace(".0 min", " min")


def format_clock(at_s: float, now_s: float, *, seconds: bool = False) -> str:
    """Local time of day, with the date once it is not today: ``14:05`` or ``Dec 03 14:05``."""
    if not at_s <= LATEST_S:
        return "after 9999"
    at, now = time.localtime(at_s), time.localtime(now_s)
    same_day = (at.tm_year, at.tm_yday) == (now.tm_year, now.tm_yday)
    hours = "%H:%M:%S" if seconds else "%H:%M"
    return time.strftime(hours if same_day else f"%b %d {hours}", at)


def format_bytes(value_bytes: float | None) -> str:
    """Binary units: ``512 B``, ``1.5 MiB``, ``80 GiB``."""
    if value_bytes is None:
        return "n/a"
    value = float(value_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1023.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_count(value: float | None) -> str:
    """Large counts with a letter: ``950``, ``12.4 k``, ``124 M``, ``1.2 G``, ``3.4 T``."""
    if value is None:
        return "n/a"
    scaled = float(value)
    for letter in ("", " k", " M", " G"):
        if abs(scaled) < 999.5:
            return (
                f"{scaled:.0f}{letter}" if not letter or scaled >= 99.5 else f"{scaled:.1f}{letter}"
            )
        scaled /= 1000
    return f"{scaled:.1f} T"


def format_usd(value_usd: float | None) -> str:
    """Dollars with cents below 1000, two significant digits below 1.

    >>> format_usd(12300), format_usd(1.486), format_usd(0.00171), format_usd(0)
    ('$12,300', '$1.49', '$0.0017', '$0.00')
    """
    if value_usd is None or not math.isfinite(value_usd):
        return "n/a"
    if not 0 < value_usd < 0.995:
        return f"${value_usd:,.2f}" if value_usd < 1000 else f"${value_usd:,.0f}"
    if value_usd < 1e-6:
        return "<$0.000001"
    return f"${value_usd:.{max(2, 1 - math.floor(math.log10(value_usd)))}f}"


def format_energy(value_j: float | None) -> str:
    """Energy in Wh or kWh, the units of bills."""
    if value_j is None:
        return "n/a"
    wh = value_j / 3600
    return f"{wh:.3g} Wh" if wh < 100 else f"{wh / 1000:.2f} kWh"


def format_fraction(value: float | None) -> str:
    """A fraction as percent: ``94 %``; below one percent with a digit: ``0.3 %``."""
    if value is None:
        return "n/a"
    percent = value * 100
    return f"{percent:.1f} %" if 0 < percent < 0.95 else f"{percent:.0f} %"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str, limit: int = 200) -> str:
    """``text`` without control characters (terminal escapes, newlines), cut at ``limit``.

    Layer names come from users' code; one that holds an escape sequence must not steer the
    terminal nor fake a line in a log.
    """
    clean = _CONTROL.sub("?", text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


_DURATION_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(text: str) -> float:
    """Seconds from ``90s``, ``30min``, ``12h``, ``2d``; the unit must be there.

    Raises:
        UsageError: the text is no duration, has no unit, or is longer than 30,000 years.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h|d)?\s*", text)
    shown = printable(repr(text), 60)
    if match is None:
        raise UsageError(f"not a duration: {shown}. Write for example 90s, 30min, 12h or 2d.")
    if match[2] is None:
        number = printable(match[1], 20)
        raise UsageError(f"{shown} has no unit. Write for example {number}h or {number}min.")
    value_s = float(match[1]) * _DURATION_UNITS[match[2]]
    if value_s > 1e12:
        raise UsageError(f"{shown} is too long. Write for example 90s, 30min, 12h or 2d.")
    return value_s


MOST_GPUS = 10**7
MOST_COUNTS = 256


def parse_counts(text: str) -> tuple[int, ...]:
    """Counts from ``1,2,4`` and doubling ranges ``8-64``, sorted and without repeats.

    >>> parse_counts("1,2,8-64")
    (1, 2, 8, 16, 32, 64)

    Raises:
        UsageError: no count, a count below 1 or above ``MOST_GPUS``, a range that runs backwards.
    """
    counts: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", part)
        if match is None:
            shown = printable(repr(part), 60)
            raise UsageError(f"not a GPU count: {shown}. Write for example 1,2,4 or 8-64.")
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1:
            raise UsageError(f"num_gpus must be at least 1, got {first}.")
        if max(first, last) > MOST_GPUS:
            raise UsageError(f"num_gpus must be at most {MOST_GPUS:,}, got {max(first, last)}.")
        if last < first:
            raise UsageError(f"the range {part!r} runs backwards. Write {last}-{first}.")
        count = first
        while count < last:
            counts.add(count)
            count *= 2
        counts.add(last)
    if not counts:
        shown = printable(repr(text), 60)
        raise UsageError(f"no GPU count in {shown}. Write for example 1,2,4 or 8-64.")
    return tuple(sorted(counts))
