"""The step clock alone: events in, records out, for loops of every shape."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import Book, VirtualTime

from scaledl.capture.clock import StepClock
from scaledl.capture.loaders import Pass


class _Loader:
    def __init__(self, length: int | None, batch_size: int = 4) -> None:
        self.length, self.batch_size = length, batch_size

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError
        return self.length


class Driver(Book):
    """Plays the sensors' part: fetches, forwards, backwards, updates of random durations."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__()
        self.time = VirtualTime()
        self.clock = StepClock(self, self.time(), **options)
        self._random = random.Random(seed)

    def spend(self, scale_s: float = 1.0) -> float:
        took_s = self._random.expovariate(1.0) * scale_s
        self.time.spend(took_s)
        return took_s

    def open(self, loader: _Loader) -> Pass:
        this = Pass(loader, self.time())
        self.clock.on_pass_start(this)
        return this

    def fetch(self, this: Pass) -> None:
        start_s = self.time()
        self.clock.on_fetch(this, start_s)
        self.spend()
        self.clock.on_batch(this, start_s, self.time())

    def end(self, this: Pass) -> None:
        start_s = self.time()
        self.clock.on_fetch(this, start_s)
        self.spend(0.1)
        self.clock.on_pass_end(this, start_s, self.time())

    def forward(self, *, training: bool = True, with_grad: bool = True) -> None:
        start_s = self.time()
        self.clock.on_forward_begin(start_s, training=training)
        self.spend()
        self.clock.on_forward(start_s, self.time(), training=training, with_grad=with_grad)

    def backward(self) -> None:
        compute_s, exposed_s = self.spend(), self.spend(0.3)
        self.clock.on_backward(compute_s, exposed_s)

    def update(self) -> None:
        start_s = self.time()
        self.spend(0.2)
        self.clock.on_optimizer(start_s, self.time())

    def evaluate(self, num_batches: int) -> None:
        this = self.open(_Loader(num_batches))
        for _ in range(num_batches):
            self.fetch(this)
            self.forward(training=False, with_grad=False)
        self.end(this)
        this.is_open = False


@dataclass(frozen=True)
class Shape:
    """One kind of training loop."""

    batches: int
    epochs: int
    accumulate: int
    skip_every: int  # the scaler drops this update, 0: none
    eval_every: int  # batches, 0: after each epoch only
    eval_batches: int
    prefetch: bool
    phase_every: int
    known_length: bool
    seed: int

    def run(self) -> Driver:
        driver = Driver(self.seed)
        loader = _Loader(self.batches if self.known_length else None)
        for _ in range(self.epochs):
            this = driver.open(loader)
            if self.prefetch:
                driver.fetch(this)
            for index in range(1, self.batches + 1):
                if not self.prefetch or index < self.batches:
                    driver.fetch(this)
                else:
                    driver.end(this)
                driver.forward()
                driver.backward()
                if self.phase_every and index % self.phase_every == 0:
                    driver.clock.on_phase_start("rollout", driver.time())
                    driver.spend(3.0)
                    driver.clock.on_phase_end(driver.time())
                last = index == self.batches
                if index % self.accumulate and not last:
                    continue
                if not (self.skip_every and index % self.skip_every == 0):
                    driver.update()
                if self.eval_every and index % self.eval_every == 0 and not last:
                    driver.evaluate(self.eval_batches)
            if not self.prefetch:
                driver.end(this)
            this.is_open = False
            driver.evaluate(self.eval_batches)
        driver.clock.stop(driver.time())
        return driver

    @property
    def updates(self) -> int:
        return sum(
            not (self.skip_every and index % self.skip_every == 0)
            for index in range(1, self.batches + 1)
            if index % self.accumulate == 0 or index == self.batches
        )


shapes = st.builds(
    Shape,
    batches=st.integers(2, 12),
    epochs=st.integers(1, 3),
    accumulate=st.integers(1, 4),
    skip_every=st.sampled_from([0, 0, 3]),
    eval_every=st.sampled_from([0, 2, 3]),
    eval_batches=st.integers(1, 3),
    prefetch=st.booleans(),
    phase_every=st.sampled_from([0, 0, 1, 4]),
    known_length=st.booleans(),
    seed=st.integers(0, 1000),
)


@given(shapes)
def test_E30_parts_of_a_step_never_exceed_its_wall_time(shape: Shape):
    for step in shape.run().steps:
        assert step.forward_s is not None
        assert step.backward_s is not None
        parts_s = (
            step.input_wait_s
            + step.forward_s
            + step.backward_s
            + (step.comm_exposed_s or 0.0)
            + step.optimizer_s
        )
        assert parts_s <= step.wall_s * (1 + 1e-9) + 1e-9


@given(shapes)
def test_steps_and_phases_account_for_all_time(shape: Shape):
    driver = shape.run()
    last_s = driver.clock.boundary_s
    trailing_s = sum(p.duration_s for p in driver.phases if p.at_s >= last_s)
    assert driver.accounted_s == pytest.approx(last_s - 1000.0 + trailing_s, rel=1e-9, abs=1e-9)


