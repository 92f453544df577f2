from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from truth import Truth, random_truth

from scaledl.errors import UsageError
from scaledl.predictor.analytic import forecast
from scaledl.predictor.anchor import build_anchor
from scaledl.predictor.devices import parse_link
from scaledl.predictor.draws import expected_max_normal
from scaledl.predictor.fit import fit_links
from scaledl.records import LinkSpec, Measurement, ParallelPlan, StepForecast, StepParts

QUIET = Truth()
seeds = st.integers(0, 10_000)
counts = st.sampled_from([1, 2, 3, 4, 8, 12, 16, 64])


def ask(
    truth: Truth, seen: tuple[int, ...], num_gpus: int, batch: int = 16, seed: int = 0
) -> StepForecast:
    known = [truth.measure(n, 16, seed=seed + n) for n in seen]
    return forecast(known, truth.cluster(num_gpus), truth.plan(num_gpus, batch))


def with_buckets_forgotten(m: Measurement) -> Measurement:
    return msgspec.structs.replace(m, buckets=())


# --- invariants ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seeds, counts, counts, st.sampled_from([1, 4, 16, 100]))
def test_parts_sum_to_the_step_and_the_interval_is_ordered(
    seed: int, seen: int, asked: int, batch: int
) -> None:
    f = ask(random_truth(seed), (seen,), asked, batch, seed)
    assert f.parts.total_s == pytest.approx(f.step_s.mean)
    assert 0 < f.step_s.low <= f.step_s.mean <= f.step_s.high
    for part in ("compute_s", "comm_exposed_s", "input_wait_s", "optimizer_s", "comm_hidden_s"):
        assert getattr(f.parts, part) >= 0
    assert 0 <= f.bottleneck_fraction <= 1


@settings(max_examples=40, deadline=None)
@given(seeds, counts, counts, counts)
def test_compute_does_not_grow_with_gpus_at_fixed_batch_per_gpu(
    seed: int, seen: int, one: int, other: int
) -> None:
    truth = random_truth(seed)
    a, b = (ask(truth, (seen,), n, seed=seed).parts.compute_s for n in sorted((one, other)))
    assert b <= a * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(seeds, st.lists(counts, min_size=1, max_size=4, unique=True))
def test_forecast_matches_measurement_at_observed_scale(seed: int, seen: list[int]) -> None:
    truth = random_truth(seed)
    known = [truth.measure(n, 16, seed=seed + n) for n in seen]
    for m in known:
        f = forecast(known, m.cluster, m.plan)
        assert f.basis == "measured"
        assert f.step_s.mean == m.step_s
        assert f.parts.total_s == pytest.approx(m.step_s)
        assert f.step_s.high / f.step_s.mean < 1.1


def test_longer_measuring_narrows_down_to_the_run_to_run_floor() -> None:
    noisy = replace(QUIET, jitter_sigma=0.1)
    widths = []
    for num_steps in (5, 50, 5000):
        m = noisy.measure(1, 16, num_steps=num_steps)
        s = forecast([m], m.cluster, m.plan).step_s
        widths.append(s.high / s.mean - 1)
    assert widths == sorted(widths, reverse=True)
    assert 0.02 < widths[-1] < 0.03


def test_wider_level_gives_a_wider_interval() -> None:
    m = QUIET.measure(2, 16)
    for n in (2, 8):
        one, two = (
            forecast([m], QUIET.cluster(n), QUIET.plan(n, 16), level).step_s
            for level in (0.5, 0.95)
        )
        assert two.low < one.low <= one.high < two.high


def test_forecast_is_the_same_every_time() -> None:
    assert ask(random_truth(3), (2,), 8) == ask(random_truth(3), (2,), 8)


# --- accuracy against known physics ---------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "asked"), [((2,), 4), ((4,), 8), ((1, 2), 8), ((2,), 1), ((8,), 1), ((2, 8), 4)]
)
def test_noiseless_truth_is_met_within_two_percent_inside_a_node(
    seen: tuple[int, ...], asked: int
) -> None:
    assert ask(QUIET, seen, asked).step_s.mean == pytest.approx(QUIET.step_s(asked, 16), rel=0.02)


