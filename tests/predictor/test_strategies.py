import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from truth import Truth

from scaledl.errors import UsageError
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.strategies import (
    UNSUPPORTED,
    batch_plan,
    checked_strategies,
    other_strategy,
    spread_plan,
)
from scaledl.predictor.whatif import answer_rows
from scaledl.records import Holdings, Measurement, ParallelPlan, ScalingRow, WhatIfQuery

TRUTH = Truth()


def compared(base: Measurement, **query: object) -> dict[tuple[int, str], ScalingRow]:
    asked: dict[str, object] = {
        "gpus": (1, 2, 8, 16),
        "strategies": ("ddp", "fsdp", "hsdp"),
        "gpus_per_node": 8,
        **query,
    }
    _, rows = answer_rows(Forecaster(), base, WhatIfQuery(**asked))  # type: ignore[arg-type]
    return {(row.num_gpus, row.strategy or ""): row for row in rows}


def test_each_count_has_a_row_for_each_strategy_that_has_a_sense_there() -> None:
    rows = compared(TRUTH.measure(4, 16))
    assert {key for key in rows if key[0] == 1} == set()  # one GPU has no strategy
    assert {key for key in rows if key[0] == 8} == {(8, "ddp"), (8, "fsdp")}
    assert {key for key in rows if key[0] == 16} == {(16, "ddp"), (16, "fsdp"), (16, "hsdp")}


def test_a_strategy_that_was_never_run_is_a_prior_with_a_wider_interval() -> None:
    rows = compared(TRUTH.measure(4, 16))
    assert rows[4, "ddp"].basis == "measured"
    assert rows[4, "fsdp"].basis == "prior"
    spans = [rows[8, name].step_s for name in ("ddp", "fsdp")]
    assert spans[1].high / spans[1].low > spans[0].high / spans[0].low


def test_sharding_divides_memory_and_its_row_says_how_much() -> None:
    held = Holdings(param_bytes=4e9, trainable_bytes=4e9, state_bytes=8e9, largest_unit_bytes=2e8)
    base = msgspec.structs.replace(TRUTH.measure(4, 16), holdings=held)
    rows = compared(base)
    memory = [rows[16, name].memory for name in ("ddp", "hsdp", "fsdp")]
    totals = [found.total for found in memory if found is not None]
    assert len(totals) == 3
    assert totals == sorted(totals, reverse=True)


def test_no_table_without_a_question_and_rows_do_not_depend_on_it() -> None:
    base = TRUTH.measure(4, 16)
    plain, none = answer_rows(Forecaster(), base, WhatIfQuery(gpus=(1, 8)))
    asked, _ = answer_rows(Forecaster(), base, WhatIfQuery(gpus=(1, 8), strategies=("fsdp",)))
    assert none == ()
    assert plain == asked


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_W11_what_cuts_the_model_itself_is_refused_by_name_and_gets_no_number(name: str) -> None:
    with pytest.raises(UsageError, match=r"parallelism .* is not supported"):
        checked_strategies([name])


@pytest.mark.parametrize("wrong", ["ddp,zero9", 7, [3], ["ddp", None]])
def test_an_unknown_strategy_is_refused_with_those_that_are_known(wrong: object) -> None:
    with pytest.raises(UsageError, match="ddp"):
        checked_strategies(wrong)  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8, 12]),
    st.integers(1, 300),
    st.integers(1, 512),
    st.integers(1, 8),
    st.sampled_from(["fixed-global", "fixed-per-gpu"]),
)
def test_the_batch_rule_holds_or_says_by_how_much_it_does_not(
    base_gpus: int, count: int, batch: int, accum: int, rule: str
) -> None:
    own = ParallelPlan(
        strategy="ddp" if base_gpus > 1 else "single",
        replicate=base_gpus,
        batch_per_gpu=batch,
        grad_accum=accum,
    )
    plan, caveats = batch_plan(spread_plan(own, base_gpus, count), own, base_gpus, rule)
    now = batch * accum * base_gpus
    then = (plan.batch_per_gpu or 0) * plan.grad_accum * count
    if rule == "fixed-per-gpu":
        assert (plan.batch_per_gpu, plan.grad_accum) == (batch, accum)
    elif then != now:
        assert set(caveats) & {"uneven-batch", "more-gpus-than-samples"}
        assert then > now  # rounded up: no sample is lost
        assert then - now < plan.grad_accum * count
    assert plan.grad_accum <= accum


@given(st.sampled_from(["ddp", "fsdp", "hsdp"]), st.integers(1, 130))
def test_a_plan_of_any_strategy_covers_its_count(strategy: str, count: int) -> None:
    cluster = msgspec.structs.replace(TRUTH.measure(4, 16).cluster, num_gpus=count, gpus_per_node=8)
    plan = other_strategy(
        ParallelPlan(strategy="ddp", replicate=count, batch_per_gpu=4),
        strategy,  # type: ignore[arg-type]
        cluster,
    )
    if plan is None:
        assert count == 1 or strategy == "hsdp"
    else:
        assert plan.replicate * plan.shard == count
