"""What a learner remembers: examples of each job, fairly shared, and the job's regimes; no torch.

A job is one architecture under one plan on one count. Its step time should stay as it is; a lasting
change (another load, another clock) begins a new regime, a single odd window does not. A job that
comes back to how it was is in its old regime again.

References:
    Page 1954, "Continuous inspection schemes" (the cumulative sum test).
    Vitter 1985, "Random sampling with a reservoir", algorithm R (what is kept of a regime).
"""

import math
import random
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from scaledl.predictor.examples import Example

KEPT_OF_A_REGIME = 8
MOST_EXAMPLES = 128
MOST_NODES = 30_000
"""Of the layer graphs of all jobs together: a few megabytes."""
LEVEL_WINDOWS = 16
LEAST_SPREAD = 0.02
"""log-sd between windows that differ in nothing: below it nothing is called a change."""
CLIP, SLACK, ALARM = 4.0, 0.5, 6.0
"""Each window counts at most CLIP spreads less SLACK, so one alone never reaches ALARM, two do."""
SAME_LEVEL = 0.1
"""Two levels of a job within 10 % are one regime."""
HELD_BACK = 4
"""Every fourth example of a regime is never learned from: it shows what an update forgets."""

Verdict = Literal["first", "usual", "odd", "changed"]


class Regime(msgspec.Struct, kw_only=True):
    """One level of a job's step time, and what is kept of it.

    ``logs`` are the newest logarithms of its step times; ``high`` and ``low`` the two cumulative
    sums; ``odd`` the windows since they left 0.
    """

    logs: list[float] = []
    kept: list[Example] = []
    num_seen: int = 0
    high: float = 0.0
    low: float = 0.0
    odd: list[Example] = []

    @property
    def level(self) -> float:
        """Median logarithm of the step times."""
        return statistics.median(self.logs)

    @property
    def spread(self) -> float:
        """Robust standard deviation of the logarithms, not below ``LEAST_SPREAD``."""
        middle = self.level
        return max(LEAST_SPREAD, 1.4826 * statistics.median(abs(x - middle) for x in self.logs))


class Job(msgspec.Struct, kw_only=True):
    """The regimes of one job; ``now`` is the one it is in."""

    regimes: list[Regime] = []
    now: int = 0

    @property
    def current(self) -> Regime:
        return self.regimes[self.now]


def job_key(example: Example) -> str:
    """Equal for examples whose step should take equally long."""
    cluster, plan = example.cluster, example.plan
    parts = (
        example.graph.signature or example.model,
        cluster.gpu.name,
        cluster.num_gpus,
        cluster.gpus_per_node,
        plan.strategy,
        plan.replicate,
        plan.shard,
        plan.grad_accum,
        plan.batch_per_gpu,
        plan.dtype,
        round(sum(node.flops_forward for node in example.graph.nodes)),
    )
    return "|".join(map(str, parts))


