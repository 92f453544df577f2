"""The evaluation that runs: a stretch of forwards in eval mode, with the pass that feeds it."""

from scaledl.capture.feeds import Feeds
from scaledl.capture.loaders import Pass


class Evaluation:
    """From the start of the pass that feeds it to its last forward.

    Attributes:
        end_s: End of the last evaluation seen so far.
        saw_backward: A backward came inside it; with an update it was training after all.
    """

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._start_s: float | None = None
        self._feed: Pass | None = None
        self.end_s = 0.0
        self.saw_backward = False

    @property
    def is_open(self) -> bool:
        """Whether one runs."""
        return self._start_s is not None

    def add_forward(self, start_s: float, end_s: float, boundary_s: float) -> None:
        """One forward without training; ``boundary_s`` is the end of the last step."""
        fed = self._feeds.evaluations()
        if self._start_s is None:
            starts = [p.started_s for p in fed if p.started_s >= boundary_s]
            self._start_s = min([start_s, *starts])
            self.saw_backward = False
        for this in fed:
            this.is_eval = True
            self._feed = this
        for this in self._feeds.passes:
            if this.is_eval:
                this.keep_fresh(0)
                this.wait_s = 0.0
        self.end_s = end_s

    def give_back_first_batch(self) -> None:
        """The first training batch went through the model in eval mode first (pseudo-labels)."""
        this, last = self._feed, self._feeds.last
        if this is None or not this.is_open or self._feeds.fresh():
            return
        if last is None or last.key == this.key:
            this.is_eval = False
            this.keep_fresh(1)

    def was_training(self) -> None:
        """It was the training, in eval mode."""
        self._start_s, self.saw_backward = None, False
        if self._feed is not None:
            self._feed.is_eval = False
            self._feed.keep_fresh(1)

    def close(self, now_s: float) -> tuple[float, float] | None:
        """End it; its start and end in seconds, ``None`` where none ran."""
        start_s, self._start_s = self._start_s, None
        self._feed, self.saw_backward = None, False
        return None if start_s is None else (start_s, max(start_s, min(self.end_s, now_s)))