def test_measured_network_is_carried_to_more_nodes() -> None:
    # the stated bandwidth is 3 times the true one; the buckets at 16 show it
    lied = replace(QUIET, inter=LinkSpec(kind="ib-edr", latency_s=2e-5, bytes_per_s=30e9))
    truth_s = lied.step_s(64, 16)
    assert ask(lied, (16,), 64).step_s.mean == pytest.approx(truth_s, rel=0.05)
    assert ask(lied, (8,), 64).step_s.mean < 0.9 * truth_s  # never seen: the lie is all it has


def test_exposed_time_alone_calibrates_the_link() -> None:
    slow = replace(QUIET, inter_bytes_per_s=2e9)  # stated as 10e9
    known = [with_buckets_forgotten(slow.measure(16, 16))]
    f = forecast(known, slow.cluster(32), slow.plan(32, 16))
    assert f.step_s.mean == pytest.approx(slow.step_s(32, 16), rel=0.07)


def test_two_batch_sizes_settle_the_fixed_cost() -> None:
    heavy = replace(QUIET, fixed_s=0.05)
    known = [heavy.measure(1, 16), heavy.measure(1, 64)]
    one = forecast(known[:1], heavy.cluster(1), heavy.plan(1, 2))
    two = forecast(known, heavy.cluster(1), heavy.plan(1, 2))
    truth_s = heavy.step_s(1, 2)
    assert two.step_s.mean == pytest.approx(truth_s, rel=0.1)
    assert abs(two.step_s.mean - truth_s) < abs(one.step_s.mean - truth_s)
    width = [f.step_s.high / f.step_s.low for f in (one, two)]
    assert width[1] < width[0]


def test_a_link_measured_slow_inside_a_node_stays_slow_across_nodes() -> None:
    stated = LinkSpec(kind="pcie3", latency_s=5e-6, bytes_per_s=20e9)
    truth = replace(QUIET, intra_bytes_per_s=1e9, intra=stated)
    known = with_buckets_forgotten(truth.measure(8, 16))
    asked = forecast([known], truth.cluster(16), truth.plan(16, 16))
    assert asked.parts.comm_exposed_s >= known.parts.comm_exposed_s


def test_a_row_across_nodes_hangs_on_measurements_across_nodes() -> None:
    spread = replace(QUIET, gpus_per_node=1, other_s=0.1)  # told apart by what no link explains
    two, four = spread.measure(2, 16), QUIET.measure(4, 16)
    across = forecast([two, four], spread.cluster(4), spread.plan(4, 16))
    assert across.parts.other_s == pytest.approx(two.parts.other_s)
    inside = forecast([QUIET.measure(2, 16), spread.measure(4, 16)], QUIET.cluster(4), across.plan)
    assert inside.parts.other_s == pytest.approx(four.parts.other_s)


def test_W18_a_slow_link_is_predicted_slower_than_one_gpu() -> None:
    slow = replace(
        QUIET, intra=LinkSpec(kind="eth-1", latency_s=5e-5, bytes_per_s=0.1e9), param_bytes=4e8
    )
    one = ask(slow, (1,), 1, batch=128)
    eight = ask(slow, (1,), 8, batch=16)
    assert eight.step_s.mean > one.step_s.mean
    assert eight.bottleneck == "all-reduce-intra"


def test_W12_accumulation_is_a_factor_and_syncs_once() -> None:
    m = QUIET.measure(2, 16)
    plan = msgspec.structs.replace(m.plan, grad_accum=32768)
    f = forecast([m], QUIET.cluster(4), msgspec.structs.replace(plan, replicate=4))
    assert f.parts.compute_s == pytest.approx(32768 * m.parts.compute_s)
    assert f.parts.comm_exposed_s < 0.01 * f.step_s.mean + 32768 * 0.02 * m.parts.compute_s