class Memory(msgspec.Struct, kw_only=True):
    """All jobs. ``add`` says how a window fits what its job did so far."""

    jobs: dict[str, Job] = {}
    seed: int = 0
    num_added: int = 0

    def add(self, example: Example) -> tuple[Verdict, float]:
        """Keep the example; its verdict, and its weight in learning (0 to 1).

        Huber's weight: 1 within two spreads of the level, then two spreads over the distance.
        """
        self.num_added += 1
        key = job_key(example)
        job = self.jobs.pop(key, None) or Job()
        self.jobs[key] = job  # the job seen last stands last
        if not job.regimes:
            job.regimes.append(Regime())
            self._keep(job.current, example)
            return "first", 1.0
        regime = job.current
        off = (math.log(example.step_s) - regime.level) / regime.spread
        clipped = max(-CLIP, min(CLIP, off))
        regime.high = max(0.0, regime.high + clipped - SLACK)
        regime.low = max(0.0, regime.low - clipped - SLACK)
        if abs(off) > 2:
            regime.odd.append(example)
        elif regime.high == regime.low == 0.0:
            regime.odd.clear()
        if max(regime.high, regime.low) > ALARM and regime.odd:
            self._change(job)
            return "changed", 1.0
        if abs(off) > CLIP:
            return "odd", 2.0 / abs(off)
        self._keep(regime, example)
        return "usual", min(1.0, 2.0 / max(abs(off), 1e-9))

    def _change(self, job: Job) -> None:
        """Go to the regime that fits the odd windows, a known one or a new one."""
        left = job.current
        odd, left.odd, left.high, left.low = left.odd, [], 0.0, 0.0
        level = statistics.median(math.log(example.step_s) for example in odd)
        near = [i for i, regime in enumerate(job.regimes) if abs(regime.level - level) < SAME_LEVEL]
        if near:
            job.now = min(near, key=lambda i: abs(job.regimes[i].level - level))
        else:
            job.regimes.append(Regime())
            job.now = len(job.regimes) - 1
        for example in odd:
            self._keep(job.current, example)

    def _keep(self, regime: Regime, example: Example) -> None:
        regime.logs = [*regime.logs, math.log(example.step_s)][-LEVEL_WINDOWS:]
        regime.num_seen += 1
        if len(regime.kept) < KEPT_OF_A_REGIME:
            regime.kept.append(example)
        else:
            place = self._rng().randrange(regime.num_seen)
            if place < KEPT_OF_A_REGIME:
                regime.kept[place] = example
        self._shrink()

    def _rng(self) -> random.Random:
        return random.Random(f"{self.seed}-{self.num_added}")

    def _shrink(self) -> None:
        """Over the bound the largest store gives one up, of equal ones that of the oldest job."""
        while len(self) > 1 and (len(self) > MOST_EXAMPLES or self._num_nodes() > MOST_NODES):
            regimes = [regime for job in self.jobs.values() for regime in job.regimes]
            largest = max(regimes, key=lambda regime: len(regime.kept))
            largest.kept.pop(self._rng().randrange(len(largest.kept)))

    def __len__(self) -> int:
        return sum(len(regime.kept) for job in self.jobs.values() for regime in job.regimes)

    def _num_nodes(self) -> int:
        return sum(
            len(example.graph.nodes)
            for job in self.jobs.values()
            for regime in job.regimes
            for example in regime.kept
        )

    def present(self, example: Example) -> list[Example]:
        """What is known of the example's job as it is now."""
        job = self.jobs.get(job_key(example))
        return list(job.current.kept) if job else []

    def past(self, example: Example, count: int) -> list[Example]:
        """Examples of other jobs to learn again, as many of each as the count allows."""
        stores = [each[:] for each in self._others(example, held_back=False)]
        rng = self._rng()
        rng.shuffle(stores)
        found: list[Example] = []
        while stores and len(found) < count:
            found += [store.pop(rng.randrange(len(store))) for store in stores]
            stores = [store for store in stores if store]
        return found[:count]

    def held_back(self, example: Example) -> list[Example]:
        """Examples of other jobs that are never learned from."""
        return [each for store in self._others(example, held_back=True) for each in store[:1]]

    def _others(self, example: Example, *, held_back: bool) -> list[list[Example]]:
        own = job_key(example)
        stores = []
        for key, job in self.jobs.items():
            if key != own:
                kept = job.current.kept
                apart = [i % HELD_BACK == HELD_BACK - 1 for i in range(len(kept))]
                stores.append(
                    [e for e, is_apart in zip(kept, apart, strict=True) if is_apart == held_back]
                )
        return [store for store in stores if store]


def mean_error(predicted_s: Sequence[float], truth_s: Sequence[float]) -> float:
    """Mean of |predicted / true - 1|; NaN of none."""
    errors = [abs(p / t - 1) for p, t in zip(predicted_s, truth_s, strict=True)]
    return statistics.fmean(errors) if errors else math.nan
