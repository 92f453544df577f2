"""Sees optimizer steps through torch's public global hooks, one report per ``step()``."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from scaledl.capture.root import in_backward_pass

# Steps of optimizers that hold nothing of the model, after which they are taken for its own where
# no backward of the model is ever seen.
_PATIENCE = 8

_of_a_tracked_model: weakref.WeakSet[Optimizer] = weakref.WeakSet()


class OptimizerSensor:
    """Reports ``on_step(start_s, end_s)`` for optimizers of the tracked model.

    An optimizer counts if it holds a parameter of the model. One that holds none (fp32 master
    copies, but also that of another model) counts until one that does is seen, and only after a
    backward of the model: ``model_ran`` tells. ZeRO and subclasses that call ``super().step()``
    report nested calls; the clock tells them by their times. These hooks must not look whether
    dynamo compiles: a compiled ``opt.step`` runs them eagerly and would be missed.

    Attributes:
        model_ran: Whether a backward of the model was seen since the last step; ``None`` where
            none was ever seen.
        first: Told of the first optimizer that holds a parameter of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        on_step: Callable[[float, float], None],
        clock: Callable[[], float],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._model = weakref.ref(model)
        self._on_step = on_step
        self._clock = clock
        self._on_error = on_error
        self._is_ours: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._seen_ours = False
        self._last: Callable[[], Optimizer | None] = lambda: None
        self._starts_s: list[float] = []
        self._handles: list[Any] = []
        self._strangers = 0
        self.model_ran: Callable[[], bool | None] = lambda: True
        self.first: Callable[[Optimizer], None] | None = None

    @property
    def knows_own(self) -> bool:
        """Whether an optimizer that holds a parameter of the model was seen."""
        return self._seen_ours

    def own(self) -> list[Optimizer]:
        """Those seen so far that hold a parameter of the model."""
        return [optimizer for optimizer, ours in self._is_ours.items() if ours]

    def start(self) -> None:
        """Attach the two global hooks."""
        self._handles.append(register_optimizer_step_pre_hook(self._before))
        self._handles.append(register_optimizer_step_post_hook(self._after))

    def stop(self) -> None:
        """Remove them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._starts_s.append(self._clock())
        if len(self._starts_s) > 16:  # steps that raised left their start behind
            del self._starts_s[:-8]

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            start_s = self._starts_s.pop()
            # The same one again, nearly always: one comparison instead of a lookup.
            if self._last() is optimizer or self._counts(optimizer):
                end_s = self._clock()
                # An optimizer in the backward: its time is in the backward's already.
                self._on_step(end_s if in_backward_pass() else start_s, end_s)
        except Exception as error:
            self._on_error(error)

    def _counts(self, optimizer: Optimizer) -> bool:
        ours = self._is_ours.get(optimizer)
        if ours is None:
            ours = self._is_ours[optimizer] = self._holds_parameter(optimizer)
            self._seen_ours = self._seen_ours or ours
            if ours:
                _of_a_tracked_model.add(optimizer)
            if ours and self.first is not None:
                first, self.first = self.first, None
                first(optimizer)
        if ours:
            self._last = weakref.ref(optimizer)
        if ours or self._seen_ours:
            return ours
        if optimizer in _of_a_tracked_model:
            return False  # of the model of another open block
        ran = self.model_ran()
        if ran is None:
            self._strangers += 1
            return self._strangers > _PATIENCE
        return ran

    def _holds_parameter(self, optimizer: Optimizer) -> bool:
        model = self._model()
        if model is None:
            return False
        known = {id(p) for p in model.parameters()}
        return any(id(p) in known for group in optimizer.param_groups for p in group["params"])
