from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import BASE, NOW_S, RUN, scaling_report, scaling_row, scaling_rows

from scaledl.records import Cause, Coverage, ScalingReport, ScalingRow
from scaledl.report.jsonable import report_json, report_to_dict
from scaledl.report.limits import counts_within
from scaledl.report.scaling import (
    CAUSE_TEXT,
    CAVEAT_TEXT,
    GOOD_MARGIN_FRACTION,
    audit_text,
    build,
    cause_text,
    caveat_text,
    recommend,
)


def report_of(rows: tuple[ScalingRow, ...], **changes: object) -> ScalingReport:
    values = {
        "base": BASE,
        "run": RUN,
        "batch_rule": "fixed-global",
        "coverage": Coverage(nominal=0.9, seen=None, n=0),
        "made_at": NOW_S,
    }
    return build(rows, **(values | changes))


def test_knee_of_the_toy_run_is_the_largest_count_inside_one_node():
    advice = scaling_report().recommendation
    assert advice is not None
    assert (advice.num_gpus, advice.reason) == (8, "largest-count-in-node")
    assert advice.text == (
        "8 GPUs: 1.9x faster for 6 % more money; it is the largest count inside one node."
    )


def test_without_price_the_advice_speaks_of_gpu_hours():
    advice = scaling_report(priced=False).recommendation
    assert advice is not None
    assert "1.9x faster for 6 % more GPU-hours" in advice.text
    assert "money" not in advice.text


def test_running_count_is_kept_when_more_would_be_slower():
    rows = (scaling_row(4, 215.4, 213, 218, basis="measured"), scaling_row(8, 300, 200, 400))
    rows = (rows[0], msgspec.structs.replace(rows[1], limited_by="all-reduce-intra"))
    advice = recommend(rows, base=BASE)
    assert advice is not None
    assert (advice.num_gpus, advice.reason) == (4, "stay")
    assert advice.text == "4 GPUs, as now: 8 would be slower, limited by all-reduce inside node."


def test_fewer_are_advised_when_more_bring_little():
    rows = (
        scaling_row(1, 240, 230, 250),
        scaling_row(2, 225, 220, 230),
        scaling_row(4, 215.4, 213, 218, basis="measured"),
    )
    advice = recommend(rows, base=BASE)
    assert advice is not None
    assert (advice.num_gpus, advice.reason) == (1, "fewer-do-nearly-as-well")
    assert "1.1x the time for 72 % less money" in advice.text


def test_count_that_does_not_fit_is_never_advised():
    rows = (*scaling_rows()[:3], scaling_row(8, 114, 110, 119, fits=False))
    advice = recommend(rows, base=BASE)
    assert advice is not None
    assert advice.num_gpus == 4
    assert recommend((scaling_rows()[2], rows[3]), base=BASE) is None


def test_processes_of_one_host_are_not_called_gpus():
    base = msgspec.structs.replace(BASE, host_shared=True)
    advice = recommend(scaling_rows(priced=False), base=base)
    assert advice is not None
    assert advice.text.startswith("8 processes: 1.9x faster for 6 % more process-hours;")


def test_fewer_that_are_faster_are_called_faster():
    rows = (scaling_row(1, 100, 90, 110), scaling_row(4, 215.4, 213, 218, basis="measured"))
    advice = recommend(rows, base=BASE)
    assert advice is not None
    assert "1 GPU: 2.2x faster for 88 % less money; 4 would be slower" in advice.text


@given(
    times=st.lists(st.floats(1.0, 1e5), min_size=2, max_size=7),
    running=st.integers(0, 6),
)
def test_advised_count_is_worth_its_price_at_every_doubling(times, running):
    rows = [scaling_row(2**i, ms, ms, ms) for i, ms in enumerate(times)]
    base = msgspec.structs.replace(
        BASE, cluster=BASE.cluster.with_num_gpus(2 ** min(running, len(rows) - 1))
    )
    advice = recommend(tuple(rows), base=base)
    assert advice is not None
    upto = [row for row in rows if row.num_gpus <= advice.num_gpus]
    for fewer, more in pairwise(upto):
        ratio = fewer.step_s.mean / more.step_s.mean
        assert ratio >= (1 + GOOD_MARGIN_FRACTION) * (1 - 1e-9)
    beyond = [row for row in rows if row.num_gpus > advice.num_gpus][:1]
    assert all(upto[-1].step_s.mean / row.step_s.mean < 1.7 * (1 + 1e-9) for row in beyond)


def test_report_has_its_rows_in_order_and_marks_the_running_one():
    report = report_of(tuple(reversed(scaling_rows())))
    assert [row.num_gpus for row in report.rows] == [1, 2, 4, 8, 16, 32, 64]
    assert report.measured_index == 2
    assert report.global_batch == 512
    assert report.rows[report.measured_index].basis == "measured"


def test_caveats_name_what_was_never_seen():
    assert scaling_report().caveats == (
        "no-multi-node-data",
        "far-extrapolation",
        "one-count-only",
    )
    few = msgspec.structs.replace(BASE, num_steps=5, host_shared=True)
    row = msgspec.structs.replace(
        scaling_row(8, 114, 110, 119), caveats=("host-shared", "no-communication-data", "zz-new")
    )
    report = report_of((scaling_rows()[2], row), base=few)
    assert report.caveats == (
        "few-steps",
        "communication-is-prior",
        "host-shared",
        "one-count-only",
        "zz-new",
    )


def test_no_caveat_when_all_counts_were_measured():
    rows = tuple(msgspec.structs.replace(r, basis="measured") for r in scaling_rows()[:3])
    assert report_of(rows).caveats == ()


