from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from truth import Truth, random_truth

from scaledl.errors import UsageError
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.whatif import scaling_rows, steps_per_epoch
from scaledl.records import LinkSpec, Measurement, ScalingRow, WhatIfQuery

TRUTH = Truth()


def rows_of(base: Measurement, **query: object) -> dict[int, ScalingRow]:
    asked: dict[str, object] = {"gpus": (1, 2, 4, 8), **query}
    rows = scaling_rows(Forecaster(), base, WhatIfQuery(**asked))  # type: ignore[arg-type]
    return {row.num_gpus: row for row in rows}


@pytest.mark.parametrize(
    ("num_ranks", "kept", "dropped"),
    [(1, 63, 62), (2, 32, 31), (4, 16, 15), (8, 8, 7), (16, 4, 3), (64, 1, 0)],
)
def test_D10_steps_per_epoch_follow_sampler_and_loader(
    num_ranks: int, kept: int, dropped: int
) -> None:
    assert steps_per_epoch(1003, 16, num_ranks) == kept
    assert steps_per_epoch(1003, 16, num_ranks, drop_last=True) == dropped


def test_D10_steps_per_epoch_equal_those_of_torch() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for num_samples in (1, 7, 64, 1003):
        for num_ranks in (1, 3, 8, 70):
            for drop_last in (False, True):
                if drop_last and num_samples < num_ranks:
                    continue  # torch refuses or pads in its own way
                sampler = torch_data.DistributedSampler(
                    range(num_samples), num_replicas=num_ranks, rank=0, drop_last=drop_last
                )
                batches = torch_data.BatchSampler(sampler, 5, drop_last)
                assert steps_per_epoch(num_samples, 5, num_ranks, drop_last) == len(batches)


def test_an_uneven_last_group_of_accumulation_is_a_step() -> None:
    assert steps_per_epoch(100, 10, 1, grad_accum=4) == 3


@pytest.mark.parametrize("wrong", [(10, 0, 1), (10, 1, 0), (-1, 1, 1)])
def test_impossible_epochs_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError):
        steps_per_epoch(*wrong)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 500),
    st.sampled_from([1, 2, 4, 16]),
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.sampled_from(["fixed-global", "fixed-per-gpu"]),
    st.integers(0, 5000),
)
def test_rows_are_sorted_complete_and_consistent(
    seed: int, base_gpus: int, gpus: list[int], rule: str, num_samples: int
) -> None:
    base = random_truth(seed).measure(base_gpus, 16, seed=seed)
    rows = rows_of(base, gpus=tuple(gpus), batch_rule=rule, num_samples=num_samples)
    assert list(rows) == sorted({*gpus, base_gpus})
    own = rows[base_gpus]
    assert own.basis == "measured"
    assert own.step_s.mean == base.step_s
    assert own.speedup in (None, 1.0)
    for row in rows.values():
        assert row.parts_s.total_s == pytest.approx(row.step_s.mean)
        if row.epoch_s is not None:
            assert row.epoch_s.mean == pytest.approx(row.step_s.mean * (row.steps_per_epoch or 0))
            assert row.gpu_hours == pytest.approx(row.epoch_s.mean * row.num_gpus / 3600)
        assert row.cost_usd is None
        assert row.energy_j is None


def test_W05_the_batch_rule_decides_what_a_step_is() -> None:
    base = TRUTH.measure(4, 16)
    weak = rows_of(base, batch_rule="fixed-per-gpu", num_samples=6400)
    strong = rows_of(base, batch_rule="fixed-global", num_samples=6400)
    assert [weak[n].batch_per_gpu for n in (1, 2, 4, 8)] == [16, 16, 16, 16]
    assert [strong[n].batch_per_gpu for n in (1, 2, 4, 8)] == [64, 32, 16, 8]
    assert [weak[n].steps_per_epoch for n in (1, 2, 4, 8)] == [400, 200, 100, 50]
    assert [strong[n].steps_per_epoch for n in (1, 2, 4, 8)] == [100, 100, 100, 100]
    for rows in (weak, strong):
        speed = [rows[n].speedup or 0 for n in (1, 2, 4, 8)]
        assert speed == sorted(speed)
        assert rows[1].efficiency_fraction == 1.0


