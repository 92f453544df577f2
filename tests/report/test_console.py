import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import (
    BASE,
    CLUSTER,
    GRAPH,
    INFO,
    NOW_S,
    PARTS,
    epoch_record,
    epoch_summary,
    profile_window,
    scaling_report,
    scaling_row,
    scaling_rows,
)

from scaledl.records import (
    CommEvent,
    Coverage,
    Eta,
    Interval,
    LayerNode,
    LayerTiming,
    Recommendation,
    RunEnd,
    ScalingReport,
    StepParts,
)
from scaledl.report.console import (
    Check,
    RunLine,
    render_comm,
    render_doctor,
    render_end,
    render_epoch,
    render_layers,
    render_parts,
    render_report,
    render_runs,
    render_show,
)
from scaledl.report.layers import comm_rows
from scaledl.report.scaling import build
from scaledl.report.text import Style, by_doubt, split_sum, table_lines, wrap_text

EXPECTED = Path(__file__).parent / "expected"
WIDTHS = (72, 96, 120)
LINE = RunLine(
    run="1201-1402-gpt2-a3f9",
    started_at=NOW_S,
    model="gpt2",
    num_gpus=4,
    gpu="A100-80GB",
    state="finished",
    num_steps=75_000,
    step_s=0.2154,
)


