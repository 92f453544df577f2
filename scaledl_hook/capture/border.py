"""The border between the user's loop and the clock: nothing of ours gets through it.

It also keeps the clock off the hot path. Between two short steps of a training all caches are cold,
and Python code that takes 8 microseconds in a tight loop takes 100. So after each watched step
events are only noted, with their times, and played to the clock together a tenth of a second
later, when one cold start serves them all. The clock sees the same events in the same order.
"""

import math
from collections.abc import Callable
from typing import Any

from scaledl.capture.clock import StepClock
from scaledl.capture.loaders import Pass

HOLD_S = 0.1
_HOLD_MOST_S = 1.0


class Border:
    """Passes events to the clock; after an error of ours it passes nothing any more.

    ``on_error`` tells the user once (or raises, in strict mode).

    Attributes:
        is_live: The clock hears of what happens now, not of what was held.
    """

    def __init__(self, clock: StepClock, on_error: Callable[[Exception], None]) -> None:
        # Bound once: making a bound method is a part of what an event costs.
        self._fetch, self._batch = clock.on_fetch, clock.on_batch
        self._forward_begin, self._forward = clock.on_forward_begin, clock.on_forward
        self._backward, self._optimizer = clock.on_backward, clock.on_optimizer
        self._pass_start, self._pass_end = clock.on_pass_start, clock.on_pass_end
        self._on_error = on_error
        self._off = False
        self._held: list[tuple[Any, ...]] = []  # (handler, its arguments ...)
        self._due_s = 0.0
        self._saw_start = False
        self._steps_left = 0
        self._holds = False
        self.is_live = True

    @property
    def holds(self) -> bool:
        """Whether events are noted and played later."""
        return self._holds

    def hold(self, now_s: float, num_steps: int) -> None:
        """Note events from here on, until so many updates were seen and a step may begin.

        A count and not a time: a slow step would end the time more often than another, and what
        follows a slow step would be looked at too often.
        """
        self._holds, self._due_s, self._saw_start = True, now_s + _HOLD_MOST_S, False
        self._steps_left = num_steps

    def release(self) -> None:
        """Pass events on as they come."""
        self._holds = False

    def play(self) -> None:
        """Tell the clock what was held; only the last event is of now."""
        held, self._held = self._held, []
        last = len(held) - 1
        try:
            for index, (handler, *args) in enumerate(held):
                self.is_live = index == last
                handler(*args)
        except Exception as error:
            self._fail(error)
        finally:
            self.is_live = True

    def silence(self) -> None:
        """Pass nothing on any more, and forget what was held."""
        self._off, self._holds = True, False
        self._held.clear()

    def call(self, function: Callable[[], None]) -> None:
        """Run one of the user's own calls (``run.step()`` and the like) behind the border."""
        self._pass_on(function, ())

    # --- what the sensors tell ------------------------------------------------------------------

    # What happens several times a step is written out flat: every call here is made in cold caches.

    def on_pass_start(self, this: Pass) -> None:
        self._pass_on(self._pass_start, (this,))

    def on_fetch(self, this: Pass, start_s: float) -> None:
        if not self._holds:
            self._pass_on(self._fetch, (this, start_s))
            return
        self._held.append((self._fetch, this, start_s))
        self._saw_start = True
        if start_s >= self._due_s:
            self.play()

    def on_batch(self, this: Pass, start_s: float, end_s: float, batch: Any) -> None:
        if self._off:
            return
        rows, size = this.measure(batch)  # now: a held event must not keep a batch
        if self._holds:
            self._held.append((self._batch, this, start_s, end_s, rows, size))
        else:
            self._pass_on(self._batch, (this, start_s, end_s, rows, size))

    def on_pass_end(self, this: Pass, start_s: float, end_s: float) -> None:
        self._pass_on(self._pass_end, (this, start_s, end_s))

    def on_pass_drop(self, this: Pass) -> None:
        # Called by the garbage collector, on any thread: nothing is played here.
        if self._holds:
            self._held.append((_drop, this))
        else:
            this.is_open = False

    def on_forward_begin(self, start_s: float, training: bool) -> None:
        if not self._holds:
            self._pass_on(self._forward_begin, (start_s, training))
            return
        self._held.append((self._forward_begin, start_s, training))
        self._saw_start = True
        if start_s >= self._due_s:
            self.play()

    def on_forward(self, start_s: float, end_s: float, training: bool, with_grad: bool) -> None:
        if self._holds:
            self._held.append((self._forward, start_s, end_s, training, with_grad))
        else:
            self._pass_on(self._forward, (start_s, end_s, training, with_grad))

    def on_backward(self, compute_s: float, exposed_s: float) -> None:
        if self._holds:
            self._held.append((self._backward, compute_s, exposed_s))
        else:
            self._pass_on(self._backward, (compute_s, exposed_s))

    def on_optimizer(self, start_s: float, end_s: float) -> None:
        if not self._holds:
            self._pass_on(self._optimizer, (start_s, end_s))
            return
        self._held.append((self._optimizer, start_s, end_s))
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._due_s = -math.inf  # the next start plays
        if end_s >= self._due_s and not self._saw_start:
            self.play()  # nothing but the optimizer is seen: a step ends and begins here

    # --- inside ---------------------------------------------------------------------------------

    def _pass_on(self, handler: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._off:
            return
        if self._held:
            self.play()
        try:
            handler(*args)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.silence()
        self._on_error(error)


def _drop(this: Pass) -> None:
    this.is_open = False
