"""What an epoch adds up to."""

import pytest
from samples import NOW_S

from scaledl.records import EpochRecord, PhaseRecord, StepRecord
from scaledl.tally import KEPT, EpochTally

EPOCH = EpochRecord(
    epoch=0,
    rank=0,
    first_step=0,
    at_s=0.0,
    duration_s=1.0,
    num_steps=4,
    num_batches=4,
    train_s=1.0,
)


def step(wall_s: float, exposed_s: float | None = 0.0, tags: tuple[str, ...] = ()) -> StepRecord:
    return StepRecord(
        step=1,
        epoch=0,
        wall_s=wall_s,
        input_wait_s=0.0,
        optimizer_s=0.0,
        comm_exposed_s=exposed_s,
        tags=tags,
    )


def test_medians_are_of_ordinary_steps_and_own_work_leaves_the_waiting_out() -> None:
    tally = EpochTally()
    for wall_s in (0.1, 0.2, 0.4):
        tally.add_step(step(wall_s, exposed_s=wall_s / 2))
    tally.add_step(step(9.0, tags=("sampled",)))
    tally.add_phase(PhaseRecord(kind="eval", at_s=1.0, duration_s=2.0, after_step=3, epoch=0))
    record, phases = tally.close(EPOCH, at_s=NOW_S, energy_j=5.0)
    assert record.step_p50_s == pytest.approx(0.2)
    assert record.own_p50_s == pytest.approx(0.1)
    assert (record.at_s, record.energy_j) == (NOW_S, 5.0)
    assert [phase.kind for phase in phases] == ["eval"]


def test_the_next_epoch_starts_from_nothing_and_an_unknown_time_stays_unknown() -> None:
    tally = EpochTally()
    tally.add_step(step(0.1))
    tally.close(EPOCH, at_s=NOW_S, energy_j=None)
    record, phases = tally.close(EPOCH, at_s=NOW_S, energy_j=None)
    assert (record.step_p50_s, record.own_p50_s, phases) == (None, None, ())
    tally.add_step(step(0.1, exposed_s=None))
    record, _ = tally.close(EPOCH, at_s=NOW_S, energy_j=None)
    assert record.step_p50_s == pytest.approx(0.1)
    assert record.own_p50_s is None


def test_a_long_epoch_takes_no_more_memory() -> None:
    tally = EpochTally()
    for index in range(3 * KEPT):
        tally.add_step(step(float(index + 1)))
    record, _ = tally.close(EPOCH, at_s=NOW_S, energy_j=None)
    assert record.step_p50_s == pytest.approx(2.5 * KEPT, rel=0.001)
