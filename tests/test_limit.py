"""The job's time limit against the plan: the earlier end is named, and what helps is said once."""

import io
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from samples import NOW_S, epoch_summary, scaling_report, scaling_rows
from training import make_loader, make_model

import scaledl
from scaledl.limit import limit_of, on_the_limit, with_end
from scaledl.narrator import Narrator
from scaledl.records import Basis, Eta, Interval, Note, Progress
from scaledl.report.live import render_line, render_log_line
from scaledl.report.when import short_texts
from scaledl.speaker import Speaker
from scaledl.store import read_lines
from scaledl.units import format_clock

HOUR_S = 3600.0
ENDS_IN_S, MANY = 1000.0, 10**7  # so many epochs need longer on any machine


def eta(low_h: float, high_h: float, basis: Basis = "measured") -> Eta:
    mean_s = (low_h + high_h) / 2 * HOUR_S
    left = Interval(mean=mean_s, low=low_h * HOUR_S, high=high_h * HOUR_S)
    finish_at = NOW_S + mean_s
    return Eta(at_s=NOW_S, step=10, basis=basis, remaining_s=left, finish_at=finish_at)


# 4,000 of 10,000 steps, in epoch 4 of 10
PLACE = Progress(
    step=4000,
    epoch=4,
    step_in_epoch=0,
    total_steps=10_000,
    num_epochs=10,
    steps_per_epoch=1000,
    limited_by="epochs",
)


def ended(eta: Eta, limit_h: float, place: Progress = PLACE) -> Eta:
    return with_end(eta, place, NOW_S + limit_h * HOUR_S)


def said_of(eta: Eta, limit_h: float, *rows: Any, **options: Any) -> tuple[str, str] | None:
    return on_the_limit(ended(eta, limit_h), NOW_S + limit_h * HOUR_S, *rows, **options)


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
    said = said_of(eta(3.9, 4.2), 3)
    assert said is not None
    assert said == (
        "limit-surely",
        f"this job ends {clock(3)}, in epoch 9 of 10, "
        f"training needs until {clock(3.9)} to {clock(4.2)}. "
        f"Save before {clock(3 - 1 / 12)}.",
    )


def test_a_training_that_may_miss_its_limit_is_told_so() -> None:
    said = said_of(eta(2.8, 3.2), 3)
    assert said is not None
    assert said[0] == "limit-maybe"
    assert "may need until" in said[1]


@pytest.mark.parametrize("told", [eta(2, 2.9), eta(3.9, 4.2, "prior")])
def test_nothing_is_said_while_it_makes_it_or_nothing_is_known(told: Eta) -> None:
    assert said_of(told, 3) is None
    unknown = msgspec.structs.replace(told, remaining_s=None, finish_at=None)
    assert said_of(unknown, 3) is None


def test_so_near_the_limit_that_no_time_is_left_it_says_save_now() -> None:
    said = said_of(eta(3.9, 4.2), 0.05)
    assert said is not None
    assert said[1].endswith("Save now.")


def test_a_limit_that_has_passed_is_said_once_and_left_out() -> None:
    told = ended(eta(3.9, 4.2), -1)
    assert (told.ends_by, told.limit) == ("epochs", None)
    said = on_the_limit(told, NOW_S - HOUR_S)
    assert said is not None
    assert said[0] == "limit-passed"
    assert clock(-1) in said[1]


def test_a_larger_count_that_would_make_it_is_named() -> None:
    def row(num_gpus: int, low_h: float, high_h: float, **more: Any) -> Any:
        left = eta(low_h, high_h).remaining_s
        return msgspec.structs.replace(
            scaling_rows()[0], num_gpus=num_gpus, remaining_s=left, **more
        )

    rows = [row(2, 1, 1), row(4, 3.9, 4.2), row(8, 2.8, 3.3), row(16, 1, 1.5, fits=False)]
    rows += [row(64, 1, 1), row(32, 1, 2)]
    said = said_of(eta(3.9, 4.2), 3, rows, num_gpus=4)
    assert said is not None
    assert said[1].endswith(f"; on 32 it would be done about {clock(1.5)}, if resumed now.")


