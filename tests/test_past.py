import subprocess
import sys

import msgspec
import pytest
from samples import (
    BASE,
    GRAPH,
    INFO,
    NOW_S,
    RUN,
    epoch_record,
    profile_window,
    run_lines,
    scaling_report,
    step_block,
    write_run,
)

import scaledl
from scaledl.errors import StoreError, UsageError
from scaledl.past import PastRun, list_run_lines, list_runs, load_relatives, open_run
from scaledl.query import build_query
from scaledl.records import DeviceSample, LinkSpec, Measurement, PhaseRecord, RunEnd


def other_run(run_id: str, started_at: float = 1.0):
    return msgspec.structs.replace(INFO, run_id=run_id, started_at=started_at)


def at_count(num_gpus: int, step_s: float, at_s: float = 1.0) -> Measurement:
    scale = step_s / BASE.step_s
    parts = msgspec.structs.replace(
        BASE.parts, compute_s=step_s - (BASE.step_s - BASE.parts.compute_s)
    )
    return msgspec.structs.replace(
        BASE,
        cluster=BASE.cluster.with_num_gpus(num_gpus),
        plan=msgspec.structs.replace(BASE.plan, replicate=num_gpus, batch_per_gpu=512 // num_gpus),
        step_s=step_s,
        parts=parts,
        forward_s=0.07 * scale,
        backward_s=0.136 * scale,
        at_s=at_s,
    )


# --- reading -----------------------------------------------------------------------------------


def test_past_run_holds_what_was_recorded(tmp_path):
    write_run(tmp_path, ranks=(0, 1))
    past = open_run("latest", tmp_path)
    assert past.info == INFO
    assert past.graph == GRAPH
    assert past.windows == (profile_window(), profile_window(rank=1))
    assert past.epochs == (epoch_record(), epoch_record(rank=1))
    assert past.blocks == (step_block(0), step_block(100))
    assert past.measurements == (BASE,)
    assert past.reports == (scaling_report(),)
    assert past.notes[0].key == "epoch-length"
    assert past.ended == run_lines()[-1]
    assert past.state == "finished"
    assert past.step_s == BASE.step_s
    assert past.steps_per_epoch == 2500
    assert past.samples_per_epoch == 320_000 * 4  # two of four ranks left a record
    assert repr(past) == f"<PastRun {RUN}: finished>"


def test_run_that_was_killed_has_no_end(tmp_path):
    write_run(tmp_path, lines=run_lines()[:4])
    past = open_run(RUN, tmp_path)
    assert past.ended is None
    assert past.state == "not ended"
    assert past.step_s == 0.2150  # of the blocks
    assert past.steps_per_epoch is None
    assert past.remaining_epochs() == 30
    assert past.phases == ()


def test_resumed_run_has_not_ended_again(tmp_path):
    write_run(tmp_path, lines=(*run_lines(), step_block(2500)))
    assert open_run(RUN, tmp_path).ended is None


def test_remaining_epochs_are_all_of_a_finished_run_and_the_rest_of_a_killed_one(tmp_path):
    done = (epoch_record(0), epoch_record(1))
    killed = PastRun(write_run(tmp_path, lines=done))
    assert killed.remaining_epochs() == 28
    assert killed.remaining_epochs(10) == 8
    end = RunEnd(at_s=NOW_S, step=5000, outcome="finished")
    ended = PastRun(write_run(tmp_path, other_run("other"), lines=(*done, end)))
    assert ended.remaining_epochs() == 30
    unknown = msgspec.structs.replace(other_run("unknown"), epochs=None)
    assert PastRun(write_run(tmp_path, unknown, lines=done)).remaining_epochs() is None


def test_run_without_rank_files_is_readable(tmp_path):
    folder = write_run(tmp_path, lines=())
    past = PastRun(folder)
    assert (past.graph, past.step_s, past.ended, past.windows) == (None, None, None, ())
    assert "no steady step was measured" in past.render()
    assert msgspec.json.decode(past.render("json"))["step_s"] is None


def test_listing_reads_newest_first_and_knows_its_steps(tmp_path):
    write_run(tmp_path)
    write_run(tmp_path, other_run("old"), lines=(step_block(0), step_block(100)))
    assert [past.info.run_id for past in list_runs(tmp_path)] == [RUN, "old"]
    listed = list_run_lines(tmp_path)
    assert [line.num_steps for line in listed.lines] == [2500, 200]
    assert [line.state for line in listed.lines] == ["finished", "not ended"]
    assert [line.run for line in list_run_lines(tmp_path, 1).lines] == [RUN]


def test_public_names_are_these(tmp_path):
    assert scaledl.open_run is open_run
    assert scaledl.list_runs is list_runs
    assert scaledl.PastRun is PastRun


def test_rendering_shows_what_was_asked(tmp_path):
    write_run(tmp_path)
    past = open_run("latest", tmp_path)
    assert "What if, with the same global batch of 512" in past.render()
    assert "h.0.mlp.c_fc" in past.render(layers=5)
    whole = past.render(layers=5, comm=True)
    parts = ("step 215.4 ms = ", "h.0.mlp.c_fc", "allreduce", "What if, with the same")
    assert [whole.index(part) for part in parts] == sorted(whole.index(part) for part in parts)
    assert "allreduce" in past.render(comm=True)
    with pytest.raises(UsageError, match="no rendering 'pdf'"):
        past.render("pdf")
    value = msgspec.json.decode(past.render("json", layers=2, comm=True))
    assert value["schema"] == "scaledl.run/1"
    assert [row["fqn"] for row in value["layers"]] == ["h.0.mlp.c_fc", "h.0.attn"]
    assert value["comm"][0]["op"] == "allreduce"
    assert value["report"]["rows"][0]["num_gpus"] == 1


# --- what if -----------------------------------------------------------------------------------


def test_what_if_reproduces_the_measured_count_and_orders_the_rest(tmp_path):
    write_run(tmp_path)
    report = open_run("latest", tmp_path).what_if("1,2,8", now_s=NOW_S)
    assert [row.num_gpus for row in report.rows] == [1, 2, 4, 8]
    assert report.measured_index == 2
    own = report.rows[2]
    assert own.basis == "measured"
    assert own.step_s.mean == pytest.approx(BASE.step_s)
    assert own.cost_usd == pytest.approx(own.gpu_hours * 2.49)
    assert report.rows[0].step_s.mean > report.rows[1].step_s.mean > own.step_s.mean
    assert own.remaining_s.mean == pytest.approx(30 * own.epoch_s.mean)
    assert (report.made_at, report.run, report.epoch) == (NOW_S, RUN, 0)


def test_count_that_another_run_measured_counts_as_measured(tmp_path):
    write_run(tmp_path)
    alone = open_run(RUN, tmp_path).what_if([8])
    assert alone.rows[1].basis != "measured"
    write_run(tmp_path, other_run("earlier"), lines=(at_count(8, 0.131),))
    both = open_run(RUN, tmp_path).what_if([8])
    assert both.rows[1].basis == "measured"
    assert both.rows[1].step_s.mean == pytest.approx(0.131)


def test_what_if_takes_price_link_rule_and_length(tmp_path):
    samples = tuple(DeviceSample(at_s=1.0, device="gpu0", power_w=w) for w in (300.0, None, 320.0))
    write_run(tmp_path, lines=(*run_lines(), *samples))
    past = open_run(RUN, tmp_path)
    assert past.power_w == 310.0
    report = past.what_if(
        "16",
        usd_per_gpu_hour=1.0,
        batch_rule="fixed-per-gpu",
        gpus_per_node=4,
        inter="100Gb/s",
        epochs=3,
        level=0.5,
    )
    row = report.rows[1]
    assert (report.batch_rule, report.level, row.gpus_per_node) == ("fixed-per-gpu", 0.5, 4)
    assert row.batch_per_gpu == 128
    assert row.cost_usd == pytest.approx(row.gpu_hours)
    assert row.energy_j is not None
    slow = past.what_if(
        "16", gpus_per_node=4, inter=LinkSpec(kind="x", latency_s=1e-3, bytes_per_s=1e8)
    )
    fast = past.what_if("16", gpus_per_node=4, inter="400Gb/s")
    assert slow.rows[1].step_s.mean > fast.rows[1].step_s.mean


def test_run_without_steady_step_refuses_what_if(tmp_path):
    write_run(tmp_path, lines=run_lines()[:3])
    with pytest.raises(StoreError, match="no steady step"):
        open_run(RUN, tmp_path).what_if()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": [0]}, "num_gpus must be at least 1, got 0"),
        ({"gpus": [2.5]}, "num_gpus must be a whole number, got 2.5"),
        ({"gpus": "8-2"}, "runs backwards"),
        ({"gpus_per_node": 0}, "gpus_per_node must be a whole number of at least 1, got 0"),
        ({"usd_per_gpu_hour": -1.0}, "usd_per_gpu_hour must be 0 or more, got -1.0"),
        ({"usd_per_gpu_hour": float("nan")}, "usd_per_gpu_hour must be 0 or more, got nan"),
        ({"batch_rule": "fixed"}, "no batch rule"),
        ({"level": 1.0}, "level must lie between"),
        ({"inter": "fast"}, "not a link"),
    ],
)
def test_wrong_questions_are_refused_with_the_value(changes, message):
    with pytest.raises(UsageError, match=message):
        build_query(changes.pop("gpus", None), 4, **changes)


