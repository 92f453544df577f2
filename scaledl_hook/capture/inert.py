"""Hooks that leave nothing behind when the user copies or saves the module they sit on.

``torch.save(model)`` and ``copy.deepcopy(model)`` (every EMA) take a module's hook tables along. A
closure makes the first fail; a live object makes the copy report to us as if it were the original.
A :class:`Hook` therefore pickles and copies to a bound method of the standard library that takes
any arguments and returns ``None``: the copy works, is silent, and loads where scaledl is not
installed.
"""

import contextlib
from collections.abc import Callable
from typing import Any

_NOTHING = contextlib.nullcontext().__exit__


class Hook:
    """A module hook that calls ``function`` with its arguments and always returns ``None``.

    A hook that returned something would replace the module's input or output.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> None:
        self.function(*args)

    @property
    def __name__(self) -> str:
        # torch.jit.script compiles a module's hooks and asks for their names first.
        raise AttributeError(
            "torch.jit.script cannot take a model inside scaledl.track(), which has hooks on it: "
            "script it before or after the block."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))

    def __copy__(self) -> Any:
        return self  # a shallow copy of a module shares its hook tables anyway

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _NOTHING
