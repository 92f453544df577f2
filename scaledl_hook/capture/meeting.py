"""How the ranks of one job agree on a run id: through the job's own store, never a collective.

Rank 0 writes the id; the others look for it now and then and never wait. A rank that does not find
it in time writes under an id of its own.
"""

import contextlib
from typing import Any

import torch.distributed as dist

_PATIENCE = 30  # looks, about one a second


class Meeting:
    """One exchange of a run id. ``number`` tells apart several ``track`` of one process."""

    def __init__(self, rank: int, world_size: int, number: int) -> None:
        self._rank = rank
        self._alone = world_size == 1
        self._key = f"scaledl/run_id/{number}"
        self._looks = 0
        self._offered = False

    def offer(self, run_id: str) -> None:
        """Rank 0: publish the id, as soon as the job has a store."""
        if self._offered or self._alone:
            return
        store = _store()
        if store is not None:
            self._offered = True
            with contextlib.suppress(Exception):  # one that keeps nothing, or is gone
                store.set(self._key, run_id)

    def look(self) -> str | None:
        """Other ranks: the id, if it is there. Costs one short round trip to the store."""
        self._looks += 1
        store = _store()
        try:
            if store is None or not store.check([self._key]):
                return None
            return bytes(store.get(self._key)).decode("ascii", "replace")
        except Exception:  # one that keeps nothing, or is gone
            return None

    @property
    def is_over(self) -> bool:
        """Whether to stop looking."""
        return self._alone or self._looks >= _PATIENCE


def _store() -> Any:
    if not (dist.is_available() and dist.is_initialized()):
        return None
    getter = getattr(dist.distributed_c10d, "_get_default_store", None)
    try:
        return getter() if getter is not None else None
    except Exception:  # a backend without a store
        return None
