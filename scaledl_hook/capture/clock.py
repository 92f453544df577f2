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

from typing import Protocol

from scaledl.capture.epochs import EpochBook
from scaledl.capture.evaluation import Evaluation
from scaledl.capture.feeds import Feeds
from scaledl.capture.loaders import Pass
from scaledl.capture.running import RunningStep
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
        self._book = EpochBook(now_s, rank, initial_step, steps_per_epoch)
        self.feeds = Feeds(self._book, loader_key)
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
        self._running = RunningStep()
        self._ever_backward = False
        # phases
        self._evaluation = Evaluation(self.feeds)
        self._trains_in_eval = False
        self._phase: tuple[str, float] | None = None
        self._phase_depth = 0
        self._phase_end_s = 0.0

    # --- loader passes ------------------------------------------------------------------------

    def on_pass_start(self, this: Pass) -> None:
        self._begin_work(this.started_s)
        self._close_step()
        self._close_unseen(this.started_s)
        feeding = self._book.feeding
        if feeding is not None and feeding.has_ended and not self._manual_epochs:
            self._close_epoch(this.started_s)
        if self._phase is not None:
            this.is_eval = True
        self.feeds.begin(this)

    def on_fetch(self, this: Pass, start_s: float) -> None:
        if this.is_eval:
            return
        self._close_step()
        if self.feeds.passes[-1:] != [this]:
            self._close_unseen(start_s)
        if not self._stepped and start_s - self._entered_s > _NO_STEP_S:
            self._sink.on_guess(
                "no-step",
                f"no optimizer step seen for {_NO_STEP_S:.0f} s. If your engine steps by itself "
                "(DeepSpeed, Megatron), call run.step() after it.",
            )
        if self._evaluation.is_open and this.num_batches:
            self._close_eval(start_s)

    def on_batch(
        self, this: Pass, start_s: float, end_s: float, rows: int = 0, size: int = 0
    ) -> None:
        self.feeds.see(this)
        this.take(rows, size)
        if self._phase is None:  # else the phase holds the wait
            this.wait_s += end_s - start_s

    def on_pass_end(self, this: Pass, start_s: float, end_s: float) -> None:
        this.is_open = False
        this.has_ended = True
        if this.is_eval:
            self._evaluation.end_s = max(self._evaluation.end_s, end_s)
            return
        if self._phase is None:
            this.wait_s += end_s - start_s
        feeding = self._book.feeding
        if feeding is not None and feeding is not this:
            feeding.partner_ended = True
        self._close_unseen(end_s)

    # --- forward, backward, optimizer -----------------------------------------------------------

    def on_forward_begin(self, start_s: float, training: bool) -> None:
        """A forward of the tracked module begins; the step before it ends where no loader tells."""
        if self._phase is not None or self._ended_s is None:
            return
        training = training or self._trains_in_eval
        if not training or not self.feeds.has_training():
            self._close_step()
            return
        self._rounds += 1
        if self._rounds > _ROUNDS_ON_ONE_BATCH:
            self._drop_idle_passes()

    def on_forward(self, start_s: float, end_s: float, training: bool, with_grad: bool) -> None:
        """One forward of the tracked module, told at its end."""
        if self._phase is not None:
            return
        self._begin_work(start_s)
        training = training or (with_grad and self._trains_in_eval)
        if not training or (not with_grad and self.feeds.is_fed_by_other()):
            self._on_eval_forward(start_s, end_s)
            return
        if self._evaluation.is_open:
            self._evaluation.give_back_first_batch()
            self._close_eval(start_s)
        self._running.forward_s += end_s - start_s
        if with_grad:
            self._saw_forward = True
            self._running.micro += 1
        for this in self.feeds.passes:
            if this.fresh and not this.is_eval:
                this.trains = this.trains or with_grad
                self._running.input_wait_s += this.wait_s
                this.wait_s = 0.0

    def on_backward(self, compute_s: float, exposed_s: float) -> None:
        """One backward: its compute and the wait for communication after it."""
        self._ever_backward = True
        if self._evaluation.is_open:
            self._evaluation.saw_backward = True
            return
        self._running.saw_backward = True
        self._running.backward_s += compute_s
        self._running.exposed_s += exposed_s

    def on_optimizer(self, start_s: float, end_s: float) -> None:
        """One optimizer call; a call around another one is told after it, with an earlier start."""
        if self._phase is not None:
            return
        self._begin_work(start_s)
        if self._evaluation.is_open and self._evaluation.saw_backward:
            self._was_training()
        if self._is_only_signal() and self._ended_s is not None and start_s >= self._ended_s:
            self._close_step()
        self._running.add_optimizer(start_s, end_s)
        if self._manual_steps:
            return
        if self._ended_s is not None:
            self._ended_s = end_s
            self._calls += 1
        elif self._is_new_work():
            self._ended_s = end_s
            self._calls, self._rounds = 1, 0

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
        if self._evaluation.is_open:
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
        if self._evaluation.is_open:
            self._close_eval(now_s)
        self._phase = (kind, now_s)

    def on_phase_end(self, now_s: float) -> None:
        self._phase_depth = max(0, self._phase_depth - 1)
        if self._phase is None or self._phase_depth:
            return
        kind, start_s = self._phase
        self._phase = None
        self._emit_phase(kind, start_s, now_s)
        self._phase_end_s = now_s
        self.feeds.drop_evaluations()

    def stop(self, now_s: float) -> None:
        """The block ends: close what is open."""
        self._close_step()
        if self._phase is not None:
            self._phase_depth = 0
            self.on_phase_end(now_s)
        if self._evaluation.is_open:
            self._close_eval(now_s)
        self._close_epoch(now_s if self._manual_epochs else self._last_s(), cut=True)

    # --- what is known -------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._book.epoch

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
        return (
            (self._running.saw_backward or self._evaluation.saw_backward)
            if self._ever_backward
            else None
        )

    @property
    def boundary_s(self) -> float:
        """When the last step ended."""
        return self._boundary_s

    def progress(self, num_epochs: int | None, total_steps: int | None) -> Progress:
        """Where the run stands."""
        return self._book.progress(self.step, num_epochs, total_steps)

    # --- inside --------------------------------------------------------------------------------

    def _last_s(self) -> float:
        return max(self._boundary_s, self._evaluation.end_s, self._phase_end_s)

    def _begin_work(self, now_s: float) -> None:
        if not self._seen_work:
            # Set-up between the block's start and the loop is no part of the first step.
            self._seen_work = True
            self._boundary_s = now_s
            self._book.start_s = now_s

    def _is_only_signal(self) -> bool:
        """Whether nothing but the optimizer is seen: a compiled step fed from a list."""
        return not self._saw_forward and not self.feeds.passes

    def _is_new_work(self) -> bool:
        """Whether anything happened since the boundary that makes an optimizer call a step."""
        if self.feeds.fresh():
            return True
        # No batch: either no loader feeds (lists of tensors, compiled steps), or the data ended
        # before the last steps (prefetch).
        return self._running.micro > 0 or self._running.saw_backward or not self._saw_forward

    def _drop_idle_passes(self) -> None:
        self.feeds.drop_training()
        self._close_step(self._calls)

    def _on_eval_forward(self, start_s: float, end_s: float) -> None:
        self._close_step()
        self._evaluation.add_forward(start_s, end_s, self._boundary_s)

    def _was_training(self) -> None:
        """What began as an evaluation was the training, in eval mode."""
        self._trains_in_eval = self._running.saw_backward = True
        self._evaluation.was_training()

    def _close_eval(self, now_s: float) -> None:
        span_s = self._evaluation.close(now_s)
        if span_s is not None:
            self._emit_phase("eval", *span_s)
        self.feeds.drop_closed_evaluations()

    def _close_unseen(self, now_s: float) -> None:
        """End an evaluation whose forwards were not seen; nothing of a step came meanwhile."""
        if self._phase is not None or self._evaluation.is_open or self._running.has_work:
            return
        for this in self.feeds.unused():
            start_s = max(this.started_s, self._boundary_s, self._phase_end_s)
            this.is_eval, this.wait_s = True, 0.0
            this.keep_fresh(0)
            self._emit_phase("eval", start_s, now_s)
            self._phase_end_s = now_s

    def _emit_phase(self, kind: str, start_s: float, end_s: float) -> None:
        duration_s = max(0.0, end_s - start_s)
        self._running.excluded_s += duration_s
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
        this = self.feeds.candidate()
        samples, size = self._take_batches(this) if this is not None else (0, 0)
        records = [self._record(end_s, samples, size // count, count) for _ in range(count)]
        self._boundary_s = end_s
        self._running.clear()
        for record in records:
            self._sink.on_step(record)
        full = (this is None or self._book.is_sampled) and self._book.is_full(self.step)
        if full and not self._manual_epochs:
            self._close_epoch(end_s)

    def _record(self, end_s: float, samples: int, size: int, count: int) -> StepRecord:
        self.step += 1
        self._stepped = True
        return self._running.record(
            end_s - self._boundary_s,
            count,
            step=self.step,
            epoch=self._book.epoch,
            samples=samples,
            size=size,
            sampled=self.sampled,
            host_parts=self._host_parts,
            exposed_parts=self._exposed_parts,
        )

    def _take_batches(self, this: Pass) -> tuple[int, int]:
        """Book the batches of a step that just ended; open the epoch of a new training pass.

        Returns the samples and the elements of the step, 0 where they are unknown.
        """
        book = self._book
        if book.feeding is not this and not book.goes_on_with(this, self.step):
            if book.feeding is not None and not self._manual_epochs:
                self._close_epoch(this.started_s)
            self.feeds.keep_open_or(this)
            book.begin(this, self.step)
            self.feeds.last = this
            self._tell_loader(this)
        self._running.input_wait_s += self.feeds.take_waits()
        for other in self.feeds.passes:
            if other is not this and not other.is_eval:
                other.keep_fresh(0)
        this.partner_ended = False
        batches, rows, size = this.fresh, this.fresh_rows, this.fresh_size
        # A prefetching trainer holds one batch back for its next step.
        held = bool(
            self._running.micro and not this.has_ended and batches == self._running.micro + 1
        )
        this.keep_fresh(int(held))
        batches, rows, size = batches - this.fresh, rows - this.fresh_rows, size - this.fresh_size
        samples = batches * (this.batch_size or 0) if this.fixed_batches or not rows else rows
        book.add_step(self.step + 1, batches, samples)
        return samples, size

    def _tell_loader(self, this: Pass) -> None:
        length = "of unknown length" if this.length is None else f"of {this.length} batches"
        hints = [] if this.explicit or self.feeds.is_named else ["loader="]
        hints += [] if self._book.given else ["steps_per_epoch="]
        hint = f" Pass {' or '.join(hints)} if that is not so." if hints else ""
        self._sink.on_guess(
            "epoch", f"an epoch is one pass over the training loader, {length}.{hint}"
        )

    def _close_epoch(self, end_s: float, *, cut: bool = False, whole: bool = False) -> None:
        record = self._book.close(self.step, end_s, cut=cut, whole=whole)
        if record is not None:
            self._sink.on_epoch(record)