def test_seen_steps_stand_in_for_unknown_samples() -> None:
    base = TRUTH.measure(4, 16)
    weak = rows_of(base, batch_rule="fixed-per-gpu", steps_per_epoch=101)
    strong = rows_of(base, batch_rule="fixed-global", steps_per_epoch=101)
    assert [weak[n].steps_per_epoch for n in (1, 2, 4, 8)] == [404, 202, 101, 51]
    assert {row.steps_per_epoch for row in strong.values()} == {101}


def test_without_epoch_length_speed_is_per_sample() -> None:
    rows = rows_of(TRUTH.measure(4, 16), batch_rule="fixed-per-gpu")
    assert all(row.epoch_s is None and row.gpu_hours is None for row in rows.values())
    expected = 2 * rows[4].step_s.mean / rows[8].step_s.mean
    assert rows[8].speedup == pytest.approx(expected)


def test_W02_gpu_hours_cost_and_energy_stand_beside_the_time() -> None:
    base = TRUTH.measure(2, 16)
    rows = rows_of(
        base, num_samples=32_000, usd_per_gpu_hour=2.0, power_w=300.0, remaining_epochs=2.5
    )
    own = rows[2]
    assert own.epoch_s is not None
    assert own.remaining_s is not None
    assert own.epoch_s.mean == pytest.approx(1000 * base.step_s)
    assert own.remaining_s.mean == pytest.approx(2500 * base.step_s)
    assert own.cost_usd == pytest.approx(2.0 * (own.gpu_hours or 0))
    assert own.energy_j == pytest.approx(300 * 2 * own.epoch_s.mean)
    assert (rows[8].cost_usd or 0) > (own.cost_usd or 0)


def test_waiting_gpus_draw_less_than_computing_ones() -> None:
    slow = replace(TRUTH, intra=LinkSpec(kind="eth-10", latency_s=3e-5, bytes_per_s=1e9))
    rows = rows_of(slow.measure(1, 16), num_samples=32_000, power_w=300.0)
    assert rows[8].epoch_s is not None
    full_j = 300 * 8 * rows[8].epoch_s.mean
    assert 0.4 * full_j < (rows[8].energy_j or 0) < 0.9 * full_j


def test_price_of_the_cluster_is_used_when_the_query_has_none() -> None:
    base = TRUTH.measure(2, 16)
    priced = msgspec.structs.replace(
        base, cluster=msgspec.structs.replace(base.cluster, usd_per_gpu_hour=3.0)
    )
    row = rows_of(priced, num_samples=3200)[2]
    assert row.cost_usd == pytest.approx(3.0 * (row.gpu_hours or 0))
    free = rows_of(priced, num_samples=3200, usd_per_gpu_hour=0.0)[2]
    assert free.cost_usd == 0.0


def test_uneven_batches_are_said() -> None:
    rows = rows_of(TRUTH.measure(4, 16), gpus=(3, 8))
    assert rows[3].batch_per_gpu == 22
    assert "uneven-batch" in rows[3].caveats
    assert "uneven-batch" not in rows[8].caveats


def test_more_gpus_than_samples_grow_the_global_batch() -> None:
    rows = rows_of(TRUTH.measure(2, 4), gpus=(8, 16), num_samples=800)
    assert rows[8].batch_per_gpu == 1
    assert "more-gpus-than-samples" not in rows[8].caveats
    assert rows[16].batch_per_gpu == 1
    assert "more-gpus-than-samples" in rows[16].caveats
    assert rows[16].steps_per_epoch == 50


def test_accumulation_shrinks_before_ranks_run_dry() -> None:
    base = TRUTH.measure(2, 4, grad_accum=8)
    rows = rows_of(base, gpus=(2, 4, 16, 32, 64), num_samples=6400)
    for row in rows.values():
        assert row.steps_per_epoch == 100
    assert [rows[n].batch_per_gpu for n in (2, 4, 16, 32, 64)] == [4, 2, 1, 1, 1]


def test_W09_a_larger_batch_per_gpu_says_memory_was_not_checked() -> None:
    rows = rows_of(TRUTH.measure(8, 16))
    assert "memory-not-checked" in rows[1].caveats
    assert "memory-not-checked" not in rows[8].caveats
    assert rows[1].fits is None


