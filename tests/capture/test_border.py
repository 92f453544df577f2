"""What the border does with events of short steps."""

import gc
import weakref
from typing import Any

import torch

from scaledl.capture.border import Border
from scaledl.capture.loaders import Pass


class Ear:
    """A clock that notes what it hears and when; ``live``: whether it was told of now."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []
        self.border: Border

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.heard.append((name, self.border.is_live))


def border_of(ear: Ear) -> Border:
    errors: list[Exception] = []
    border = Border(ear, errors.append)  # type: ignore[arg-type]
    ear.border = border
    return border


def make_pass() -> Pass:
    this = Pass([], 0.0)
    this.batch_size = 8
    return this


def one_step(border: Border, this: Pass, now_s: float) -> None:
    border.on_fetch(this, now_s)
    border.on_batch(this, now_s, now_s, None)
    border.on_forward_begin(now_s, training=True)
    border.on_forward(now_s, now_s, training=True, with_grad=True)
    border.on_optimizer(now_s, now_s)


def test_held_events_are_played_after_so_many_updates_however_long_a_step_takes() -> None:
    for step_s in (0.0001, 0.01, 0.09):
        ear = Ear()
        border, this = border_of(ear), make_pass()
        border.hold(0.0, 5)
        for index in range(5):
            one_step(border, this, index * step_s)
        assert ear.heard == []
        border.on_fetch(this, 5 * step_s)
        assert len(ear.heard) == 26
        assert [live for _, live in ear.heard] == [False] * 25 + [True]


def test_a_long_wait_ends_the_hold_at_the_next_start() -> None:
    ear = Ear()
    border, this = border_of(ear), make_pass()
    border.hold(0.0, 1000)
    one_step(border, this, 0.5)
    one_step(border, this, 2.0)
    assert [name for name, live in ear.heard if live] == ["on_fetch", "on_forward_begin"]


def test_what_the_user_calls_comes_after_what_was_held() -> None:
    ear = Ear()
    border = border_of(ear)
    border.hold(0.0, 1000)
    one_step(border, make_pass(), 0.1)
    border.call(lambda: ear.heard.append(("call", border.is_live)))
    assert ear.heard[-1] == ("call", True)
    assert len(ear.heard) == 6


def test_a_held_batch_is_not_kept_alive() -> None:
    border, this = border_of(Ear()), Pass([], 0.0)
    border.hold(0.0, 1000)
    batch = torch.zeros(3, 2)
    gone = weakref.ref(batch)
    border.on_batch(this, 0.0, 0.0, batch)
    del batch
    gc.collect()
    assert gone() is None
    assert this.batch_size == 3
