"""``scaledl import``: the text, the JSON, the run it leaves, several ranks, exit codes."""

import sys
from collections.abc import Callable

import msgspec
import pytest
from kineto import SIZES, document, event, training, write

from scaledl.cli import main
from scaledl.imported import Stated, record_job
from scaledl.past import open_run
from scaledl.records import TraceJob
from scaledl.traces.job import group_jobs
from scaledl.traces.summary import read_trace

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path) -> Cli:
    monkeypatch.setenv("SCALEDL_HOME", str(tmp_path / "home"))

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scaledl", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def ranks(tmp_path, *comm_us: float) -> list:
    return [
        write(
            tmp_path / f"rank{i}.json.gz",
            document(training(comm_us=us, comm_args=SIZES), rank=i, world=len(comm_us)),
        )
        for i, us in enumerate(comm_us)
    ]


def test_a_trace_becomes_a_run_that_show_and_what_if_read(cli, tmp_path):
    code, out, err = cli("import", *ranks(tmp_path, 200, 300)[:1])
    assert (code, err) == (0, "")
    assert "NVIDIA A100, rank 0 of 2, DDP" in out
    assert "50 % hidden behind computation, 400 us exposed" in out
    assert "recorded as" in out
    code, out, _ = cli("show", "latest", "--comm")
    assert code == 0
    assert "ms = compute 0.40 + exposed comm. 0.10 + input wait 0.06" in " ".join(out.split())
    assert "3.9 KiB" in out
    code, out, _ = cli("what-if", "latest", "--gpus", "1,2,4", "--json")
    rows = msgspec.json.decode(out)["rows"]
    assert (code, [row["num_gpus"] for row in rows]) == (0, [1, 2, 4])


def test_the_shortest_kernel_of_all_ranks_is_the_transfer(cli, tmp_path):
    (job,) = group_jobs([read_trace(path) for path in ranks(tmp_path, 300, 120, 200)])
    assert len(job.matched) == 4
    assert {m.num_bytes for m in job.matched} == {4000}
    assert [m.transfer_s for m in job.matched] == pytest.approx([120e-6] * 4)
    assert job.matched[0].waits_s == pytest.approx((180e-6, 0.0, 80e-6))
    code, out, _ = cli("import", *ranks(tmp_path, 300, 120, 200))
    assert code == 0
    assert "3 ranks share 4 collectives: transfer 480 us" in out
    value = msgspec.json.decode(cli("show", "latest", "--json", "--comm")[1])
    (row,) = value["comm"]
    assert row["transfer_s"] == pytest.approx(120e-6)


def test_a_collective_that_begins_just_before_its_step_is_kept(cli, tmp_path):
    trace = read_trace(ranks(tmp_path, 200, 300)[0])
    begins_s = [mark.start_s for mark in trace.gpu_steps or trace.steps]
    early = [
        msgspec.structs.replace(trace.collectives[0], start_s=at_s - 1e-6) for at_s in begins_s
    ]
    trace = msgspec.structs.replace(trace, collectives=tuple(early))
    became = record_job(TraceJob(traces=(trace,)), tmp_path / "home", Stated(), 1.0)
    windows = open_run(became.run_id, tmp_path / "home").windows
    assert sum(len(window.comm) for window in windows) == len(early)
    assert min(event.start_s for window in windows for event in window.comm) == 0.0


def test_ranks_that_took_part_in_other_collectives_are_not_matched(tmp_path):
    first, second = ranks(tmp_path, 100, 100)
    for events in (
        training(3, comm_args=SIZES),
        training(comm_args=SIZES | {"In msg nelems": 7, "Out msg nelems": 7}),
    ):
        write(second, document(events, rank=1, world=2))
        (job,) = group_jobs([read_trace(first), read_trace(second)])
        assert job.matched == ()


def test_missing_ranks_are_said(cli, tmp_path):
    paths = ranks(tmp_path, 300, 120, 200)
    said = " ".join(cli("import", *paths[:2], "--dry-run")[1].split())
    assert "2 ranks share 4 collectives" in said
    assert "a rank that is not here may have been faster (3 in the job)" in said
    assert "not here" not in cli("import", *paths, "--dry-run")[1]


def test_traces_of_one_rank_are_jobs_of_their_own(tmp_path):
    (path,) = ranks(tmp_path, 100)
    trace = msgspec.structs.replace(read_trace(path), world_size=2)
    assert [len(job.traces) for job in group_jobs([trace, trace])] == [1, 1]
    alone = msgspec.structs.replace(trace, rank=None)
    assert [len(job.traces) for job in group_jobs([alone, trace, alone])] == [1, 1, 1]


def test_missing_facts_are_asked_for_and_not_made_up(cli, tmp_path):
    path = write(tmp_path / "t.json", {"traceEvents": training(comm_args=SIZES)})
    out = cli("import", path)[1]
    assert "not recorded: the world size is not in the trace. Give --world-size." in out
    out = cli("import", path, "--world-size", 2)[1]
    assert "GPUs per machine are not in the trace. Give --gpus-per-node." in out
    out = cli("import", path, "--world-size", 2, "--gpus-per-node", 2)[1]
    assert "scaledl what-if" in out
    path = write(tmp_path / "u.json", document(training()))
    out = cli("import", path)[1]
    assert "no what-if: the size of the gradients is not in the trace." in out
    code, _, err = cli("what-if", "latest")
    assert (code, "has no what-if: the size of the gradients" in err) == (1, True)
    assert cli("show", "latest")[0] == 0
    assert "no what-if" not in cli("import", path, "--gradient-bytes", "4e6")[1]
    assert cli("what-if", "latest")[0] == 0


