"""The graph network beside a run: windows, the file as it grows, the process, what is told."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from samples import CLUSTER, GRAPH, epoch_record
from torch import nn

import scaledl
from scaledl.learned import Learned, read_learned, write_learned
from scaledl.learning import launch
from scaledl.learning.__main__ import follow
from scaledl.learning.launch import Background, cores_free, environment, state_file
from scaledl.learning.study import Study
from scaledl.learning.tail import Tail
from scaledl.learning.windows import MOST_NODES, Windows
from scaledl.records import (
    LayerGraph,
    LayerNode,
    Line,
    ParallelPlan,
    RunEnd,
    RunInfo,
    StepBlock,
)
from scaledl.store import RunWriter

INFO = RunInfo(
    run_id="r", started_at=0.0, model="Net", cluster=CLUSTER.with_num_gpus(1),
    plan=ParallelPlan(), scaledl_version="0",
)  # fmt: skip


def block(first: int, step_s: float = 0.1, **changes: Any) -> StepBlock:
    fields: dict[str, Any] = {
        "first_step": first,
        "num_steps": 50,
        "epoch": 0,
        "at_s": float(first),
        "mean_s": step_s,
        "p50_s": step_s,
        "p95_s": step_s,
        "input_wait_s": 0.0,
        "optimizer_s": 0.0,
        "num_micro_batches": 50,
        "num_samples": 400,
    }
    return StepBlock(**(fields | changes))


END = RunEnd(at_s=1e3, step=500, outcome="finished")


def recorded(folder: Path, *lines: Line) -> Path:
    """A run's folder as its process would leave it."""
    writer = RunWriter(folder, 0, on_trouble=pytest.fail)
    writer.write_info(INFO)
    for line in lines:
        writer.append(line)
    writer.close()
    return folder


# --- windows --------------------------------------------------------------------------------------


def test_a_block_becomes_an_example_once_the_layers_are_known():
    windows = Windows(INFO)
    assert windows.add(block(50)) == []
    (example,) = windows.add(GRAPH)
    assert example.step_s == pytest.approx(0.1)
    assert example.plan.batch_per_gpu == 8
    assert len(example.layer_s) == len(GRAPH.nodes)
    (example,) = windows.add(block(100, 0.3, input_wait_s=0.1, num_micro_batches=100))
    assert example.step_s == pytest.approx(0.2), "waiting for data is nothing of the layers"
    assert (example.plan.batch_per_gpu, example.plan.grad_accum) == (4, 2)


@pytest.mark.parametrize(
    "odd",
    [
        block(0, num_steps=10),
        block(50, tags=("sampled",)),
        block(50, num_steps=3),
        block(50, 0.1, input_wait_s=0.1),
    ],
    ids=["warm-up", "sampled", "short", "only waiting"],
)
def test_a_block_that_tells_nothing_of_the_layers_is_no_example(odd: StepBlock):
    windows = Windows(INFO)
    windows.add(GRAPH)
    assert windows.add(odd) == []


def test_a_graph_too_large_to_learn_in_time_is_left_out_and_said():
    nodes = tuple(LayerNode(fqn=str(i), kind="linear") for i in range(MOST_NODES + 1))
    windows = Windows(INFO)
    windows.add(LayerGraph(nodes=nodes, edges=(), signature="s"))
    assert windows.add(block(50)) == []
    assert str(MOST_NODES) in windows.left_out


# --- the file as it grows -------------------------------------------------------------------------


def test_a_line_that_is_not_whole_waits_and_what_is_no_record_is_skipped(tmp_path: Path):
    path = tmp_path / "rank0.jsonl"
    tail = Tail(path)
    assert tail.read() == [], "not there yet"
    whole = msgspec.json.encode(block(50))
    path.write_bytes(b'{"type":"FileHead","schema":1}\nnonsense\n' + whole[:20])
    assert tail.read() == []
    with path.open("ab") as stream:
        stream.write(whole[20:] + b"\n")
    assert tail.read() == [block(50)]
    assert tail.read() == []


# --- the study ------------------------------------------------------------------------------------


def studied(folder: Path, state: Path, *lines: Line) -> Learned:
    study = Study(recorded(folder, *lines), state)
    study.finish()
    found = read_learned(folder)
    assert found is not None
    return found