def test_default_counts_reach_four_times_the_running_one():
    assert build_query(None, 4).gpus == (1, 2, 4, 8, 16)
    assert build_query(None, 6).gpus == (1, 2, 4, 6, 8, 16)
    assert build_query((2, 2, 1), 1).gpus == (1, 2)


# --- relatives ---------------------------------------------------------------------------------


def test_relatives_are_other_runs_of_the_same_model_on_the_same_kind_of_device(tmp_path):
    alien = msgspec.structs.replace(BASE, signature="resnet")
    gpu = msgspec.structs.replace(BASE.cluster.gpu, name="H100")
    newer = msgspec.structs.replace(BASE, cluster=msgspec.structs.replace(BASE.cluster, gpu=gpu))
    write_run(tmp_path)
    write_run(tmp_path, other_run("a"), lines=(at_count(8, 0.2, 5.0), at_count(8, 0.13, 6.0)))
    write_run(tmp_path, other_run("b"), lines=(at_count(2, 0.4, 3.0), alien, newer))
    found = load_relatives(tmp_path, "gpt2-toy", RUN, like=BASE).measurements
    assert [(m.cluster.num_gpus, m.step_s) for m in found] == [(2, 0.4), (8, 0.13)]
    assert load_relatives(tmp_path, "", RUN).measurements == ()
    assert load_relatives(tmp_path / "nowhere", "gpt2-toy", RUN).measurements == ()


