"""The border between the user's loop and the clock: nothing of ours gets through it."""

from collections.abc import Callable
from typing import Any

from scaledl.capture.clock import StepClock
from scaledl.capture.loaders import Pass


class Border:
    """Passes events to the clock; after an error of ours it passes nothing any more.

    ``on_error`` tells the user once (or raises, in strict mode).
    """

    def __init__(self, clock: StepClock, on_error: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._on_error = on_error
        self._off = False

    def _fail(self, error: Exception) -> None:
        self._off = True
        self._on_error(error)

    def on_pass_start(self, this: Pass) -> None:
        if not self._off:
            try:
                self._clock.on_pass_start(this)
            except Exception as error:
                self._fail(error)

    def on_fetch(self, this: Pass, start_s: float) -> None:
        if not self._off:
            try:
                self._clock.on_fetch(this, start_s)
            except Exception as error:
                self._fail(error)

    def on_batch(self, this: Pass, start_s: float, end_s: float, batch: Any) -> None:
        if not self._off:
            try:
                self._clock.on_batch(this, start_s, end_s, batch)
            except Exception as error:
                self._fail(error)

    def on_pass_end(self, this: Pass, start_s: float, end_s: float) -> None:
        if not self._off:
            try:
                self._clock.on_pass_end(this, start_s, end_s)
            except Exception as error:
                self._fail(error)

    def on_forward_begin(self, start_s: float, *, training: bool) -> None:
        if not self._off:
            try:
                self._clock.on_forward_begin(start_s, training=training)
            except Exception as error:
                self._fail(error)

    def on_forward(self, start_s: float, end_s: float, *, training: bool, with_grad: bool) -> None:
        if not self._off:
            try:
                self._clock.on_forward(start_s, end_s, training=training, with_grad=with_grad)
            except Exception as error:
                self._fail(error)

    def on_backward(self, compute_s: float, exposed_s: float) -> None:
        if not self._off:
            try:
                self._clock.on_backward(compute_s, exposed_s)
            except Exception as error:
                self._fail(error)

    def on_optimizer(self, start_s: float, end_s: float) -> None:
        if not self._off:
            try:
                self._clock.on_optimizer(start_s, end_s)
            except Exception as error:
                self._fail(error)

    def call(self, function: Callable[[], None]) -> None:
        """Run one of the user's own calls (``run.step()`` and the like) behind the border."""
        if not self._off:
            try:
                function()
            except Exception as error:
                self._fail(error)
