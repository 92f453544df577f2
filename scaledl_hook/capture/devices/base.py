"""The protocol of device sensors, the device that has none, and queries that may fail singly."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from scaledl.records import DeviceSample, GpuLinks

Failure = Literal["absent", "denied", "lost", "failed"]
"""Not on this card; not allowed here; the whole card is gone; anything else, perhaps passing."""

Tell = Callable[[str], None]
_MAX_FAILURES = 3
_FIRST_REST = 8


class Device(Protocol):
    """Reads one device. A reading that is not to be had is ``None``; ``read`` does not raise."""

    name: str

    def read(self, at_s: float) -> DeviceSample | None:
        """One sample, or ``None`` where the device has nothing to tell."""

    def links(self) -> GpuLinks | None:
        """How the GPUs of this machine are wired, where the driver tells."""

    def close(self) -> None:
        """Give handles back."""


class NullDevice:
    """The absence of a sensor, with the reason in words."""

    def __init__(self, reason: str) -> None:
        self.name = "none"
        self.reason = reason

    def read(self, at_s: float) -> DeviceSample | None:
        return None

    def links(self) -> GpuLinks | None:
        return None

    def close(self) -> None:
        return


class Queries:
    """Asks a driver, each query on its own.

    What the card does not have is asked once and stays off without a word; what is denied is told
    once, all of it together; what fails three times running is told and rests, then is tried again
    after 8, 16, 32 ... readings. A card that is gone is told once and never asked again; so is one
    of which every query failed three times running (as after an Xid error of the driver).
    """

    def __init__(self, name: str, classify: Callable[[Exception], Failure], tell: Tell) -> None:
        self._name = name
        self._classify = classify
        self._tell = tell
        self._off: set[str] = set()
        self._denied: list[str] = []
        self._failures: dict[str, int] = {}
        self._rests: dict[str, tuple[int, int]] = {}  # (left, whole) in readings
        self._lost: list[tuple[str, Exception]] = []  # told at the end of a reading
        self._num_good = 0
        self._last_error: Exception | None = None
        self._blind = 0
        self.is_lost = False

    def ask(self, what: str, query: Callable[[], Any], scale: float | None = None) -> Any:
        """The answer (times ``scale``), or ``None``."""
        if self.is_lost or what in self._off or self._is_resting(what):
            return None
        try:
            value = query()
            value = value if scale is None or value is None else float(value) * scale
        except Exception as error:
            self._note(what, error)
            return None
        self._failures.pop(what, None)
        self._rests.pop(what, None)
        self._num_good += 1
        return value

    def end_reading(self) -> None:
        """Tell what is to be told after all queries of one reading."""
        failed = self._last_error if self._num_good == 0 else None
        self._blind = 0 if failed is None else self._blind + 1
        if failed is not None and self._blind >= _MAX_FAILURES and not self.is_lost:
            self._lose(failed)
        if not self.is_lost:
            for what, error in self._lost:
                self._tell(
                    f"{what} of {self._name} unreadable ({error}); it is n/a until it answers "
                    "again. Training continues."
                )
        if self._denied:
            said = ", ".join(self._denied)
            self._tell(f"{said}: the driver of {self._name} denies them here; they are n/a.")
        self._denied, self._lost = [], []
        self._num_good, self._last_error = 0, None

    def _is_resting(self, what: str) -> bool:
        left, whole = self._rests.get(what, (0, 0))
        if left > 0:
            self._rests[what] = (left - 1, whole)
        return left > 0

    def _note(self, what: str, error: Exception) -> None:
        kind = self._classify(error)
        if kind == "lost":
            self._lose(error)
        elif kind == "failed":
            self._last_error = error
            count = self._failures[what] = self._failures.get(what, 0) + 1
            if count == _MAX_FAILURES:
                self._lost.append((what, error))
            if count >= _MAX_FAILURES:
                whole = self._rests.get(what, (0, _FIRST_REST // 2))[1] * 2
                self._rests[what] = (whole, whole)
        else:
            self._off.add(what)
            if kind == "denied":
                self._denied.append(what)

    def _lose(self, error: Exception) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._tell(
                f"{self._name} no longer answers its driver ({error}): its readings are n/a from "
                "here on. The kernel's log (dmesg, lines with Xid) may say why."
            )