def test_D09_the_slowest_of_more_ranks_is_slower() -> None:
    uneven = replace(QUIET, rank_sigma=0.1, jitter_sigma=0.0)
    m = uneven.measure(8, 16, seed=4)
    waits = [
        forecast([m], replace(uneven, gpus_per_node=64).cluster(n), uneven.plan(n, 16))
        for n in (16, 64)
    ]
    extra_s = waits[1].parts.comm_exposed_s - waits[0].parts.comm_exposed_s
    expected_s = (m.rank_sigma_s or 0) * (expected_max_normal(64) - expected_max_normal(16))
    assert extra_s == pytest.approx(expected_s, rel=0.35)
    assert waits[1].bottleneck == "straggler"


def test_waiting_for_a_known_slow_rank_is_not_priced_as_a_slow_link() -> None:
    clean, wait_s = QUIET.measure(4, 16, seed=1), 0.05
    one = clean.buckets[-1:]
    clean = msgspec.structs.replace(clean, buckets=one, param_bytes=one[0].num_bytes)
    waited = msgspec.structs.replace(
        clean,
        step_s=clean.step_s + wait_s,
        parts=msgspec.structs.replace(
            clean.parts, comm_exposed_s=clean.parts.comm_exposed_s + wait_s
        ),
        buckets=(msgspec.structs.replace(one[0], duration_s=(one[0].duration_s or 0) + wait_s),),
        rank_sigma_s=wait_s / 2,
        waiting_s=wait_s,
    )
    links = [
        fit_links([build_anchor(m)], QUIET.cluster(8)).theta
        for m in (clean, waited, msgspec.structs.replace(waited, waiting_s=None))
    ]
    assert np.abs(links[1] - links[0]).max() < 0.5 < np.abs(links[2] - links[0]).max()
    told = forecast([waited], QUIET.cluster(8), QUIET.plan(8, 16))
    assert told.bottleneck == "straggler"


