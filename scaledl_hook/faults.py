"""The parts of an open block, each on its own: one that fails is told once and left out."""

import logging
from collections.abc import Callable

from scaledl.errors import is_strict
from scaledl.setting import place_of

_log = logging.getLogger("scaledl")


class Faults:
    """What has failed so far.

    Args:
        tell: Takes a key and a text for the user; each key is told once.
        step: Where the training stands.

    Attributes:
        off: What no longer works, and why.
        raised: In strict mode, the errors in the order they came.
        closing: The block is being left: nothing is raised any more before all is detached.
    """

    def __init__(self, tell: Callable[[str, str], None], step: Callable[[], int]) -> None:
        self._tell = tell
        self._step = step
        self.off: dict[str, str] = {}
        self.raised: list[Exception] = []
        self.closing = False

    def part(self, name: str, action: Callable[[], None]) -> None:
        """Run one part on its own: if it fails it is off, and the others go on."""
        if name in self.off:
            return
        try:
            action()
        except Exception as error:
            self.on_error(name, error)

    def on_error(self, sensor: str, error: Exception) -> None:
        """An error of ours: told once, the sensor is off; raised in strict mode."""
        if is_strict():
            self.raised.append(error)
            if self.closing:
                return
            raise error
        place = place_of(error)
        text = f"{sensor} stopped at step {self._step()} ({place}). Your training is not affected."
        self.off[sensor] = text
        _log.debug("scaledl: %s", text, exc_info=error)
        try:
            self._tell(f"error:{place}", text)  # one cause is told once, whoever meets it
        except Exception:  # the voice itself is broken, and the log above has it
            return