@given(shapes)
def test_E06_batches_add_up_to_those_that_were_fetched(shape: Shape):
    driver = shape.run()
    if shape.updates:
        assert driver.batches_by_epoch == [shape.batches] * shape.epochs


@given(shapes)
def test_every_update_is_one_step_of_the_right_epoch(shape: Shape):
    driver = shape.run()
    assert driver.steps_by_epoch == [shape.updates] * (shape.epochs if shape.updates else 0)
    assert [s.step for s in driver.steps] == list(range(1, shape.updates * shape.epochs + 1))
    assert all(epoch.complete for epoch in driver.epochs)


@given(shapes)
def test_epochs_hold_the_steps_and_their_train_time(shape: Shape):
    driver = shape.run()
    for epoch in driver.epochs:
        walls = [s.wall_s for s in driver.steps if s.epoch == epoch.epoch]
        assert len(walls) == epoch.num_steps
        if epoch.epoch == 0:
            assert epoch.train_s >= sum(walls) * (1 - 1e-9)
        assert 0.0 <= epoch.train_s <= epoch.duration_s


@given(shapes)
def test_E14_planned_total_is_right_after_one_epoch_and_reached_once(shape: Shape):
    driver = shape.run()
    if not shape.updates:
        return
    progress = driver.clock.progress(shape.epochs, None)
    assert progress.total_steps == shape.updates * shape.epochs == progress.step
    assert progress.epoch == shape.epochs


@given(st.integers(0, 400), st.integers(1, 50), st.integers(1, 20))
def test_E01_resume_never_counts_steps_that_were_not_seen(initial: int, batches: int, epochs: int):
    driver = Driver(initial_step=initial)
    this = driver.open(_Loader(batches))
    for _ in range(batches):
        driver.fetch(this)
        driver.forward()
        driver.backward()
        driver.update()
    driver.end(this)
    progress = driver.clock.progress(epochs, None)
    assert progress.first_step == initial
    assert progress.step == initial + batches
    assert len(driver.steps) == batches
    assert progress.epoch == initial // batches
    assert progress.total_steps == epochs * batches  # also where it lies behind


@given(st.integers(1, 9), st.integers(1, 9))
def test_last_batch_and_trailing_calls_belong_to_their_step(num_updates: int, num_steps: int):
    driver = Driver()
    this = driver.open(_Loader(num_steps))
    for _ in range(num_steps):
        driver.fetch(this)
        driver.forward()
        driver.backward()
        for _ in range(num_updates):
            driver.update()
    driver.clock.stop(driver.time())
    assert len(driver.steps) == num_steps
    assert driver.accounted_s == pytest.approx(driver.time() - 1000.0)


def test_sampled_steps_are_tagged():
    driver = Driver()
    driver.clock.sampled = True
    this = driver.open(_Loader(2))
    driver.fetch(this)
    driver.forward()
    driver.update()
    driver.fetch(this)
    driver.clock.sampled = False
    driver.forward()
    driver.update()
    driver.clock.stop(driver.time())
    assert [s.tags for s in driver.steps] == [("sampled",), ()]


def test_device_run_leaves_host_times_of_forward_and_backward_unknown():
    driver = Driver(host_parts=False)
    driver.forward()
    driver.backward()
    driver.update()
    driver.clock.stop(driver.time())
    (step,) = driver.steps
    assert (step.forward_s, step.backward_s, step.comm_exposed_s) == (None, None, None)
    assert step.wall_s > 0


def test_fsdp_run_leaves_exposed_communication_unknown():
    driver = Driver(exposed_parts=False)
    driver.forward()
    driver.backward()
    driver.update()
    driver.clock.stop(driver.time())
    assert driver.steps[0].comm_exposed_s is None
    assert driver.steps[0].backward_s is not None


def test_forwards_that_train_nothing_make_no_step():
    driver = Driver()
    for _ in range(3):
        driver.forward(training=False, with_grad=False)
    driver.clock.stop(driver.time())
    assert driver.steps == []
    assert driver.epochs == []
    assert [p.kind for p in driver.phases] == ["eval"]


def test_E10_unknown_total_is_none():
    driver = Driver()
    this = driver.open(_Loader(None))
    driver.fetch(this)
    driver.forward()
    driver.update()
    driver.clock.stop(driver.time())
    progress = driver.clock.progress(5, None)
    assert (progress.total_steps, progress.limited_by) == (None, None)


@pytest.mark.parametrize(("steps", "said"), [(False, True), (True, False)])
def test_a_minute_without_a_step_is_said_and_only_then(steps: bool, said: bool) -> None:
    driver = Driver()
    this = driver.open(_Loader(500))
    for _ in range(100):
        driver.fetch(this)
        driver.forward()
        if steps:
            driver.update()
    assert driver.time() > 100
    assert any(key == "no-step" for key, _ in driver.guesses) is said