def test_relatives_tell_what_was_forecast_for_this_count_and_batch(tmp_path):
    report = scaling_report()
    row = next(row for row in report.rows if row.num_gpus == 8)
    write_run(tmp_path, other_run("a"), lines=(BASE, report))
    cluster = msgspec.structs.replace(
        BASE.cluster, num_gpus=8, gpus_per_node=max(8, row.gpus_per_node)
    )
    plan = msgspec.structs.replace(BASE.plan, batch_per_gpu=row.batch_per_gpu)
    now = msgspec.structs.replace(BASE, cluster=cluster, plan=plan)
    family = load_relatives(tmp_path, "gpt2-toy", RUN, like=now)
    assert family.told(now) == row
    other_batch = msgspec.structs.replace(plan, batch_per_gpu=(row.batch_per_gpu or 1) + 1)
    assert family.told(msgspec.structs.replace(now, plan=other_batch)) is None
    assert family.told(BASE) is None  # it was measured then, not forecast


def test_relatives_survive_damaged_and_newer_runs(tmp_path):
    write_run(tmp_path, other_run("a"), lines=(BASE,))
    newer = tmp_path / "runs" / "newer"
    newer.mkdir()
    (newer / "rank0.jsonl").write_bytes(b'{"type":"FileHead","schema":9}\n')
    (tmp_path / "runs" / "linked").mkdir()
    (tmp_path / "runs" / "linked" / "rank0.jsonl").symlink_to("/dev/zero")
    assert load_relatives(tmp_path, "gpt2-toy", "x").measurements == (BASE,)


def test_relatives_read_a_bounded_number_of_runs(tmp_path, monkeypatch):
    from scaledl import relatives

    for index in range(6):
        write_run(tmp_path, other_run(f"r{index}"), lines=(BASE,))
    monkeypatch.setattr(relatives, "_NEWEST_RELATIVES", 4)
    assert len(load_relatives(tmp_path, "gpt2-toy", "x").measurements) == 4


def test_past_runs_need_no_torch(tmp_path):
    write_run(tmp_path)
    code = (
        "import sys, scaledl; past = scaledl.open_run('latest', sys.argv[1]); "
        "past.what_if([8]); past.render(layers=3); "
        "assert not {'torch', 'torch_geometric', 'pynvml'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


def test_phases_are_told_apart_from_steps(tmp_path):
    phase = PhaseRecord(kind="eval", at_s=1.0, duration_s=2.0, after_step=10, epoch=0)
    past = PastRun(write_run(tmp_path, lines=(phase, step_block())))
    assert past.phases == (phase,)