@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_expected_maximum_is_right_within_a_few_percent(n: int) -> None:
    draws = np.random.default_rng(1).standard_normal((200_000 // n, n)).max(axis=1)
    assert expected_max_normal(n) == pytest.approx(draws.mean(), rel=0.055)
    assert expected_max_normal(1) == 0


@pytest.mark.parametrize(
    ("seen", "asked", "batch"),
    [
        ((1,), 2, 16),
        ((1,), 8, 16),
        ((2,), 1, 16),
        ((4,), 8, 16),
        ((4,), 8, 8),
        ((8,), 1, 128),
        ((8,), 16, 16),
        ((8,), 64, 2),
        ((4, 16), 8, 16),
        ((1,), 64, 16),
    ],
)
def test_interval_covers_nominal_share_in_each_regime(
    seen: tuple[int, ...], asked: int, batch: int
) -> None:
    held = []
    for seed in range(120):
        truth = random_truth(seed)
        f = ask(truth, seen, asked, batch, seed=1000 * seed)
        held.append(truth.measure(asked, batch, seed=1000 * seed + 999).step_s in f.step_s)
    most = 0.99 if batch == 16 else 1.0  # real models bend more with the batch than the toy truth
    assert 0.82 <= np.mean(held) <= most  # 120 draws: two standard deviations about 85 to 97 %


def test_interval_covers_nominal_share_pooled() -> None:
    held = []
    for seed in range(400):
        truth = random_truth(10_000 + seed)
        rng = np.random.default_rng(seed)
        seen, asked = (int(n) for n in rng.choice([1, 2, 4, 8, 16, 32], 2, replace=False))
        batch = int(rng.choice([16, 16, max(1, 16 * seen // asked)]))
        f = ask(truth, (seen,), asked, batch, seed=1000 * seed)
        held.append(truth.measure(asked, batch, seed=1000 * seed + 999).step_s in f.step_s)
    assert 0.85 <= np.mean(held) <= 0.97


# --- basis, cause, caveats ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "asked", "basis"),
    [
        ((1,), 2, "prior"),
        ((2,), 4, "extrapolated"),
        ((2,), 1, "extrapolated"),
        ((2, 8), 4, "interpolated"),
        ((1, 2), 8, "extrapolated"),
        ((4,), 4, "measured"),
    ],
)
def test_basis_says_what_the_forecast_stands_on(
    seen: tuple[int, ...], asked: int, basis: str
) -> None:
    assert ask(QUIET, seen, asked).basis == basis


def test_W04_crossing_nodes_unseen_is_flagged_and_wide() -> None:
    inside, across = ask(QUIET, (4,), 8), ask(QUIET, (4,), 16)
    assert "no-multi-node-data" in across.caveats
    assert "no-multi-node-data" not in inside.caveats
    assert "no-multi-node-data" not in ask(QUIET, (16,), 32).caveats
    assert across.step_s.high / across.step_s.low > 1.5 * inside.step_s.high / inside.step_s.low


def test_surer_link_gives_a_narrower_interval_between_nodes() -> None:
    m = QUIET.measure(8, 16)
    widths = []
    for link in (
        parse_link("100Gb/s"),
        LinkSpec(kind="unknown", latency_s=2e-5, bytes_per_s=12.5e9, rel_sigma=1.2),
    ):
        c = msgspec.structs.replace(QUIET.cluster(32), inter=link)
        s = forecast([m], c, QUIET.plan(32, 16)).step_s
        widths.append(s.high / s.low)
    assert widths[0] < widths[1]


def test_small_batches_are_named_when_launches_rule() -> None:
    launchy = replace(QUIET, fixed_s=0.05, sample_s=0.001, optimizer_s=0.0, param_bytes=1e6)
    known = [launchy.measure(1, 16), launchy.measure(1, 128)]
    f = forecast(known, launchy.cluster(8), launchy.plan(8, 2))
    assert f.bottleneck == "small-batch"
    assert f.bottleneck_fraction > 0.5


def test_W07_W08_fixed_and_input_time_do_not_shrink_like_compute() -> None:
    fed = replace(QUIET, input_s=0.05)
    f = ask(fed, (1,), 8, batch=2)
    assert f.parts.input_wait_s > 0.05 * 2 / 16
    assert f.parts.optimizer_s == pytest.approx(fed.optimizer_s)
    assert f.bottleneck == "input"
    assert "input-may-not-scale" in f.caveats


def test_processes_of_one_host_slow_each_other() -> None:
    m = msgspec.structs.replace(QUIET.measure(1, 16), host_shared=True)
    f = forecast([m], QUIET.cluster(2), QUIET.plan(2, 16))
    assert f.parts.compute_s == pytest.approx(1.1 * m.parts.compute_s, rel=0.01)
    assert f.step_s.high > 1.3 * m.step_s
    assert "host-shared" in f.caveats


def test_measured_crowding_replaces_the_prior() -> None:
    def crowded(n: int) -> Measurement:
        m = replace(QUIET, sample_s=QUIET.sample_s * 1.5 ** np.log2(n), fixed_s=0.0).measure(n, 16)
        return msgspec.structs.replace(m, host_shared=True)

    f = forecast([crowded(1), crowded(2), crowded(4)], QUIET.cluster(8), QUIET.plan(8, 16))
    assert f.parts.compute_s == pytest.approx(crowded(8).parts.compute_s, rel=0.1)


def test_nothing_known_of_the_size_is_said_and_wide() -> None:
    m = msgspec.structs.replace(QUIET.measure(1, 16), buckets=(), param_bytes=None)
    f = forecast([m], QUIET.cluster(16), QUIET.plan(16, 16))
    assert {"size-unknown", "no-communication-data"} <= set(f.caveats)
    assert f.step_s.high / f.step_s.mean > 1.3


# --- FSDP and wrong use --------------------------------------------------------------------------


def fsdp(shard: int, replicate: int = 1) -> ParallelPlan:
    strategy = "fsdp" if replicate == 1 else "hsdp"
    return ParallelPlan(strategy=strategy, shard=shard, replicate=replicate, batch_per_gpu=16)


def test_fsdp_moves_half_as_much_again_as_ddp() -> None:
    m = QUIET.measure(1, 16)
    c = QUIET.cluster(8)
    ddp, sharded = (forecast([m], c, p).parts for p in (QUIET.plan(8, 16), fsdp(8)))
    traffic = [p.comm_exposed_s + p.comm_hidden_s for p in (ddp, sharded)]
    assert traffic[1] == pytest.approx(1.5 * traffic[0], rel=0.2)
    assert sharded.optimizer_s == pytest.approx(ddp.optimizer_s / 8)


def test_fsdp_from_ddp_is_a_prior_and_a_slow_network_is_all_gather() -> None:
    slow = replace(QUIET, inter=LinkSpec(kind="eth-10", latency_s=3e-5, bytes_per_s=1e9))
    f = forecast([slow.measure(8, 16)], slow.cluster(32), fsdp(32))
    assert f.basis == "prior"
    assert f.bottleneck == "all-gather"


def test_hsdp_keeps_the_gathers_inside_the_node() -> None:
    m = QUIET.measure(8, 16)
    slow = msgspec.structs.replace(
        QUIET.cluster(32), inter=LinkSpec(kind="eth-10", latency_s=3e-5, bytes_per_s=1e9)
    )
    whole, hybrid = (forecast([m], slow, p).step_s.mean for p in (fsdp(32), fsdp(8, 4)))
    assert hybrid < whole


@pytest.mark.parametrize(
    "plan",
    [
        ParallelPlan(strategy="single", batch_per_gpu=16),
        ParallelPlan(strategy="fsdp", shard=3, batch_per_gpu=16),
        ParallelPlan(strategy="pipeline", batch_per_gpu=16),  # type: ignore[arg-type]
        ParallelPlan(strategy="ddp", batch_per_gpu=0),
        ParallelPlan(strategy="ddp", batch_per_gpu=1, grad_accum=0),
    ],
)
def test_W11_what_the_model_cannot_do_is_refused(plan: ParallelPlan) -> None:
    with pytest.raises(UsageError):
        forecast([QUIET.measure(1, 16)], QUIET.cluster(4), plan)


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="no measurement"):
        forecast([], QUIET.cluster(4), QUIET.plan(4, 16))
    nothing = StepParts(compute_s=0, comm_exposed_s=0, input_wait_s=0, optimizer_s=0, other_s=0)
    empty = msgspec.structs.replace(QUIET.measure(1, 16), step_s=0.0, parts=nothing)
    with pytest.raises(UsageError, match="0 s"):
        forecast([empty], QUIET.cluster(4), QUIET.plan(4, 16))


@settings(max_examples=30, deadline=None)
@given(counts, counts, st.booleans(), st.booleans())
def test_bare_measurement_still_gives_a_forecast(
    seen: int, asked: int, with_batch: bool, host_shared: bool
) -> None:
    m = Measurement(
        cluster=QUIET.cluster(seen),
        plan=QUIET.plan(seen, 16) if with_batch else ParallelPlan(strategy="ddp", replicate=seen),
        step_s=0.1,
        parts=StepParts(
            compute_s=0.0, comm_exposed_s=0.0, input_wait_s=0.0, optimizer_s=0.0, other_s=0.0
        ),
        num_steps=1,
        host_shared=host_shared,
    )
    f = forecast([m], QUIET.cluster(asked), QUIET.plan(asked, 16))
    assert f.step_s.mean > 0
    assert f.parts.total_s == pytest.approx(f.step_s.mean)


def test_a_count_measured_by_an_earlier_run_is_marked_and_doubted_more() -> None:
    one, two = QUIET.measure(1, 16), QUIET.measure(2, 16)
    now = forecast([one, two], two.cluster, two.plan)
    earlier = forecast([two, one], two.cluster, two.plan)
    assert now.basis == earlier.basis == "measured"
    assert now.caveats == ()
    assert earlier.caveats == ("measured-earlier",)
    assert earlier.step_s.mean == now.step_s.mean
    assert earlier.step_s.high > 1.02 * now.step_s.high