def visible(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# --- the epoch report --------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("unicode", [True, False])
def test_epoch_report_reads_exactly(width, unicode):
    text = render_epoch(epoch_summary(), scaling_report(), width=width, unicode=unicode)
    name = f"epoch_{width}_{'unicode' if unicode else 'ascii'}.txt"
    assert text + "\n" == (EXPECTED / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("priced", [True, False])
def test_report_keeps_within_width_and_one_screen(width, unicode, priced):
    slow = epoch_summary(own_ms=(211, 210, 290, 211), power_w=310.0, energy_j=1.2e6, eval_s=40.0)
    report = scaling_report(priced=priced)
    text = render_epoch(slow, report, width=width, unicode=unicode, audit="x" * 60 + " " + "y" * 60)
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= width
    if not unicode:
        assert text.isascii()


@given(
    counts=st.lists(st.integers(1, 5000), min_size=1, max_size=40, unique=True),
    width=st.integers(60, 140),
)
@settings(max_examples=60, deadline=None)
def test_any_list_of_counts_fits_one_screen_and_keeps_the_running_row(counts, width):
    rows = tuple(
        scaling_row(n, 800 / n, 700 / n, 900 / n, basis="measured" if i == 0 else "extrapolated")
        for i, n in enumerate(counts)
    )
    ordered = tuple(sorted(rows, key=lambda row: row.num_gpus))
    report = ScalingReport(
        made_at=NOW_S,
        run="r",
        batch_rule="fixed-global",
        rows=ordered,
        measured_index=ordered.index(rows[0]),
        coverage=Coverage(nominal=0.9, seen=None, n=0),
        recommendation=Recommendation(num_gpus=counts[-1], reason="knee", text="advice"),
    )
    text = render_epoch(epoch_summary(), report, width=width)
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= width
    assert "measured" in text
    assert "\u25b8" in text


def test_color_changes_nothing_but_color():
    plain = render_epoch(epoch_summary(), scaling_report())
    colored = render_epoch(epoch_summary(), scaling_report(), color=True)
    assert "\x1b[1m" in colored
    assert visible(colored) == plain
    assert "\x1b" not in plain


def test_heading_names_the_batch_rule():
    report = scaling_report()
    assert "same global batch of 512" in render_report(report)
    per_gpu = msgspec.structs.replace(report, batch_rule="fixed-per-gpu")
    assert "same batch per GPU (so the global batch changes)" in render_report(per_gpu)
    assert "same batch per process" in render_report(per_gpu, cpu_run=True)
    assert "procs" in render_report(per_gpu, cpu_run=True)


def test_no_price_means_no_cost_column():
    text = render_report(scaling_report(priced=False), width=120)
    assert "cost" not in text
    assert "energy" not in text
    assert "$" not in text
    assert "cost" in render_report(scaling_report(), width=120)


def test_far_between_and_prior_are_marked():
    rows = list(scaling_rows())
    rows[1] = msgspec.structs.replace(rows[1], basis="interpolated")
    rows[6] = msgspec.structs.replace(rows[6], basis="prior")
    report = msgspec.structs.replace(scaling_report(), rows=tuple(rows))
    lines = {line[1:6].strip(" *>"): line for line in table_of(report)}
    assert "404 to 428 between" in lines["2"]
    assert "measured" in lines["4"]
    assert "~" not in lines["8"]
    assert "~73 ms" in lines["16"]
    assert "prior" in lines["64"]


def table_of(report: ScalingReport) -> list[str]:
    return render_report(report, width=120, unicode=False).splitlines()[2 : 2 + len(report.rows)]


def test_row_that_does_not_fit_shows_no_time():
    rows = (*scaling_rows()[1:], scaling_row(1, 809, 773, 850, fits=False))
    report = msgspec.structs.replace(
        scaling_report(), rows=tuple(sorted(rows, key=lambda r: r.num_gpus))
    )
    line = table_of(report)[0]
    assert "does not fit" in line
    assert "809" not in line
    assert "$" not in line
    assert "\x1b[2m" in render_report(report, color=True)
    assert "    1 |" not in render_report(report, unicode=False)  # and is not in the chart


def test_unknown_numbers_are_na_not_zero():
    row = msgspec.structs.replace(
        scaling_row(8, 114, 110, 119, priced=False),
        epoch_s=None,
        remaining_s=None,
        speedup=None,
        efficiency_fraction=None,
    )
    report = msgspec.structs.replace(scaling_report(priced=False), rows=(row,), measured_index=None)
    (line,) = table_of(report)
    assert line.count("n/a") == 2
    summary = epoch_summary(overhead_fraction=None, comm_total_s=None, comm_bytes=None)
    text = render_epoch(summary)
    assert "exposed comm. 0.4 ms: transfer and waiting for others, not told apart yet" in text
    assert "tracking cost n/a" in text


def test_epoch_without_report_and_on_one_cpu_process():
    summary = epoch_summary(
        cluster=CLUSTER.with_num_gpus(1), cpu_run=True, own_ms=(211.0,), num_epochs=None
    )
    text = render_epoch(summary)
    assert text.splitlines()[0].startswith("scaledl  epoch 1 took 9.0 min on 1 CPU process ")
    assert "communication" not in text
    assert "own work" not in text


def test_D08_slow_rank_is_named():
    lines = render_epoch(epoch_summary(own_ms=(210, 211, 212, 315))).splitlines()
    (line,) = [line for line in lines if "own work" in line]
    assert "slow: rank 3 (+49 %)" in line
    assert "own work of 4 ranks in a median step: 210 ms to 315 ms" in line
    assert "slow" not in render_epoch(epoch_summary(own_ms=(210, 211, 212, 220)))


def test_D08_slow_one_of_two_ranks_is_compared_with_the_other():
    assert "slow: rank 1 (+15 %)" in render_epoch(epoch_summary(own_ms=(200, 230)))
    assert "slow" not in render_epoch(epoch_summary(own_ms=(200, 215)))
    assert "slow: rank 2 (+50 %)" in render_epoch(epoch_summary(own_ms=(200, 200, 300)))


def test_ranks_without_own_time_are_left_out():
    ranks = (epoch_record(0, 0, 211.0), epoch_record(0, 1, None))
    assert "own work" not in render_epoch(epoch_summary(ranks=ranks))


def test_later_epochs_say_only_what_changed():
    parts = msgspec.structs.replace(PARTS, input_wait_s=0.031)
    now = epoch_summary(3, parts=parts, step_s=parts.total_s)
    told = scaling_report(epochs_left=26)
    text = render_epoch(
        now, told, repeat=True, previous=epoch_summary(2), previous_report=scaling_report()
    )
    assert "input wait n/a" not in text
    assert "+14.4 % against epoch 3 (input wait 0 s to 31 ms)" in text
    assert "8 GPUs:" not in text
    assert "26 epochs left" in text
    assert len(text.splitlines()) <= 4
    same = render_epoch(now, told, repeat=True, previous=now, previous_report=told)
    assert "as in epoch 4" in same


def test_the_epoch_that_is_compared_with_is_named_though_reports_between_were_left_out():
    now = epoch_summary(6, step_s=0.3)
    text = render_epoch(now, repeat=True, previous=epoch_summary(2))
    assert "mean step 300 ms, +39.3 % against epoch 3" in " ".join(text.split())
    assert "epoch before" not in text


def test_later_epochs_repeat_the_advice_when_it_changed():
    old = msgspec.structs.replace(
        scaling_report(), recommendation=Recommendation(num_gpus=4, reason="stay", text="4")
    )
    text = render_epoch(epoch_summary(1), scaling_report(), repeat=True, previous_report=old)
    assert "8 GPUs: 1.9x faster" in text
    assert "(was 4)" in text


def test_coverage_is_not_claimed_before_it_is_seen():
    report = msgspec.structs.replace(
        scaling_report(), coverage=Coverage(nominal=0.9, seen=None, n=0)
    )
    assert "not checked against later steps yet (aim 90 %)" in render_report(report)
    assert "held 88 of 96 times (aim 90 %)" in render_report(scaling_report())


def test_U18_printed_fields_are_explained_in_the_foot():
    foot = render_report(scaling_report()).splitlines()[-1]
    for field in ("step:", "speed:", "eff.:", "~:"):
        assert field in foot


def test_empty_report_is_still_text():
    report = msgspec.structs.replace(
        scaling_report(), rows=(), measured_index=None, recommendation=None, caveats=()
    )
    assert "no count to compare" in render_report(report)
    assert "no count to compare" in render_epoch(epoch_summary(), report)


# --- parts, layers, communication --------------------------------------------------------------


@given(
    values=st.lists(st.floats(0, 10), min_size=5, max_size=5),
)
def test_shown_parts_add_up_to_the_shown_step(values):
    parts = StepParts(
        compute_s=values[0],
        comm_exposed_s=values[1],
        input_wait_s=values[2],
        optimizer_s=values[3],
        other_s=values[4],
    )
    total, terms = render_parts(parts).split(" = ")
    shown = [float(x) for x in re.findall(r"[0-9.]+(?= \+|$)", terms)]
    assert len(shown) == 5
    assert sum(shown) == pytest.approx(float(total.split()[-2]), abs=1e-6)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8), st.integers(0, 3))
