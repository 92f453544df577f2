import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import example

from scaledl.predictor.replay import (
    KEPT_OF_A_REGIME,
    MOST_EXAMPLES,
    Memory,
    job_key,
    mean_error,
)

NOISE = (1.0, 1.01, 0.99, 1.005, 0.995)


def filled(step_s: float = 0.1, count: int = 10, **job: object) -> Memory:
    memory = Memory()
    for i in range(count):
        memory.add(example(step_s * NOISE[i % len(NOISE)], **job))  # type: ignore[arg-type]
    return memory


def test_a_steady_job_stays_in_one_regime() -> None:
    memory = filled()
    (job,) = memory.jobs.values()
    assert len(job.regimes) == 1
    assert memory.add(example(0.1)) == ("usual", 1.0)


def test_one_odd_window_is_weighed_down_and_begins_no_regime() -> None:
    memory = filled()
    verdict, weight = memory.add(example(0.3))
    assert verdict == "odd"
    assert weight < 0.1
    assert [memory.add(example(0.1 * n))[0] for n in NOISE] == ["usual"] * len(NOISE)
    (job,) = memory.jobs.values()
    assert len(job.regimes) == 1
    assert all(each.step_s < 0.2 for each in job.current.kept)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_lasting_change_begins_a_regime_and_the_way_back_finds_the_old_one(factor: float) -> None:
    memory = filled()
    verdicts = [memory.add(example(0.1 * factor * n))[0] for n in NOISE]
    (job,) = memory.jobs.values()
    assert "changed" in verdicts[:2]
    assert (len(job.regimes), job.now) == (2, 1)
    assert all(each.step_s == pytest.approx(0.1 * factor, rel=0.1) for each in job.current.kept)
    for n in NOISE:
        memory.add(example(0.1 * n))
    assert (len(job.regimes), job.now) == (2, 0)


def test_a_slow_drift_of_single_windows_is_found_in_time() -> None:
    memory = filled()
    verdicts = [memory.add(example(0.1 * 1.08))[0] for _ in range(8)]
    assert "changed" in verdicts


def test_jobs_that_differ_in_batch_model_or_device_are_apart() -> None:
    keys = {
        job_key(example(0.1, **job))  # type: ignore[arg-type]
        for job in ({}, {"batch": 16}, {"model": "b"}, {"gpu": "A100"}, {"num_layers": 5})
    }
    assert len(keys) == 5
    assert job_key(example(0.1)) == job_key(example(0.2))


def test_what_is_held_back_is_never_given_to_learn_from() -> None:
    memory = filled(model="a", count=20)
    now = example(0.2, model="b")
    memory.add(now)
    apart = {each.step_s for each in memory.held_back(now)}
    others = memory.jobs[job_key(example(0.1, model="a"))].current.kept
    learnable = [each for i, each in enumerate(others) if i % 4 != 3]
    assert apart
    assert sorted(e.step_s for e in memory.past(now, 100)) == sorted(e.step_s for e in learnable)
    assert all(each.model == "a" for each in memory.past(now, 100))


def test_past_is_shared_evenly_among_jobs() -> None:
    memory = Memory()
    for name, count in (("a", 8), ("b", 2), ("c", 8)):
        for _ in range(count):
            memory.add(example(0.1, model=name))
    found = [each.model for each in memory.past(example(0.1, model="d"), 6)]
    assert sorted(found) == ["a", "a", "b", "b", "c", "c"]


@settings(deadline=None, max_examples=20)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefghijklmnopqrst"), st.floats(0.05, 0.2)),
        min_size=1,
        max_size=60,
    )
)
def test_memory_is_bounded_and_forgets_no_job(stream: list[tuple[str, float]]) -> None:
    memory = Memory()
    for name, step_s in stream:
        memory.add(example(step_s, model=name))
    assert len(memory) <= MOST_EXAMPLES
    assert len(memory.jobs) == len({name for name, _ in stream})
    for job in memory.jobs.values():
        assert 0 <= job.now < len(job.regimes)
        assert all(len(regime.kept) <= KEPT_OF_A_REGIME for regime in job.regimes)
    again = msgspec.json.decode(msgspec.json.encode(memory), type=Memory)
    assert again == memory


def test_large_graphs_are_bounded_by_their_nodes() -> None:
    memory = Memory()
    for batch in (1, 2):
        for _ in range(8):
            memory.add(example(0.1, num_layers=4000, batch=batch))
    assert len(memory) == 7


def test_mean_error_counts_ratios() -> None:
    assert mean_error([1.1, 0.9], [1.0, 1.0]) == pytest.approx(0.1)
    assert math.isnan(mean_error([], []))