def test_communication_that_is_not_data_parallel_has_no_what_if(cli, tmp_path):
    kernel = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
    args = SIZES | {"Collective name": "all_to_allv"}
    path = write(tmp_path / "t.json", document(training(kernel=kernel, comm_args=args)))
    assert (
        "100% of its communication is not data parallelism (all_to_all)" in cli("import", path)[1]
    )


def test_a_trace_without_steps_is_shown_only(cli, tmp_path):
    events = [e for e in training() if e["name"] == "sgemm"]
    out = cli("import", write(tmp_path / "t.json", {"traceEvents": events}))[1]
    assert "step           n/a (no step is marked)" in out
    assert "not recorded: no step is marked" in out
    assert not (tmp_path / "home").exists()


def test_json_holds_the_figures_and_dry_run_writes_nothing(cli, tmp_path):
    code, out, _ = cli("import", *ranks(tmp_path, 200, 250), "--json", "--dry-run")
    value = msgspec.json.decode(out)
    assert (code, value["schema"]) == (0, "scaledl.import/1")
    (job,) = value["jobs"]
    assert job["recorded"] is None
    assert [t["nccl"]["exposed_s"] for t in job["traces"]] == pytest.approx([4e-4, 6e-4])
    assert len(job["matched"]) == 4
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "is no JSON"),
        (["--max-gb", "0"], "--max-gb must be above 0, got 0"),
        (["--max-gb", "nan"], "--max-gb must be above 0, got nan"),
        (["--gradient-bytes", "-3"], "--gradient-bytes must be above 0, got -3"),
        (["--world-size", "0"], "Invalid value for '--world-size'"),
    ],
)
def test_mistakes_are_one_message_exit_code_2_and_no_run(cli, tmp_path, words, told):
    good, bad = ranks(tmp_path, 200)[0], write(tmp_path / "bad.json", b"<html>")
    code, out, err = cli("import", good, bad, *words)
    assert (code, out) == (2, "")
    assert told in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_written_is_a_failure(cli, tmp_path):
    (tmp_path / "home").write_text("a file")
    code, _, err = cli("import", *ranks(tmp_path, 200, 200))
    assert code == 1
    assert "cannot write" in err


def test_help_explains_each_printed_field(cli):
    said = " ".join(cli("import", "--help")[1].split())
    fields = ("step:", "GPU busy:", "computation:", "communication:", "exposed:", "input wait:")
    assert all(field in said for field in (*fields, "n/a:", "Example: scaledl import"))


def layered() -> list[dict]:
    """The training with a module around the compute kernels of each step, checkpointed."""
    events = training(comm_args=SIZES)
    for step in range(4):
        at = 1_000_000 + 1000 * step
        calls = [("nn.Module: Net_0", at + 70, 80), ("nn.Module: Linear_0", at + 80, 50)]
        events += [event("python_function", name, ts, dur, tid=1) for name, ts, dur in calls]
        events.append(event("cpu_op", "aten::mm", at + 85, 30, tid=1,
                            args={"Sequence number": step, "Fwd thread id": 0}))  # fmt: skip
        node = "autograd::engine::evaluate_function: MmBackward0"
        events.append(event("cpu_op", node, at + 200, 100, tid=2,
                            args={"Sequence number": step, "Fwd thread id": 1}))  # fmt: skip
        events.append(event("python_function", "nn.Module: Linear_0", at + 210, 20, tid=2))
        for number, (ts, tid) in enumerate([(90, 1), (220, 2), (250, 2)]):
            args = {"correlation": 1000 + 10 * step + number}
            events.append(event("cuda_runtime", "cudaLaunchKernel", at + ts, 2, tid=tid, args=args))
            events.append(event("kernel", "gemm", at + 500 + 50 * number, 40, args=args))
    return events


def test_kernel_time_by_module_becomes_the_layers_of_the_run(cli, tmp_path):
    path = write(tmp_path / "t.json.gz", document(layered()))
    out = " ".join(cli("import", path)[1].split())
    assert "of the computation's kernel time is of 1 modules" in out
    assert "160 us of it ran again in the backward (checkpointing)" in out
    rows = msgspec.json.decode(cli("show", "latest", "--layers", "9", "--json")[1])["layers"]
    layer = next(row for row in rows if row["fqn"] == "Linear_0")
    times = [layer[key] for key in ("forward_s", "backward_s", "recompute_s")]
    assert times == pytest.approx([40e-6] * 3)
    said = " ".join(cli("show", "latest", "--layers", "9")[1].split())
    assert said[said.index("run again") :].startswith(
        "run again in the backward (activation checkpointing): 40 us, 33 % of the layers' time"
    )


def test_the_run_tells_which_bucket_a_collective_was(tmp_path):
    events = [
        event("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
              1_000_340 + 1000 * step, 40, tid=2)
        for step in range(4)
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "t.json.gz", document(training() + events)))
    assert [c.owner for c in trace.collectives] == ["bucket 0"] * 4
    became = record_job(TraceJob(traces=(trace,)), tmp_path / "home", Stated(), 1.0)
    windows = open_run(became.run_id, tmp_path / "home").windows
    assert {e.owner for window in windows for e in window.comm} == {"bucket 0"}