def test_split_sum_moves_no_value_by_more_than_one_digit(values, decimals):
    shown = [float(text) for text in split_sum(values, decimals)]
    assert all(
        abs(s - v) <= 10.0**-decimals * (1 + 1e-6) for s, v in zip(shown, values, strict=True)
    )


def test_digits_follow_the_doubt():
    assert by_doubt(114.0, 4.3) == "114"
    assert by_doubt(2.9134, 0.05) == "2.91"
    assert by_doubt(2.9134, 0.5) == "2.9"
    assert by_doubt(2.9134, 0.0) == "2.91"
    assert by_doubt(float("nan"), 1.0) == "nan"


def test_layer_table_reads_exactly():
    assert render_layers(GRAPH, (profile_window(), profile_window(25)), 2).splitlines() == [
        "layer           kind       forward  backward  share   GFLOP",
        "h.0.mlp.c_fc    Linear       20 ms     40 ms   30 %   1,860",
        "h.0.attn        attention    10 ms       n/a    n/a     300",
        "(2 more)                      1 ms      2 ms    2 %  15,000",
        "outside_layers  n/a           4 ms      6 ms    5 %     n/a",
        "means over 2 sampled steps; share: of their mean step, 200 ms; GFLOP: one micro-batch, "
        "both",
        "  passes; n/a: not seen",
    ]


