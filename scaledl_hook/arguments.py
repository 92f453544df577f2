"""What users pass, checked where it comes in: numbers, counts of GPUs, paths, records.

Each check returns the value as it is stored and raises :class:`UsageError` with the option's name,
the value seen and what to write instead. Whatever has an integer's or a real number's protocol
(numpy, torch) counts as one.
"""

import math
import operator
import os
from collections.abc import Iterable
from itertools import islice
from numbers import Real
from typing import Any, TypeVar

import msgspec

from scaledl.errors import UsageError
from scaledl.units import MOST_COUNTS, MOST_GPUS, parse_counts, printable

MOST_STEPS = 10**12
MOST_EPOCHS = 10**9
MOST_TRAINED = 10**15
MOST_USD_PER_HOUR = 1e6

_HINT = "Write for example [1, 2, 8] or '1,2,8-64'."
_T = TypeVar("_T")


def seen_text(value: object) -> str:
    """``value`` as a message shows it: short, one line, whatever its ``repr`` does."""
    try:
        text = repr(value)
    except Exception:  # a repr of the user's own, or an int of too many digits
        text = f"some {type(value).__name__}"
    return printable(text, 60)


def as_index(value: object) -> int | None:
    """The whole number that ``value`` is, else ``None``; a truth value is none."""
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except Exception:  # TypeError, or what a foreign __index__ raises
        return None


def whole_number(name: str, value: object, *, least: int = 1, most: int = MOST_STEPS) -> int:
    """A whole number of ``least`` to ``most``."""
    number = as_index(value)
    if number is None or number < least:
        raise UsageError(
            f"{name} must be a whole number of at least {least}, got {seen_text(value)}."
        )
    if number > most:
        raise UsageError(f"{name} must be at most {most:,}, got {seen_text(value)}.")
    return number


def amount(name: str, value: object, *, most: float = 1e15) -> float:
    """A real number of 0 to ``most``."""
    number = _as_real(value)
    if number is None or not number >= 0:
        raise UsageError(f"{name} must be 0 or more, got {seen_text(value)}.")
    if number > most:
        raise UsageError(f"{name} must be at most {most:,.0f}, got {seen_text(value)}.")
    return abs(number)  # -0.0 is 0


def price(name: str, value: object) -> float:
    """Dollars a GPU-hour; 0 is a price like any other (a machine of one's own)."""
    return amount(name, value, most=MOST_USD_PER_HOUR)


def probability(name: str, value: object) -> float:
    """A real number between 0 and 1, both excluded."""
    number = _as_real(value)
    if number is None or not 0 < number < 1:
        raise UsageError(
            f"{name} must lie between 0 and 1, got {seen_text(value)}. Take for example 0.9."
        )
    return number


def _as_real(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def truth(name: str, value: object) -> bool:
    """``True`` or ``False`` and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, got {seen_text(value)}.")
    return value


def gpu_counts(value: object) -> tuple[int, ...]:
    """Counts of GPUs, sorted and without repeats, from text, one number or any iterable.

    At most ``MOST_COUNTS`` are taken out of an iterable: ``range(10**9)`` is refused at once.
    """
    if isinstance(value, str):
        found = parse_counts(value)
        if len(found) > MOST_COUNTS:
            raise _too_many()
        return found
    if as_index(value) is not None or isinstance(value, bool):
        return (_gpu_count(value),)
    if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable):
        raise UsageError(f"gpus must be counts of GPUs, got {seen_text(value)}. {_HINT}")
    counts = list(islice(value, MOST_COUNTS + 1))
    if len(counts) > MOST_COUNTS:
        raise _too_many()
    return tuple(sorted({_gpu_count(each) for each in counts}))


def _too_many() -> UsageError:
    return UsageError(f"gpus holds more than {MOST_COUNTS} counts. {_HINT}")


def _gpu_count(value: object) -> int:
    count = as_index(value)
    if count is None:
        raise UsageError(f"num_gpus must be a whole number, got {seen_text(value)}. {_HINT}")
    if count < 1:
        raise UsageError(f"num_gpus must be at least 1, got {seen_text(value)}. {_HINT}")
    if count > MOST_GPUS:
        raise UsageError(f"num_gpus must be at most {MOST_GPUS:,}, got {seen_text(value)}.")
    return count


def path_text(name: str, value: object) -> str:
    """A path as text, made absolute: the script may change its working folder during the run."""
    try:
        text = os.fsdecode(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name} must be a path, got {seen_text(value)}.") from None
    if "\0" in text:
        raise UsageError(f"{name} must be a path, got {seen_text(text)} with a zero in it.")
    try:
        return os.path.abspath(os.path.expanduser(text))
    except OSError:  # the working folder was removed under the process
        return text


def record(name: str, value: object, kind: type[_T]) -> _T:
    """A record that the user made, with the types and ranges that its fields state."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be a scaledl.{kind.__name__}, got {type(value).__name__}.")
    try:
        return msgspec.convert(msgspec.to_builtins(value, enc_hook=_plain), kind)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} has a value that cannot be: {printable(str(error))}.") from None


def _plain(value: Any) -> Any:
    """The Python number of a numpy or torch scalar."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"no plain value: {seen_text(value)}")
