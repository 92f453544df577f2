import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.predictor.collective_cost import (
    across_shards_terms,
    all_gather_terms,
    all_reduce_terms,
    hierarchical_all_reduce_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
    tree_all_reduce_s,
)
from scaledl.records import ClusterSpec, GpuSpec, LinkSpec

FAST = LinkSpec(kind="nvlink4", latency_s=3e-6, bytes_per_s=300e9)
SLOW = LinkSpec(kind="eth-25", latency_s=3e-5, bytes_per_s=2e9)
bytes_of = st.floats(min_value=0, max_value=1e12)
sizes = st.integers(min_value=1, max_value=4096)


def cluster(num_gpus: int, gpus_per_node: int = 8) -> ClusterSpec:
    return ClusterSpec(
        gpu=GpuSpec(name="x"),
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        intra=FAST,
        inter=SLOW,
    )


def test_ring_all_reduce_matches_a_hand_count() -> None:
    # 4 ranks, 6 rounds of a quarter each: 6 * (25e6 / 1e9 + 1e-3)
    link = LinkSpec(kind="x", latency_s=1e-3, bytes_per_s=1e9)
    assert ring_all_reduce_s(100e6, 4, link) == pytest.approx(6 * (0.025 + 1e-3))
    assert ring_all_gather_s(100e6, 4, link) == pytest.approx(3 * (0.025 + 1e-3))
    assert ring_reduce_scatter_s(100e6, 4, link) == pytest.approx(3 * (0.025 + 1e-3))


@given(bytes_of)
def test_group_of_one_costs_nothing(num_bytes: float) -> None:
    for cost in (ring_all_reduce_s, ring_all_gather_s, ring_reduce_scatter_s, tree_all_reduce_s):
        assert cost(num_bytes, 1, SLOW) == 0
    assert hierarchical_all_reduce_s(num_bytes, cluster(1)) == 0
    assert all_reduce_terms(num_bytes, 1, cluster(1)).seconds(FAST, SLOW) == 0


@given(bytes_of, sizes, st.integers(min_value=0, max_value=100))
def test_ring_time_does_not_fall_with_group_size(num_bytes: float, size: int, more: int) -> None:
    for cost in (ring_all_reduce_s, ring_all_gather_s, tree_all_reduce_s):
        assert cost(num_bytes, size + more, FAST) >= cost(num_bytes, size, FAST) * (1 - 1e-12)


@given(bytes_of, st.integers(1, 256), st.integers(1, 16))
def test_ring_over_nodes_does_not_get_faster_with_more_gpus(
    num_bytes: float, size: int, per_node: int
) -> None:
    smaller, larger = cluster(size, per_node), cluster(size + 1, per_node)
    before = all_reduce_terms(num_bytes, size, smaller).seconds(FAST, SLOW)
    after = all_reduce_terms(num_bytes, size + 1, larger).seconds(FAST, SLOW)
    assert after >= before * (1 - 1e-12)


@given(bytes_of, sizes)
def test_all_reduce_is_a_scatter_and_a_gather(num_bytes: float, size: int) -> None:
    both = ring_all_gather_s(num_bytes, size, FAST) + ring_reduce_scatter_s(num_bytes, size, FAST)
    assert ring_all_reduce_s(num_bytes, size, FAST) == pytest.approx(both)
    c = cluster(size)
    half = all_gather_terms(num_bytes, size, c)
    assert (half + half).seconds(FAST, SLOW) == pytest.approx(
        all_reduce_terms(num_bytes, size, c).seconds(FAST, SLOW)
    )


@given(bytes_of, st.integers(1, 8))
def test_one_node_is_the_plain_ring(num_bytes: float, size: int) -> None:
    expected = ring_all_reduce_s(num_bytes, size, FAST)
    assert all_reduce_terms(num_bytes, size, cluster(size)).seconds(FAST, SLOW) == pytest.approx(
        expected
    )
    assert hierarchical_all_reduce_s(num_bytes, cluster(size)) == pytest.approx(expected)


@given(bytes_of, st.integers(2, 64))
def test_one_gpu_a_node_is_a_ring_over_the_network(num_bytes: float, size: int) -> None:
    terms = all_reduce_terms(num_bytes, size, cluster(size, gpus_per_node=1))
    assert terms.seconds(FAST, SLOW) == pytest.approx(ring_all_reduce_s(num_bytes, size, SLOW))


def test_W04_crossing_the_node_border_is_a_cliff() -> None:
    inside, across = (all_reduce_terms(1e9, n, cluster(n)).seconds(FAST, SLOW) for n in (8, 16))
    assert across > 50 * inside


def test_tree_beats_the_ring_on_small_messages_only() -> None:
    assert tree_all_reduce_s(1e3, 64, SLOW) < ring_all_reduce_s(1e3, 64, SLOW) / 5
    assert tree_all_reduce_s(1e10, 64, SLOW) == pytest.approx(
        ring_all_reduce_s(1e10, 64, SLOW), rel=1e-3
    )


def test_replicas_of_a_shard_use_the_network_once_they_leave_the_node() -> None:
    assert across_shards_terms(1e9, 1, 8, cluster(8)).seconds(FAST, SLOW) == 0
    inside = across_shards_terms(1e9, 2, 4, cluster(8))
    outside = across_shards_terms(1e9, 2, 8, cluster(16))
    assert inside.inter_bytes == 0
    assert inside.intra_bytes == pytest.approx(1e9 / 4)
    assert outside.inter_bytes == pytest.approx(1e9)
