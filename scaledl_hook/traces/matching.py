"""Which record of the host belongs to which communication kernel."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from scaledl.traces.collect import CommKernel, Hint, Launches, Told


def tell(kernels: Sequence[CommKernel], hints: Sequence[Hint], launches: Launches) -> list[Told]:
    """What is known of each kernel: its own arguments first, then the host's record of it.

    The record is found by its external id (newer torch gives both the same), else by the launch of
    the kernel, which lies inside the record on the same thread. In older files a kernel's external
    id is only its correlation id again and names nothing.
    """
    by_id = _by_external_id(hints)
    by_thread = _by_thread(hints)
    launched = _launch_places(kernels, launches)
    found = []
    for kernel in kernels:
        told = kernel.told
        own_id = kernel.external_id if kernel.external_id != kernel.correlation else None
        if own_id is not None and own_id in by_id:
            told = _merged(told, by_id[own_id])
        elif kernel.correlation in launched:
            at_us, thread = launched[kernel.correlation]
            hint = _around(by_thread.get(thread, ([], [])), at_us)
            told = told if hint is None else _merged(told, hint)
        found.append(told)
    return found


def announced(hints: Sequence[Hint]) -> list[Hint]:
    """One record a collective: the two kinds that newer versions write lie in each other."""
    kept: list[Hint] = []
    for hint in sorted(hints, key=lambda h: (h.thread, h.start_us, -h.end_us)):
        last = kept[-1] if kept else None
        if last is not None and last.thread == hint.thread and hint.start_us < last.end_us:
            kept[-1] = Hint(
                thread=last.thread,
                start_us=last.start_us,
                end_us=last.end_us,
                told=_merged(last.told, hint.told),
                external_id=last.external_id,
            )
        else:
            kept.append(hint)
    return sorted(kept, key=lambda h: h.start_us)


def _merged(first: Told, second: Told) -> Told:
    """The first's knowledge, completed by the second's; an all-to-all runs as send and receive."""
    op = first.op
    if op == "unknown" or (op == "send_recv" and second.op != "unknown"):
        op = second.op
    return Told(
        op=op,
        num_bytes=second.num_bytes if first.num_bytes is None else first.num_bytes,
        group_size=second.group_size if first.group_size is None else first.group_size,
    )


def _by_external_id(hints: Sequence[Hint]) -> dict[int, Told]:
    known: dict[int, Told] = {}
    for hint in hints:
        if hint.external_id is not None:
            known.setdefault(hint.external_id, hint.told)
    return known


def _by_thread(hints: Sequence[Hint]) -> dict[str, tuple[list[float], list[Hint]]]:
    grouped: dict[str, list[Hint]] = defaultdict(list)
    for hint in announced(hints):
        grouped[hint.thread].append(hint)
    return {thread: ([h.start_us for h in each], each) for thread, each in grouped.items()}


def _around(hints: tuple[list[float], list[Hint]], at_us: float) -> Told | None:
    starts, each = hints
    index = bisect_right(starts, at_us) - 1
    return each[index].told if index >= 0 and at_us <= each[index].end_us else None


def _launch_places(
    kernels: Sequence[CommKernel], launches: Launches
) -> dict[int | None, tuple[float, str]]:
    """Time and thread of the launches of these kernels."""
    wanted = [k.correlation for k in kernels if k.correlation is not None]
    if not wanted or not launches.correlations:
        return {}
    correlations = np.frombuffer(launches.correlations, dtype=np.int64)
    places = np.flatnonzero(np.isin(correlations, np.array(wanted, dtype=np.int64)))
    return {
        launches.correlations[i]: (
            launches.times_us[i],
            launches.threads[launches.thread_of[i]],
        )
        for i in places.tolist()
    }