def test_small_models_count_in_mflop():
    graph = msgspec.structs.replace(
        GRAPH,
        nodes=(
            LayerNode(fqn="wte", kind="linear", flops_forward=2e6, flops_backward=4e6),
            LayerNode(fqn="h.0.attn", kind="activation", flops_forward=100.0),
        ),
    )
    text = render_layers(graph, (profile_window(),))
    assert "MFLOP" in text.splitlines()[0]
    rows = {line.split()[0]: line.split() for line in text.splitlines()}
    assert rows["wte"][-1] == "6"
    assert rows["h.0.attn"][-1] == "<0.001"
    assert rows["h.0.mlp.c_fc"][-1] == "n/a"


def test_layer_share_is_of_the_mean_sampled_step_which_is_named():
    slow = msgspec.structs.replace(profile_window(25), step_s=0.4)
    text = " ".join(render_layers(GRAPH, (profile_window(), slow), 1).split())
    assert "means over 2 sampled steps; share: of their mean step, 300 ms" in text
    assert "20 ms 40 ms 20 %" in text
    two = " ".join(render_layers(GRAPH, (profile_window(), profile_window(rank=1)), 1).split())
    assert "2 sampled steps on 2 ranks" in two


def test_a_step_time_is_called_mean_or_median_wherever_it_is_printed():
    summary, report = epoch_summary(), scaling_report()
    assert "\nstep 215.4 ms" in render_epoch(summary, report)
    assert "step: mean;" in render_epoch(summary, report)
    assert "\nmean step 215.4 ms" in render_epoch(summary)
    assert "\nmean step 215 ms" in render_epoch(summary, repeat=True)
    assert "mean step 215.4 ms" in render_show(LINE, INFO, measurement=BASE)
    assert "own work of 4 ranks in a median step" in render_epoch(summary)
    assert "step: median time" in render_runs((LINE,))


def test_time_left_says_that_it_is_of_training_only_or_holds_the_evaluation():
    summary, report = epoch_summary(), scaling_report()
    bare = " ".join(render_epoch(summary, report).split())
    assert (
        "29 epochs left: 4 h 20 min as now, 2 h 18 min on 8, about 1 h 28 min on 16 (training"
        in bare
    )
    known = " ".join(render_epoch(summary, report, phases_left_s=3600.0).split())
    assert "29 epochs left: 5 h 20 min as now, 3 h 18 min on 8, about 2 h 28 min on 16 (" in known
    assert "(evaluation and the like 1 h 00 min)." in known
    later = render_epoch(epoch_summary(1), report, repeat=True, phases_left_s=3600.0)
    assert "5 h 20 min as now" in later
    assert "(training only)" in render_report(report, whole_run=True)
    short = " ".join(render_epoch(summary, report, phases_left_s=2.0).split())
    assert "about 1 h 28 min on 16." in short  # it is in it, and not worth a word


def test_a_report_on_processes_never_says_gpu():
    rows = tuple(
        msgspec.structs.replace(row, limited_by=cause, caveats=("memory-not-checked",))
        for row, cause in zip(scaling_rows(), ("launch", "small-batch") * 4, strict=False)
    )
    base = msgspec.structs.replace(BASE, host_shared=True)
    report = build(
        rows,
        base=base,
        run="r",
        batch_rule="fixed-per-gpu",
        coverage=Coverage(nominal=0.9, seen=None, n=0),
        made_at=NOW_S,
    )
    summary = epoch_summary(cpu_run=True, energy_j=5000.0)
    end = RunEnd(at_s=NOW_S, step=1, outcome="finished")
    for text in (
        render_epoch(summary, report, width=200),
        render_report(report, cpu_run=True, width=200),
        render_end(
            end, run="r", duration_s=1.0, num_steps=1, energy_j=9.0, energy_of=(2, 2), cpu_run=True
        ),
        render_runs((LINE,)),
    ):
        assert "GPU" not in text
        assert "kernel" not in text
    assert "eff.: per process" in render_report(report, cpu_run=True)
    assert "eff.: per GPU" in render_report(report)


