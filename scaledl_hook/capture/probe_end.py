"""Ends a probed training early; used only where ``SCALEDL_PROBE_STEPS`` asks for it."""

import weakref
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from scaledl.capture.optimizers import OptimizerSensor
from scaledl.capture.root import in_backward_pass


class ProbeEnd:
    """Leaves the training by ``SystemExit(0)`` after so many optimizer steps.

    It is raised out of the optimizer's step, where a rank is in no collective, at the same step on
    every rank: so nobody waits for one that left, the user's own ``finally`` blocks run, and the
    run is closed as after ``sys.exit(0)``. Steps are counted here and not by the clock, which hears
    of short ones late, and not on all ranks alike. An optimizer that steps inside the backward does
    so while gradients are exchanged: there it ends at the model's next forward.
    """

    def __init__(self, model: nn.Module, sensor: OptimizerSensor, num_steps: int) -> None:
        self._model = weakref.ref(model)
        self._sensor = sensor
        self._left = num_steps
        self._first: weakref.ref[Optimizer] | None = None
        self._handles: list[Any] = []

    @property
    def was_reached(self) -> bool:
        """Whether the training was ended from here."""
        return self._left <= 0

    def start(self) -> None:
        """Attach, after the sensor that times the step: it is told of the last one too."""
        self._handles.append(register_optimizer_step_post_hook(self._after))

    def stop(self) -> None:
        """Detach."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def note_step(self) -> None:
        """A step of an engine that hides its optimizer (``run.step()``) ended."""
        self.stop()  # from now on the user's calls alone count, as for the clock
        self._left -= 1
        self._leave()

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._first is None:
            own = self._sensor.own()
            if own and optimizer not in own:
                return  # of another model, which may step on some ranks only
            self._first = weakref.ref(optimizer)
        if self._first() is not optimizer:
            return  # one of several, as in a GAN: the first one counts
        self._left -= 1
        if not in_backward_pass():
            self._leave()
        elif self.was_reached and len(self._handles) == 1:
            model = self._model()
            if model is not None:
                self._handles.append(model.register_forward_pre_hook(lambda *_: self._leave()))

    def _leave(self) -> None:
        if self.was_reached:
            raise SystemExit(0)