def test_what_one_run_taught_the_next_one_starts_from(tmp_path: Path):
    state = tmp_path / "learner" / "device.msgpack"
    first = studied(tmp_path / "one", state, GRAPH, block(50, 0.1), END)
    assert first.told_s is None, "nothing was known of the device"
    assert (first.state, first.num_windows, first.num_updates) == ("done", 1, 1)
    second = studied(tmp_path / "two", state, GRAPH, block(50, 0.102), END)
    assert second.first_told_s == pytest.approx(0.1, rel=0.05)
    assert second.num_updates == 2
    assert second.errors[0] < 0.05
    assert second.first_truth_s == pytest.approx(0.102)


def test_a_damaged_state_is_said_and_learned_anew(tmp_path: Path):
    state = tmp_path / "device.msgpack"
    state.write_bytes(b"no state")
    found = studied(tmp_path / "run", state, GRAPH, block(50), END)
    assert "learned anew" in found.left_out
    assert found.num_updates == 1
    assert studied(tmp_path / "next", state, GRAPH, block(50), END).left_out == ""


def test_of_windows_that_came_meanwhile_the_newest_is_learned(tmp_path: Path):
    lines = (GRAPH, *(block(50 * i, 0.1 * i) for i in range(1, 6)))
    study = Study(recorded(tmp_path / "run", *lines), tmp_path / "device.msgpack")
    study.read()
    study.learn()
    found = read_learned(tmp_path / "run")
    assert found is not None
    assert (found.num_windows, found.truth_s) == (1, pytest.approx(0.5))
    assert not study.ended


# --- the process, as the run sees it --------------------------------------------------------------


class Told(list[tuple[str, str]]):
    def __call__(self, key: str, text: str) -> None:
        if key not in [k for k, _ in self]:
            self.append((key, text))


class FakeProcess:
    def __init__(self, *args: Any, **options: Any) -> None:
        self.args, self.options, self.code = args, options, None
        FakeProcess.made.append(self)

    made: "list[FakeProcess]" = []

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int:
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    FakeProcess.made = []
    monkeypatch.setattr(launch.subprocess, "Popen", FakeProcess)
    monkeypatch.setattr(launch, "room_bytes", lambda: launch.ROOM_BYTES)
    return FakeProcess.made


def background(tmp_path: Path, told: Told, *, seldom: bool = False) -> Background:
    return Background(tmp_path, tmp_path / "s.msgpack", seldom=seldom, tell=told)


def test_a_short_run_starts_no_process(tmp_path: Path, started: list[FakeProcess]):
    beside = background(tmp_path, Told())
    beside.look(launch.START_S - 1, at_epoch=True)
    assert not started
    beside.look(launch.START_S, at_epoch=False)
    beside.look(launch.START_S + 9, at_epoch=True)
    (process,) = started
    assert process.args[0][1:4] == ["-P", "-m", "scaledl.learning"]
    assert process.options["start_new_session"], "Ctrl-C is for the training"


def test_without_a_free_core_it_starts_at_an_epochs_end_and_says_so(
    tmp_path: Path, started: list[FakeProcess]
):
    told = Told()
    beside = background(tmp_path, told, seldom=True)
    beside.look(100.0, at_epoch=False)
    assert not started
    beside.look(100.0, at_epoch=True)
    assert started[0].args[0][-1] == "--seldom"
    assert "epoch ends" in told[0][1]


def test_its_death_is_told_once_and_it_is_not_started_again(
    tmp_path: Path, started: list[FakeProcess]
):
    told = Told()
    beside = background(tmp_path, told)
    beside.look(100.0, at_epoch=False)
    started[0].code = -9
    beside.look(101.0, at_epoch=False)
    beside.look(102.0, at_epoch=True)
    assert len(started) == 1
    assert [key for key, _ in told] == ["learner"]
    assert "code -9" in told[0][1]


def test_a_failure_that_it_named_is_told_in_its_words(tmp_path: Path, started: list[FakeProcess]):
    told = Told()
    beside = background(tmp_path, told)
    beside.look(100.0, at_epoch=False)
    write_learned(tmp_path, Learned(at_s=0.0, state="failed", left_out="OSError: disk full"))
    started[0].code = 1
    beside.look(101.0, at_epoch=False)
    assert "disk full" in told[0][1]


