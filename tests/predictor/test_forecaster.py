import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from truth import Truth, random_truth

from scaledl.errors import StoreError, UsageError
from scaledl.predictor.forecaster import Forecaster, merge

TRUTH = Truth()


def taught(truth: Truth, *counts: int) -> Forecaster:
    made = Forecaster()
    for n in counts:
        made.learn(truth.measure(n, 16, seed=n))
    return made


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 8, 32]), st.integers(0, 15))
def test_prediction_is_identical_after_save_and_load(seed: int, asked: int, audits: int) -> None:
    truth = random_truth(seed)
    made = taught(truth, 1, 4)
    for k in range(audits):
        made.audit(made.predict(truth.cluster(8), truth.plan(8, 16)), 0.1 + 0.01 * k)
    loaded = Forecaster.from_bytes(made.to_bytes())
    assert loaded.predict(truth.cluster(asked), truth.plan(asked, 16)) == made.predict(
        truth.cluster(asked), truth.plan(asked, 16)
    )
    assert loaded.coverage == made.coverage
    assert loaded.to_bytes() == made.to_bytes()


def test_learning_never_changes_its_input() -> None:
    first, second = TRUTH.measure(4, 16, seed=1), TRUTH.measure(4, 16, seed=2)
    before = msgspec.json.encode([first, second])
    made = Forecaster()
    made.learn(first)
    made.learn(second)
    made.predict(TRUTH.cluster(8), TRUTH.plan(8, 16))
    assert msgspec.json.encode([first, second]) == before


def test_a_known_regime_is_merged_and_the_newest_counts_most() -> None:
    old = TRUTH.measure(4, 16)
    new = msgspec.structs.replace(old, step_s=old.step_s * 1.2, num_steps=50)
    made = Forecaster()
    made.learn(old)
    made.learn(new)
    assert len(made.measurements) == 1
    merged_s = made.measurements[0].step_s
    assert abs(merged_s - new.step_s) <= abs(merged_s - old.step_s)
    assert old.step_s < merged_s < new.step_s


def test_merging_keeps_what_the_newer_did_not_see() -> None:
    old = TRUTH.measure(4, 16)
    blind = msgspec.structs.replace(old, buckets=(), forward_s=None, rank_sigma_s=None)
    merged = merge(blind, old)
    assert merged.buckets == old.buckets
    assert merged.forward_s == old.forward_s
    assert merged.parts.total_s == pytest.approx(old.parts.total_s)


def test_counts_and_batches_are_regimes_of_their_own() -> None:
    made = taught(TRUTH, 1, 2, 4)
    made.learn(TRUTH.measure(4, 32))
    assert len(made.measurements) == 4


def test_another_model_does_not_speak_for_this_one() -> None:
    made = Forecaster()
    made.learn(msgspec.structs.replace(TRUTH.measure(8, 16), signature="other", step_s=9.0))
    made.learn(TRUTH.measure(4, 16))
    assert [m.signature for m in made.measurements] == ["truth"]
    assert made.predict(TRUTH.cluster(8), TRUTH.plan(8, 16)).step_s.mean < 1.0


def test_audits_widen_what_was_wrong_and_leave_the_other_basis_alone() -> None:
    made = taught(TRUTH, 4)
    c8, p8, c4, p4 = TRUTH.cluster(8), TRUTH.plan(8, 16), TRUTH.cluster(4), TRUTH.plan(4, 16)
    before8, before4 = made.predict(c8, p8).step_s, made.predict(c4, p4).step_s
    for _ in range(12):
        made.audit(made.predict(c8, p8), before8.mean * 1.5)
    after8 = made.predict(c8, p8).step_s
    assert after8.high >= before8.mean * 1.5 * (1 - 1e-9)
    assert after8.mean == before8.mean
    assert made.predict(c4, p4).step_s == before4
    assert made.coverage.n == 12


def test_knowing_teaches_a_copy_only() -> None:
    made = taught(TRUTH, 1)
    extra = TRUTH.measure(8, 16)
    assert len(made.knowing(extra).measurements) == 2
    assert len(made.measurements) == 1
    assert made.knowing(TRUTH.measure(1, 16)) is made


def test_predicting_before_learning_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing measured"):
        Forecaster().predict(TRUTH.cluster(2), TRUTH.plan(2, 16))
    assert Forecaster().coverage.seen is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": "x"}'])
def test_damaged_state_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="unreadable"):
        Forecaster.from_bytes(data)


def test_state_of_a_newer_version_asks_for_an_upgrade() -> None:
    with pytest.raises(StoreError, match=r"version 99.*Upgrade"):
        Forecaster.from_bytes(b'{"version": 99, "future": true}')
