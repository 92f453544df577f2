"""What earlier jobs teach about scaling, and where they have no say."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from truth import Truth, random_truth

from scaledl.predictor.analytic import forecast
from scaledl.predictor.experience import (
    MAX_HIGH_OVER_LOW,
    Case,
    Experience,
    cases_of,
    fit,
    shipped,
    weighted_quantile,
)
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.sight import Sight, look
from scaledl.records import Interval, Measurement

TRUTH = Truth()
NOTHING = Experience(lessons={})


def sight(log_model: float = 0.0, exposed: float = 0.2, group: str = "g") -> Sight:
    return Sight(
        group=group,
        hold_s=2.0,
        log_model=log_model,
        features=(exposed, exposed, log_model, 0.0, 1.0),
        doubts=(math.log(exposed), 1.0),
    )


def cases(log_truth: float, log_model: float, spread: float = 0.0, jobs: int = 8) -> list[Case]:
    return [
        Case(
            sight=sight(log_model, exposed=0.1 + 0.05 * k),
            truth_s=2.0 * math.exp(log_truth + spread * (j - jobs / 2) / jobs),
            job=f"job {j}",
            task="to 8",
        )
        for j in range(jobs)
        for k in range(5)
    ]


def blind(truth: Truth, count: int, seed: int = 0) -> Measurement:
    """A measurement that tells times only, as the public tables do."""
    told = truth.measure(count, 16, seed=seed)
    return msgspec.structs.replace(told, buckets=(), param_bytes=None)


def test_a_model_that_was_always_right_is_followed_as_far_as_it_goes() -> None:
    learned = fit(cases(log_truth=0.4, log_model=0.4))
    answer = learned.interval(sight(0.4), 0.9)
    assert answer is not None
    assert answer.mean == pytest.approx(2 * math.exp(0.4))


def test_a_model_that_always_cried_wolf_is_held_near_the_last_step() -> None:
    learned = fit(cases(log_truth=0.0, log_model=1.0))
    answer = learned.interval(sight(1.0), 0.9)
    assert answer is not None
    assert 2.0 <= answer.mean < 2.2


@settings(deadline=None, max_examples=30)
@given(st.floats(-1, 1), st.floats(0.01, 3), st.floats(0.05, 0.98))
def test_intervals_hold_their_mean_and_are_never_wider_than_said(
    log_model: float, exposed: float, level: float
) -> None:
    for name in shipped().lessons:
        answer = shipped().interval(sight(log_model, exposed, name), level)
        assert answer is not None
        assert 0 < answer.low <= answer.mean <= answer.high
        assert answer.high <= MAX_HIGH_OVER_LOW * answer.low * (1 + 1e-9)


def test_a_higher_level_is_never_narrower() -> None:
    for name in shipped().lessons:
        spans = [shipped().interval(sight(0.1, group=name), level) for level in (0.5, 0.8, 0.95)]
        widths = [s.high / s.low for s in spans if s is not None]
        assert len(widths) == 3
        assert widths == pytest.approx(sorted(widths))


def test_own_jobs_that_all_grew_move_the_answer_towards_them() -> None:
    public = fit(cases(log_truth=0.0, log_model=0.0, spread=0.2))
    before = public.interval(sight(), 0.9)
    few = public.with_own(cases(log_truth=0.3, log_model=0.0, jobs=2)).interval(sight(), 0.9)
    many = public.with_own(cases(log_truth=0.3, log_model=0.0, jobs=60)).interval(sight(), 0.9)
    assert before is not None
    assert few is not None
    assert many is not None
    assert before.mean < few.mean < many.mean <= 2 * math.exp(0.31)
    assert few.high > before.high


def test_without_own_cases_nothing_changes() -> None:
    assert shipped().with_own([]) == shipped()


def test_a_group_never_lived_through_has_no_answer() -> None:
    assert shipped().interval(sight(group="on the moon"), 0.9) is None


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0.01, 1))
def test_a_quantile_has_its_share_at_or_below_it(values: list[float], share: float) -> None:
    found = weighted_quantile(np.array(values), np.ones(len(values)), share)
    assert sum(v <= found for v in values) >= share * len(values) - 1e-6


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 4]))
def test_counts_that_were_seen_are_left_as_measured(seed: int, asked: int) -> None:
    truth = random_truth(seed)
    seen = [truth.measure(n, 16, seed=seed) for n in (1, 2, 4)]
    assert look(seen, forecast(seen, truth.cluster(asked), truth.plan(asked, 16))) is None


def test_experience_of_gpus_has_no_say_over_processes_of_one_host() -> None:
    seen = [msgspec.structs.replace(TRUTH.measure(n, 16), host_shared=True) for n in (1, 2)]
    assert look(seen, forecast(seen, TRUTH.cluster(4), TRUTH.plan(4, 16))) is None


def test_the_forecast_of_unknown_sizes_is_as_doubtful_as_experience() -> None:
    plain, wiser = Forecaster(NOTHING), Forecaster()
    for n in (1, 2, 4):
        plain.learn(blind(TRUTH, n))
        wiser.learn(blind(TRUTH, n))
    asked = TRUTH.cluster(8), TRUTH.plan(8, 16)
    told = wiser.predict(*asked)
    seen = look(wiser.measurements, plain.predict(*asked))
    assert seen is not None
    assert told.step_s == shipped().interval(seen, 0.9)
    assert told.parts.total_s == pytest.approx(told.step_s.mean)


def test_a_model_outside_all_experience_stands_as_it_is() -> None:
    slow = replace(
        TRUTH, intra=msgspec.structs.replace(TRUTH.intra, bytes_per_s=0.05e9, rel_sigma=0.1)
    )
    plain, wiser = Forecaster(NOTHING), Forecaster()
    for made in (plain, wiser):
        made.learn(slow.measure(1, 16))
    asked = slow.cluster(8), slow.plan(8, 16)
    assert wiser.predict(*asked) == plain.predict(*asked)


def test_past_jobs_of_other_models_are_remembered_as_forecasts_of_their_larger_counts() -> None:
    past = [blind(TRUTH, n, seed=n) for n in (1, 2, 4)]
    made = cases_of("job", past)
    assert [(c.task, c.truth_s) for c in made] == [
        ("to 2", past[1].step_s),
        ("to 4", past[2].step_s),
    ]
    plain, wiser = Forecaster(), Forecaster()
    growing = [
        msgspec.structs.replace(m, step_s=m.step_s * (1 + k), signature=f"other {j}")
        for j in range(30)
        for k, m in enumerate(past)
    ]
    wiser.remember(growing)
    for made_one in (plain, wiser):
        made_one.learn(blind(TRUTH, 1))
        made_one.learn(blind(TRUTH, 2))
    asked = TRUTH.cluster(4), TRUTH.plan(4, 16)
    assert wiser.predict(*asked).step_s.mean > plain.predict(*asked).step_s.mean


def test_few_jobs_add_doubt_and_move_no_forecast_of_a_model_that_knows_the_bytes() -> None:
    slow = replace(TRUTH, intra_bytes_per_s=4e9)
    now = slow.measure(2, 16)
    cluster, plan = now.cluster.with_num_gpus(8), msgspec.structs.replace(now.plan, replicate=8)
    alone = Forecaster(NOTHING)
    alone.learn(now)
    plain = alone.predict(cluster, plan)
    found = look([now], plain)
    assert found is not None
    group = found.group
    assert found.log_model > 0.05

    def told(jobs: int) -> Interval:
        past = [
            msgspec.structs.replace(c, sight=msgspec.structs.replace(c.sight, group=group))
            for c in cases(found.log_model - 0.2, found.log_model, spread=0.9, jobs=jobs)
        ]
        lived = fit(past)
        assert lived.leads(found, 0.9) == (jobs >= 9)
        forecaster = Forecaster(lived)
        forecaster.learn(now)
        return forecaster.predict(cluster, plan).step_s

    few, many = told(4), told(12)
    assert few.mean == plain.step_s.mean
    assert few.low <= plain.step_s.low
    assert few.high >= plain.step_s.high
    assert many.mean < few.mean
