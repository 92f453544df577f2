"""Sorts the events of a trace into times of kernels, marks, launches and hints; checks each."""

import math
from array import array
from typing import Any

import msgspec

from scaledl.errors import UsageError
from scaledl.timeline.events import HostTable, KernelTable, Meaning, Role, meaning
from scaledl.traces.naming import KINDS, Kind, communicates, dtype_bytes, op_of
from scaledl.traces.pieces import Event
from scaledl.units import printable

LATEST_US = 1e16  # the year 2286 as a Unix time; later stamps are damage
LONGEST_US = 1e13  # 116 days
MAX_KEPT = 1_000_000
"""More communication kernels, host records, marks or threads than any sensible trace has."""


class Args(msgspec.Struct, frozen=True):
    """The arguments of use; of whatever type the file gives."""

    external_id: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    num_in: Any = msgspec.field(name="In msg nelems", default=None)
    num_out: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    group_size: Any = msgspec.field(name="Group size", default=None)
    input_dims: Any = msgspec.field(name="Input Dims", default=None)
    input_type: Any = msgspec.field(name="Input type", default=None)
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What arguments or a name tell of a collective."""

    op: str
    num_bytes: int | None = None
    group_size: int | None = None


class CommKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A communication kernel as it stands in the file, times in microseconds from the origin."""

    start_us: float
    duration_us: float
    by_name: bool
    told: Told
    external_id: int | None
    correlation: int | None


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the host about a collective it launched within this time on this thread."""

    thread: str
    start_us: float
    end_us: float
    told: Told
    external_id: int | None


class Launches:
    """Kernel launches by column: correlation id, time in microseconds, thread."""

    def __init__(self) -> None:
        self.correlations = array("q")
        self.times_us = array("d")
        self.threads: list[str] = []
        self.thread_of = array("l")
        self._known: dict[str, int] = {}

    def add(self, correlation: int, at_us: float, thread: str) -> None:
        """Note one launch."""
        if thread not in self._known:
            self._known[thread] = len(self.threads)
            self.threads.append(thread)
        self.correlations.append(correlation)
        self.times_us.append(at_us)
        self.thread_of.append(self._known[thread])


class Collector:
    """Takes events in; times are kept in microseconds from the first event of use."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._origin_us: float | None = None
        self._kinds: dict[Any, Kind | None] = {}
        self.num_events = 0
        self.end_us = self.first_us = 0.0
        self.compute = array("d")
        self.memory = array("d")
        self.input = array("d")
        self.steps = array("d")
        self.gpu_steps = array("d")
        self.optimizers = array("d")
        self.comm: list[CommKernel] = []
        self.hints: list[Hint] = []
        self.launches = Launches()
        self.host = HostTable()
        self.kernels = KernelTable()
        self.gpu_ids: dict[Any, int] = {}
        self.is_ddp = self.is_fsdp = False

    def take(self, events: list[Event]) -> None:
        """Sort a piece of the file.

        Raises:
            UsageError: an event of use has a name or a time that cannot be.
        """
        self.num_events += len(events)
        kinds = self._kinds
        for event in events:
            if event.ph != "X":
                continue
            cat = event.cat
            if not isinstance(cat, str):
                continue
            if cat not in kinds:
                if len(kinds) > 1000:
                    continue
                kinds[cat] = KINDS.get(cat.lower())
            kind = kinds[cat]
            if kind is not None:
                self._sort(kind, event)

    def _sort(self, kind: Kind, event: Event) -> None:
        name = event.name
        if not isinstance(name, str):
            raise self._wrong(event, f"the name {name!r}", "names are texts")
        if kind in ("host", "range"):
            self._host(event, name)
            self._place(event, meaning(name, is_range=kind == "range"))
        elif kind == "python":
            if name.startswith("nn.Module: "):
                self._place(event, meaning(name))
        elif kind == "launch":
            if "Launch" in name:
                self._launch(event)
        elif kind == "kernel":
            self._kernel(event, name)
        elif kind == "memory":
            self.memory.extend(self._span(event))
        elif name.startswith("ProfilerStep"):
            self._check_room(event, len(self.gpu_steps))
            self.gpu_steps.extend(self._span(event))

    # --- one kind each -------------------------------------------------------------------------

    def _kernel(self, event: Event, name: str) -> None:
        start, end = self._span(event)
        gpu = event.pid if isinstance(event.pid, int) else None
        if gpu in self.gpu_ids or len(self.gpu_ids) < MAX_KEPT:
            self.gpu_ids[gpu] = self.gpu_ids.get(gpu, 0) + 1
        how = communicates(name)
        args = _args(event)
        launch, operator = _id(args.correlation), _id(args.external_id)
        self.kernels.add(
            _whole_ns(start),
            _whole_ns(end),
            launch=launch,
            operator=-1 if operator == launch else operator,
            is_comm=bool(how),
        )
        if not how:
            self.compute.extend((start, end))
            return
        self._check_room(event, len(self.comm))
        told = _told(args, name)
        self.comm.append(
            CommKernel(
                start_us=start,
                duration_us=end - start,
                by_name=how == "nccl",
                told=told,
                external_id=_whole(args.external_id),
                correlation=_whole(args.correlation),
            )
        )

    def _launch(self, event: Event) -> None:
        correlation = _whole(_args(event).correlation)
        if correlation is not None:
            self._check_room(event, len(self.launches.threads))
            start, end = self._span(event)
            thread = str(event.tid)
            self.launches.add(correlation, start, thread)
            what, own_id = Meaning(Role.LAUNCH), _id(correlation)
            self.host.add(what, _whole_ns(start), _whole_ns(end), thread, own_id=own_id)

    def _place(self, event: Event, what: Meaning) -> None:
        """Keep what tells whose work runs inside; most operators tell nothing."""
        has_number = b"Sequence number" in bytes(event.args)
        if what.role == Role.IGNORED or (what.role == Role.OPERATOR and not has_number):
            return
        start, end = self._span(event)
        args = _args(event) if has_number else Args()
        self.host.add(
            what,
            _whole_ns(start),
            _whole_ns(end),
            str(event.tid),
            sequence=_id(args.sequence),
            forward_thread=max(0, _id(args.forward_thread)),
            own_id=_id(args.external_id),
        )

    def _host(self, event: Event, name: str) -> None:
        self._check_room(event, max(len(self.steps), len(self.optimizers)))
        if name == "record_param_comms" or name.startswith("nccl:"):
            self._hint(event, name)
        elif name.startswith("ProfilerStep"):
            self.steps.extend(self._span(event))
        elif name.startswith("Optimizer.step"):
            self.optimizers.append(self._span(event)[0])
        elif name.startswith("enumerate(DataLoader)"):
            self.input.extend(self._span(event))
        elif name.startswith("DistributedDataParallel."):
            self.is_ddp = True
        elif name.startswith(("FSDP::", "FullyShardedDataParallel.")):
            self.is_fsdp = True

    def _hint(self, event: Event, name: str) -> None:
        start, end = self._span(event)
        args = _args(event)
        told = _told(args, name)
        if args.collective == "wait" or (told.op == "unknown" and told.num_bytes is None):
            return
        self._check_room(event, len(self.hints))
        self.hints.append(
            Hint(
                thread=str(event.tid),
                start_us=start,
                end_us=end,
                told=told,
                external_id=_whole(args.external_id),
            )
        )

    # --- checks --------------------------------------------------------------------------------

    def _span(self, event: Event) -> tuple[float, float]:
        start = self._time(event, "ts", event.ts, LATEST_US)
        duration = self._time(event, "dur", event.dur, LONGEST_US)
        if self._origin_us is None:
            self._origin_us = start
        start -= self._origin_us
        end = start + duration
        self.first_us = min(self.first_us, start)
        self.end_us = max(self.end_us, end)
        return start, end

    def _time(self, event: Event, key: str, value: Any, most: float) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self._wrong(event, f"{key} {value!r}", "microseconds are numbers") from None
        if not math.isfinite(number) or number < 0 or number > most:
            raise self._wrong(event, f"{key} {value!r}", f"it must lie in 0 to {most:g} us")
        return number

    def _check_room(self, event: Event, kept: int) -> None:
        if kept >= MAX_KEPT:
            seen = f"over {MAX_KEPT} of its kind before it"
            raise self._wrong(event, seen, "profile fewer steps")

    def _wrong(self, event: Event, seen: str, rule: str) -> UsageError:
        name = printable(str(event.name), 60)
        return UsageError(
            f"trace {printable(self._file)}: event {name!r} has {printable(seen, 80)}; {rule}. "
            "Export it again."
        )


