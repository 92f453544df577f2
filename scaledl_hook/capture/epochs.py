"""Which epoch the run is in, how long an epoch is, and where the run will end."""

from scaledl.capture.loaders import Pass
from scaledl.records import EpochRecord, Progress


class EpochBook:
    """Counts steps and batches of the running epoch and remembers the last whole one.

    Args:
        initial_step: Steps done before this process (resume).
        steps_per_epoch: As the user says; what a seen loader's pass tells wins over it.
    """

    def __init__(
        self, now_s: float, rank: int, initial_step: int, steps_per_epoch: int | None
    ) -> None:
        self._rank = rank
        self.given = steps_per_epoch
        self.feeding: Pass | None = None
        self.epoch = 0
        self.start_s = now_s
        self.first_step = initial_step
        self.is_sampled = False
        self._excluded_s = 0.0
        self._early: list[tuple[float, float]] = []  # phases before the pass: (start, duration)
        self._initial_step = initial_step
        self._offset = 0
        self._resume_open = initial_step > 0
        self._batches = 0
        self._samples = 0
        self._learned: int | None = None
        self._learned_length: int | None = None  # of the loader, in that epoch
        self._learned_ratio: float | None = None
        self._cut_after: int | None = None
        if steps_per_epoch:
            self._place_resume(steps_per_epoch)

    def _place_resume(self, per_epoch: int) -> None:
        self.epoch, self._offset = divmod(self._initial_step, per_epoch)

    def begin(self, this: Pass, step: int) -> None:
        """``this`` feeds from here on; a new epoch starts with it, not with what was before."""
        self.feeding = this
        self.is_sampled = False
        if step == self.first_step:  # else several passes make one epoch, as the user says
            self.start_s = this.started_s
            self._excluded_s = sum(took_s for at_s, took_s in self._early if at_s >= self.start_s)
        self._early.clear()

    def goes_on_with(self, this: Pass, step: int) -> bool:
        """Whether ``this`` feeds on the epoch of a pass that gave one batch and no more.

        Either that batch was only looked at before the training (``next(iter(loader))``, kept), or
        every step takes a new pass over the same loader; its length then tells the epoch's end.
        """
        last = self.feeding
        if last is None or last.num_batches != 1 or last.has_ended:
            return False
        if last.is_open and step - self.first_step == 1:
            self.feeding = this
            return True
        if last.is_open or last.key != this.key:
            return False
        self.feeding, self.is_sampled = this, True
        return True

    def exclude(self, start_s: float, duration_s: float) -> None:
        """Time of this epoch that is no training."""
        self._excluded_s += duration_s
        if self.feeding is None:
            self._early = [*self._early[-63:], (start_s, duration_s)]

    def add_step(self, step: int, batches: int, samples: int) -> None:
        """Book one step; ``step`` is the count after it."""
        self._batches += batches
        self._samples += samples
        if self._resume_open:
            per_epoch = self.steps_per_epoch(step)
            if per_epoch is not None:
                self._resume_open = False
                self._place_resume(per_epoch)

    def batches_per_step(self, step: int) -> float:
        """Observed batches per optimizer step in this epoch, else in the last whole one."""
        steps = step - self.first_step
        if self._learned_ratio is not None and steps < 4:
            return self._learned_ratio
        return max(1.0, self._batches / steps) if steps > 0 else 1.0

    def steps_per_epoch(self, step: int) -> int | None:
        """Steps of one epoch: of the last whole epoch, else from the loader's length.

        Where the loader says another length than in that epoch (a new batch size), in proportion.

        The length is a prior: where more batches came than it says, it lied and is dropped. A given
        number below it is a loop that leaves the loader early; one above it counts something else
        (micro-batches).
        """
        this = self.feeding
        if self._learned is not None:
            return max(1, -int(-self._learned * self._longer(this) // 1))
        if this is None or this.length is None or this.num_batches > this.length:
            return self.given
        whole = this.length / self.batches_per_step(step)
        steps = max(1, -int(-whole // 1))
        return min(steps, self.given) if self.given else steps

    def _longer(self, this: Pass | None) -> float:
        """Length that the loader says now, beside what it said in the last whole epoch."""
        if this is None or not this.length or not self._learned_length:
            return 1.0
        return 1.0 if this.num_batches > this.length else this.length / self._learned_length

    def in_epoch(self, step: int) -> int:
        """Steps done in this epoch, those before a resume included."""
        return step - self.first_step + self._offset

    def is_full(self, step: int) -> bool:
        """Whether the steps of an epoch are done; only asked where no pass shows its end."""
        per_epoch = self.steps_per_epoch(step) if self.is_sampled else self.given
        return bool(per_epoch) and self.in_epoch(step) >= (per_epoch or 0)

    def close(
        self, step: int, end_s: float, *, cut: bool = False, whole: bool = False
    ) -> EpochRecord | None:
        """End the epoch at ``end_s``; ``None`` where it had no step.

        ``cut``: the block ends. ``whole``: the user says that the epoch is done.
        """
        this = self.feeding
        num_steps = step - self.first_step
        record: EpochRecord | None = None
        if num_steps > 0:
            ended = whole or self._has_ended(this, step, cut)
            if ended and self._offset == 0:
                self._learned = num_steps
                self._learned_length = None if this is None else this.length
                self._learned_ratio = max(1.0, self._batches / num_steps)
            if this is not None and this.has_ended:  # batches that no update followed
                self._batches += this.fresh
                self._samples += this.fresh * (this.batch_size or 0)
            duration_s = max(0.0, end_s - self.start_s)
            record = EpochRecord(
                epoch=self.epoch,
                rank=self._rank,
                first_step=self.first_step,
                num_steps=num_steps,
                num_batches=self._batches,
                duration_s=duration_s,
                train_s=max(0.0, duration_s - self._excluded_s),
                at_s=end_s,
                complete=ended,
                num_samples=self._samples or None,
            )
            self.epoch += 1
            self._offset = 0
            self._resume_open = False
        self.feeding = None
        self.start_s = end_s
        self.first_step = step
        self._excluded_s = 0.0
        self._early.clear()
        self._batches = self._samples = 0
        return record

    def _has_ended(self, this: Pass | None, step: int, cut: bool) -> bool:
        """Whether the epoch is whole: the data ended, or the loop left them where it should."""
        if this is None:
            return not cut or self.is_full(step)
        if this.has_ended or (this.partner_ended and not this.is_open):
            return True
        done = self.in_epoch(step)
        if self.is_sampled or done == self.given:
            return self.is_full(step)
        before, self._cut_after = self._cut_after, None if cut else done
        return done in (before, self._learned)  # a loop that breaks at the same step again

    def progress(self, step: int, num_epochs: int | None, total_steps: int | None) -> Progress:
        """Where the run stands; the earlier of the two planned ends wins and is named."""
        per_epoch = self.steps_per_epoch(step)
        ends: list[tuple[int, str]] = []
        if total_steps is not None:
            ends.append((total_steps, "total_steps"))
        if num_epochs is not None and per_epoch is not None:
            # Beyond the plan the end lies behind, where it was.
            start = self.first_step - self._offset
            ends.append((max(0, start + (num_epochs - self.epoch) * per_epoch), "epochs"))
        end = min(ends, default=None)
        return Progress(
            step=step,
            epoch=self.epoch,
            step_in_epoch=self.in_epoch(step),
            first_step=self._initial_step,
            total_steps=end[0] if end else None,
            num_epochs=num_epochs,
            steps_per_epoch=per_epoch,
            limited_by=end[1] if end else None,
        )
