"""The protocol of device sensors, and the device that has none."""

from typing import Protocol

from scaledl.records import DeviceSample


class Device(Protocol):
    """Reads one device. A reading that is not to be had is ``None``; ``read`` does not raise."""

    name: str

    def read(self, at_s: float) -> DeviceSample | None:
        """One sample, or ``None`` where the device has nothing to tell."""

    def close(self) -> None:
        """Give handles back."""


class NullDevice:
    """The absence of a sensor, with the reason in words."""

    def __init__(self, reason: str) -> None:
        self.name = "none"
        self.reason = reason

    def read(self, at_s: float) -> DeviceSample | None:
        return None

    def close(self) -> None:
        return
