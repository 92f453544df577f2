"""Where one optimizer step ends and the next begins, and what is no step.

Pure bookkeeping: every method takes the time it happened at. The sensors (``loaders.py``,
``root.py``, ``optimizers.py``) call in; finished records go out through a :class:`Sink`.

Rules
    * A step ends at the last optimizer call of its iteration. Several calls without a new batch
      in between (a GAN's two optimizers, ZeRO's inner optimizer, one optimizer per parameter) are
      one step.
    * A step is closed when new work starts, so that trailing calls still belong to it.
    * A forward in eval mode opens a phase "eval", from the start of the pass that fed it; phases
      are no part of any step. Where a backward and an update follow it, the loop trains in eval
      mode (frozen BatchNorm), and from then on only forwards without gradient are evaluation.
    * The training loader is the one that yielded before a step. An epoch is one pass over it. It
      closes at the next start of any pass, not at StopIteration: trainers that prefetch see the
      end of the data before their last steps.
"""

from typing import Any, Protocol

from scaledl.capture.epochs import EpochBook
from scaledl.capture.loaders import Pass
from scaledl.capture.tensors import batch_size_of
from scaledl.records import EpochRecord, PhaseRecord, Progress, StepRecord

# Forwards after a step's end and before a new batch (a GAN on one batch) that still belong to it.
# An iterator that is kept but no longer used must not hold the count for ever.
_ROUNDS_ON_ONE_BATCH = 32
_NO_STEP_S = 60.0


class Sink(Protocol):
    """Takes what the clock finished. Called on the training thread."""

    def on_step(self, step: StepRecord) -> None: ...
    def on_phase(self, phase: PhaseRecord) -> None: ...
    def on_epoch(self, epoch: EpochRecord) -> None: ...
    def on_guess(self, key: str, text: str) -> None: ...


