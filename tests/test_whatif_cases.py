"""Rows of the what-if area that no other file holds: loaders, unlike devices, hints, limits."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import BASE, CLUSTER, epoch_record, scaling_report, scaling_rows
from truth import Truth

from scaledl.config import TrackConfig
from scaledl.errors import UsageError
from scaledl.outlook import Outlook
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.whatif import scaling_rows as forecast_rows
from scaledl.query import build_query
from scaledl.records import Coverage, Measurement, ScalingReport, StepParts, StepRecord, WhatIfQuery
from scaledl.report.columns import memory_text
from scaledl.report.console import render_report
from scaledl.report.hints import hints_of
from scaledl.report.jsonable import report_to_dict
from scaledl.report.limits import limits_of
from scaledl.report.scaling import build

TRUTH = Truth()
HOURS = 3600.0


def report_of(base: Measurement, **query: object) -> ScalingReport:
    rows = forecast_rows(
        Forecaster(),
        base,
        WhatIfQuery(**{"gpus": (1, 2, 4, 8), **query}),  # type: ignore[arg-type]
    )
    return build(
        rows,
        base=base,
        run="r",
        batch_rule="fixed-global",
        coverage=Coverage(nominal=0.9, seen=None, n=0),
        made_at=0.0,
    )


# --- W08: loaders share the cores of a node ------------------------------------------------------


def test_W08_counts_whose_loaders_outnumber_the_cores_of_a_node_say_so() -> None:
    report = report_of(TRUTH.measure(2, 16), loader_workers=4, cores_per_node=16, gpus_per_node=8)
    said = {row.num_gpus: "loader-cores" in row.caveats for row in report.rows}
    assert said == {1: False, 2: False, 4: False, 8: True}
    assert "loader-cores" in report.caveats


def test_W08_no_more_loaders_than_now_is_nothing_to_say() -> None:
    report = report_of(TRUTH.measure(8, 16), loader_workers=4, cores_per_node=2)
    assert "loader-cores" not in report.caveats


# --- W10: unlike devices -------------------------------------------------------------------------


def test_W10_unlike_devices_are_said_and_alike_ones_are_not() -> None:
    mixed = msgspec.structs.replace(TRUTH.measure(2, 16), devices=("A100", "V100"))
    assert "unlike-devices" in report_of(mixed).caveats
    assert "unlike-devices" not in report_of(TRUTH.measure(2, 16)).caveats


def test_W10_the_ranks_own_records_tell_their_devices(tmp_path) -> None:
    outlook = Outlook(TrackConfig(), CLUSTER, tmp_path, host_slots=None)
    for step in range(40):
        outlook.add_step(StepRecord(step=step, epoch=0, wall_s=0.1))
    ranks = [
        msgspec.structs.replace(epoch_record(rank=rank), device=name)
        for rank, name in enumerate(("A100", "A100", "V100"))
    ]
    measured = outlook.measurement(BASE.plan, ranks)
    assert measured is not None
    assert measured.devices == ("A100", "V100")
    later = outlook.measurement(BASE.plan)  # asked in the next epoch, before its records
    assert later is not None
    assert later.devices == ("A100", "V100")


# --- W16: hints ----------------------------------------------------------------------------------


def with_parts(**parts: float) -> Measurement:
    whole = {
        "compute_s": 0.0,
        "comm_exposed_s": 0.0,
        "input_wait_s": 0.0,
        "optimizer_s": 0.0,
        "other_s": 0.0,
        **parts,
    }
    found = StepParts(**whole)
    return msgspec.structs.replace(BASE, parts=found, step_s=found.total_s)


def test_W16_no_part_above_a_tenth_no_hint() -> None:
    assert hints_of(with_parts(compute_s=0.95, input_wait_s=0.05)) == ()


def test_W16_a_hint_names_the_measured_share_and_what_to_try() -> None:
    (hint,) = hints_of(with_parts(compute_s=0.6, input_wait_s=0.4), loader_workers=2)
    assert hint.startswith("40 % of the step is waiting for input")
    assert "now 2" in hint
    (none,) = hints_of(with_parts(compute_s=0.6, input_wait_s=0.4), loader_workers=0)
    assert "num_workers=4" in none


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5), st.booleans())
def test_W16_at_most_three_hints_each_for_over_a_tenth(shares: list[float], host: bool) -> None:
    names = ("compute_s", "comm_exposed_s", "input_wait_s", "optimizer_s", "other_s")
    parts = dict(zip(names, (share + 1e-3 for share in shares), strict=True))
    base = msgspec.structs.replace(with_parts(**parts), host_shared=host)
    hints = hints_of(base)
    large = [v for n, v in parts.items() if n != "compute_s" and v > 0.1 * base.step_s]
    assert len(hints) == min(3, len(large))
    if host:
        assert not any("GPU" in hint for hint in hints)


def test_W16_hints_stand_in_the_report_and_its_json() -> None:
    base = with_parts(compute_s=0.1, input_wait_s=0.1)
    report = build(
        scaling_rows(),
        base=base,
        run="r",
        batch_rule="fixed-global",
        coverage=Coverage(nominal=0.9, seen=None, n=0),
        made_at=0.0,
    )
    assert "hint: 50 % of the step is waiting for input" in render_report(report)
    assert report_to_dict(report)["hints"] == list(report.hints)


# --- deadline and budget -------------------------------------------------------------------------


def test_W02_the_cheapest_count_in_time_is_advised_under_a_deadline() -> None:
    rows = scaling_rows()
    limits = limits_of(rows, deadline_s=2.5 * HOURS)
    assert limits is not None
    assert limits.best == min(limits.within)  # fewer GPUs take fewer GPU-hours here
    assert limits.text.startswith("These counts keep the deadline of 2 h 30 min:")


def test_under_a_budget_alone_the_fastest_that_keeps_it_is_best() -> None:
    limits = limits_of(scaling_rows(), budget_usd=60.0)
    assert limits is not None
    assert limits.best == max(limits.within)


def test_where_no_count_keeps_it_the_nearest_is_told_with_its_figures() -> None:
    limits = limits_of(scaling_rows(), deadline_s=60.0)
    assert limits is not None
    assert (limits.within, limits.best) == ((), None)
    assert "the fastest is 64 GPUs" in limits.text
    assert "the cheapest 1 GPU" in limits.text


def test_a_count_whose_memory_is_in_doubt_keeps_no_deadline() -> None:
    rows = tuple(
        msgspec.structs.replace(row, caveats=("may-not-fit",), fits=None) for row in scaling_rows()
    )
    limits = limits_of(rows, deadline_s=1e9)
    assert limits is not None
    assert limits.within == ()
    assert "sure to fit" in limits.text


def test_limits_without_their_facts_are_refused() -> None:
    bare = tuple(
        msgspec.structs.replace(row, remaining_s=None, remaining_usd=None) for row in scaling_rows()
    )
    with pytest.raises(UsageError, match="needs the run's length"):
        limits_of(bare, deadline_s=60.0)
    with pytest.raises(UsageError, match="needs a price"):
        limits_of(scaling_rows(priced=False), budget_usd=60.0)
    assert limits_of(bare) is None


# --- the rest of a run, epochs unknown -----------------------------------------------------------


def test_W01_steps_left_give_time_and_cost_where_no_epoch_is_known() -> None:
    base = TRUTH.measure(4, 16)
    rows = report_of(base, remaining_steps=1000.0, usd_per_gpu_hour=2.0, power_w=300.0).rows
    own = next(row for row in rows if row.num_gpus == 4)
    assert own.epoch_s is None
    assert own.remaining_s is not None
    assert own.remaining_s.mean == pytest.approx(1000 * base.step_s)
    assert own.remaining_usd == pytest.approx(1000 * base.step_s * 4 / 3600 * 2.0)
    assert own.remaining_j == pytest.approx(1000 * base.step_s * 4 * 300.0)


def test_W05_with_a_fixed_batch_per_gpu_more_gpus_need_fewer_steps_for_the_rest() -> None:
    base = TRUTH.measure(4, 16)
    rows = report_of(base, remaining_steps=1000.0, batch_rule="fixed-per-gpu").rows
    eight = next(row for row in rows if row.num_gpus == 8)
    assert eight.remaining_s is not None
    assert eight.remaining_s.mean == pytest.approx(500 * (eight.step_s.mean + base.stall_s))


def test_the_table_shows_what_is_left_where_no_epoch_is_known() -> None:
    report = report_of(TRUTH.measure(4, 16), remaining_steps=1e5, usd_per_gpu_hour=2.0)
    head = render_report(report).splitlines()[1]
    assert "left" in head
    assert "cost left" in head
    assert "epoch" not in head


# --- words ---------------------------------------------------------------------------------------


def test_a_cpu_report_prints_processes() -> None:
    base = msgspec.structs.replace(TRUTH.measure(2, 16), host_shared=True, host_slots=2)
    text = str(report_of(base))
    assert "1 process " in text
    assert "2 processes" in text
    assert "GPU" not in text
    assert "GPU" in str(scaling_report())


def test_W09_a_row_that_does_not_fit_has_its_remedy_in_place_of_a_time() -> None:
    from scaledl.records import Footprint

    memory = Footprint(
        params=4e10,
        gradients=4e10,
        states=8e10,
        activations=0,
        buffers=0,
        other=0,
        low=1.5e11,
        high=1.7e11,
        capacity=8.6e10,
    )
    rows = tuple(
        msgspec.structs.replace(
            row, fits=False, memory=memory, remedy="It fits with FSDP over 8 GPUs."
        )
        if row.num_gpus == 1
        else row
        for row in scaling_rows()
    )
    report = msgspec.structs.replace(scaling_report(), rows=rows)
    text = render_report(report)
    assert memory_text(rows[0]) == "149 of 80.1 GiB"
    assert "does not fit" in text
    assert "It fits with FSDP over 8 GPUs." in " ".join(text.split())
    assert "does not fit. It fits with FSDP" in str(report)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"gpus": [0]}, "num_gpus must be at least 1, got 0"),
        ({"gpus": [4, -1]}, "num_gpus must be at least 1, got -1"),
        ({"usd_per_gpu_hour": -2.0}, "usd_per_gpu_hour must be 0 or more, got -2.0"),
        ({"strategies": "ddp,pp"}, "pipeline parallelism"),
        ({"gpus_per_node": 0}, "gpus_per_node"),
        ({"batch_rule": "weak"}, "no batch rule 'weak'"),
        ({"level": 1.5}, "level must lie between 0 and 1"),
    ],
)
def test_W13_wrong_questions_are_refused_with_what_was_seen(
    wrong: dict[str, object], told: str
) -> None:
    question: dict[str, object] = {"gpus": [1, 2], **wrong}
    with pytest.raises(UsageError) as error:
        build_query(question.pop("gpus"), 2, **question)  # type: ignore[arg-type]
    assert told in str(error.value)
