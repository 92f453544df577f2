"""Sees every pass over a DataLoader: its start, its waits, its end.

``DataLoader.__iter__`` (and torchdata's ``StatefulDataLoader.__iter__``) are replaced by name while
at least one ``track`` is open and put back when the last one closes. There is no public hook for
this. The loader's own iterator does all the work; a proxy stands around it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader

from scaledl.capture.tensors import SizeReader, batch_size_of


class Pass:
    """One pass over one loader: what the clock has to know about it.

    ``wait_s`` is the waiting not yet booked to a step; ``is_open`` turns false when the data end or
    the iterator is dropped, ``has_ended`` only when the data end. ``partner_ended``: a loader that
    runs beside it (``zip``) ended, and no step followed.
    """

    __slots__ = (
        "batch_size",
        "drop_last",
        "explicit",
        "fixed_batches",
        "fresh",
        "fresh_rows",
        "fresh_size",
        "has_ended",
        "is_eval",
        "is_open",
        "key",
        "last_rows",
        "last_size",
        "length",
        "num_batches",
        "num_samples",
        "num_workers",
        "partner_ended",
        "reader",
        "started_s",
        "trains",
        "wait_s",
    )

    def __init__(self, loader: object, started_s: float, *, explicit: bool = False) -> None:
        self.key = id(loader)
        self.started_s = started_s
        self.explicit = explicit
        self.length = length_of(loader)
        size = getattr(loader, "batch_size", None)
        self.batch_size: int | None = size if isinstance(size, int) else None
        self.fixed_batches = self.batch_size is not None
        self.drop_last = getattr(loader, "drop_last", None) is True
        self.num_samples = length_of(getattr(loader, "dataset", None))
        workers = getattr(loader, "num_workers", None)
        self.num_workers: int | None = workers if isinstance(workers, int) else None
        self.num_batches = 0
        self.reader = SizeReader()
        self.fresh = 0  # batches since the last step boundary, their rows and elements
        self.fresh_rows = self.fresh_size = 0
        self.last_rows = self.last_size = 0
        self.wait_s = 0.0
        self.is_eval = False
        self.trains = False  # a forward that trains took a batch of it
        self.is_open = True
        self.has_ended = False
        self.partner_ended = False

    def measure(self, batch: Any) -> tuple[int, int]:
        """Rows and elements of a batch, zeros where they are not known."""
        if self.num_batches == 0 and self.batch_size is None:
            self.batch_size = batch_size_of(batch)
        return self.reader.read(batch)

    def take(self, rows: int, size: int) -> None:
        """A batch came: fresh until a step is booked."""
        self.num_batches += 1
        self.fresh += 1
        self.fresh_rows += rows
        self.fresh_size += size
        self.last_rows, self.last_size = rows, size

    def keep_fresh(self, count: int) -> None:
        """Leave the last batch fresh (1) or none (0)."""
        self.fresh = count
        self.fresh_rows, self.fresh_size = count * self.last_rows, count * self.last_size


class LoaderListener(Protocol):
    """What the clock offers to the proxies; all calls come on the thread that trains."""

    def on_pass_start(self, this: Pass) -> None: ...
    def on_fetch(self, this: Pass, start_s: float) -> None: ...
    def on_batch(self, this: Pass, start_s: float, end_s: float, batch: Any) -> None: ...
    def on_pass_end(self, this: Pass, start_s: float, end_s: float) -> None: ...
    def on_pass_drop(self, this: Pass) -> None: ...


def length_of(loader: object) -> int | None:
    """``len(loader)``, or ``None`` where it has none or does not tell."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except Exception:  # a user's __len__ may raise anything; an unknown length is no error
        return None


class ProxyIterator:
    """The loader's iterator with a stop-watch; everything else is handed on."""

    __slots__ = ("_clock", "_inner", "_listener", "_pass", "_thread")

    def __init__(
        self,
        inner: Iterator[Any],
        this: Pass,
        listener: LoaderListener,
        clock: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._pass = this
        self._listener = listener
        self._clock = clock
        self._thread = threading.get_ident()

    def __iter__(self) -> "ProxyIterator":
        return self

    def __next__(self) -> Any:
        if threading.get_ident() != self._thread:
            return next(self._inner)  # a prefetching thread of the user: not the training's wait
        this, listener = self._pass, self._listener
        start_s = self._clock()
        listener.on_fetch(this, start_s)
        # A generator around a loader (tqdm) opens it at the first fetch, not at iter().
        _watch.muted += this.explicit
        try:
            batch = next(self._inner)
        except StopIteration:
            listener.on_pass_end(this, start_s, self._clock())
            raise
        finally:
            _watch.muted -= this.explicit
        listener.on_batch(this, start_s, self._clock(), batch)
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in ProxyIterator.__slots__:  # not set yet: an instance made without __init__
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ProxyIterator.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._inner, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self._inner,)  # a copy is one of the loader's own iterator

    def __del__(self) -> None:
        listener = getattr(self, "_listener", None)  # none: an instance made without __init__
        if listener is not None:
            listener.on_pass_drop(self._pass)  # a loop left by break drops its iterator