class StepClock:
    """Turns the sensors' events into steps, phases and epochs.

    Args:
        sink: Takes the finished records.
        now_s: The time at which the block was entered.
        initial_step: Steps done before this process (resume).
        steps_per_epoch: As the user says; a seen loader's true end wins over it.
        loader_key: ``id`` of the loader that the user named, if any.
        host_parts: Whether the host's times of forward and backward are the true ones (CPU).
        exposed_parts: Whether communication is waited for at the end of the backward alone (DDP);
            FSDP waits inside forward and backward, which only a profiled step tells apart.
    """

    def __init__(
        self,
        sink: Sink,
        now_s: float,
        *,
        rank: int = 0,
        initial_step: int = 0,
        steps_per_epoch: int | None = None,
        loader_key: int | None = None,
        host_parts: bool = True,
        exposed_parts: bool = True,
    ) -> None:
        self._sink = sink
        self._entered_s = now_s
        self._stepped = False
        self._exposed_parts = exposed_parts
        self._host_parts = host_parts
        self._loader_key = loader_key
        self._book = EpochBook(now_s, rank, initial_step, steps_per_epoch)
        self.step = initial_step
        self.sampled = False
        self._manual_steps = False
        self._manual_epochs = False
        self._seen_work = False
        self._saw_forward = False
        # the running step
        self._boundary_s = now_s
        self._ended_s: float | None = None
        self._calls = 0
        self._rounds = 0
        self._input_wait_s = 0.0
        self._forward_s = 0.0
        self._backward_s = 0.0
        self._exposed_s = 0.0
        self._optimizer_s = 0.0
        self._optimizer_calls: list[tuple[float, float]] = []  # (start, optimizer time before it)
        self._excluded_s = 0.0
        self._micro = 0
        self._saw_backward = False
        self._ever_backward = False
        # passes and phases
        self._passes: list[Pass] = []
        self._last_feed: Pass | None = None
        self._eval_start_s: float | None = None
        self._eval_end_s = 0.0
        self._eval_pass: Pass | None = None
        self._eval_backward = False
        self._trains_in_eval = False
        self._phase: tuple[str, float] | None = None
        self._phase_depth = 0

    # --- loader passes ------------------------------------------------------------------------

    def on_pass_start(self, this: Pass) -> None:
        self._begin_work(this.started_s)
        self._close_step()
        feeding = self._book.feeding
        if feeding is not None and feeding.has_ended and not self._manual_epochs:
            self._close_epoch(this.started_s)
        if self._phase is not None:
            this.is_eval = True
        self._passes = [p for p in self._passes if p.is_open or p is self._book.feeding][-8:]
        self._passes.append(this)

    def on_fetch(self, this: Pass, start_s: float) -> None:
        if this.is_eval:
            return
        self._close_step()
        if not self._stepped and start_s - self._entered_s > _NO_STEP_S:
            self._sink.on_guess(
                "no-step",
                f"no optimizer step seen for {_NO_STEP_S:.0f} s. If your engine steps by itself "
                "(DeepSpeed, Megatron), call run.step() after it.",
            )
        if self._eval_start_s is not None and this.num_batches:
            self._close_eval(start_s)

    def on_batch(self, this: Pass, start_s: float, end_s: float, batch: Any) -> None:
        if this.num_batches == 0 and this.batch_size is None:
            this.batch_size = batch_size_of(batch)
        if this not in self._passes:
            self._passes.append(this)
        this.num_batches += 1
        this.fresh += 1
        if self._phase is None:  # else the phase holds the wait
            this.wait_s += end_s - start_s

    def on_pass_end(self, this: Pass, start_s: float, end_s: float) -> None:
        this.is_open = False
        this.has_ended = True
        if this.is_eval:
            self._eval_end_s = max(self._eval_end_s, end_s)
            return
        if self._phase is None:
            this.wait_s += end_s - start_s
        feeding = self._book.feeding
        if feeding is not None and feeding is not this:
            feeding.partner_ended = True

    # --- forward, backward, optimizer -----------------------------------------------------------

    def on_forward_begin(self, start_s: float, *, training: bool) -> None:
        """A forward of the tracked module begins; the step before it ends where no loader tells."""
        if self._phase is not None or self._ended_s is None:
            return
        training = training or self._trains_in_eval
        if not training or not self._has_training_pass():
            self._close_step()
            return
        self._rounds += 1
        if self._rounds > _ROUNDS_ON_ONE_BATCH:
            self._drop_idle_passes()

    def on_forward(self, start_s: float, end_s: float, *, training: bool, with_grad: bool) -> None:
        """One forward of the tracked module, told at its end."""
        if self._phase is not None:
            return
        self._begin_work(start_s)
        training = training or (with_grad and self._trains_in_eval)
        if not training or (not with_grad and self._is_fed_by_other()):
            self._on_eval_forward(start_s, end_s)
            return
        if self._eval_start_s is not None:
            self._take_back_first_batch()
            self._close_eval(start_s)
        self._forward_s += end_s - start_s
        if with_grad:
            self._saw_forward = True
            self._micro += 1
        for this in self._passes:
            if this.fresh and not this.is_eval:
                this.trains = this.trains or with_grad
                self._input_wait_s += this.wait_s
                this.wait_s = 0.0

    def on_backward(self, compute_s: float, exposed_s: float) -> None:
        """One backward: its compute and the wait for communication after it."""
        self._ever_backward = True
        if self._eval_start_s is not None:
            self._eval_backward = True
            return
        self._saw_backward = True
        self._backward_s += compute_s
        self._exposed_s += exposed_s

    def on_optimizer(self, start_s: float, end_s: float) -> None:
        """One optimizer call; a call around another one is told after it, with an earlier start."""
        if self._phase is not None:
            return
        self._begin_work(start_s)
        if self._eval_start_s is not None and self._eval_backward:
            self._was_training()
        if self._is_only_signal() and self._ended_s is not None and start_s >= self._ended_s:
            self._close_step()
        self._add_optimizer_time(start_s, end_s)
        if self._manual_steps:
            return
        if self._ended_s is not None:
            self._ended_s = end_s
            self._calls += 1
        elif self._is_new_work():
            self._ended_s = end_s
            self._calls, self._rounds = 1, 0

    def _add_optimizer_time(self, start_s: float, end_s: float) -> None:
        before = self._optimizer_calls
        total_s = self._optimizer_s
        while before and before[-1][0] >= start_s:  # calls inside this one are in its time
            total_s = before.pop()[1]
        if len(before) > 64:
            del before[:32]
        before.append((start_s, total_s))
        self._optimizer_s = total_s + end_s - start_s

    def on_manual_step(self, now_s: float) -> None:
        """``run.step()``: the user says that a step ended here."""
        if not self._manual_steps:
            self._manual_steps = True
            self._sink.on_guess("steps", "steps are counted by run.step() from here on.")
        self._begin_work(now_s)
        self._ended_s = now_s
        self._close_step()

    def on_manual_epoch(self, now_s: float) -> None:
        """``run.epoch_end()``: the user says that an epoch ended here."""
        self._manual_epochs = True
        self._close_step()
        if self._eval_start_s is not None:
            self._close_eval(now_s)
        self._close_epoch(now_s, whole=True)

    def on_phase_start(self, kind: str, now_s: float) -> None:
        """A phase the user names begins; the running step and evaluation close before it.

        A phase inside a phase belongs to the outer one.
        """
        self._phase_depth += 1
        if self._phase is not None:
            return
        self._begin_work(now_s)
        self._close_step()
        if self._eval_start_s is not None:
            self._close_eval(now_s)
        self._phase = (kind, now_s)

    def on_phase_end(self, now_s: float) -> None:
        self._phase_depth = max(0, self._phase_depth - 1)
        if self._phase is None or self._phase_depth:
            return
        kind, start_s = self._phase
        self._phase = None
        self._emit_phase(kind, start_s, now_s)
        self._passes = [p for p in self._passes if not p.is_eval]

    def stop(self, now_s: float) -> None:
        """The block ends: close what is open."""
        self._close_step()
        if self._phase is not None:
            self._phase_depth = 0
            self.on_phase_end(now_s)
        if self._eval_start_s is not None:
            self._close_eval(now_s)
        self._close_epoch(now_s if self._manual_epochs else self._last_s(), cut=True)

    # --- what is known -------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._book.epoch

    @property
    def batch_size(self) -> int | None:
        """Samples in one batch of the training loader, on this rank."""
        this = self._last_feed
        return this.batch_size if this is not None else None

    def epoch_samples(self, world_size: int) -> int | None:
        """Samples of one epoch over all ranks; ``None`` where the loader does not tell.

        The data set's size where the loader's length fits it being split over the ranks, else (a
        sampler of its own, or every rank walks everything) what the passes really hold.
        """
        this = self._last_feed
        if this is None or not this.length or not this.batch_size:
            return None
        if this.num_samples is not None:
            share = this.num_samples / world_size / this.batch_size
            if share - 1 < this.length < share + 1 + 1 / this.batch_size:
                return this.num_samples
        return this.length * this.batch_size * world_size

    @property
    def walks_all_samples(self) -> bool:
        """Whether one pass of this rank's loader covers the whole data set."""
        this = self._last_feed
        if this is None or not this.length or not this.batch_size or not this.num_samples:
            return False
        return this.length * this.batch_size >= this.num_samples

    @property
    def drop_last(self) -> bool:
        """Whether the training loader drops an incomplete batch."""
        return self._last_feed is not None and self._last_feed.drop_last

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps of one epoch, as far as known."""
        return self._book.steps_per_epoch(self.step)

    @property
    def grad_accum(self) -> int:
        """Batches per step as seen."""
        return max(1, round(self._book.batches_per_step(self.step)))

    @property
    def model_ran(self) -> bool | None:
        """Whether a backward of the model was seen since the last step; ``None``: never one."""
        return (self._saw_backward or self._eval_backward) if self._ever_backward else None

    @property
    def boundary_s(self) -> float:
        """When the last step ended."""
        return self._boundary_s

    def progress(self, num_epochs: int | None, total_steps: int | None) -> Progress:
        """Where the run stands."""
        return self._book.progress(self.step, num_epochs, total_steps)

    # --- inside --------------------------------------------------------------------------------

    def _last_s(self) -> float:
        return max(self._boundary_s, self._eval_end_s)

    def _begin_work(self, now_s: float) -> None:
        if not self._seen_work:
            # Set-up between the block's start and the loop is no part of the first step.
            self._seen_work = True
            self._boundary_s = now_s
            self._book.start_s = now_s

    def _fresh(self) -> int:
        return sum(p.fresh for p in self._passes if not p.is_eval)

    def _has_training_pass(self) -> bool:
        return any(p.is_open and p.num_batches and not p.is_eval for p in self._passes)

    def _is_only_signal(self) -> bool:
        """Whether nothing but the optimizer is seen: a compiled step fed from a list."""
        return not self._saw_forward and not self._passes

    def _is_fed_by_other(self) -> bool:
        feeding = self._book.feeding
        if feeding is None or feeding.fresh:
            return False
        return any(p.fresh and p is not feeding for p in self._passes)

    def _candidate(self) -> Pass | None:
        """The pass that feeds the training: named by the user, else the oldest that yielded."""
        fed = [p for p in self._passes if p.num_batches and not p.is_eval]
        named = [p for p in fed if p.explicit or p.key == self._loader_key]
        pool = named or fed
        fresh = [p for p in pool if p.fresh]
        feeding = self._book.feeding
        if feeding is not None and feeding in (fresh or pool):
            # One that was dropped before its end (zip, break) may hold a batch that trains nothing.
            if not fresh or feeding.is_open or feeding.has_ended:
                return feeding
            fresh = [p for p in fresh if p is not feeding] or fresh
        last = fresh[:1] or pool[-1:]
        return last[0] if last else None

    def _is_new_work(self) -> bool:
        """Whether anything happened since the boundary that makes an optimizer call a step."""
        if self._fresh():
            return True
        # No batch: either no loader feeds (lists of tensors, compiled steps), or the data ended
        # before the last steps (prefetch).
        return self._micro > 0 or self._saw_backward or not self._saw_forward

    def _drop_idle_passes(self) -> None:
        self._passes = [p for p in self._passes if p.is_eval]
        self._book.feeding = None
        self._close_step(self._calls)

    def _on_eval_forward(self, start_s: float, end_s: float) -> None:
        self._close_step()
        feeding = self._book.feeding
        fed = [p for p in self._passes if p.fresh and not p.trains and p is not feeding][-1:]
        if self._eval_start_s is None:
            starts = [p.started_s for p in fed if p.started_s >= self._boundary_s]
            self._eval_start_s = min([start_s, *starts])
            self._eval_backward = False
        for this in fed:
            this.is_eval = True
            self._eval_pass = this
        for this in self._passes:
            if this.is_eval:
                this.fresh, this.wait_s = 0, 0.0
        self._eval_end_s = end_s

    def _take_back_first_batch(self) -> None:
        """The first training batch went through the model in eval mode first (pseudo-labels)."""
        this, last = self._eval_pass, self._last_feed
        if this is None or not this.is_open or self._fresh():
            return
        if last is None or last.key == this.key:
            this.is_eval, this.fresh = False, 1

    def _was_training(self) -> None:
        """What began as an evaluation was the training, in eval mode."""
        self._trains_in_eval = self._saw_backward = True
        self._eval_start_s, self._eval_backward = None, False
        if self._eval_pass is not None:
            self._eval_pass.is_eval, self._eval_pass.fresh = False, 1

    def _close_eval(self, now_s: float) -> None:
        start_s, self._eval_start_s = self._eval_start_s, None
        self._eval_pass, self._eval_backward = None, False
        if start_s is not None:
            self._emit_phase("eval", start_s, max(start_s, min(self._eval_end_s, now_s)))
        self._passes = [p for p in self._passes if p.is_open or not p.is_eval]

    def _emit_phase(self, kind: str, start_s: float, end_s: float) -> None:
        duration_s = max(0.0, end_s - start_s)
        self._excluded_s += duration_s
        self._book.exclude(start_s, duration_s)
        self._sink.on_phase(
            PhaseRecord(
                kind=kind,
                at_s=start_s,
                duration_s=duration_s,
                after_step=self.step,
                epoch=self._book.epoch,
            )
        )

    def _close_step(self, count: int = 1) -> None:
        """End the running step; ``count`` steps that were taken for one share its time."""
        end_s = self._ended_s
        if end_s is None:
            return
        self._ended_s = None
        this = self._candidate()
        samples = self._take_batches(this) if this is not None else 0
        records = [self._record(end_s, samples, count) for _ in range(count)]
        self._boundary_s = end_s
        self._input_wait_s = self._forward_s = self._backward_s = 0.0
        self._exposed_s = self._optimizer_s = self._excluded_s = 0.0
        self._optimizer_calls.clear()
        self._micro = 0
        self._saw_backward = False
        for record in records:
            self._sink.on_step(record)
        full = (this is None or self._book.is_sampled) and self._book.is_full(self.step)
        if full and not self._manual_epochs:
            self._close_epoch(end_s)

    def _record(self, end_s: float, samples: int, count: int) -> StepRecord:
        self.step += 1
        self._stepped = True
        wall_s = max(0.0, end_s - self._boundary_s - self._excluded_s) / count
        forward = self._host_parts and self._micro > 0
        backward = self._host_parts and self._saw_backward
        left_s = wall_s
        parts_s = []
        for part_s in (
            self._input_wait_s,
            self._forward_s if forward else 0.0,
            self._backward_s if backward else 0.0,
            self._exposed_s if backward else 0.0,
            # last: a closure (LBFGS) runs forwards and backwards inside the optimizer's call
            self._optimizer_s,
        ):
            parts_s.append(min(part_s / count, left_s))
            left_s -= parts_s[-1]
        return StepRecord(
            step=self.step,
            epoch=self._book.epoch,
            wall_s=wall_s,
            input_wait_s=parts_s[0],
            forward_s=parts_s[1] if forward else None,
            backward_s=parts_s[2] if backward else None,
            comm_exposed_s=parts_s[3] if backward and self._exposed_parts else None,
            optimizer_s=parts_s[4],
            num_micro_batches=max(1, self._micro // count),
            num_samples=samples or None,
            tags=("sampled",) if self.sampled else (),
        )

    def _take_batches(self, this: Pass) -> int:
        """Book the batches of a step that just ended; open the epoch of a new training pass.

        Returns the samples of the step, 0 where the batch size is unknown.
        """
        book = self._book
        if book.feeding is not this and not book.goes_on_with(this, self.step):
            if book.feeding is not None and not self._manual_epochs:
                self._close_epoch(this.started_s)
            self._passes = [p for p in self._passes if p is this or p.is_open]
            book.begin(this, self.step)
            self._last_feed = this
            self._tell_loader(this)
        for other in self._passes:
            if not other.is_eval:
                self._input_wait_s += other.wait_s
                other.wait_s = 0.0
                if other is not this:
                    other.fresh = 0
        this.partner_ended = False
        batches, this.fresh = this.fresh, 0
        if self._micro and not this.has_ended and batches == self._micro + 1:
            # A prefetching trainer holds one batch back for its next step.
            this.fresh, batches = 1, self._micro
        samples = batches * (this.batch_size or 0)
        book.add_step(self.step + 1, batches, samples)
        return samples

    def _tell_loader(self, this: Pass) -> None:
        length = "of unknown length" if this.length is None else f"of {this.length} batches"
        self._sink.on_guess(
            "epoch",
            f"an epoch is one pass over the training loader, {length}. "
            "Pass loader= or steps_per_epoch= if that is not so.",
        )

    def _close_epoch(self, end_s: float, *, cut: bool = False, whole: bool = False) -> None:
        record = self._book.close(self.step, end_s, cut=cut, whole=whole)
        if record is not None:
            self._sink.on_epoch(record)
