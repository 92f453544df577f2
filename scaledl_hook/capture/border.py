"""The border between the user's loop and the clock: nothing of ours gets through it.

It also keeps the clock off the hot path. Between two short steps of a training all caches are cold,
and Python code that takes 8 microseconds in a tight loop takes 100. So after each watched step
events are only noted, with their times, and played to the clock together a tenth of a second
later, when one cold start serves them all. The clock sees the same events in the same order.
"""

from collections.abc import Callable
from typing import Any

from scaledl.capture.clock import StepClock
from scaledl.capture.loaders import Pass
from scaledl.capture.tensors import batch_size_of

HOLD_S = 0.1
_HOLD_MOST_S = 1.0
_HELD_MOST = 8192


class Border:
    """Passes events to the clock; after an error of ours it passes nothing any more.

    ``on_error`` tells the user once (or raises, in strict mode).

    Attributes:
        is_live: The clock hears of what happens now, not of what was held.
    """

    def __init__(self, clock: StepClock, on_error: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._on_error = on_error
        self._off = False
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._since_s = 0.0
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
        self._holds, self._since_s, self._saw_start = True, now_s, False
        self._steps_left = num_steps

    def release(self) -> None:
        """Pass events on as they come."""
        self._holds = False

    def play(self) -> None:
        """Tell the clock what was held; only the last event is of now."""
        held, self._held = self._held, []
        last = len(held) - 1
        try:
            for index, (handler, args) in enumerate(held):
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

    def on_pass_start(self, this: Pass) -> None:
        self._pass_on(self._clock.on_pass_start, (this,))

    def on_fetch(self, this: Pass, start_s: float) -> None:
        if self._holds:
            self._start(self._clock.on_fetch, (this, start_s), start_s)
        else:
            self._pass_on(self._clock.on_fetch, (this, start_s))

    def on_batch(self, this: Pass, start_s: float, end_s: float, batch: Any) -> None:
        if this.batch_size is None and this.num_batches == 0:
            self.call(lambda: _measure(this, batch))  # now: a held event must not keep a batch
        self._note(self._clock.on_batch, (this, start_s, end_s))

    def on_pass_end(self, this: Pass, start_s: float, end_s: float) -> None:
        self._pass_on(self._clock.on_pass_end, (this, start_s, end_s))

    def on_pass_drop(self, this: Pass) -> None:
        # Called by the garbage collector, on any thread: nothing is played here.
        if self._holds:
            self._held.append((_drop, (this,)))
        else:
            this.is_open = False

    def on_forward_begin(self, start_s: float, *, training: bool) -> None:
        if self._holds:
            self._start(self._clock.on_forward_begin, (start_s, training), start_s)
        else:
            self._pass_on(self._clock.on_forward_begin, (start_s, training))

    def on_forward(self, start_s: float, end_s: float, *, training: bool, with_grad: bool) -> None:
        self._note(self._clock.on_forward, (start_s, end_s, training, with_grad))

    def on_backward(self, compute_s: float, exposed_s: float) -> None:
        self._note(self._clock.on_backward, (compute_s, exposed_s))

    def on_optimizer(self, start_s: float, end_s: float) -> None:
        self._steps_left -= 1
        self._note(self._clock.on_optimizer, (start_s, end_s))
        if self._holds and not self._saw_start and self._is_due(end_s):
            self.play()  # nothing but the optimizer is seen: a step ends and begins here

    # --- inside ---------------------------------------------------------------------------------

    def _note(self, handler: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._holds:
            self._held.append((handler, args))
        else:
            self._pass_on(handler, args)

    def _start(self, handler: Callable[..., None], args: tuple[Any, ...], now_s: float) -> None:
        """Note what may begin a step; play all if it is time."""
        self._held.append((handler, args))
        self._saw_start = True
        if self._is_due(now_s):
            self.play()

    def _is_due(self, now_s: float) -> bool:
        waited_s = now_s - self._since_s
        return self._steps_left <= 0 or waited_s >= _HOLD_MOST_S or len(self._held) >= _HELD_MOST

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


def _measure(this: Pass, batch: Any) -> None:
    this.batch_size = batch_size_of(batch)


def _drop(this: Pass) -> None:
    this.is_open = False
