"""The job's time limit against the estimate: said once, early, and only where it matters."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from samples import NOW_S, scaling_rows
from training import make_loader, make_model

import scaledl
from scaledl.limit import limit_of, on_the_limit
from scaledl.records import Basis, Eta, Interval, Note
from scaledl.store import read_lines
from scaledl.units import format_clock

HOUR_S = 3600.0


def eta(low_h: float, high_h: float, basis: Basis = "measured") -> Eta:
    mean_s = (low_h + high_h) / 2 * HOUR_S
    left = Interval(mean=mean_s, low=low_h * HOUR_S, high=high_h * HOUR_S)
    finish_at = NOW_S + mean_s
    return Eta(at_s=NOW_S, step=10, basis=basis, remaining_s=left, finish_at=finish_at)


def clock(hours: float) -> str:
    return format_clock(NOW_S + hours * HOUR_S, NOW_S)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_END_TIME": "1764700000"}, 1764700000.0),
        ({"SCALEDL_ENDS_AT": "1764700001", "SLURM_JOB_END_TIME": "1764700000"}, 1764700001.0),
        ({"SLURM_JOB_END_TIME": ""}, None),
        ({"SLURM_JOB_END_TIME": "soon"}, None),
        ({"SLURM_JOB_END_TIME": "nan"}, None),
        ({"SLURM_JOB_END_TIME": "0"}, None),
        ({"SLURM_JOB_END_TIME": "4294967294000"}, None),  # no limit
    ],
)
def test_the_limit_comes_from_the_scheduler(environ: dict[str, str], expected: float) -> None:
    assert limit_of(environ) == expected


def test_a_training_that_surely_misses_its_limit_is_told_when_to_save() -> None:
    said = on_the_limit(eta(3.9, 4.2), NOW_S + 3 * HOUR_S)
    assert said is not None
    assert said == (
        "limit-surely",
        f"this job ends {clock(3)}, training needs until {clock(3.9)} to {clock(4.2)}. "
        f"Save before {clock(3 - 1 / 12)}.",
    )


def test_a_training_that_may_miss_its_limit_is_told_so() -> None:
    said = on_the_limit(eta(2.8, 3.2), NOW_S + 3 * HOUR_S)
    assert said is not None
    assert said[0] == "limit-maybe"
    assert "may need until" in said[1]


@pytest.mark.parametrize("told", [eta(2, 2.9), eta(3.9, 4.2, "prior")])
def test_nothing_is_said_while_it_makes_it_or_nothing_is_known(told: Eta) -> None:
    assert on_the_limit(told, NOW_S + 3 * HOUR_S) is None
    unknown = msgspec.structs.replace(told, remaining_s=None, finish_at=None)
    assert on_the_limit(unknown, NOW_S) is None


def test_a_larger_count_that_would_make_it_is_named() -> None:
    def row(num_gpus: int, low_h: float, high_h: float, **more: Any) -> Any:
        left = eta(low_h, high_h).remaining_s
        return msgspec.structs.replace(
            scaling_rows()[0], num_gpus=num_gpus, remaining_s=left, **more
        )

    rows = [row(2, 1, 1), row(4, 3.9, 4.2), row(8, 2.8, 3.3), row(16, 1, 1.5, fits=False)]
    rows += [row(64, 1, 1), row(32, 1, 2)]
    said = on_the_limit(eta(3.9, 4.2), NOW_S + 3 * HOUR_S, rows, num_gpus=4)
    assert said is not None
    assert said[1].endswith(f"; on 32 it would be done about {clock(1.5)}, if resumed now.")


def test_a_run_in_a_job_that_ends_too_early_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scaledl.engine.FLUSH_S", 0.0)  # an estimate at each step
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1764700000")  # has passed
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with scaledl.track(model, epochs=1000, run_dir=tmp_path) as run:
        for _ in range(10):
            for inputs, targets in make_loader():
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    assert run.folder is not None
    notes = [x for x in read_lines(run.folder) if isinstance(x, Note) and "limit" in x.key]
    assert [note.key for note in notes] == ["limit-surely"]
    assert capfd.readouterr().err.count("this job ends") == 1
