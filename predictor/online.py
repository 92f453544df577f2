"""The learner that learns while the run goes on: predict first, then learn, and forget little.

    T_iter = alpha (c T_sum) + beta T_comm

with (alpha, beta) of the graph network (ScaleDL 2025, arXiv 2511.04162) and c what the first window
on a kind of device showed: the layer model knows no device that it was not fitted on. Each window
gives a few gradient steps on its job's newest examples beside examples of other jobs (experience
replay; Chaudhry et al. 2019, "On Tiny Episodic Memories in Continual Learning"). An update that
makes held-back examples of other jobs much worse is undone.

Loads torch: import it where a network is used.
"""

import contextlib
import copy
import math
import os
from pathlib import Path
from statistics import fmean
from typing import Self

import msgspec

from scaledl.errors import StoreError
from scaledl.predictor.arrays import Weights, set_weights, weights_of
from scaledl.predictor.examples import Example
from scaledl.predictor.gnn import GraphNetwork
from scaledl.predictor.replay import Memory, Verdict, job_key, mean_error
from scaledl.predictor.shipped import shipped_network
from scaledl.predictor.training import new_network, predict_s, train

STATE_VERSION = 1
STEPS, MORE_STEPS, LEARNING_RATE = 64, 24, 1e-2
FIRSTS_KEPT = 32
REPLAYED = 16
"""Examples of other jobs beside those of the running one."""
PRESENT_SHARES = (0.5, 0.3, 0.15)
"""Of the loss, the running job's part; the rest is what was learned before. The later ones are
taken where an update made others worse, and goes on from there."""
WORSE, SLACK = 1.2, 0.06
"""An update may make others' error 1.2 times as large, or larger by what windows differ anyway:
two measurements of one configuration on a small machine differ by more than that."""
MOST_STATE_BYTES = 64 * 2**20


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What one window was to the learner.

    ``told_s`` was predicted before it was learned from (``None``: nothing known of the device yet);
    ``kept`` is false for an update that was undone.
    """

    verdict: Verdict
    weight: float
    told_s: float | None
    truth_s: float
    kept: bool

    @property
    def error(self) -> float | None:
        """|predicted / true - 1|."""
        return None if self.told_s is None else abs(self.told_s / self.truth_s - 1)


class _Head(msgspec.Struct):
    version: int


class LearnerState(_Head, kw_only=True):
    """What is kept between runs: numbers alone, no code. See ``OnlineLearner``."""

    network: Weights
    memory: Memory
    scales: dict[str, float]
    first_errors: list[float]
    own_errors: dict[str, float]
    num_updates: int


class OnlineLearner:
    """The network, its memory of examples, and the pace of each kind of device.

    ``first_errors`` are log(true / told) of jobs when they were new: what a step that never ran
    may be off. ``own_errors`` are those of each job's examples after its own last update: what
    later updates are held against, so that many small losses do not add up.

    Args:
        network: Where to start from; by default the shipped one, else one that answers (1, 1).
        seed: Of all choices; equal windows in equal order give equal learners.
    """

    def __init__(self, network: GraphNetwork | None = None, *, seed: int = 0) -> None:
        self.network = network or shipped_network() or new_network(seed)
        self.memory = Memory(seed=seed)
        self.scales: dict[str, float] = {}
        self.first_errors: list[float] = []
        self.own_errors: dict[str, float] = {}
        self.num_updates = 0

    def predict_s(self, example: Example) -> float | None:
        """Seconds of its step, whose own ``step_s`` is not looked at; ``None``: unknown device."""
        if example.cluster.gpu.name not in self.scales:
            return None
        return float(predict_s(self.network, [self._scaled(example)])[0])

    def learn(self, example: Example) -> Lesson:
        """Predict the window, then learn from it."""
        told_s = self.predict_s(example)
        if told_s is None:
            rest_s = max(example.step_s - example.comm_s, 0.1 * example.step_s)
            self.scales[example.cluster.gpu.name] = rest_s / example.sum_s
        verdict, weight = self.memory.add(example)
        if verdict == "first" and told_s is not None:
            log_error = math.log(example.step_s / told_s)
            self.first_errors = [*self.first_errors, log_error][-FIRSTS_KEPT:]
        kept = self._update(example, weight if verdict == "odd" else 1.0)
        return Lesson(
            verdict=verdict, weight=weight, told_s=told_s, truth_s=example.step_s, kept=kept
        )

    def _update(self, example: Example, weight: float) -> bool:
        """A few gradient steps; false where they were undone.

        Where they made others worse more follow, with more of the loss on others.
        """
        now = self.memory.present(example) or [example]
        past = self.memory.past(example, REPLAYED)
        apart = self.memory.held_back(example)
        before = copy.deepcopy(self.network.state_dict())
        most = self._most_error(apart)
        for share in PRESENT_SHARES:
            steps = STEPS if share == PRESENT_SHARES[0] else MORE_STEPS
            part = weight * share if past else weight
            self._train(now, past, part, LEARNING_RATE * weight, steps)
            if not apart or self._error(apart) <= most:  # false of NaN
                self.num_updates += 1
                self.own_errors[job_key(example)] = self._error(now)
                return True
        self.network.load_state_dict(before)
        return False

    def _most_error(self, apart: list[Example]) -> float:
        """What the error of these examples of other jobs may be after an update."""
        if not apart:
            return math.inf
        error = fmean(self.own_errors.get(job_key(e), self._error([e])) for e in apart)
        return max(error * WORSE, error + SLACK)

    def _train(
        self,
        now: list[Example],
        past: list[Example],
        share: float,
        learning_rate: float,
        steps: int,
    ) -> None:
        weights = [share / len(now)] * len(now) + [(1 - share) / max(1, len(past))] * len(past)
        train(
            self.network,
            [self._scaled(each) for each in (*now, *past)],
            steps=steps,
            seed=self.memory.num_added,
            learning_rate=learning_rate,
            weights=weights,
        )

    def _error(self, examples: list[Example]) -> float:
        told_s = predict_s(self.network, [self._scaled(each) for each in examples])
        return mean_error(list(told_s), [each.step_s for each in examples])

    def _scaled(self, example: Example) -> Example:
        scale = self.scales.get(example.cluster.gpu.name, 1.0)
        return msgspec.structs.replace(
            example, layer_s=tuple(scale * seconds for seconds in example.layer_s)
        )

    # --- between runs -------------------------------------------------------------------------

    def state(self) -> LearnerState:
        """Everything learned."""
        return LearnerState(
            version=STATE_VERSION,
            network=weights_of(self.network),
            memory=self.memory,
            scales=self.scales,
            first_errors=self.first_errors,
            own_errors=self.own_errors,
            num_updates=self.num_updates,
        )

    @classmethod
    def from_state(cls, state: LearnerState) -> Self:
        """The learner that ``state`` described.

        Raises:
            ValueError: its network is another, or a number is not finite.
        """
        numbers = (*state.scales.values(), *state.first_errors, *state.own_errors.values())
        if not all(map(math.isfinite, numbers)):
            raise ValueError("it holds no finite numbers")
        learner = cls()
        set_weights(learner.network, state.network)
        learner.memory = state.memory
        learner.scales = state.scales
        learner.first_errors = state.first_errors
        learner.own_errors = state.own_errors
        learner.num_updates = state.num_updates
        return learner

    def save(self, path: Path) -> None:
        """Write the state in one move. Of two runs that save, the later one is kept.

        Raises:
            OSError: it cannot be written; an older state stays as it was.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
                stream.write(msgspec.msgpack.encode(self.state()))
            part.replace(path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The learner that ``save`` wrote; ``None`` where there is none.

        Raises:
            StoreError: the file is damaged, too large, or from a newer scaledl.
        """
        try:
            size = path.stat().st_size
            if size > MOST_STATE_BYTES:
                raise StoreError(
                    f"{path} has {size} bytes, too many for a state. It is learned anew."
                )
            return cls.from_state(_decoded(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise StoreError(f"cannot read {path}: {error}. It is learned anew.") from error


def _decoded(data: bytes) -> LearnerState:
    """The state in the bytes of a file; an error of msgspec or a ValueError where it is none."""
    version = msgspec.msgpack.decode(data, type=_Head).version
    if version != STATE_VERSION:
        raise ValueError(f"it has version {version}, this scaledl reads {STATE_VERSION}")
    return msgspec.msgpack.decode(data, type=LearnerState)
