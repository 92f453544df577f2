import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledl.memory_records import Holdings
from scaledl.predictor.footprint import footprint, what_would_fit
from scaledl.records import (
    ClusterSpec,
    GpuSpec,
    LinkSpec,
    Measurement,
    ParallelPlan,
    StepParts,
)

GIB = 2.0**30
LINK = LinkSpec(kind="nvlink", latency_s=3e-6, bytes_per_s=235e9)


def cluster(num_gpus: int, gib: float = 80) -> ClusterSpec:
    gpu = GpuSpec(name="A100-80GB", memory_bytes=gib * GIB)
    return ClusterSpec(gpu=gpu, num_gpus=num_gpus, gpus_per_node=8, intra=LINK, inter=LINK)


def plan(strategy: str, num_gpus: int, *, batch: int = 16, accum: int = 1) -> ParallelPlan:
    if strategy == "single" or num_gpus == 1:
        return ParallelPlan(batch_per_gpu=batch, grad_accum=accum)
    inside = min(8, num_gpus)
    replicate, shard = {
        "ddp": (num_gpus, 1),
        "fsdp": (1, num_gpus),
        "hsdp": (num_gpus // inside, inside),
    }[strategy]
    return ParallelPlan(
        strategy=strategy,  # type: ignore[arg-type]
        replicate=replicate,
        shard=shard,
        batch_per_gpu=batch,
        grad_accum=accum,
    )


def measured(
    held: Holdings, strategy: str = "single", num_gpus: int = 1, **more: object
) -> Measurement:
    parts = StepParts(
        compute_s=0.1, comm_exposed_s=0.0, input_wait_s=0.0, optimizer_s=0.0, other_s=0.0
    )
    return Measurement(
        cluster=cluster(num_gpus),
        plan=plan(strategy, num_gpus),
        step_s=0.1,
        parts=parts,
        num_steps=100,
        num_layers=100,
        holdings=held,
        **more,  # type: ignore[arg-type]
    )


def adam(params: float, *, units: int = 24, **more: object) -> Holdings:
    """A model of ``params`` float32 parameters under Adam."""
    return Holdings(
        param_bytes=4 * params,
        trainable_bytes=4 * params,
        state_bytes=8 * params,
        optimizer="AdamW",
        largest_unit_bytes=4 * params / units,
        **more,  # type: ignore[arg-type]
    )


def test_adam_in_float32_holds_16_bytes_a_parameter() -> None:
    found = footprint(measured(adam(1e9)), plan("single", 1), cluster(1))
    assert found is not None
    assert found.params + found.gradients + found.states == 16e9
    assert found.buffers == 0


def test_zero_3_divides_the_16_bytes_and_zero_2_keeps_the_parameters_whole() -> None:
    # ZeRO, figure 1: 7.5 B parameters, 64 ranks; here of 16 float32 bytes instead of mixed ones
    held = adam(7.5e9)
    full = footprint(measured(held, "fsdp", 64), plan("fsdp", 64), cluster(64))
    kept = msgspec.structs.replace(held, keeps_gathered=True)
    half = footprint(measured(kept, "fsdp", 64), plan("fsdp", 64), cluster(64))
    assert full is not None
    assert half is not None
    assert full.params + full.gradients + full.states == pytest.approx(16 * 7.5e9 / 64)
    assert full.buffers == pytest.approx(4 * 4 * 7.5e9 / 24)  # two units each, of two kinds
    assert half.total - full.total == pytest.approx(4 * 7.5e9 * (1 - 2 / 24))


def test_ddp_holds_its_buckets_beside_the_gradients_unless_they_are_views() -> None:
    held = adam(1e9)
    views = msgspec.structs.replace(held, buckets_are_gradients=True)
    found = [footprint(measured(h, "ddp", 8), plan("ddp", 8), cluster(8)) for h in (held, views)]
    assert [f.buffers for f in found if f is not None] == [4e9, 0]


def test_hsdp_shards_over_its_group_only() -> None:
    held = adam(1e9)
    wide = footprint(measured(held, "hsdp", 32), plan("hsdp", 32), cluster(32))
    assert wide is not None
    assert wide.states == 8e9 / 8


def test_accumulation_adds_the_gradients_to_the_activations() -> None:
    held = adam(1e9, activation_bytes=6e9)
    one = footprint(measured(held), plan("single", 1), cluster(1))
    two = footprint(measured(held), plan("single", 1, accum=2), cluster(1))
    assert one is not None
    assert two is not None
    assert (one.activations, two.activations) == (2e9, 6e9)


def test_W09_fewer_gpus_of_a_sharded_job_may_not_hold_it() -> None:
    held = adam(7e9)  # 112 GB: 14 on each of 8, too many on one
    base = measured(held, "fsdp", 8)
    here = footprint(base, plan("fsdp", 8), cluster(8))
    alone = footprint(base, plan("single", 1), cluster(1))
    assert here is not None
    assert alone is not None
    assert (here.fits, alone.fits) == (True, False)
    assert alone.margin is not None
    assert alone.margin < 0


def test_a_measured_peak_is_its_own_forecast_and_what_is_unexplained_is_carried() -> None:
    held = adam(1e9, activation_bytes=10e9, peak_bytes=30e9, capacity_bytes=80 * GIB)
    base = measured(held)
    here = footprint(base, plan("single", 1), cluster(1))
    twice = footprint(base, plan("single", 1, batch=32), cluster(1))
    assert here is not None
    assert twice is not None
    assert here.low <= 30e9 <= here.high
    # outputs double from 10 to 20; the unexplained 12 may stay or double
    assert twice.low <= 40e9
    assert twice.high >= 52e9


def test_a_peak_below_the_count_says_that_activations_are_not_all_kept() -> None:
    held = adam(1e9, activation_bytes=100e9, peak_bytes=30e9)
    base = measured(held)
    here = footprint(base, plan("single", 1), cluster(1))
    half = footprint(base, plan("single", 1, batch=8), cluster(1))
    assert here is not None
    assert half is not None
    assert here.activations < 100e9
    assert half.total < here.total


def test_what_does_not_fit_names_a_smaller_batch_checkpointing_and_fsdp() -> None:
    held = adam(1e9, activation_bytes=160e9)
    text = what_would_fit(measured(held), plan("single", 1), cluster(1))
    assert "micro-batches of 4, 4 of them accumulated" in text
    assert "activation checkpointing" in text
    big = what_would_fit(measured(adam(7e9), "ddp", 8), plan("ddp", 8), cluster(8))
    assert big == "It fits with FSDP over 8 GPUs."


def test_nothing_is_said_where_it_fits_or_nothing_was_counted() -> None:
    assert what_would_fit(measured(adam(1e6)), plan("single", 1), cluster(1)) == ""
    bare = msgspec.structs.replace(measured(adam(1e6)), holdings=None)
    assert footprint(bare, plan("single", 1), cluster(1)) is None


def test_a_close_call_is_neither_yes_nor_no() -> None:
    held = adam(1e9, activation_bytes=60e9)
    found = footprint(measured(held), plan("single", 1), cluster(1))
    assert found is not None
    assert found.fits is None


def test_processes_of_one_host_share_its_memory() -> None:
    held = adam(1e8, peak_bytes=2e9, capacity_bytes=16e9)
    base = measured(held, host_shared=True, host_slots=2)
    on = [footprint(base, plan("ddp", n), cluster(n)) for n in (1, 4)]
    assert [f.capacity for f in on if f is not None] == [16e9, 4e9]


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e5, 1e11),
    st.floats(0, 1e12),
    st.one_of(st.none(), st.floats(1e5, 1e12)),
    st.sampled_from(["ddp", "fsdp", "hsdp"]),
    st.sampled_from([2, 8, 16, 64]),
    st.integers(1, 256),
    st.integers(1, 4),
)
def test_low_total_high_are_in_order_and_more_batch_never_needs_less(
    params: float,
    outputs: float,
    peak: float | None,
    strategy: str,
    num_gpus: int,
    batch: int,
    accum: int,
) -> None:
    base = measured(adam(params, activation_bytes=outputs, peak_bytes=peak), "ddp", 8)
    found = footprint(base, plan(strategy, num_gpus, batch=batch, accum=accum), cluster(num_gpus))
    more = footprint(
        base, plan(strategy, num_gpus, batch=2 * batch, accum=accum), cluster(num_gpus)
    )
    assert found is not None
    assert more is not None
    assert 0 <= found.low <= found.total * (1 + 1e-9)
    assert found.total <= found.high * (1 + 1e-9)
    assert more.total >= found.total * (1 - 1e-9)