def test_a_run_in_a_job_that_ends_too_early_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scaledl.engine.FLUSH_S", 0.0)  # an estimate at each step
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + ENDS_IN_S))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with scaledl.track(model, epochs=MANY, run_dir=tmp_path) as run:
        for _ in range(10):
            for inputs, targets in make_loader():
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    assert run.folder is not None
    assert run.eta is not None
    assert (run.eta.ends_by, run.eta.limit is not None) == ("time-limit", True)
    assert "time limit" in str(run)
    notes = [x for x in read_lines(run.folder) if isinstance(x, Note) and "limit" in x.key]
    keys = [note.key for note in notes]  # how sure it is depends on how even the steps are
    assert keys
    assert len(keys) == len(set(keys))
    assert set(keys) <= {"limit-surely", "limit-maybe"}
    assert capfd.readouterr().err.count("this job ends") == len(keys)


# --- the end that comes first is named ------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "limit_h", "name"),
    [
        (PLACE, 5.0, "epochs"),
        (PLACE, 4.1, "epochs"),  # the limit lies in the interval, above the mean
        (PLACE, 4.0, "time-limit"),
        (PLACE, 3.0, "time-limit"),
        (msgspec.structs.replace(PLACE, limited_by="total_steps"), 5.0, "total_steps"),
        (msgspec.structs.replace(PLACE, limited_by="total_steps"), 3.0, "time-limit"),
        # no end of a plan is known, or it was passed
        (msgspec.structs.replace(PLACE, total_steps=None, limited_by=None), 5.0, "time-limit"),
        (msgspec.structs.replace(PLACE, step=10_001), 5.0, "time-limit"),
        (msgspec.structs.replace(PLACE, step=10_001), -1.0, None),
        (msgspec.structs.replace(PLACE, total_steps=None, limited_by=None), -1.0, None),
    ],
)
def test_the_end_that_comes_first_is_named(place: Progress, limit_h: float, name: str) -> None:
    assert ended(eta(3.9, 4.2), limit_h, place).ends_by == name


def test_without_a_limit_the_plan_ends_the_run() -> None:
    assert with_end(eta(3.9, 4.2), PLACE, None).ends_by == "epochs"
    assert with_end(eta(3.9, 4.2), PLACE, None).limit is None


def test_where_the_run_will_be_at_the_limit_has_an_interval() -> None:
    limit = ended(eta(3.0, 6.0), 2.0).limit
    assert limit is not None
    assert limit.is_sure
    assert limit.steps == (6000, 8000)  # two of six and two of three hours, of 6,000 steps
    assert limit.epochs == (6, 8)


