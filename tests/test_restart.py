"""A job that is started again from an older checkpoint on another number of processes (D13)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from streams import Stream, play
from torch import nn
from training import make_loader, make_model, quietly

import scaledl
from scaledl.predictor.eta import EtaEstimator
from scaledl.records import Measurement, StepBlock
from scaledl.store import read_info, read_lines

TOTAL = 1000


def run_part(folder: Path, first_step: int, state: dict[str, Any] | None = None) -> Any:
    """Thirty steps from ``first_step`` on; the finished run."""
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"run_dir": folder, "initial_step": first_step, "total_steps": TOTAL}
    with quietly(**options)(model) as run:
        if state is not None:
            run.load_state_dict(state)
        for _ in range(3):
            for x, y in make_loader():
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    return run


def test_D13_a_restart_on_fewer_processes_goes_back_and_counts_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = run_part(tmp_path, 770)
    assert before.status()["step"] == 800
    state = json.loads(json.dumps(before.state_dict()))
    monkeypatch.setenv("WORLD_SIZE", "1")
    after = run_part(tmp_path, 600, state)

    assert after.status()["step"] == 630
    assert after.status()["off"] == {}
    assert after.eta.step == 630
    assert after.folder != before.folder, "a segment of its own"
    assert after.eta.remaining_s.mean >= 300 * after.eta.step_s.low, "370 steps are left, not 170"
    counts = [read_info(run.folder).cluster.num_gpus for run in (before, after)]
    assert counts == [2, 1]
    told = after.status()["guesses"]["resumed"]
    assert told.startswith("the state was learned on 2 GPUs, this job has 1")
    assert after.eta.step_s.mean == pytest.approx(_mean_step_s(after), rel=0.5), (
        "not of 2 processes"
    )


def _mean_step_s(run: Any) -> float:
    blocks = [line for line in read_lines(run.folder) if isinstance(line, StepBlock)]
    return sum(b.mean_s * b.num_steps for b in blocks) / sum(b.num_steps for b in blocks)


def test_D13_what_was_measured_on_the_other_count_is_kept_beside_and_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = run_part(tmp_path, 770)
    monkeypatch.setenv("WORLD_SIZE", "1")
    after = run_part(tmp_path, 600)
    own = [line for line in read_lines(after.folder) if isinstance(line, Measurement)]
    assert {line.cluster.num_gpus for line in own} == {1}
    report = after.what_if([1, 2], batch_rule="fixed-per-gpu")
    rows = {row.num_gpus: row for row in report.rows}
    assert rows[1].basis == "measured"
    assert "measured-earlier" not in rows[1].caveats
    assert "measured-earlier" in rows[2].caveats
    assert scaledl.open_run(before.folder).ended is not None


def test_D13_the_pace_of_the_other_count_is_left_behind_within_thirty_steps() -> None:
    two = Stream(steps_per_epoch=100)
    before = next(play(two, {800}))
    resumed = EtaEstimator()
    resumed.load_state_dict(json.loads(json.dumps(before.estimator.state_dict())))
    one = replace(two, step_s=0.2, seed=4)
    for moment in play(one, {630, 700, 900}, estimator=resumed, first_step=600):
        left = moment.estimator.estimate(moment.progress, moment.now_s).remaining_s
        assert left.mean == pytest.approx(moment.left_s, rel=0.05)
        assert moment.left_s in left