def test_nothing_is_said_of_the_time_left_after_the_last_epoch():
    done, one = scaling_report(epochs_left=0), scaling_report(epochs_left=1)
    for repeat in (True, False):
        assert "left" not in render_epoch(epoch_summary(29), done, repeat=repeat)
        assert "1 epoch left:" in render_epoch(epoch_summary(28), one, repeat=repeat)
    assert "left" not in render_report(done)
    half = scaling_report(epochs_left=0.5)
    assert "0.5 epochs left: " in render_report(half)


def test_layers_without_windows_say_so():
    assert "n/a" in render_layers(GRAPH, ())
    assert "no layer was measured" in render_layers(None, ())


@pytest.mark.parametrize("unicode", [True, False])
def test_X07_hostile_layer_name_does_not_steer_the_terminal(unicode):
    name = "block\x1b[2J\n\rscaledl  done: fake\x9b31m\u202e"
    graph = msgspec.structs.replace(GRAPH, nodes=(LayerNode(fqn=name, kind=name),))
    window = msgspec.structs.replace(
        profile_window(),
        layers=(LayerTiming(fqn=name, forward_s=0.1, backward_s=0.1, num_calls=1),),
        comm=(CommEvent(op=name, group_size=2, num_bytes=None, start_s=0.0, duration_s=0.1),),
    )
    evil = msgspec.structs.replace(CLUSTER, gpu=msgspec.structs.replace(CLUSTER.gpu, name=name))
    summary = epoch_summary(run=name, model=name, cluster=evil)
    line = msgspec.structs.replace(LINE, run=name, model=name, gpu=name)
    info = msgspec.structs.replace(INFO, model=name, cluster=evil)
    end = RunEnd(at_s=NOW_S, step=1, outcome="finished")
    for text in (
        render_layers(graph, (window,), unicode=unicode),
        render_comm((window,), unicode=unicode),
        render_epoch(summary, scaling_report(), unicode=unicode),
        render_runs((line,), unicode=unicode),
        render_show(line, info, unicode=unicode),
        render_end(end, run=name, duration_s=1.0, num_steps=1, unicode=unicode),
        render_doctor((Check(name="a", status="ok", seen=name, remedy=name),)),
    ):
        assert "block?[2J" in text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert "\nscaledl  done: fake" not in text


def test_D07_transfer_is_the_least_over_ranks_and_time_is_transfer_and_waiting():
    text = render_comm((profile_window(rank=0), profile_window(rank=1, wait_s=0.010)))
    assert text.splitlines()[0].split()[-5:] == ["step", "time", "transfer", "waiting", "exposed"]
    row = text.splitlines()[1].split()
    assert row[:6] == ["allreduce", "4", "inside", "25.0", "MiB", "1"]
    assert row[6:] == ["7", "ms", "2", "ms", "5", "ms", "400", "us"]
    quiet = msgspec.structs.replace(profile_window(step=9), comm=())  # recorded no collectives
    alone = render_comm((profile_window(rank=0), quiet)).splitlines()[1]
    assert alone.split()[5] == "1"
    assert alone.split()[6:] == ["2", "ms", "n/a", "n/a", "400", "us"]


def test_time_of_a_collective_is_transfer_and_waiting_also_beside_steps_of_one_rank():
    both = (profile_window(rank=0), profile_window(rank=1, wait_s=0.010))
    (row,) = comm_rows((*both, profile_window(step=40, wait_s=0.5)))
    assert row.transfer_s + row.waiting_s == pytest.approx(row.duration_s)
    assert row.calls_per_step == 1