def test_an_epoch_without_a_full_batch_has_no_time() -> None:
    rows = rows_of(
        TRUTH.measure(4, 16),
        gpus=(64,),
        batch_rule="fixed-per-gpu",
        num_samples=1003,
        drop_last=True,
    )
    assert rows[64].steps_per_epoch == 0
    assert rows[64].epoch_s is None
    assert rows[64].speedup is None
    assert "no-full-batch" in rows[64].caveats


def test_gpus_per_node_and_link_of_the_query_hold_for_the_other_counts() -> None:
    link = LinkSpec(kind="stated", latency_s=1e-5, bytes_per_s=50e9)
    rows = rows_of(TRUTH.measure(4, 16), gpus=(8,), gpus_per_node=2, inter=link)
    assert rows[8].gpus_per_node == 2
    assert rows[4].gpus_per_node == 8
    assert rows[4].basis == "measured"
    assert "no-multi-node-data" in rows[8].caveats


def test_processes_of_one_host_stay_on_it() -> None:
    base = TRUTH.measure(2, 16)
    one_host = msgspec.structs.replace(
        base,
        host_shared=True,
        cluster=msgspec.structs.replace(base.cluster, gpus_per_node=2),
    )
    rows = rows_of(one_host, gpus=(4,))
    assert rows[4].gpus_per_node == 4
    assert "no-multi-node-data" not in rows[4].caveats


def test_W18_rows_can_be_slower_than_one_gpu() -> None:
    slow = replace(TRUTH, intra=LinkSpec(kind="eth-1", latency_s=5e-5, bytes_per_s=0.1e9))
    rows = rows_of(slow.measure(1, 64))
    assert (rows[8].speedup or 9) < 1
    assert rows[8].limited_by == "all-reduce-intra"


def test_sharded_jobs_are_spread_by_their_strategy() -> None:
    base = TRUTH.measure(8, 16)
    for strategy, shard, replicate in (("fsdp", 8, 1), ("hsdp", 4, 2)):
        plan = msgspec.structs.replace(
            base.plan, strategy=strategy, shard=shard, replicate=replicate
        )
        rows = rows_of(msgspec.structs.replace(base, plan=plan), gpus=(1, 6, 16, 64))
        assert rows[8].basis == "measured"
        assert [rows[n].batch_per_gpu for n in (1, 6, 16, 64)] == [128, 22, 8, 2]


def test_unknown_batch_is_taken_as_fixed_per_gpu_and_said() -> None:
    base = TRUTH.measure(4, 16)
    plan = msgspec.structs.replace(base.plan, batch_per_gpu=None)
    rows = rows_of(msgspec.structs.replace(base, plan=plan), steps_per_epoch=100)
    assert rows[8].batch_per_gpu is None
    assert rows[8].steps_per_epoch == 50
    assert "batch-unknown" in rows[8].caveats


def test_forecaster_is_not_changed_by_a_query() -> None:
    made = Forecaster()
    made.learn(TRUTH.measure(1, 16))
    before = made.to_bytes()
    scaling_rows(made, TRUTH.measure(4, 16), WhatIfQuery(gpus=(8,)))
    assert made.to_bytes() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": ()},
        {"gpus": (0,)},
        {"gpus": (4, -1)},
        {"usd_per_gpu_hour": -1.0},
        {"usd_per_gpu_hour": float("nan")},
        {"power_w": -5.0},
        {"gpus_per_node": 0},
        {"num_samples": -1},
        {"steps_per_epoch": 0},
        {"remaining_epochs": -0.5},
        {"level": 1.0},
    ],
)
def test_wrong_queries_are_refused_with_the_value_seen(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="got"):
        rows_of(TRUTH.measure(4, 16), **wrong)


def test_an_epoch_holds_the_far_out_steps_that_the_step_time_leaves_out() -> None:
    base = random_truth(1).measure(2, 16, seed=1)
    calm = rows_of(base, gpus=(1, 2, 4), num_samples=1600)
    stalled = rows_of(msgspec.structs.replace(base, stall_s=0.5), gpus=(1, 2, 4), num_samples=1600)
    for count, row in stalled.items():
        before = calm[count]
        assert row.step_s == before.step_s
        assert row.epoch_s is not None
        assert before.epoch_s is not None
        extra_s = 0.5 * (row.steps_per_epoch or 0)
        assert row.epoch_s.mean == pytest.approx(before.epoch_s.mean + extra_s)
