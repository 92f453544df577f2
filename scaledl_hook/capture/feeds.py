"""The loader passes of a run: which of them feeds the training, and what it tells."""

from scaledl.capture.epochs import EpochBook
from scaledl.capture.loaders import Pass

_PASSES_KEPT = 8
_UNUSED_LEAST = 3  # batches


class Feeds:
    """Passes that are open or feed the epoch.

    Args:
        book: Knows the pass that feeds the running epoch.
        loader_key: ``id`` of the loader that the user named, if any.

    Attributes:
        last: The pass that fed the last step, this epoch's or the one before.
    """

    def __init__(self, book: EpochBook, loader_key: int | None) -> None:
        self._book = book
        self._loader_key = loader_key
        self.passes: list[Pass] = []
        self.last: Pass | None = None

    @property
    def is_named(self) -> bool:
        """Whether the user named the loader."""
        return self._loader_key is not None

    # --- what comes and goes --------------------------------------------------------------------

    def begin(self, this: Pass) -> None:
        """A pass starts."""
        self.passes = [p for p in self.passes if p.is_open or p is self._book.feeding]
        self.passes = [*self.passes[-_PASSES_KEPT:], this]

    def see(self, this: Pass) -> None:
        """A pass yields; one that started before the block is new here."""
        if this not in self.passes:
            self.passes.append(this)

    def keep_open_or(self, this: Pass) -> None:
        """Forget the ended passes, all but ``this``."""
        self.passes = [p for p in self.passes if p is this or p.is_open]

    def drop_closed_evaluations(self) -> None:
        """Forget evaluations whose data ended."""
        self.passes = [p for p in self.passes if p.is_open or not p.is_eval]

    def drop_evaluations(self) -> None:
        """Forget every evaluation."""
        self.passes = [p for p in self.passes if not p.is_eval]

    def drop_training(self) -> None:
        """Forget all that could feed: iterators that were kept and are no longer used."""
        self.passes = [p for p in self.passes if p.is_eval]
        self._book.feeding = None

    def take_waits(self) -> float:
        """The waiting for input not yet booked, of all passes of the training; now booked."""
        waited_s = 0.0
        for this in self.passes:
            if not this.is_eval:
                waited_s += this.wait_s
                this.wait_s = 0.0
        return waited_s

    # --- which one feeds ------------------------------------------------------------------------

    def fresh(self) -> int:
        """Batches since the last step."""
        return sum(p.fresh for p in self.passes if not p.is_eval)

    def has_training(self) -> bool:
        """Whether a pass that may feed the training is under way."""
        return any(p.is_open and p.num_batches and not p.is_eval for p in self.passes)

    def is_fed_by_other(self) -> bool:
        """Whether the fresh batches come from another pass than the training's."""
        feeding = self._book.feeding
        if feeding is None:  # between two epochs
            return self.last is not None and any(
                p.fresh and p.key != self.last.key for p in self.passes
            )
        return not feeding.fresh and any(p.fresh and p is not feeding for p in self.passes)

    def evaluations(self) -> list[Pass]:
        """The pass that feeds an evaluation that runs now, if one does."""
        feeding = self._book.feeding
        return [p for p in self.passes if p.fresh and not p.trains and p is not feeding][-1:]

    def unused(self) -> list[Pass]:
        """Passes over another loader than the training's that fed neither it nor the module.

        Their batches went to a module inside a wrapper (``model.module``), or to another one. Few
        batches tell nothing: a trainer may hold them back for its next step.
        """
        last, feeding = self.last, self._book.feeding
        if last is None or self.is_named:
            return []
        return [
            p
            for p in self.passes
            if p.num_batches >= _UNUSED_LEAST
            and p.fresh == p.num_batches
            and not (p.is_eval or p.trains or p.explicit or p is feeding or p.key == last.key)
        ]

    def candidate(self) -> Pass | None:
        """The pass that feeds the training: named by the user, else the oldest that yielded."""
        fed = [p for p in self.passes if p.num_batches and not p.is_eval]
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

    # --- what it tells --------------------------------------------------------------------------

    @property
    def batch_size(self) -> int | None:
        """Samples in one batch of the training loader, on this rank."""
        return self.last.batch_size if self.last is not None else None

    @property
    def drop_last(self) -> bool:
        """Whether the training loader drops an incomplete batch."""
        return self.last is not None and self.last.drop_last

    @property
    def num_workers(self) -> int | None:
        """Processes that load for the training loader of this rank."""
        return self.last.num_workers if self.last is not None else None

    def epoch_samples(self, world_size: int) -> int | None:
        """Samples of one epoch over all ranks; ``None`` where the loader does not tell.

        The data set's size where the loader's length fits it being split over the ranks, else (a
        sampler of its own, or every rank walks everything) what the passes really hold.
        """
        this = self.last
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
        this = self.last
        if this is None or not this.length or not this.batch_size or not this.num_samples:
            return False
        return this.length * this.batch_size >= this.num_samples