def test_exposed_column_is_left_out_where_no_rank_knows_it():
    (event,) = profile_window().comm
    bare = msgspec.structs.replace(
        profile_window(), comm=(msgspec.structs.replace(event, exposed_s=None),)
    )
    assert "exposed" not in render_comm((bare,))


def test_buckets_are_listed_and_absence_is_said():
    assert "bucket" in render_comm((profile_window(),))
    bare = msgspec.structs.replace(profile_window(), comm=(), buckets=())
    assert render_comm((bare,)) == "no communication was measured in this run"


# --- lists, end, doctor ------------------------------------------------------------------------


def test_run_list_shows_na_for_what_is_unknown():
    young = msgspec.structs.replace(LINE, num_steps=None, step_s=None, state="not ended")
    text = render_runs((LINE, young), 3)
    assert text.splitlines()[1].split()[-4:] == ["75000", "215", "ms", "finished"]
    assert text.splitlines()[2].split()[-4:] == ["n/a", "n/a", "not", "ended"]
    assert "(3 folders could not be read)" in text
    assert render_runs(()) == "no runs yet: train with scaledl.track(model)"


def test_U14_last_line_compares_with_the_first_estimate():
    eta = Eta(
        at_s=NOW_S,
        step=20,
        basis="measured",
        remaining_s=Interval(mean=3600.0, low=3400.0, high=3900.0),
    )
    end = RunEnd(at_s=NOW_S + 3660, step=75_000, outcome="finished", overhead_fraction=0.003)
    text = render_end(end, run="r-1", duration_s=3700.0, num_steps=75_000, first_eta=eta)
    assert text.splitlines() == [
        "scaledl  done: 75000 steps in 1 h 02 min, tracking cost 0.3 %",
        "  at step 20 it said 1 h 00 min more (57 min to 1 h 05 min); it took 1 h 01 min "
        "(-2 %, held)",
        "  see: scaledl show r-1; scaledl what-if r-1",
    ]
    broken = msgspec.structs.replace(end, outcome="exception")
    text = render_end(broken, run="r-1", duration_s=3700.0, num_steps=9, first_eta=eta)
    assert text.startswith("scaledl  ended by an error: 9 steps")
    assert "it said" not in text


def test_doctor_puts_the_remedy_under_its_check():
    checks = (
        Check(name="torch", status="ok", seen="2.13.0"),
        Check(name='module "pynvml"', status="warn", seen="deprecated", remedy="pip uninstall x"),
    )
    assert render_doctor(checks).splitlines() == [
        "torch            ok    2.13.0",
        'module "pynvml"  warn  deprecated',
        "                       pip uninstall x",
    ]
    assert visible(render_doctor(checks, color=True)) == render_doctor(checks)


# --- building blocks ---------------------------------------------------------------------------


@given(st.text(max_size=300), st.integers(20, 100))
def test_wrapping_loses_no_word(text, width):
    lines = wrap_text(text, Style(width=width), indent="  ", hang="    ")
    assert " ".join(lines).split() == text.split()


def test_a_line_never_ends_between_a_number_and_its_unit():
    text = "transfer 4.3 ms for 473 MiB, 91 % hidden, step 5 of 7, 2 h 18 min on 8, 0.31 kWh"
    for width in range(12, 60):
        lines = wrap_text(text, Style(width=width))
        assert " ".join(lines) == text
        units = ("ms", "MiB,", "%", "min", "h", "kWh")
        assert not any(line.startswith(units) and line.split()[0] in units for line in lines)
    assert wrap_text("step 5 of 7", Style(width=8)) == ["step 5", "of 7"]


def test_table_gives_up_columns_before_it_overflows():
    from scaledl.report.text import Column

    columns = [
        Column(title="name", left=True, least=6),
        Column(title="a", give_up=1),
        Column(title="b", give_up=2),
    ]
    rows = [["x" * 30, "1" * 10, "2" * 10]]
    assert [
        len(max(table_lines(columns, rows, Style(width=w)), key=len)) for w in (60, 40, 25)
    ] == [
        54,
        40,
        25,
    ]
