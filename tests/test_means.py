"""Mean parts where only some steps had their backward timed."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.journal import summarise
from scaledl.means import mean_parts
from scaledl.records import StepRecord

short = st.floats(0.0, 1.0)


@st.composite
def step_records(draw: st.DrawFn) -> StepRecord:
    parts_s = [draw(short) for _ in range(6)]
    timed = draw(st.booleans())
    return StepRecord(
        step=1,
        epoch=0,
        wall_s=sum(parts_s),
        input_wait_s=parts_s[0],
        forward_s=parts_s[1],
        optimizer_s=parts_s[2],
        backward_s=parts_s[3] if timed else None,
        comm_exposed_s=parts_s[4] if timed else None,
    )


@given(st.lists(step_records(), min_size=1, max_size=30))
def test_parts_never_exceed_the_wall_whichever_steps_were_timed(steps: list[StepRecord]) -> None:
    means = mean_parts(steps)
    wall_s = float(np.mean([s.wall_s for s in steps]))
    assert sum(part_s or 0.0 for part_s in means) <= wall_s * (1 + 1e-9) + 1e-12


@given(st.lists(step_records(), min_size=1, max_size=30))
def test_with_every_step_timed_parts_are_plain_means(steps: list[StepRecord]) -> None:
    steps = [
        msgspec.structs.replace(s, backward_s=s.backward_s or 0.0, comm_exposed_s=0.0)
        for s in steps
    ]
    means = mean_parts(steps)
    for name in means._fields:
        assert getattr(means, name) == pytest.approx(np.mean([getattr(s, name) for s in steps]))


def made(wall_s: float, backward_s: float | None) -> StepRecord:
    return StepRecord(
        step=1,
        epoch=0,
        wall_s=wall_s,
        input_wait_s=0.001,
        forward_s=0.001,
        optimizer_s=0.001,
        backward_s=backward_s,
    )


def test_a_slow_step_that_was_timed_does_not_speak_for_the_short_ones() -> None:
    steps = [made(0.004, None)] * 99 + [made(0.103, 0.1)]
    block = summarise(steps, 0.0)
    assert block.backward_s is not None
    assert block.backward_s < block.mean_s


def test_without_a_timed_step_earlier_ones_of_the_job_tell_the_share() -> None:
    earlier = [made(0.013, 0.005)] * 3
    assert mean_parts([made(0.023, None)] * 5).backward_s is None
    assert mean_parts([made(0.023, None)] * 5, earlier).backward_s == pytest.approx(0.01)
