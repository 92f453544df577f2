"""Errors for users, and notices that are told once.

Every message has three parts: what is wrong, the value seen, what to do.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable

logger = logging.getLogger("scaledl")


class ScaledlError(Exception):
    """Base of everything scaledl raises on purpose."""


class UsageError(ScaledlError, ValueError):
    """A wrong argument or a wrong call; raised before training starts, never inside the loop."""


class StoreError(ScaledlError):
    """A run folder that cannot be read: missing, ambiguous, damaged or from a newer version."""


class OptionalDependencyError(ScaledlError, ImportError):
    """A feature that needs an extra which is not installed."""


_told: set[str] = set()
_told_lock = threading.Lock()


def warn_once(key: str, message: str) -> bool:
    """Log ``message`` at INFO the first time ``key`` is seen; return whether it was the first.

    The notice goes to the ``scaledl`` logger, not to ``warnings``: an ``-W error`` run of the
    user must not be ended by a notice of ours.
    """
    with _told_lock:
        if key in _told:
            return False
        _told.add(key)
    logger.info(message)
    return True


def forget_notices() -> None:
    """Forget what was told, so that a new ``track`` in the same process speaks again."""
    with _told_lock:
        _told.clear()


def run_all(
    parts: Iterable[tuple[str, Callable[[], None]]], on_error: Callable[[str, Exception], None]
) -> None:
    """Run every part, whatever the others do; ``on_error`` is told the name of one that failed.

    An interruption (Ctrl-C, ``SystemExit``) does not keep the parts that follow from running; the
    first one is raised after the last part.
    """
    interruption: BaseException | None = None
    for name, part in parts:
        try:
            part()
        except Exception as error:
            on_error(name, error)
        except BaseException as error:
            interruption = interruption or error
    if interruption is not None:
        raise interruption


def is_strict() -> bool:
    """Whether sensor errors are re-raised (``SCALEDL_STRICT=1``; the tests run with it)."""
    return os.environ.get("SCALEDL_STRICT", "") not in ("", "0")
