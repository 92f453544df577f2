"""Building blocks of console text: marks, aligned tables, numbers with digits by doubt.

Everything here is a pure function of its arguments: width, unicode and colour are passed in.
"""

import math
import re

import msgspec

from scaledl.records import Interval
from scaledl.units import printable

_WHITE = re.compile(r"[^\S ]")
# A space that a line may end at: not the one between a number and its unit.
_BREAK = re.compile(r"(?<![0-9]) | (?!(?:%|[mun]?s|min|h|d|[KMGT]?i?B|k?Wh?)(?![0-9A-Za-z]))")
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """What the receiving stream can show."""

    width: int = 96
    unicode: bool = True
    color: bool = False

    def paint(self, text: str, *names: str) -> str:
        """``text`` in colour, where the stream has colour."""
        if not self.color or not names or not text:
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"

    def mark(self, name: str) -> str:
        """A mark in unicode or ASCII."""
        return _MARKS[name][0 if self.unicode else 1]


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank runs on is called a GPU, and on a CPU run a process."""

    one: str
    many: str

    def count(self, number: int) -> str:
        """``1 GPU``, ``8 GPUs``, ``2 processes``."""
        return f"{number} {self.one if number == 1 else self.many}"

    def fill(self, text: str) -> str:
        """``text`` with its ``{one}`` and ``{many}`` replaced."""
        return text.replace("{one}", self.one).replace("{many}", self.many)


def words(cpu_run: bool) -> Words:
    """The words for the devices of a run."""
    return Words(one="process", many="processes") if cpu_run else Words(one="GPU", many="GPUs")


_MARKS = {
    "measured": ("\u25cf", "*"),
    "advised": ("\u25b8", ">"),
    "forecast": ("\u25cb", "o"),
    "ideal": ("\u00b7", "."),
    "low": ("\u251c", "|"),
    "high": ("\u2524", "|"),
    "dash": ("\u2500", "-"),
    "axis": ("\u2502", "|"),
    "corner": ("\u2514", "+"),
    "dots": ("\u2026", "..."),
    "arrow": ("\u2192", "->"),
}


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a table.

    ``least`` is the width it may be cut to, ``give_up`` when it is left out (highest first); 0 is
    never.
    """

    title: str
    left: bool = False
    least: int = 0
    give_up: int = 0


def safe_text(text: str, style: Style, limit: int = 200) -> str:
    """A user's name without control characters, and ASCII only where the stream is ASCII."""
    clean = printable(text, limit)
    return clean if style.unicode else clean.encode("ascii", "replace").decode("ascii")


def clip_text(text: str, width: int, style: Style) -> str:
    """``text`` cut to ``width`` with dots."""
    if len(text) <= width:
        return text
    dots = style.mark("dots")
    return text[: max(0, width - len(dots))] + dots[: max(0, width)]


def table_lines(
    columns: list[Column], rows: list[list[str]], style: Style, *, indent: str = ""
) -> list[str]:
    """Aligned lines, the head first; to fit, texts are cut to their least width, columns go."""
    table = [[column.title for column in columns], *rows]
    kept = list(range(len(columns)))
    widths = [max(len(row[i]) for row in table) for i in kept]

    def excess() -> int:
        return len(indent) + sum(widths[i] for i in kept) + 2 * (len(kept) - 1) - style.width

    def cuttable(i: int) -> int:
        return max(0, widths[i] - columns[i].least) if columns[i].least else 0

    while excess() > sum(cuttable(i) for i in kept):
        candidates = [i for i in kept if columns[i].give_up]
        if not candidates:
            break
        kept.remove(max(candidates, key=lambda i: columns[i].give_up))
    while excess() > 0 and any(cuttable(i) for i in kept):
        widest = max((i for i in kept if cuttable(i)), key=lambda i: widths[i])
        widths[widest] -= 1
    lines = []
    for row in table:
        cells = [clip_text(row[i], widths[i], style) for i in kept]
        padded = [
            cell.ljust(widths[i]) if columns[i].left else cell.rjust(widths[i])
            for cell, i in zip(cells, kept, strict=True)
        ]
        lines.append((indent + "  ".join(padded)).rstrip())
    return lines


def wrap_text(text: str, style: Style, *, indent: str = "", hang: str | None = None) -> list[str]:
    """``text`` broken at spaces; later lines begin with ``hang`` (else ``indent``).

    A number and its unit stay together.
    """
    lines: list[str] = []
    current = start = indent
    for word in _BREAK.split(_WHITE.sub(" ", text)):
        if current == start and not word:
            continue
        if current != start and len(current) + 1 + len(word) > style.width:
            lines.append(current.rstrip())
            start = current = indent if hang is None else hang
        current += word if current == start else f" {word}"
    return [*lines, current.rstrip()]


def two_ends(left: str, right: str, style: Style) -> list[str]:
    """``left`` and ``right`` on one line, or on two where the width is too small."""
    if len(left) + len(right) + 2 <= style.width:
        return [left + right.rjust(style.width - len(left))]
    return [*wrap_text(left, style, hang="  "), clip_text(f"  {right}", style.width, style)]


def decimals_by_doubt(value: float, half_width: float, most: int = 3) -> int:
    """How many decimals are earned: the first digit that the doubt touches is the last shown.

    Without doubt (a measurement), three significant digits.

    >>> decimals_by_doubt(114.0, 4.3), decimals_by_doubt(2.913, 0.05), decimals_by_doubt(2.913, 0.0)
    (0, 2, 2)
    """
    if not math.isfinite(value) or not math.isfinite(half_width):
        return 0
    scale = half_width if half_width > 0 else abs(value) / 100
    if scale <= 0:
        return 0
    return min(most, max(0, -math.floor(math.log10(scale))))


def by_doubt(value: float, half_width: float, most: int = 3) -> str:
    """``value`` with the decimals its doubt allows."""
    return f"{value:.{decimals_by_doubt(value, half_width, most)}f}"


def step_unit(seconds: list[float]) -> tuple[str, float]:
    """One unit for a whole column of step times, and its factor from seconds."""
    largest = max(seconds, default=0.0)
    if largest >= 9.95:
        return "s", 1.0
    return ("ms", 1e3) if largest >= 0.9995e-3 else ("us", 1e6)


def range_text(interval: Interval, factor: float) -> str:
    """``110 to 119`` with digits by doubt."""
    half = (interval.high - interval.low) / 2 * factor
    return f"{by_doubt(interval.low * factor, half)} to {by_doubt(interval.high * factor, half)}"


def split_sum(values: list[float], decimals: int) -> list[str]:
    """The values rounded so that the shown numbers add up to the shown sum.

    The largest remainders are rounded up (the method of the largest remainder, Hamilton 1792).
    """
    unit = 10.0**-decimals
    scaled = [v / unit for v in values]
    floors = [math.floor(s) for s in scaled]
    short = round(sum(scaled)) - sum(floors)
    order = sorted(range(len(values)), key=lambda i: floors[i] - scaled[i])
    for i in order[: max(0, short)]:
        floors[i] += 1
    return [f"{f * unit:.{decimals}f}" for f in floors]
