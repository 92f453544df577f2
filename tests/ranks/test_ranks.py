"""Real jobs of two and four gloo ranks: what `track` sees there and what it leaves alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import scaledl
from scaledl.records import Line, Measurement, ProfileWindow, ScalingReport, StepBlock
from scaledl.store import read_lines

JOB = Path(__file__).with_name("job.py")
TWO = (
    "ddp",
    "equal",
    "no_collective",
    "slow_rank",
    "uneven",
    "same_data",
    "fsdp",
    "slow_stop",
    "energy",
)

pytestmark = [pytest.mark.slow, pytest.mark.dist]


def launch(folder: Path, num_ranks: int, *scenarios: str) -> Path:
    """Run the scenarios on so many ranks; the folder that holds what they saw."""
    common = {**os.environ, "WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
    common |= {"SCALEDL_STRICT": "1", "SCALEDL_HOME": str(folder / "home")}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(folder), *scenarios],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, "\n".join(errors)[-4000:]
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One job of two ranks with every scenario but the silent one."""
    return launch(tmp_path_factory.mktemp("two"), 2, *TWO)


def seen(folder: Path, scenario: str, rank: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / f"{scenario}.{rank}.json").read_text())
    return value


def lines(folder: Path, scenario: str, rank: int = 0) -> list[Line]:
    run = folder / scenario / "runs" / seen(folder, scenario)["run_id"]
    return list(read_lines(run, rank))


def of_kind(found: list[Line], kind: type) -> list[Any]:
    return [line for line in found if isinstance(line, kind)]


def test_ranks_write_side_by_side_into_one_run_and_leave_nothing_behind(two: Path) -> None:
    first, second = seen(two, "ddp"), seen(two, "ddp", 1)
    assert first["run_id"] == second["run_id"]
    assert first["off"] == second["off"] == {}
    assert first["hooks_equal"]
    assert second["hooks_equal"]
    names = sorted(path.name for path in (two / "ddp" / "runs" / first["run_id"]).iterdir())
    assert names == ["rank0.jsonl", "rank1.jsonl", "run.json"]
    for rank in (0, 1):
        blocks = of_kind(lines(two, "ddp", rank), StepBlock)
        assert sum(block.num_steps for block in blocks) == 60


def test_every_ddp_step_tells_its_exposed_communication_and_a_window_its_buckets(two: Path) -> None:
    found = lines(two, "ddp")
    comm = [w for w in of_kind(found, ProfileWindow) if w.comm]
    assert comm
    window = comm[0]
    assert {event.op for event in window.comm} == {"all_reduce"}
    assert sum(e.num_bytes for e in window.comm) == seen(two, "ddp")["grad_bytes"]
    assert all(event.group_size == 2 and event.duration_s > 0 for event in window.comm)
    measured = of_kind(found, Measurement)[-1]
    assert measured.cluster.num_gpus == 2
    assert measured.plan.strategy == "ddp"
    assert sum(measured.plan.bucket_bytes) == seen(two, "ddp")["grad_bytes"]
    assert 0 < measured.parts.comm_exposed_s < measured.step_s
    assert of_kind(found, ScalingReport)
    assert seen(two, "ddp")["rows"][1] == [2, "measured"]
    assert {row[1] for row in seen(two, "ddp")["rows"][::2]} <= {"extrapolated", "prior"}


@pytest.mark.parametrize("name", ["plain", "no_sync"])
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_train_bit_for_bit_the_same(two: Path, name: str, rank: int) -> None:
    found = seen(two, "equal", rank)
    assert found[f"{name}_with"] == found[f"{name}_without"]
    assert found[f"{name}_keys"]


def test_D02_no_barrier_and_no_collective_of_ours(two: Path) -> None:
    for rank in (0, 1):
        assert set(seen(two, "no_collective", rank)["counts"].values()) == {0}
    package = Path(scaledl.__file__).parent
    for path in package.rglob("*.py"):
        if path.parent.name in ("collecting", "probing"):
            continue  # a program of its own, never inside a user's job
        assert "barrier(" not in path.read_text(), path


def test_D06_slow_rank_is_named_although_the_all_reduce_makes_all_steps_equal(two: Path) -> None:
    said = seen(two, "slow_rank")["said"]
    assert "slow: rank 1 (+" in said
    assert "slow: rank 0" not in said


def test_transfer_is_told_from_waiting_for_the_slow_rank(two: Path) -> None:
    said = " ".join(seen(two, "slow_rank")["said"].split())
    found = re.search(
        r"exposed comm\. ([0-9.]+) ms = transfer ([0-9.]+) \+ waiting for others ([0-9.]+);", said
    )
    assert found is not None, said
    exposed, transfer, waiting = map(float, found.groups())
    assert transfer + waiting == pytest.approx(exposed)
    assert waiting > transfer  # of a few bytes, against a sleep on the other rank


@pytest.mark.parametrize("rank", [0, 1])
def test_D11_uneven_inputs_under_join_end_as_without_us(two: Path, rank: int) -> None:
    found = seen(two, "uneven", rank)
    assert found["with"] == found["without"]
    assert found["off"] == {}


def test_D12_ranks_that_walk_the_same_data_are_told_of(two: Path) -> None:
    assert "every rank walks the whole data set" in seen(two, "same_data")["said"]
    assert "every rank walks the whole data set" not in seen(two, "slow_rank")["said"]


def test_D16_energy_is_summed_once_over_the_ranks_and_says_over_which(two: Path) -> None:
    said = seen(two, "energy")["said"]
    assert "energy 0.0833 Wh (all 2 processes)" in said.replace("\n", " ")
    assert "0.167 Wh" not in said


def test_fsdp_trains_the_same_and_its_collectives_are_seen(two: Path) -> None:
    found = seen(two, "fsdp")
    assert found["with"] == found["without"]
    assert found["off"] == {}
    comm = [w for w in of_kind(lines(two, "fsdp"), ProfileWindow) if w.comm]
    assert all(e.owner for w in comm for e in w.comm if e.op in ("all_gather", "reduce_scatter"))
    assert comm
    ops = {event.op for event in comm[0].comm}
    assert {"all_gather", "reduce_scatter"} <= ops


def test_U03_rank_0_speaks_and_the_others_are_silent(two: Path, tmp_path: Path) -> None:
    assert "epoch 1 of 2" in seen(two, "ddp")["said"]
    assert seen(two, "ddp", 1)["said"] == ""
    four = launch(tmp_path, 4, "quiet")
    assert "done: 12 steps" in seen(four, "quiet")["said"]
    assert [seen(four, "quiet", rank)["said"] for rank in (1, 2, 3)] == [""] * 3


def test_P16_a_rank_whose_profiler_stops_slowly_gives_it_up_and_the_job_ends(two: Path) -> None:
    slow, other = seen(two, "slow_stop", 1), seen(two, "slow_stop")
    assert slow["stops"] == 1
    assert "stopping the profiler took" in slow["off"]["comm"]
    assert other["off"] == {}
    blocks = of_kind(lines(two, "slow_stop"), StepBlock)
    assert sum(block.num_steps for block in blocks) == 100
