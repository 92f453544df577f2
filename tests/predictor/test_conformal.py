import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.predictor.conformal import ConformalScale
from scaledl.records import Interval

UNIT = Interval(mean=1.0, low=math.exp(-0.1), high=math.exp(0.1), level=0.9)


def scale_of(scores: list[float]) -> ConformalScale:
    scale = ConformalScale()
    for score in scores:
        # undo the present factor, so that the recorded raw score is the one wanted
        wide = scale.adjust(UNIT)
        scale.record(wide, math.exp(0.1 * score))
    return scale


def test_factor_matches_a_hand_count() -> None:
    # 19 scores 0.1 .. 1.9: rank ceil(20 * 0.9) = 18, the 18th smallest is 1.8
    scale = scale_of([k / 10 for k in range(1, 20)])
    assert scale.scores == pytest.approx([k / 10 for k in range(1, 20)])
    assert scale.factor(0.9) == pytest.approx(1.8)
    adjusted = scale.adjust(UNIT)
    assert adjusted.low == pytest.approx(math.exp(-0.18))
    assert adjusted.high == pytest.approx(math.exp(0.18))
    assert adjusted.mean == UNIT.mean


def test_too_wide_intervals_are_narrowed_after_enough_scores() -> None:
    scale = scale_of([0.5] * 12)
    assert scale.factor(0.9) == pytest.approx(0.5)


def test_few_scores_only_widen() -> None:
    assert scale_of([0.1] * 9).factor(0.9) == 1.0
    assert scale_of([0.1, 0.1, 2.5]).factor(0.9) == pytest.approx(2.5)


def test_nothing_seen_changes_nothing() -> None:
    scale = ConformalScale()
    assert scale.adjust(UNIT) == UNIT
    assert scale.coverage().seen is None
    assert scale.coverage().n == 0


def test_score_uses_the_side_the_truth_fell_on() -> None:
    scale = ConformalScale()
    lopsided = Interval(mean=1.0, low=math.exp(-0.1), high=math.exp(0.4))
    scale.record(lopsided, math.exp(0.2))
    scale.record(Interval(mean=1.0, low=math.exp(-0.1), high=math.exp(0.4)), math.exp(-0.05))
    assert scale.scores == pytest.approx([0.5, 0.5])


def test_coverage_counts_issued_intervals() -> None:
    scale = ConformalScale()
    for truth in (1.0, 1.05, 2.0, 0.95):
        scale.record(UNIT, truth)
    assert scale.coverage().n == 4
    assert scale.coverage().seen == pytest.approx(0.75)


def test_W11_intervals_cover_the_nominal_share_whatever_the_model_thought() -> None:
    rng = np.random.default_rng(5)
    for true_sigma in (0.02, 0.3):
        scale, held = ConformalScale(), []
        for _ in range(400):
            issued = scale.adjust(UNIT)
            truth = math.exp(true_sigma * rng.standard_normal())
            held.append(truth in issued)
            scale.record(issued, truth)
        assert 0.85 <= np.mean(held[60:]) <= 0.96


@given(
    st.lists(st.floats(0.01, 100), max_size=30),
    st.floats(0.01, 100),
    st.floats(0.01, 1),
    st.floats(1, 50),
)
def test_adjusted_interval_stays_ordered(
    truths: list[float], mean: float, low: float, high: float
) -> None:
    scale = ConformalScale()
    for truth in truths:
        scale.record(UNIT, truth)
    adjusted = scale.adjust(Interval(mean=mean, low=mean * low, high=mean * high))
    assert adjusted.low <= adjusted.mean <= adjusted.high
    assert adjusted.mean == mean