_TRACKED_FIELDS = ("_clock", "_iterable", "_listener")


class TrackedIterable:
    """``run.loader(iterable)``: any iterable that the user declares to feed the training."""

    def __init__(
        self, iterable: Iterable[Any], listener: LoaderListener, clock: Callable[[], float]
    ) -> None:
        self._iterable = iterable
        self._listener = listener
        self._clock = clock

    def __iter__(self) -> Iterator[Any]:
        this = Pass(self._iterable, self._clock(), explicit=True)
        with _Muted():  # a DataLoader inside must not report a second pass
            inner = iter(self._iterable)
        self._listener.on_pass_start(this)
        return ProxyIterator(inner, this, self._listener, self._clock)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._iterable)

    def __getitem__(self, key: Any) -> Any:
        return self._iterable[key]  # type: ignore[index]

    def __getattr__(self, name: str) -> Any:
        if name in _TRACKED_FIELDS:  # not set yet: an instance made without __init__
            raise AttributeError(name)
        return getattr(self._iterable, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _TRACKED_FIELDS:
            object.__setattr__(self, name, value)
        else:
            setattr(self._iterable, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self._iterable,)  # a copy is untracked


def _itself(value: Any) -> Any:
    return value


class _Watch:
    """The one patch of the process and those who listen to it."""

    def __init__(self) -> None:
        self.listeners: list[tuple[LoaderListener, Callable[[], float], int]] = []
        self.originals: list[tuple[type, Any, Any]] = []
        self.muted = 0
        self.pid = os.getpid()

    def install(self) -> None:
        for owner in _loader_classes():
            original = owner.__dict__["__iter__"]
            wrapper = _wrap(original)
            self.originals.append((owner, original, wrapper))
            owner.__iter__ = wrapper  # type: ignore[attr-defined]

    def restore(self) -> None:
        for owner, original, wrapper in self.originals:
            # Somebody may have wrapped ours in the meantime; theirs then stays and ours only
            # passes calls on.
            if owner.__dict__.get("__iter__") is wrapper:
                owner.__iter__ = original  # type: ignore[attr-defined]
        self.originals.clear()


_watch = _Watch()


class _Muted:
    def __enter__(self) -> None:
        _watch.muted += 1

    def __exit__(self, *exc: object) -> None:
        _watch.muted -= 1


def _loader_classes() -> list[type]:
    classes: list[type] = [DataLoader]
    stateful = sys.modules.get("torchdata.stateful_dataloader")
    extra = getattr(stateful, "StatefulDataLoader", None)
    if isinstance(extra, type) and "__iter__" in extra.__dict__:
        classes.append(extra)
    return classes


def _reports_to(iterator: Iterator[Any], listener: LoaderListener) -> bool:
    """Whether a proxy of ``listener`` stands around already (a subclass called ``super``)."""
    while isinstance(iterator, ProxyIterator):
        if iterator._listener is listener:
            return True
        iterator = iterator._inner
    return False


def _wrap(original: Any) -> Any:
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807 -- it takes the place of that method
        iterator: Iterator[Any] = original(self)
        if _watch.muted or not _watch.listeners or os.getpid() != _watch.pid:
            return iterator
        thread = threading.get_ident()
        for listener, clock, owner_thread in _watch.listeners:
            if thread != owner_thread or _reports_to(iterator, listener):
                continue
            this = Pass(self, clock())
            listener.on_pass_start(this)
            iterator = ProxyIterator(iterator, this, listener, clock)
        return iterator

    __iter__.__wrapped__ = original  # type: ignore[attr-defined]
    return __iter__


class LoaderSensor:
    """Reports every pass over a DataLoader on the thread that starts it to ``listener``."""

    def __init__(
        self, listener: LoaderListener, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._entry = (listener, clock, threading.get_ident())

    def start(self) -> None:
        """Listen; the first listener of the process places the patch."""
        _watch.listeners.append(self._entry)
        if not _watch.originals:
            _watch.pid = os.getpid()
            _watch.install()

    def stop(self) -> None:
        """Listen no more; the last listener takes the patch away."""
        if self._entry in _watch.listeners:
            _watch.listeners.remove(self._entry)
        if not _watch.listeners:
            _watch.restore()
