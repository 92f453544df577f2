"""A planned end in samples or tokens: how many steps it is, and what the time left then says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from training import make_model

import scaledl
from scaledl.errors import UsageError
from scaledl.predictor.eta import EtaEstimator
from scaledl.quota import Quota, quotas_of
from scaledl.records import Progress, StepRecord

RANKS = 2


def place(step: int, total_steps: int | None = None) -> Progress:
    return Progress(step=step, epoch=0, step_in_epoch=step, total_steps=total_steps)


def step_of(number: int, samples: int | None) -> StepRecord:
    tokens = None if samples is None else 100 * samples
    return StepRecord(step=number, epoch=0, wall_s=0.1, num_samples=samples, num_elements=tokens)


def after(quota: Quota, samples: list[int]) -> Progress:
    quota.add([step_of(i + 1, n) for i, n in enumerate(samples)])
    return quota.limit(place(len(samples)))


# --- counting -------------------------------------------------------------------------------------


def test_E22_the_end_is_counted_by_the_latest_batches_of_all_ranks() -> None:
    quota = Quota("total_samples", 8000, RANKS)
    said = after(quota, [8] * 100)
    assert (said.total_steps, said.limited_by) == (500, "total_samples")
    quota.add([step_of(101 + i, 32) for i in range(20)])
    said = quota.limit(place(120))
    assert said.total_steps == 120 + (8000 - 1600 - 20 * 64) // 64


def test_tokens_are_the_elements_of_the_batches() -> None:
    assert after(Quota("total_tokens", 80_000, 1), [8] * 10).total_steps == 100


def test_the_earlier_of_two_ends_wins() -> None:
    quota = Quota("total_samples", 800, 1)
    quota.add([step_of(i + 1, 8) for i in range(10)])
    assert quota.limit(place(10, total_steps=50)).limited_by is None
    assert quota.limit(place(10, total_steps=200)).total_steps == 100


def test_past_its_end_it_stays_where_it_was() -> None:
    quota = Quota("total_samples", 80, 1)
    assert after(quota, [8] * 13).total_steps == 10
    assert quota.limit(place(13)).step == 13


def test_a_step_whose_size_is_not_seen_ends_the_counting() -> None:
    quota = Quota("total_samples", 80, 1)
    quota.add([step_of(1, 8), step_of(2, None)])
    assert quota.is_blind
    assert quota.limit(place(2)).total_steps is None


@given(
    samples=st.lists(st.integers(1, 1000), min_size=1, max_size=100),
    total=st.integers(1, 10**9),
)
def test_the_end_never_lies_behind_while_something_is_left(samples: list[int], total: int) -> None:
    said = after(Quota("total_samples", total, 1), samples).total_steps
    assert said is not None
    assert (said > len(samples)) == (sum(samples) < total)


# --- the time left --------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", [0.05, 0.2])
@pytest.mark.parametrize("point", [0.1, 0.3, 0.6])
def test_E22_four_times_the_batch_from_half_of_the_samples_on_is_foreseen(
    fixed: float, point: float
) -> None:
    batches = np.concatenate([np.full(1000, 8), np.full(250, 32)])
    costs = fixed + (1 - fixed) * batches / 8
    walls = 0.1 * costs * np.exp(np.random.default_rng(0).normal(0, 0.05, len(batches)))
    quota, estimator = Quota("total_samples", int(batches.sum()), 1), EtaEstimator()
    step = int(np.searchsorted(np.cumsum(batches), point * batches.sum()))
    for i in range(step):
        quota.add([step_of(i + 1, int(batches[i]))])
        estimator.on_steps([float(walls[i])], i, 0, [float(100 * batches[i])])
    said = quota.limit(place(step))
    left = estimator.estimate(said, float(walls[:step].sum())).remaining_s
    naive_s = walls[:step].mean() * (len(batches) - step)
    truth_s = walls[step:].sum()
    assert left is not None
    assert left.mean == pytest.approx(truth_s, rel=0.15)
    assert point > 0.5 or abs(naive_s / truth_s - 1) > 0.2


# --- in a run -------------------------------------------------------------------------------------


class Growing(IterableDataset[Any]):
    """Batches of 2, from half of the samples on of 8."""

    def __iter__(self) -> Any:
        for size in [2] * 40 + [8] * 10:
            yield torch.zeros(size, 12), torch.zeros(size, dtype=torch.long)


def test_E22_a_run_planned_in_samples_ends_where_they_do(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    said = []
    with scaledl.track(model, total_samples=160, run_dir=tmp_path, report="none") as run:
        for x, y in DataLoader(Growing(), batch_size=None):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if len(said) % 10 == 9:
                run.status()
                run._core._flush(0.0, draw=False)
            said.append(run._core.progress().total_steps)
    assert said[30] == 80
    assert said[49] == 50
    assert scaledl.open_run(run.folder).ended.outcome == "finished"


def test_each_end_that_is_given_is_counted_and_none_may_be_zero() -> None:
    assert [quota.name for quota in quotas_of(8, 9, 1)] == ["total_samples", "total_tokens"]
    assert quotas_of(None, None, 1) == ()
    with pytest.raises(UsageError, match="total_tokens must be a whole number"):
        scaledl.track(make_model(), total_tokens=0)
