"""The estimate inside a run: how steps reach it, and the user's own plan of step costs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import NOW_S
from torch import nn

import scaledl
from scaledl.errors import UsageError
from scaledl.pulse import Pulse
from scaledl.records import Progress, StepRecord

TOTAL = 400
STEP_S = 0.1


def doubled_at_half(done: float) -> float:
    return 1.0 if done < 0.5 else 2.0


def step_record(number: int) -> StepRecord:
    wall_s = STEP_S * doubled_at_half((number - 1) / TOTAL)
    return StepRecord(step=number, epoch=0, wall_s=wall_s, input_wait_s=0.0, optimizer_s=0.0)


def progress_at(step: int, total_steps: int | None = TOTAL) -> Progress:
    return Progress(
        step=step,
        epoch=0,
        step_in_epoch=step,
        total_steps=total_steps,
        num_epochs=1,
        steps_per_epoch=total_steps,
    )


def remaining_s(pulse: Pulse, num_steps: int, total_steps: int | None = TOTAL) -> float | None:
    for step in range(1, num_steps + 1):
        pulse.add_steps([step_record(step)], progress_at(step, total_steps))
    pulse.beat(progress_at(num_steps, total_steps), NOW_S)
    if pulse.eta is None or pulse.eta.remaining_s is None:
        return None
    return pulse.eta.remaining_s.mean


def test_E17_a_plan_of_step_costs_foretells_what_no_clock_can() -> None:
    true_s = sum(step_record(step).wall_s for step in range(101, TOTAL + 1))
    planned = remaining_s(Pulse(lambda eta: None, doubled_at_half), 100)
    blind = remaining_s(Pulse(lambda eta: None), 100)
    assert planned == pytest.approx(true_s, rel=0.02)
    assert blind is not None
    assert blind < 0.7 * true_s


def test_a_plan_is_laid_anew_where_the_run_turns_out_longer() -> None:
    pulse = Pulse(lambda eta: None, doubled_at_half)
    for step in range(1, 101):  # accumulation is not seen at first: half as many steps
        pulse.add_steps([step_record(step)], progress_at(step, TOTAL // 2 if step < 50 else TOTAL))
    pulse.beat(progress_at(100), NOW_S)
    assert pulse.eta is not None
    assert pulse.eta.remaining_s is not None
    true_s = sum(step_record(step).wall_s for step in range(101, TOTAL + 1))
    assert pulse.eta.remaining_s.mean == pytest.approx(true_s, rel=0.02)


def test_a_plan_for_a_run_of_unknown_length_is_left_out() -> None:
    pulse = Pulse(lambda eta: None, doubled_at_half)
    assert remaining_s(pulse, 50, total_steps=None) is None
    assert pulse.eta is not None
    assert pulse.eta.step_s is not None
    assert pulse.eta.step_s.mean == pytest.approx(STEP_S, rel=0.01)


@pytest.mark.parametrize(
    ("step_cost", "said"),
    [
        (5, "step_cost must be a function"),
        (lambda: 1.0, "step_cost raised TypeError"),
        (lambda done: 1 / done, "step_cost raised ZeroDivisionError"),
        (lambda done: -1.0, "positive number, got -1.0"),
        (lambda done: float("nan"), "positive number, got nan"),
        (lambda done: "much", "step_cost raised ValueError"),
        (lambda done: {}[done], "step_cost raised KeyError"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_the_run(step_cost: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        scaledl.track(nn.Linear(2, 2), step_cost=step_cost)


@pytest.mark.parametrize("how", ["block", "decorator"])
def test_the_plan_reaches_the_estimate_of_a_real_loop(how: str, tmp_path: Path) -> None:
    asked: list[float] = []

    def step_cost(done: float) -> float:
        asked.append(done)
        return 1.0 + done

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"report": "none", "run_dir": tmp_path, "total_steps": 50}
    tracked = scaledl.track(model, step_cost=step_cost, **options)
    before = len(asked)

    def train() -> None:
        for _ in range(50):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()

    run: Callable[[], None] = tracked(train) if how == "decorator" else train
    if how == "decorator":
        run()
    else:
        with tracked:
            run()
    assert len(asked) - before >= 50
    assert max(asked) < 1