def _args(event: Event) -> Args:
    try:
        return msgspec.json.decode(event.args, type=Args)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Args()


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62
    return value if is_whole else None


def _id(value: Any) -> int:
    """A number that events know each other by; -1 where there is none."""
    number = _whole(value)
    return number if number is not None and number >= 0 else -1


def _whole_ns(time_us: float) -> int:
    return round(time_us * 1000)


def _told(args: Args, name: str) -> Told:
    """Operation, bytes and group from the arguments, else from the name."""
    op = "unknown"
    if isinstance(args.collective, str):
        op = op_of(args.collective)
    if op == "unknown" and name != "record_param_comms":
        op = op_of(name)
    group = _whole(args.group_size)
    return Told(
        op=op,
        num_bytes=_told_bytes(args, op),
        group_size=group if group is not None and group > 0 else None,
    )


def _told_bytes(args: Args, op: str) -> int | None:
    """Bytes of the whole tensor: the larger of input and output.

    Old traces tell only the input's shape; of a gather that is one rank's share and says nothing.
    """
    size = dtype_bytes(args.dtype)
    counts = [n for n in (_whole(args.num_in), _whole(args.num_out)) if n is not None and n >= 0]
    if size is not None and counts:
        return max(counts) * size
    if op == "all_gather" or not (args.input_dims and args.input_type):
        return None
    if not (isinstance(args.input_dims, list) and isinstance(args.input_type, list)):
        return None
    shape, size = args.input_dims[0], dtype_bytes(args.input_type[0])
    if size is None or not shape or not isinstance(shape, list):
        return None
    if any(_whole(n) is None or n < 0 for n in shape):
        return None
    return math.prod(shape) * size
