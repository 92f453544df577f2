"""Communication of a step: what is transfer, what is waiting for other ranks, what is hidden.

A collective's own time on one rank holds both: the transfer, and the wait until the slowest rank
comes too. The shortest time over the ranks is the transfer. It is known of profiled steps only,
while the exposed communication is that of all steps and holds waiting too. So the transfer is
carried over to the mean step, its exposed part is at most the exposed communication, and what it
does not explain of that is waiting.
"""

import statistics
from collections import defaultdict

import msgspec

from scaledl.intervals import total
from scaledl.records import CommEvent, EpochRecord, ProfileWindow, StepParts
from scaledl.report.parts import EXPOSED, shown_parts
from scaledl.report.ranks import behind_s
from scaledl.units import format_bytes, format_fraction, format_seconds

Same = dict[tuple[int, str, int], list[CommEvent]]


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Transfer of all collectives of one step, and what of it is hidden behind computation."""

    total_s: float
    hidden_s: float


def kind_of(event: CommEvent) -> str:
    """Collectives of one kind and size share it."""
    return f"{event.op}|{event.group_size}|{event.crosses_nodes}|{event.num_bytes}"


def same_collectives(windows: tuple[ProfileWindow, ...]) -> Same:
    """Each collective with its events on all ranks, by step, kind and place among its kind.

    A communicator has one order for all its ranks, so the n-th of a kind on one rank is the n-th of
    it on another.
    """
    same: Same = defaultdict(list)
    for window in windows:
        counts: dict[str, int] = defaultdict(int)
        for event in sorted(window.comm, key=lambda e: e.start_s):
            kind = kind_of(event)
            same[window.step, kind, counts[kind]].append(event)
            counts[kind] += 1
    return same


def transfer_of(
    windows: tuple[ProfileWindow, ...], step_s: float, rank: int = 0
) -> Transfer | None:
    """Transfer of a mean step, from the profiled steps that ``rank`` and others recorded.

    A profiled step is slower than others: the share of the step is what carries over, the median
    over the profiled steps. ``None`` where no other rank's window is at hand: waiting cannot be
    told from transfer then.

    Args:
        windows: Sampled steps of several ranks.
        step_s: The mean step.
        rank: Whose overlap counts.
    """
    # A call's transfer is its last part: before it waits. Two at once count their moments once.
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    ends_s = {id(e): e.start_s + e.duration_s for w in windows if w.rank == rank for e in w.comm}
    alone: set[int] = set()
    for (step, _, _), events in same_collectives(windows).items():
        end_s = next((ends_s[id(event)] for event in events if id(event) in ends_s), None)
        if end_s is not None:
            spans[step].append((end_s - min(event.duration_s for event in events), end_s))
        if len(events) < 2:
            alone.add(step)
    own = [w for w in windows if w.rank == rank and w.comm and w.step_s > 0]
    own = [w for w in own if w.step not in alone]
    if not own:
        return None
    total_s = statistics.median(total(spans[w.step]) / w.step_s for w in own) * step_s
    hidden_fraction = statistics.median(w.overlap_fraction or 0.0 for w in own)
    return Transfer(total_s=total_s, hidden_s=total_s * min(1.0, hidden_fraction))


def exchange_text(
    parts: StepParts,
    transfer_s: float | None,
    num_bytes: int | None,
    ranks: tuple[EpochRecord, ...],
) -> str:
    """``exposed comm. 14.1 ms = transfer 4.3 + waiting for others 9.8; ...``.

    Args:
        parts: Of the mean step; ``comm_hidden_s`` is the hidden part of the transfer.
        transfer_s: Transfer of the mean step, hidden or not.
        num_bytes: What is transferred in a step.
        ranks: Epoch records; what a slow rank makes this one wait is never called transfer.
    """
    exposed_s = parts.comm_exposed_s
    size = "" if num_bytes is None else f" ({format_bytes(num_bytes)})"
    shown = shown_parts(parts)
    exposed = float(shown.figures["comm_exposed_s"])
    head = f"{EXPOSED} {shown.digits(exposed)} {shown.unit}"
    if transfer_s is None:
        return f"{head}: transfer{size} and waiting for others, not told apart yet"
    shown_s = max(0.0, transfer_s - parts.comm_hidden_s)
    shown_s = min(shown_s, max(0.0, exposed_s - max(0.0, behind_s(ranks))))
    transfer = min(exposed, float(shown.digits(shown_s * shown.factor)))
    text = (
        f"{head} = transfer {shown.digits(transfer)} + "
        f"waiting for others {shown.digits(exposed - transfer)}"
    )
    hidden = 1.0 - shown_s / transfer_s if transfer_s else 0.0
    return (
        f"{text}; whole transfer {format_seconds(transfer_s)}{size}, "
        f"{format_fraction(hidden)} hidden behind backward"
    )