@given(
    low_h=st.floats(0.0, 100.0),
    width_h=st.floats(0.0, 100.0),
    limit_h=st.floats(0.001, 200.0),
    step=st.integers(0, 10_000),
    per_epoch=st.integers(1, 20_000) | st.none(),
)
def test_what_is_reached_by_the_limit_lies_between_here_and_the_end(
    low_h: float, width_h: float, limit_h: float, step: int, per_epoch: int | None
) -> None:
    in_epoch = step % per_epoch if per_epoch else step
    epoch = step // per_epoch if per_epoch else 0
    epochs = None if per_epoch is None else -(-10_000 // per_epoch)
    place = Progress(
        step=step,
        epoch=epoch,
        step_in_epoch=in_epoch,
        total_steps=10_000,
        num_epochs=epochs,
        steps_per_epoch=per_epoch,
        limited_by="epochs",
    )
    told = ended(eta(low_h, low_h + width_h), limit_h, place)
    assert told.remaining_s is not None
    makes_it = told.at_s + told.remaining_s.high <= NOW_S + limit_h * HOUR_S
    assert (told.limit is None) == makes_it
    if told.limit is not None:
        assert told.limit.steps is not None
        assert step <= told.limit.steps[0] <= told.limit.steps[1] <= 10_000
        if epochs is not None:
            assert told.limit.epochs is not None
            assert epoch <= told.limit.epochs[0] <= told.limit.epochs[1]
            assert told.limit.epochs[1] <= max(epochs - 1, epoch)


def line_of(told: Eta, place: Progress = PLACE, width: int = 100) -> str:
    return render_line(told, place, step_s=0.215, now_s=NOW_S, width=width, unicode=False)


def test_the_line_says_that_the_limit_ends_the_run_and_how_far_it_will_be() -> None:
    told = ended(eta(3.9, 4.2), 3)
    assert line_of(told) == (
        "scaledl  epoch 5/10, step  4000/10000, 215 ms: "
        f"ends with the time limit at {clock(3)}, in epoch 9 of 10"
    )
    narrow = line_of(told, width=60)
    assert f"time limit at {clock(3)}" in narrow
    assert len(narrow) <= 60
    log = render_log_line(told, PLACE, step_s=0.215, now_s=NOW_S)
    assert " until=time-limit limit=" in log
    assert log.endswith("limit_epoch=9-9")
    assert " left_s=" in log  # what the plan needs stays there


def test_a_limit_that_may_come_first_stands_beside_the_finish() -> None:
    told = ended(eta(2.8, 3.2), 3)
    assert f"done {clock(3)} (" in line_of(told)
    assert f"time limit at {clock(3)}" in line_of(told)
    assert "ends with" not in line_of(told)
    prior = ended(eta(3.9, 4.2, "prior"), 3)
    assert prior.limit is not None
    assert not prior.limit.is_sure


@pytest.mark.parametrize(("limit_h", "is_told"), [(3.0, True), (4.0, False), (9.0, False)])
def test_an_epochs_report_says_that_the_limit_comes_first_where_that_is_sure(
    limit_h: float, is_told: bool
) -> None:
    said = io.StringIO()
    narrator = Narrator(Speaker("print", True, said), FakeClock(NOW_S))
    narrator.progress(ended(eta(3.9, 4.2), limit_h), PLACE, 0.2, None)
    narrator.epoch(epoch_summary(), scaling_report())
    told = f"  the time limit at {clock(limit_h)} comes first, in epoch 9 of 10.\n"
    assert said.getvalue().endswith(told) == is_told
    assert ("comes first" in said.getvalue()) == is_told


def test_beyond_the_plan_only_the_limit_is_told() -> None:
    place = msgspec.structs.replace(PLACE, step=10_030)
    told = msgspec.structs.replace(eta(0, 0), remaining_s=None, finish_at=None)
    line = line_of(ended(told, 3, place), place)
    assert line == (
        "scaledl  step 10030, 215 ms: 30 steps beyond planned end, planned were 10000, "
        f"time limit at {clock(3)}"
    )
    log = render_log_line(ended(told, 3, place), place, step_s=0.2, now_s=NOW_S)
    assert "beyond_planned_end=true limit=" in log
    assert "left" not in log


def test_run_eta_reads_as_a_sentence_with_the_limit() -> None:
    told = str(ended(eta(3.9, 4.2), 3))
    assert told.startswith("the time limit ends it in 3 h 00 min; without it: ")
    assert "may end" in str(ended(eta(2.8, 3.2), 3))


def test_a_bar_tells_the_limit_ever_shorter() -> None:
    assert short_texts(ended(eta(3.9, 4.2), 3), NOW_S) == (
        f"ends with the time limit at {clock(3)}, in epoch 9 of 10",
        f"time limit at {clock(3)}, in epoch 9 of 10",
        f"time limit at {clock(3)}",
    )
    assert short_texts(eta(3.9, 4.2), NOW_S) == (
        f"done {clock(4.05)} ({clock(3.9)} to {clock(4.2)})",
        f"done {clock(3.9)} to {clock(4.2)}",
    )


def test_a_bar_tells_times_of_day_alone_which_stay_true_until_the_next_estimate() -> None:
    near = eta(0.01, 0.012)
    soon = [format_clock(NOW_S + h * HOUR_S, NOW_S, seconds=True) for h in (0.011, 0.01, 0.012)]
    for later_s in (0.0, 20.0):
        assert short_texts(near, NOW_S + later_s) == (
            f"done {soon[0]} ({soon[1]} to {soon[2]})",
            f"done {soon[1]} to {soon[2]}",
        )
    prior = eta(3.9, 4.2, "prior")
    assert short_texts(prior, NOW_S)[0] == (
        f"done ~{clock(4.05)} ({clock(3.9)} to {clock(4.2)}, prior)"
    )
