"""A trace file piece by piece: unpacked, cut between two events, decoded, never held as a whole.

A Chrome trace is one JSON object with a list ``traceEvents`` (the oldest files are that list
alone). A piece ends where ``},`` stands. Whether that lies between two events or inside one is told
by the decoder: the piece with brackets around it is a valid list in the first case only, since the
brackets of an event that is cut open do not balance.
"""

import contextlib
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from scaledl.errors import UsageError
from scaledl.units import format_bytes, printable

CHUNK_BYTES = 1 * 2**20
MAX_EVENT_BYTES = 32 * 2**20
"""Largest single event, and largest head or tail around the list of events."""
_MAX_TRIES = 24
_NO_ARGS = msgspec.Raw(b"null")
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Kineto has written bare nan and inf, which no JSON knows; only tried where decoding fails.
_NAN = re.compile(rb"([:\[,]\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_AT_BYTE = re.compile(r"\(byte (\d+)\)")


class Event(msgspec.Struct, frozen=True, gc=False):
    """What is looked at of an event. Types are checked only where the event is of use."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: msgspec.Raw = _NO_ARGS


class _Head(msgspec.Struct):
    """The keys beside the events."""

    device_properties: msgspec.Raw = msgspec.field(name="deviceProperties", default=_NO_ARGS)
    distributed_info: msgspec.Raw = msgspec.field(name="distributedInfo", default=_NO_ARGS)


_events = msgspec.json.Decoder(list[Event])
_head = msgspec.json.Decoder(_Head)


class TraceFile:
    """One file, read once from front to end.

    Args:
        path: A ``.json`` or ``.json.gz`` file; which of the two is told by its first bytes.
        max_bytes: Most bytes that are unpacked before the file is refused.
    """

    def __init__(self, path: Path, max_bytes: float) -> None:
        self.path = path
        self.unpacked_bytes = 0
        self._max_bytes = max_bytes
        self._found: dict[str, Any] = {}

    @property
    def device_properties(self) -> Any:
        """The devices as written; complete once all events were read."""
        return self._found.get("device_properties")

    @property
    def distributed_info(self) -> Any:
        """Rank, world size and groups as written; complete once all events were read."""
        return self._found.get("distributed_info")

    def pieces(self) -> Iterator[list[Event]]:
        """All events in the file's order, a few thousand at a time.

        Raises:
            UsageError: no such file, no trace, truncated, damaged, or larger than allowed.
        """
        try:
            with self._open() as stream:
                yield from self._read(stream)
        except EOFError:
            raise self._wrong("ends within its gzip data", "Copy it again; it is cut.") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._wrong(f"is no sound gzip file ({error})", "Copy it again.") from None
        except OSError as error:
            what = f"cannot be read ({error.strerror or error})"
            raise self._wrong(what, "Give a .json or .json.gz trace.") from None
        except RecursionError:
            raise self._wrong("nests too deep for a trace", "Export it again.") from None

    # --- inside --------------------------------------------------------------------------------

    def _wrong(self, what: str, remedy: str) -> UsageError:
        return UsageError(f"trace {printable(str(self.path))} {what}. {remedy}")

    def _open(self) -> IO[bytes]:
        if not self.path.is_file():
            what = "is a folder" if self.path.is_dir() else "is no file"
            raise self._wrong(what, "Give a .json or .json.gz file that torch.profiler exported.")
        with self.path.open("rb") as stream:
            magic = stream.read(2)
        if not magic:
            raise self._wrong("is empty (0 bytes)", "Export it again.")
        if magic == b"\x1f\x8b":
            return cast(IO[bytes], gzip.open(self.path, "rb"))
        return self.path.open("rb")

    def _more(self, stream: IO[bytes]) -> bytes:
        data = stream.read(CHUNK_BYTES)
        self.unpacked_bytes += len(data)
        if self.unpacked_bytes > self._max_bytes:
            raise self._wrong(
                f"unpacks to more than {self._max_bytes / 1e9:g} GB",
                "Profile fewer steps, or allow more with --max-gb.",
            )
        return data

    def _read(self, stream: IO[bytes]) -> Iterator[list[Event]]:
        rest, is_list = self._find_events(stream)
        closed = False
        while not closed:
            events, used, closed = self._cut(rest)
            if not used:
                data = self._more(stream)
                if not data:
                    events, used = self._attempt(rest, b"") or ([], 0)
                    closed = True
                rest += data
                if len(rest) > MAX_EVENT_BYTES + CHUNK_BYTES:
                    what = f"holds one event of over {format_bytes(MAX_EVENT_BYTES)}"
                    raise self._wrong(what, "That is no trace of torch.profiler.")
            if events:
                yield events
            rest = rest[used:]
        self._read_tail(stream, rest.removeprefix(b"]"), is_list=is_list)

    def _find_events(self, stream: IO[bytes]) -> tuple[bytes, bool]:
        """What follows the opening bracket of the events, and whether the file is a bare list."""
        buffer = self._more(stream).removeprefix(b"\xef\xbb\xbf").lstrip()
        if buffer[:1] == b"[":
            return buffer[1:], True
        if buffer[:1] != b"{":
            seen = printable(buffer[:20].decode("ascii", "replace"))
            raise self._wrong(f"is no JSON, it begins with {seen!r}", "Give a Chrome trace.")
        start = 0
        while True:
            for match in _KEY.finditer(buffer, start):
                # Valid only where the key stands in the outermost object.
                if self._take_head(buffer[: match.end()] + b"]}"):
                    return buffer[match.end() :], False
            start = max(0, len(buffer) - 64)
            data = self._more(stream)
            buffer += data
            if not data or len(buffer) > MAX_EVENT_BYTES:
                break
        try:
            keys = msgspec.json.decode(buffer, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._wrong(f"is truncated or no JSON ({error})", "Export it again.") from None
        seen = printable(", ".join(list(keys)[:6])) or "none"
        what = f"has no list traceEvents, its keys are: {seen}"
        raise self._wrong(what, "Give a file that torch.profiler exported.")

    def _take_head(self, data: bytes) -> bool:
        try:
            found = _head.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        for name in ("device_properties", "distributed_info"):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                value = msgspec.json.decode(getattr(found, name))
                if value is not None:
                    self._found[name] = value
        return True

    def _read_tail(self, stream: IO[bytes], rest: bytes, *, is_list: bool) -> None:
        while data := self._more(stream):
            rest += data
            if len(rest) > MAX_EVENT_BYTES:
                what = f"holds over {format_bytes(MAX_EVENT_BYTES)} after its events"
                raise self._wrong(what, "That is no trace of torch.profiler.")
        if is_list and not rest.strip():
            return
        if is_list or not self._take_head(b'{"traceEvents":[]' + rest):
            raise self._wrong("is truncated or damaged after its events", "Export it again.")

    def _cut(self, data: bytes) -> tuple[list[Event], int, bool]:
        """The whole events at the front, how many bytes they take, whether the list is closed."""
        end = len(data)
        for _ in range(_MAX_TRIES):
            end = data.rfind(b"},", 0, end)
            if end < 0:
                break
            found = self._attempt(data[: end + 1], b"]")
            if found is None:
                continue
            events, used = found
            return (events, end + 2, False) if used > end else (events, used, True)
        return [], 0, False

    def _attempt(self, data: bytes, close: bytes) -> tuple[list[Event], int] | None:
        """The events of ``data`` and where their list ends; ``None``: cut within an event."""
        text = b"[" + data + close
        try:
            return _events.decode(text), len(data.rstrip()) - (not close)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            found = _AT_BYTE.search(str(error))
            if "invalid character" in str(error) and (masked := _masked(data)) != data:
                return self._attempt(masked, close)
            if found is not None and "trailing characters" in str(error):
                used = text.rindex(b"]", 0, int(found[1]) - 1) - 1
                return self._attempt(data[:used] + b"]", b"")
            cut_open = "truncated" in str(error) or (found and int(found[1]) >= len(text) - 1)
            if close and cut_open:
                return None
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> UsageError:
        where = format_bytes(self.unpacked_bytes)
        if "truncated" in str(error):
            return self._wrong(f"is truncated after {where}", "Copy or export it again.")
        what = f"is damaged within its first {where} ({error})"
        return self._wrong(what, "Export it again.")


def _masked(data: bytes) -> bytes:
    """Bare nan and inf as texts of the same length, which no time stamp can be."""
    return _NAN.sub(lambda m: m[1] + b'"' + b"n" * (len(m[0]) - len(m[1]) - 2) + b'"', data)
