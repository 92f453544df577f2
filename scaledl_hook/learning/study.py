"""One run studied: its lines are read, each window is predicted and then learned from."""

import time
from pathlib import Path

from scaledl.errors import StoreError
from scaledl.learned import Learned, write_learned
from scaledl.learning.tail import Tail
from scaledl.learning.windows import Windows
from scaledl.predictor.examples import Example
from scaledl.predictor.online import OnlineLearner
from scaledl.records import EpochRecord, RunEnd
from scaledl.store import read_info

ERRORS_KEPT = 64


class Study:
    """Follows the folder of one run. Loads torch.

    Args:
        folder: Of the run; its head must be there.
        state: File of what was learned on this kind of machine so far.

    Raises:
        StoreError: the head of the run cannot be read.
    """

    def __init__(self, folder: Path, state: Path) -> None:
        info = read_info(folder)
        self._folder, self._state = folder, state
        self._tail = Tail(folder / "rank0.jsonl")
        self._windows = Windows(info)
        self._device = info.cluster.gpu.name
        self._newest: Example | None = None
        self._errors: list[float] = []
        self._first: tuple[float, float] | None = None
        self._last: tuple[float | None, float, float | None] | None = None
        self._num_windows = 0
        self.trouble = ""
        self.ended = False
        self.num_epochs = 0
        self.learner = self._load()

    def _load(self) -> OnlineLearner:
        try:
            return OnlineLearner.load(self._state) or OnlineLearner()
        except StoreError as error:
            self.trouble = str(error)
            return OnlineLearner()

    def read(self) -> None:
        """Take in what the run wrote since; of several new windows the newest is kept."""
        for line in self._tail.read():
            if isinstance(line, RunEnd):
                self.ended = True
            elif isinstance(line, EpochRecord):
                self.num_epochs += 1
            for example in self._windows.add(line):
                self._newest = example

    @property
    def has_window(self) -> bool:
        """Whether there is something to learn from."""
        return self._newest is not None

    def learn(self) -> None:
        """Predict the newest window, learn from it, write what came of it.

        Raises:
            OSError: the disk is full, or a folder is gone.
        """
        example, self._newest = self._newest, None
        if example is not None:
            lesson = self.learner.learn(example)
            self._num_windows += 1
            self._last = lesson.told_s, lesson.truth_s, self.learner.predict_s(example)
            if lesson.told_s is not None and lesson.error is not None:
                self._first = self._first or (lesson.told_s, lesson.truth_s)
                self._errors = [*self._errors, lesson.error][-ERRORS_KEPT:]
        self.write("learning")

    def write(self, state: str) -> None:
        """Hand over where the study stands.

        Raises:
            OSError: it cannot be written.
        """
        first, last = self._first or (None, None), self._last or (None, None, None)
        write_learned(
            self._folder,
            Learned(
                at_s=time.time(),
                state=state,  # type: ignore[arg-type]
                device=self._device,
                num_windows=self._num_windows,
                num_updates=self.learner.num_updates,
                num_jobs=len(self.learner.memory.jobs),
                first_told_s=first[0],
                first_truth_s=first[1],
                told_s=last[0],
                truth_s=last[1],
                after_s=last[2],
                errors=tuple(self._errors),
                left_out=self._windows.left_out or self.trouble,
            ),
        )

    def finish(self) -> None:
        """Learn what is left, save what was learned for the next run.

        Raises:
            OSError: it cannot be written.
        """
        self.read()
        self.learn()
        if self._num_windows:
            self.learner.save(self._state)
        self.write("done")