def test_where_it_cannot_run_the_run_goes_on_without(
    tmp_path: Path, started: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
):
    told = Told()
    with monkeypatch.context() as m:
        m.setattr(launch, "room_bytes", lambda: launch.ROOM_BYTES - 1)
        background(tmp_path, told).look(100.0, at_epoch=False)
    assert "memory" in told[0][1]
    for name in ("frozen", "executable"):
        told = Told()
        with monkeypatch.context() as m:
            m.setattr(sys, name, "/opt/app/train", raising=False)
            background(tmp_path, told).look(100.0, at_epoch=False)
        assert "no Python to start it with" in told[0][1], name

    def broken(*_: object, **__: object) -> None:
        raise OSError("Cannot allocate memory")

    told = Told()
    monkeypatch.setattr(launch.subprocess, "Popen", broken)
    background(tmp_path, told).look(100.0, at_epoch=False)
    assert "Cannot allocate memory" in told[0][1]
    assert not started


def test_what_it_first_told_is_said_at_an_epochs_end(tmp_path: Path, started: list[FakeProcess]):
    told = Told()
    beside = background(tmp_path, told)
    beside.look(100.0, at_epoch=False)
    write_learned(
        tmp_path,
        Learned(
            at_s=0.0, state="learning", first_told_s=0.05, first_truth_s=0.04, errors=(0.25, 0.02)
        ),
    )
    beside.look(101.0, at_epoch=False)
    assert not told
    beside.look(102.0, at_epoch=True)
    beside.look(103.0, at_epoch=True)
    assert [key for key, _ in told] == ["learner-first"]
    for figure in ("50 ms", "40 ms", "25%", "2%"):
        assert figure in told[0][1]
    assert len(started) == 1


def test_the_process_knows_no_rank_and_no_device():
    env = environment(
        {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "x", "SCALEDL_STRICT": "1", "PATH": "/bin"}
    )
    assert env["PATH"] == "/bin"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["OMP_NUM_THREADS"] == "1"
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "SCALEDL_STRICT"} & set(env)


def test_cores_that_the_job_leaves_over():
    assert cores_free(1, 2, 2) == 0
    assert cores_free(4, 2, 16) == 8


def test_the_state_of_a_device_has_a_plain_name(tmp_path: Path):
    assert state_file(tmp_path, "NVIDIA H100 80GB HBM3").name == "nvidia-h100-80gb-hbm3.msgpack"
    assert state_file(tmp_path, "../..").name == "device.msgpack"


def test_a_real_run_teaches_the_network_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launch, "START_S", 0.0)
    monkeypatch.setattr(launch, "cores_free", lambda *_: 1)
    monkeypatch.setattr("scaledl.engine.cores_free", lambda *_: 1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(8, 32), torch.randint(0, 4, (8,))) for _ in range(40)]
    with scaledl.track(model, epochs=4, steps_per_epoch=40, report="none") as run:
        for _ in range(4):
            for x, y in data:
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        folder = scaledl.open_run("latest").folder
        assert run.status()["off"] == {}
    until_s = time.monotonic() + 110  # at idle priority, beside whatever else runs
    while ((found := read_learned(folder)) is None or found.state == "learning") and (
        time.monotonic() < until_s
    ):
        time.sleep(0.2)
    assert found is not None, "the process wrote nothing"
    assert (found.state, found.left_out) == ("done", "")
    assert found.num_updates >= 1
    assert state_file(Path(os.environ["SCALEDL_HOME"]), found.device).exists()


def test_the_process_ends_when_the_training_is_gone(tmp_path: Path):
    folder = recorded(tmp_path / "run", GRAPH, block(50), epoch_record())
    state = tmp_path / "s.msgpack"
    begin_s = time.monotonic()
    follow(folder, state, parent=1, seldom=False)  # our parent is another
    assert time.monotonic() - begin_s < 60
    found = read_learned(folder)
    assert found is not None
    assert found.state == "done"
    assert state.exists()
