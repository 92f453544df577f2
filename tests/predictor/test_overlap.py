import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.predictor.overlap import (
    BUCKET_CAP_BYTES,
    FIRST_BUCKET_BYTES,
    MAX_BUCKETS,
    Timeline,
    exposed_and_hidden_s,
    exposed_draws_s,
    exposed_sharded_s,
    measured_timeline,
    synthetic_timeline,
)
from scaledl.records import BucketTiming

seconds = st.floats(min_value=0, max_value=10)
buckets = st.lists(st.tuples(st.floats(0, 1), st.floats(1, 1e8)), min_size=1, max_size=30)


def test_last_bucket_alone_is_exposed_when_the_link_is_fast() -> None:
    exposed_s, hidden_s = exposed_and_hidden_s([1.0, 2.0, 3.0], [0.5, 0.5, 0.25], 3.0)
    assert (exposed_s, hidden_s) == (0.25, 1.0)


def test_a_slow_link_queues_the_buckets() -> None:
    # starts 1, ends 3; then 5; then 7; the backward pass ended at 3
    assert exposed_and_hidden_s([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], 3.0) == (4.0, 2.0)


def test_no_bucket_no_exposure() -> None:
    assert exposed_and_hidden_s([], [], 3.0) == (0.0, 0.0)


@given(st.lists(st.tuples(seconds, seconds), max_size=20), seconds)
def test_exposed_and_hidden_are_never_negative(
    pairs: list[tuple[float, float]], end: float
) -> None:
    ready = sorted(r for r, _ in pairs)
    durations = [d for _, d in pairs]
    exposed_s, hidden_s = exposed_and_hidden_s(ready, durations, end)
    assert exposed_s >= 0
    assert 0 <= hidden_s <= sum(durations)


@given(buckets, st.floats(0.01, 10), st.floats(0, 0.1), st.floats(1e-12, 1e-7))
def test_closed_form_equals_the_event_loop(
    pairs: list[tuple[float, float]], backward_s: float, fixed_s: float, per_byte_s: float
) -> None:
    ready = sorted(r for r, _ in pairs)
    sizes = [size for _, size in pairs]
    timeline = Timeline(
        num_bytes=tuple(sizes), ready_fraction=tuple(ready), num_buckets=(1,) * len(sizes)
    )
    expected, _ = exposed_and_hidden_s(
        [r * backward_s for r in ready], [fixed_s + s * per_byte_s for s in sizes], backward_s
    )
    drawn = exposed_draws_s(
        timeline, np.array([backward_s]), np.array([fixed_s]), np.array([per_byte_s])
    )
    assert drawn[0] == pytest.approx(expected, abs=1e-9, rel=1e-9)


@given(st.floats(1, 1e12))
def test_synthetic_timeline_keeps_all_bytes_in_order(total: float) -> None:
    timeline = synthetic_timeline(total)
    assert timeline.total_bytes == pytest.approx(total, rel=1e-9)
    assert list(timeline.ready_fraction) == sorted(timeline.ready_fraction)
    assert timeline.ready_fraction[-1] == pytest.approx(1.0)
    assert len(timeline.num_bytes) <= MAX_BUCKETS


def test_synthetic_timeline_is_cut_as_ddp_cuts_it() -> None:
    timeline = synthetic_timeline(60 * 2**20)
    assert timeline.num_bytes == (
        FIRST_BUCKET_BYTES,
        BUCKET_CAP_BYTES,
        BUCKET_CAP_BYTES,
        9 * 2**20,
    )


def test_merging_buckets_keeps_their_count() -> None:
    timeline = synthetic_timeline(100 * BUCKET_CAP_BYTES)
    assert len(timeline.num_bytes) <= MAX_BUCKETS
    assert sum(timeline.num_buckets) == 101


@given(st.integers(1, 400), st.floats(1e-4, 3), st.floats(0, 1e-3))
def test_merging_buckets_leaves_an_even_timeline_exact(
    num_buckets: int, traffic_s: float, fixed_s: float
) -> None:
    ready = [(i + 1) / num_buckets for i in range(num_buckets)]
    merged = measured_timeline([BucketTiming(num_bytes=1000, ready_s=r) for r in ready], 1.0)
    per_byte_s = traffic_s / num_buckets / 1000
    drawn = exposed_draws_s(merged, np.array([1.0]), np.array([fixed_s]), np.array([per_byte_s]))
    exact, _ = exposed_and_hidden_s(ready, [fixed_s + 1000 * per_byte_s] * num_buckets, 1.0)
    assert drawn[0] == pytest.approx(exact, abs=1e-9)


def test_buckets_of_a_slowed_step_are_scaled_into_the_backward_pass() -> None:
    seen = [BucketTiming(num_bytes=4, ready_s=r) for r in (0.1, 0.2, 0.4)]
    assert measured_timeline(seen, 0.2).ready_fraction == pytest.approx((0.25, 0.5, 1.0))
    assert measured_timeline(seen, 0.8).ready_fraction == pytest.approx((0.125, 0.25, 0.5))


@given(st.integers(1, 60), seconds, seconds, seconds, seconds)
def test_sharded_exposure_lies_between_its_ends_and_all_traffic(
    units: int, forward_s: float, backward_s: float, gather_s: float, scatter_s: float
) -> None:
    arrays = [np.array([x]) for x in (forward_s, backward_s, gather_s, scatter_s)]
    exposed_s = exposed_sharded_s(units, *arrays)[0]
    assert exposed_s >= (gather_s + scatter_s) / units - 1e-12
    assert exposed_s <= 2 * gather_s + scatter_s + 1e-9