def test_every_cause_has_its_sentence():
    assert set(CAUSE_TEXT) == set(Cause.__args__)
    for cpu_run in (False, True):
        causes = [cause_text(cause, cpu_run=cpu_run) for cause in CAUSE_TEXT]
        caveats = [caveat_text(key, cpu_run=cpu_run) for key in CAVEAT_TEXT]
        assert all(text.isascii() for text in causes + caveats)
        assert all(len(text) <= 88 for text in caveats)  # one line of the report
        assert not any("{" in text for text in causes + caveats)


def test_nothing_of_a_cpu_run_speaks_of_gpus_or_kernels():
    said = [cause_text(cause, cpu_run=True) for cause in CAUSE_TEXT]
    said += [caveat_text(key, cpu_run=True) for key in CAVEAT_TEXT]
    assert not any("GPU" in text or "kernel" in text or "launch" in text for text in said)
    assert cause_text("launch", cpu_run=True) == "other work or sleep of the host"
    assert cause_text("small-batch", cpu_run=False) == "small batch per GPU"


def test_json_of_a_cpu_run_keeps_its_keys_and_speaks_of_processes():
    row = msgspec.structs.replace(
        scaling_row(8, 114, 110, 119), limited_by="launch", caveats=("host-shared",)
    )
    base = msgspec.structs.replace(BASE, host_shared=True)
    value = report_to_dict(report_of((row,), base=base))
    (found,) = value["rows"]
    assert (found["num_gpus"], found["limited_by"]) == (8, "launch")
    assert found["limited_by_text"] == "other work or sleep of the host"
    gpus = report_to_dict(report_of((msgspec.structs.replace(row, caveats=()),)))
    assert gpus["rows"][0]["limited_by_text"] == "launch overhead (kernels too short)"


def test_advice_on_a_cpu_run_names_causes_in_words_for_processes():
    base = msgspec.structs.replace(BASE, host_shared=True)
    rows = (
        scaling_row(4, 215.4, 213, 218, basis="measured"),
        msgspec.structs.replace(scaling_row(8, 200, 190, 210), limited_by="launch"),
    )
    advice = recommend(rows, base=base)
    assert advice is not None
    assert advice.text.endswith("limited by other work or sleep of the host.")


def test_deadline_and_budget_count_the_upper_end():
    report = scaling_report()
    high_8 = 0.119 * 2500 * 29
    assert counts_within(report.rows, deadline_s=high_8 + 1) == (8, 16, 32, 64)
    assert counts_within(report.rows, deadline_s=high_8 - 1) == (16, 32, 64)
    assert counts_within(report.rows, deadline_s=60.0) == ()
    assert counts_within(report.rows, budget_usd=high_cost(report.rows[0])) == (1,)
    assert counts_within(report.rows, budget_usd=high_cost(report.rows[2])) == (1, 2, 4)
    assert counts_within(
        report.rows, deadline_s=high_8 + 1, budget_usd=high_cost(report.rows[3])
    ) == (8,)
    assert counts_within(scaling_report(priced=False).rows, budget_usd=1e9) == ()


def high_cost(row: ScalingRow) -> float:
    return row.num_gpus * row.step_s.high * 2500 * 29 / 3600 * 2.49 * (1 + 1e-9)


def test_audit_says_what_was_told_and_what_came():
    measured = msgspec.structs.replace(BASE, step_s=0.117)
    assert audit_text(scaling_rows()[3], measured) == (
        "an earlier run's forecast for 8 GPUs: told a mean step of 114 ms, it is 117 ms "
        "(inside the 90 % interval 110 ms to 119 ms)"
    )
    late = msgspec.structs.replace(BASE, step_s=0.2)
    assert "it is 200 ms (outside" in audit_text(scaling_rows()[3], late)


def test_json_has_base_units_and_null_for_unknown():
    value = msgspec.json.decode(report_json(scaling_report(priced=False)))
    assert value["schema"] == "scaledl.report/1"
    assert value["made_at"] == "2026-12-01T08:53:20Z" or value["made_at"].endswith("Z")
    assert value["coverage"] == {"nominal": 0.9, "seen": 0.917, "n": 96}
    row = value["rows"][3]
    assert row["step_s"] == pytest.approx({"mean": 0.114, "low": 0.110, "high": 0.119})
    assert row["epoch_s"]["mean"] == pytest.approx(285.0)
    assert (row["cost_usd"], row["energy_j"]) == (None, None)
    assert row["limited_by"] == "compute"
    assert value["recommendation"]["reason"] == "largest-count-in-node"
    assert value["caveats"][0] == "no-multi-node-data"
    assert value["caveat_texts"]["no-multi-node-data"] == CAVEAT_TEXT["no-multi-node-data"]
    parts = row["parts_s"]
    shown = sum(parts[name] for name in parts if name != "comm_hidden")
    assert shown == pytest.approx(row["step_s"]["mean"])


def test_json_keys_are_all_there_even_without_advice():
    full = report_to_dict(scaling_report())
    bare = report_to_dict(report_of(()))
    assert set(bare) == set(full)
    assert bare["recommendation"] is None
    assert bare["measured_index"] is None


def test_a_report_prints_as_a_line_a_count_and_the_advice():
    lines = str(scaling_report()).splitlines()
    assert lines[0] == "what if, with the same global batch:"
    assert lines[3] == "      4 GPUs  step 215 ms, epoch 9.0 min, 4 h 20 min left, 1.00x, as now"
    assert lines[4].startswith("      8 GPUs  step 114 ms (110 ms to 119 ms, extrapolated), epoch ")
    assert lines[-1].startswith("advised: 8 GPUs: 1.9x faster")
    assert len(lines) == 9
    bare = report_of((), batch_rule="fixed-per-gpu")
    assert str(bare) == "what if, with the same batch per GPU:"
