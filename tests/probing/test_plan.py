"""Which counts are probed: what a probe teaches, what it costs, and what the plan promises."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import BASE

from scaledl.errors import UsageError
from scaledl.predictor.draws import normal_draws
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.probes import imagined, most_telling, sensitivity
from scaledl.predictor.step_parts import NUM_DIMS, RUN
from scaledl.probing.plan import START_S, Wish, make_plan
from scaledl.records import Interval
from scaledl.report.probe_text import render_plan
from scaledl.report.text import Style

WISH = Wish(most_gpus=8, gpus_per_node=8)
ON_ONE = msgspec.structs.replace(
    BASE,
    cluster=BASE.cluster.with_num_gpus(1),
    plan=msgspec.structs.replace(BASE.plan, strategy="single", replicate=1),
)


def knowing_base() -> Forecaster:
    forecaster = Forecaster()
    forecaster.learn(BASE)
    return forecaster


def log_width(step_s: Interval) -> float:
    return float(np.log(step_s.high / step_s.low))


def test_sensitivity_is_read_back_from_draws_that_are_linear_in_the_parameters() -> None:
    slopes = np.linspace(-0.1, 0.2, NUM_DIMS)
    slopes[RUN] = 0.05
    found = sensitivity(np.exp(np.log(0.2) + normal_draws(NUM_DIMS) @ slopes))
    assert found == pytest.approx(np.delete(slopes, RUN) / 0.05)


@given(st.integers(0, 6), st.floats(1.5, 20.0))
def test_of_two_probes_that_tell_of_one_parameter_the_one_that_tells_more_is_taken(
    dim: int, more: float
) -> None:
    normals = normal_draws(NUM_DIMS)
    little, much = (np.exp(0.02 * factor * normals[:, dim]) for factor in (1.0, more))
    assert most_telling([little, much], [1.0, 1.0], count=1).chosen == (1,)


def test_a_probe_beyond_the_budget_is_not_taken_however_much_it_tells() -> None:
    normals = normal_draws(NUM_DIMS)
    draws = [np.exp(factor * normals[:, 5]) for factor in (0.05, 0.5)]
    assert most_telling(draws, [10.0, 100.0], budget_gpu_s=50.0).chosen == (0,)


def test_the_plan_leaves_out_what_was_measured_and_stays_within_the_machine() -> None:
    plan = make_plan("run", knowing_base(), BASE, WISH)
    counts = [point.num_gpus for point in plan.points]
    assert len(counts) == 2
    assert set(counts) <= {1, 2, 8}


def test_what_a_point_takes_is_its_steps_and_an_assumed_start_on_all_gpus() -> None:
    (point,) = make_plan("run", knowing_base(), BASE, Wish(gpus=(2,), num_steps=50)).points
    assert point.wall_s == pytest.approx(START_S + 50 * point.step_s.mean)
    assert point.gpu_s == pytest.approx(2 * point.wall_s)
    assert point.cost_usd == pytest.approx(2.49 * point.gpu_s / 3600)


def test_short_steps_are_many_unless_the_user_says_how_many() -> None:
    def steps(factor: float, wish: Wish) -> int:
        base = msgspec.structs.replace(BASE, step_s=BASE.step_s * factor)
        return make_plan("run", Forecaster().knowing(base), base, wish).points[0].num_steps

    assert steps(1.0, Wish(gpus=(2,))) == 30
    assert 30 < steps(0.2, Wish(gpus=(2,))) < 300
    assert steps(0.001, Wish(gpus=(2,))) == 300
    assert steps(0.001, Wish(gpus=(2,), num_steps=40)) == 40


def test_the_batch_of_a_gpu_follows_the_rule_that_the_command_was_written_for() -> None:
    same = make_plan("run", knowing_base(), BASE, Wish(gpus=(2,)))
    shared = make_plan("run", knowing_base(), BASE, Wish(gpus=(2,), batch_rule="fixed-global"))
    assert same.points[0].batch_per_gpu == 128
    assert shared.points[0].batch_per_gpu == 256


def test_a_larger_budget_never_tells_less() -> None:
    def plan(minutes: float) -> tuple[int, float]:
        wish = msgspec.structs.replace(WISH, budget_gpu_s=60 * minutes)
        found = make_plan("run", knowing_base(), BASE, wish)
        spent = sum(point.gpu_s for point in found.points)
        assert spent <= 60 * minutes
        return len(found.points), sum(log_width(n.after) for n in found.expected)

    (few, wide), (many, narrow) = plan(1.0), plan(100.0)
    assert few < many
    assert narrow < wide


def test_a_probe_that_comes_out_as_told_narrows_the_counts_beyond_it() -> None:
    plan = make_plan("run", knowing_base(), BASE, Wish(gpus=(8,), gpus_per_node=8))
    found = {n.num_gpus: n for n in plan.expected}
    assert log_width(found[8].after) < log_width(found[8].before)
    assert log_width(found[16].after) < log_width(found[16].before)
    assert 4 not in found  # the running count is no forecast


def test_the_imagined_measurement_is_the_forecast_and_changes_nothing_that_was_known() -> None:
    forecaster = knowing_base()
    told = forecaster.predict(BASE.cluster.with_num_gpus(8), BASE.plan)
    dreamt = imagined(BASE, told, 30)
    assert dreamt.step_s == told.step_s.mean
    assert forecaster.knowing(dreamt).measurements[-1].cluster.num_gpus == 8
    assert forecaster.measurements == (BASE,)


def test_nothing_left_and_nothing_affordable_are_said_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"no count up to 1 is left to probe.*--gpus"):
        make_plan("run", Forecaster().knowing(ON_ONE), ON_ONE, Wish(most_gpus=1))
    poor = msgspec.structs.replace(WISH, budget_gpu_s=1.0)
    with pytest.raises(UsageError, match=r"no probe fits 0\.0167 GPU minutes.*Raise --budget-min"):
        make_plan("run", knowing_base(), BASE, poor)


def test_the_plan_is_shown_with_cost_steps_and_the_warning() -> None:
    plan = make_plan("run-1", knowing_base(), BASE, Wish(gpus=(2, 8), gpus_per_node=8))
    text = " ".join(render_plan(plan, Style(width=96)).split())
    assert "scaledl probe for run-1: 2 runs of 30 steps, about" in text
    assert "GPU minutes, $0." in text
    assert "The first steps of the real script are run" in text
    assert "narrower" in text
    assert max(map(len, render_plan(plan, Style(width=60)).splitlines())) <= 60
