"""The ranks beside each other: who is slow, and how long the others wait for it."""

import statistics

import msgspec

from scaledl.records import EpochRecord
from scaledl.report.text import Style, wrap_text
from scaledl.units import format_seconds

# A rank is called slow when its own work takes this much longer than the median rank's.
SLOW_RANK_FRACTION = 0.1


class SlowRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Own work of a median step by rank, the slow ranks, and what they are compared with."""

    own_s: dict[int, float]
    slow: tuple[int, ...]
    usual_s: float


def slow_ranks(ranks: tuple[EpochRecord, ...]) -> SlowRanks | None:
    """Who is slow; ``None`` with fewer than two ranks whose own work is known.

    A rank's whole step says nothing: the all-reduce makes all ranks wait for the slowest. Its own
    work (step less waiting) does.
    """
    own = {r.rank: r.own_p50_s for r in ranks if r.own_p50_s is not None}
    if len(own) < 2:
        return None
    usual_s = statistics.median(own.values())
    # Of two ranks the median lies between them, so the slow one is compared with the other.
    if len(own) == 2 and max(own.values()) > (1 + SLOW_RANK_FRACTION) * min(own.values()):
        usual_s = min(own.values())
    slow = [rank for rank, own_s in own.items() if own_s > (1 + SLOW_RANK_FRACTION) * usual_s]
    return SlowRanks(own_s=own, slow=tuple(sorted(slow, key=lambda r: -own[r])), usual_s=usual_s)


def behind_s(ranks: tuple[EpochRecord, ...], rank: int = 0) -> float:
    """How long ``rank`` waits in a median step for the slowest rank, where one is called slow."""
    found = slow_ranks(ranks)
    if found is None or not found.slow or rank not in found.own_s:
        return 0.0
    return found.own_s[found.slow[0]] - found.own_s[rank]


def rank_lines(
    ranks: tuple[EpochRecord, ...], style: Style, *, only_slow: bool = False
) -> list[str]:
    """Spread of the ranks' own work, and the slow rank by name."""
    found = slow_ranks(ranks)
    if found is None or (only_slow and not found.slow):
        return []
    own_s = found.own_s
    spread = f"{format_seconds(min(own_s.values()))} to {format_seconds(max(own_s.values()))}"
    text = f"own work of {len(own_s)} ranks in a median step: {spread}"
    if not found.slow:
        return wrap_text(text, style, hang="  ")
    named = ", ".join(
        f"rank {r} (+{(own_s[r] / found.usual_s - 1) * 100:.0f} %)" for r in found.slow[:3]
    )
    more = f" and {len(found.slow) - 3} more" if len(found.slow) > 3 else ""
    lines = wrap_text(f"{text}; slow: {named}{more}, others wait", style, hang="  ")
    return [style.paint(line, "yellow") for line in lines]
