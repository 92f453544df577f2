"""Errors for users.

Every message has three parts: what is wrong, the value seen, what to do.
"""

import os
from collections.abc import Callable, Iterable

NO_WORDS = ("0", "false", "no", "off")
"""What switches a yes-or-no variable of the environment off."""


class ScaledlError(Exception):
    """Base of everything scaledl raises on purpose."""


class UsageError(ScaledlError, ValueError):
    """A wrong argument or a wrong call; raised before training starts, never inside the loop."""


class StoreError(ScaledlError):
    """A run folder that cannot be read: missing, ambiguous, damaged or from a newer version."""


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
    return os.environ.get("SCALEDL_STRICT", "").strip().lower() not in ("", *NO_WORDS)
