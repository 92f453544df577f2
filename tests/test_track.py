"""``scaledl.track`` as a user meets it: its arguments, its calls, what it says, what it leaves."""

import contextlib
import errno
import json
import logging
import math
import os
import pty
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
import types
import warnings
from pathlib import Path
from typing import Any

import psutil
import pyte
import pytest
import torch
from fakes import FakeClock
from samples import CLUSTER, scaling_rows
from torch import nn
from training import (
    BATCHES,
    make_loader,
    make_model,
    no_tracking,
    quietly,
    steps,
    train,
)

import scaledl
from scaledl.config import TrackConfig
from scaledl.errors import UsageError
from scaledl.records import (
    EpochRecord,
    Line,
    Measurement,
    Note,
    PhaseRecord,
    RunEnd,
    ScalingRow,
    StepBlock,
)
from scaledl.relatives import Family
from scaledl.store import read_info, read_lines

HERE = Path(__file__).resolve()


def recorded(folder: Path) -> list[Line]:
    """All records of the only run in ``folder``."""
    (run,) = folder.iterdir()
    return list(read_lines(run))


def of_kind(lines: list[Line], kind: Any) -> list[Any]:
    return [line for line in lines if isinstance(line, kind)]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The narrator's clock runs a minute at each look; the ETA is new at each step."""
    clock = FakeClock(1_700_000_000.0)

    def now() -> float:
        clock.tick(60.0)
        return clock()

    fast = types.SimpleNamespace(time=now, perf_counter=time.perf_counter)
    monkeypatch.setattr("scaledl.engine.time", fast)
    monkeypatch.setattr("scaledl.engine.FLUSH_S", 0.0)
    return clock


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", -1),
        ("epochs", 1.5),
        ("epochs", "3"),
        ("epochs", True),
        ("steps_per_epoch", 0),
        ("steps_per_epoch", "many"),
        ("total_steps", -5),
        ("total_steps", math.inf),
        ("initial_step", -1),
        ("initial_step", 1.5),
        ("initial_step", "800"),
        ("tokens", 0),
        ("tokens", 2.5),
        ("gpus", [0]),
        ("gpus", [1, -4]),
        ("gpus", [1.5]),
        ("gpus", ["2"]),
        ("gpus", [True]),
        ("gpus", 0),
        ("gpus", "0"),
        ("gpus", "all"),
        ("gpus", "8-2"),
        ("gpus", object()),
        ("usd_per_gpu_hour", -1),
        ("usd_per_gpu_hour", math.nan),
        ("usd_per_gpu_hour", math.inf),
        ("usd_per_gpu_hour", "cheap"),
        ("usd_per_gpu_hour", True),
        ("learner", "fast"),
        ("learner", 3),
        ("cluster", "my cluster"),
        ("report", 3),
        ("run_dir", 3),
        ("enabled", "no"),
        ("profile", "maybe"),
        ("bars", 2),
    ],
)
def test_an_argument_that_cannot_be_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        scaledl.track(make_model(), **{name: value})
    said = str(caught.value)
    assert name in said or (name == "gpus" and re.search("(?i)gpu|range", said)), said
    if isinstance(value, str | float | int):
        seen = (str(value), repr(value), f"got {type(value).__name__}")
        assert any(text in said for text in seen), said
    assert "\n" not in said


@pytest.mark.parametrize("thing", [{"a": 1}, None, [nn.Linear(1, 1)], nn.Linear, 3], ids=repr)
def test_something_that_is_no_module_is_refused_by_name(thing: Any) -> None:
    with pytest.raises(UsageError, match=r"track\(\) expects a torch\.nn\.Module") as caught:
        scaledl.track(thing)
    assert type(thing).__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SCALEDL_EPOCHS", "many"),
        ("SCALEDL_EPOCHS", "0"),
        ("SCALEDL_TOTAL_STEPS", "1e5x"),
        ("SCALEDL_GPUS", "0"),
        ("SCALEDL_USD_PER_GPU_HOUR", "cheap"),
        ("SCALEDL_USD_PER_GPU_HOUR", "nan"),
        ("SCALEDL_PROFILE", "maybe"),
        ("SCALEDL_ENABLED", "perhaps"),
        ("SCALEDL_LEARNER", "fast"),
    ],
)
def test_a_variable_that_cannot_be_is_named_with_its_value(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=f"(?i){variable[8:]}") as caught:
        scaledl.track(make_model())
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[tool.scaledl]\nepoch = 3", "epoch"),
        ('[tool.scaledl]\nepochs = "3"', "epochs"),
        ("[tool.scaledl]\nepochs = 0", "epochs"),
        ("[tool.scaledl]\ngpus = [0]", "gpus"),
        ("[tool]\nscaledl = 3", "tool.scaledl"),
    ],
)
def test_a_wrong_entry_of_the_project_file_is_named(
    table: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(table)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(said)):
        scaledl.track(make_model())


def test_a_broken_project_file_of_the_user_is_none_of_our_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.scaledl\nepochs = 0")
    monkeypatch.chdir(tmp_path)
    assert isinstance(scaledl.track(make_model()), scaledl.Tracker)


def test_arguments_win_over_variables_over_the_project_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = '[tool.scaledl]\nepochs = 2\ntokens = 2\nlearner = "off"\ngpus = "1,2-8"\n'
    (tmp_path / "pyproject.toml").write_text(table)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEDL_EPOCHS", "3")
    monkeypatch.setenv("SCALEDL_TOKENS", "3")
    monkeypatch.setenv("SCALEDL_USD_PER_GPU_HOUR", "2.5")
    monkeypatch.setenv("SCALEDL_PROFILE", "off")
    config = TrackConfig.load({"epochs": 4, "tokens": None})
    assert (config.epochs, config.tokens, config.learner) == (4, 3, "off")
    assert (config.gpus, config.usd_per_gpu_hour, config.profile) == ((1, 2, 4, 8), 2.5, False)
    assert (config.initial_step, config.report, config.total_steps) == (0, "print", None)


def test_every_option_can_be_given_by_each_of_the_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "epochs": 3,
        "steps_per_epoch": 7,
        "total_steps": 21,
        "initial_step": 5,
        "gpus": "1,2",
        "usd_per_gpu_hour": 1.5,
        "tokens": 9,
        "learner": "inline",
        "enabled": False,
        "run_dir": "runs",
        "report": "none",
        "drop_last": True,
        "bars": False,
        "profile": False,
    }
    wanted = TrackConfig.load(given, env={}, folder=tmp_path)
    assert wanted != TrackConfig()
    by_variable = {f"SCALEDL_{k.upper()}": str(v) for k, v in given.items()}
    assert TrackConfig.load({}, env=by_variable, folder=tmp_path) == wanted
    lines = [f"{k} = {json.dumps(v)}" for k, v in given.items()]
    (tmp_path / "pyproject.toml").write_text("\n".join(["[tool.scaledl]", *lines]))
    assert TrackConfig.load({}, env={}, folder=tmp_path) == wanted


# --- on and off ----------------------------------------------------------------------------------


def test_a_second_track_on_one_model_is_refused_with_the_place_of_the_first(
    tmp_path: Path,
) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path)(model):
        line = sys._getframe().f_lineno - 1
        with pytest.raises(UsageError, match="already active") as caught:
            quietly(run_dir=tmp_path)(model).__enter__()
        assert f"test_track.py:{line}" in str(caught.value)
        steps(model, make_loader())  # the first one still works
    with quietly(run_dir=tmp_path)(model):  # and the model is free again
        pass
    ends = [of_kind(list(read_lines(run)), RunEnd)[0].step for run in tmp_path.iterdir()]
    assert sorted(ends) == [0, BATCHES]


def test_a_disabled_block_inside_does_not_free_the_model(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path)(model):
        with scaledl.track(model, enabled=False):
            pass
        with pytest.raises(UsageError, match="already active"):
            quietly(run_dir=tmp_path)(model).__enter__()


def test_two_models_are_tracked_beside_each_other(tmp_path: Path) -> None:
    one, two = make_model(), make_model()
    with quietly(run_dir=tmp_path / "1")(one), quietly(run_dir=tmp_path / "2")(two):
        steps(one, make_loader(4))
        steps(two, make_loader(7))
    for name, count in (("1", 4), ("2", 7)):
        (end,) = of_kind(recorded(tmp_path / name), RunEnd)
        assert end.step == count


@pytest.mark.parametrize("how", ["argument", "variable", "disable"])
def test_switched_off_it_touches_nothing_and_answers_all_calls(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"run_dir": tmp_path / "runs", "epochs": 2}
    if how == "argument":
        options["enabled"] = False
    else:
        monkeypatch.setenv("SCALEDL_ENABLED" if how == "variable" else "SCALEDL_DISABLE", {
            "variable": "0", "disable": "1"}[how])  # fmt: skip
    model = make_model()
    original = torch.utils.data.DataLoader.__iter__
    with scaledl.track(model, **options) as run:
        assert torch.utils.data.DataLoader.__iter__ is original
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
        batches = [1, 2, 3]
        assert run.loader(batches) is batches
        with run.phase("eval"), run.paused():
            steps(model, make_loader())
        run.step()
        run.epoch_end()
        assert (run.eta, run.run_id, run.folder) == (None, None, None)
        assert run.status() == {"enabled": False}
        assert run.state_dict() == {}
        run.load_state_dict({})
        with pytest.raises(UsageError, match="enabled"):
            run.what_if([1, 2])
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


def test_as_a_decorator_each_call_is_a_run_of_its_own(tmp_path: Path) -> None:
    model = make_model()

    @scaledl.track(model, run_dir=tmp_path, report="none")
    def fit(count: int, *, extra: int = 0) -> int:
        """Trains."""
        steps(model, make_loader(count))
        return count + extra

    assert (fit.__name__, fit.__doc__) == ("fit", "Trains.")
    assert (fit(3, extra=1), fit(5)) == (4, 5)
    ends = [of_kind(list(read_lines(run)), RunEnd)[0].step for run in tmp_path.iterdir()]
    assert sorted(ends) == [3, 5]


def test_E32_a_second_run_in_the_same_process_starts_clean(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, told = make_model(), []
    for number in range(2):
        with scaledl.track(model, epochs=2, run_dir=tmp_path / str(number)) as run:
            assert run.eta is None
            assert run.status()["step"] == 0
            assert run.status()["guesses"] == {}
            steps(model, make_loader(), 2)
        told.append([t for t in capfd.readouterr().err.splitlines() if "an epoch is" in t])
        lines = recorded(tmp_path / str(number))
        assert [e.epoch for e in of_kind(lines, EpochRecord)] == [0, 1]
        assert of_kind(lines, RunEnd)[0].step == 2 * BATCHES
        assert of_kind(lines, StepBlock)[0].first_step == 0
    assert told[0] == told[1]
    assert len(told[0]) == 1


# --- what cannot be seen is told -----------------------------------------------------------------


def test_a_list_of_batches_becomes_the_training_loader(tmp_path: Path) -> None:
    model = make_model()
    batches = list(make_loader(6))
    with quietly(run_dir=tmp_path, epochs=3)(model) as run:
        loader = run.loader(batches)
        assert len(loader) == 6
        steps(model, loader, 3)
    epochs = of_kind(recorded(tmp_path), EpochRecord)
    assert [(e.num_steps, e.num_batches) for e in epochs] == [(6, 6)] * 3


def test_an_engine_that_hides_its_optimizer_is_counted_by_step_and_epoch_end(
    tmp_path: Path,
) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path)(model) as run:
        for _ in range(2):
            for x, y in list(make_loader(8)):
                nn.functional.cross_entropy(model(x), y).backward()
                for parameter in model.parameters():
                    parameter.data -= 0.01 * parameter.grad
                    parameter.grad = None
                run.step()
            run.epoch_end()
    lines = recorded(tmp_path)
    assert [e.num_steps for e in of_kind(lines, EpochRecord)] == [8, 8]
    assert of_kind(lines, RunEnd)[0].step == 16


def test_named_phases_and_pauses_are_no_part_of_any_step(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path)(model) as run:
        steps(model, make_loader(5))
        with run.phase("rollout"):
            time.sleep(0.2)
        with run.paused():
            time.sleep(0.2)
        steps(model, make_loader(5))
    lines = recorded(tmp_path)
    phases = {p.kind: p for p in of_kind(lines, PhaseRecord)}
    assert set(phases) == {"rollout", "paused"}
    assert all(p.duration_s >= 0.2 and p.after_step == 5 for p in phases.values())
    blocks = of_kind(lines, StepBlock)
    assert sum(b.num_steps for b in blocks) == 10
    trained_s = sum(b.num_steps * b.mean_s for b in blocks)
    assert trained_s < sum(e.duration_s for e in of_kind(lines, EpochRecord)) + 0.001
    assert max(b.p95_s for b in blocks) < 0.2


def test_a_phase_that_raises_is_closed_and_passes_the_error_on(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path)(model) as run:
        with pytest.raises(KeyError), run.phase("eval"):
            raise KeyError
        steps(model, make_loader(5))
    assert of_kind(recorded(tmp_path), RunEnd)[0].step == 5


# --- what is known -------------------------------------------------------------------------------


def test_W01_eta_what_if_and_status_answer_during_and_after_the_block(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path, epochs=4, usd_per_gpu_hour=2.0)(model) as run:
        assert run.eta is None
        with pytest.raises(UsageError, match="few more optimizer steps"):
            run.what_if([1, 2])
        steps(model, make_loader(), 3)
        report = run.what_if([1, 2, 4], batch_rule="fixed-per-gpu")
        assert [row.num_gpus for row in report.rows] == [1, 2, 4]
        assert report.rows[0].basis == "measured"
        assert report.batch_rule == "fixed-per-gpu"
        assert run.eta is not None
        assert run.eta.remaining_s is not None
        assert run.eta.step == 3 * BATCHES
        assert str(run.eta)
        status = run.status()
        assert (status["enabled"], status["step"], status["off"]) == (True, 3 * BATCHES, {})
        assert "epoch" in status["guesses"]
        for gpus in ([0], "none", [1.5]):
            with pytest.raises(UsageError):
                run.what_if(gpus)
        for wrong in ({"usd_per_gpu_hour": -1}, {"batch_rule": "x"}, {"gpus_per_node": 0}):
            with pytest.raises(UsageError):
                run.what_if([1], **wrong)
        with pytest.raises(UsageError):
            run.what_if([1], inter="a wet string")
    assert run.run_id in repr(run)
    assert run.folder == tmp_path / run.run_id
    assert [row.num_gpus for row in run.what_if("1,2").rows] == [1, 2]
    assert run.status()["step"] == 3 * BATCHES
    assert scaledl.open_run(str(run.folder)).ended is not None


def test_a_count_below_one_is_refused_also_when_it_is_no_list(tmp_path: Path) -> None:
    with quietly(run_dir=tmp_path)(make_model()) as run:
        steps(run._model, make_loader(), 2)
        assert 4 in [row.num_gpus for row in run.what_if([4]).rows]
        with pytest.raises(UsageError):
            run.what_if(-1)


def test_learned_rates_survive_a_checkpoint_as_plain_json(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path / "1", epochs=4)(model) as first:
        steps(model, make_loader(), 2)
    state = json.loads(json.dumps(first.state_dict()))
    assert (state["version"], state["step"]) == (1, 2 * BATCHES)
    with quietly(run_dir=tmp_path / "2", epochs=4, initial_step=2 * BATCHES)(model) as second:
        second.load_state_dict(state)
        assert second.state_dict()["eta"]["steps"] == state["eta"]["steps"] or (
            second.state_dict()["step"] == 2 * BATCHES
        )
        steps(model, make_loader())
        eta = second._core._flush(time.perf_counter(), draw=False) or second.eta
    assert eta.basis == "measured"  # ten steps of its own alone would be a prior
    (end,) = of_kind(recorded(tmp_path / "2"), RunEnd)
    assert end.step == 3 * BATCHES


def test_a_state_given_before_the_block_is_entered_is_not_lost(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path / "1", epochs=4)(model) as first:
        steps(model, make_loader(), 3)
    run = quietly(run_dir=tmp_path / "2", epochs=4)(model)
    run.load_state_dict(first.state_dict())
    with run:
        steps(model, make_loader(4))
        run._core._flush(time.perf_counter(), draw=False)
        assert run.eta.basis == "measured"


@pytest.mark.parametrize(
    "state",
    [{"version": 2}, {"version": 1}, {"version": 1, "eta": {"version": 99}}, {"eta": {}}],
    ids=repr,
)
def test_a_state_that_cannot_be_read_says_so(state: dict[str, Any], tmp_path: Path) -> None:
    with (
        quietly(run_dir=tmp_path)(make_model()) as run,
        pytest.raises(UsageError, match=r"version|damaged|state"),
    ):
        run.load_state_dict(state)


# --- where it speaks -----------------------------------------------------------------------------


def test_report_none_says_nothing_and_still_records(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with quietly(run_dir=tmp_path, epochs=2)(make_model()) as run:
        steps(run._model, make_loader(), 2)
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert of_kind(recorded(tmp_path), RunEnd)


def test_reports_go_to_the_file_that_was_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reports.txt"
    path.write_text("kept\n")
    with scaledl.track(make_model(), epochs=2, run_dir=tmp_path / "runs", report=path) as run:
        steps(run._model, make_loader(), 2)
    text = path.read_text()
    assert text.startswith("kept\n")
    assert "What if" in text
    assert "done: 20 steps" in text
    assert "What if" not in capfd.readouterr().err


def test_a_report_file_that_cannot_be_written_is_told_once_and_reports_go_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no" / "such" / "folder.txt"
    with scaledl.track(make_model(), epochs=2, run_dir=tmp_path / "runs", report=path) as run:
        steps(run._model, make_loader(), 2)
    said = capfd.readouterr().err
    assert said.count("cannot write reports") == 1
    assert "What if" in said
    assert "done: 20 steps" in said


@pytest.mark.usefixtures("hurried")
def test_U01_a_log_gets_few_whole_lines_without_control_characters(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    epochs = 40
    with scaledl.track(make_model(), epochs=epochs, run_dir=tmp_path) as run:
        steps(run._model, make_loader(), epochs)
    said = capfd.readouterr().err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said)
    stamp = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}Z scaledl ")
    live = [line for line in said.splitlines() if stamp.match(line)]
    assert 5 <= len(live) <= 25  # U02: slowed down, never dark
    assert all(f"/{epochs * BATCHES}" in line for line in live)


@pytest.mark.usefixtures("hurried")
def test_U14_the_last_words_say_done_and_set_the_first_estimate_against_the_truth(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with scaledl.track(make_model(), epochs=10, run_dir=tmp_path) as run:
        steps(run._model, make_loader(), 10)
    said = capfd.readouterr().err
    last = said[said.rindex("scaledl  done") :]
    assert "done: 100 steps" in last
    assert re.search(r"at step \d+ it said .* it took ", last.replace("\n", " "))


def test_U15_absent_hardware_frightens_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with scaledl.track(make_model(), epochs=2, run_dir=tmp_path) as run:
            steps(run._model, make_loader(), 2)
    assert [str(w.message) for w in caught if "scaledl" in w.filename] == []
    assert [r for r in caplog.records if r.levelno >= logging.INFO] == []
    said = capfd.readouterr().err.lower()
    for word in ("nvml", "nvidia", "cuda", "warning", "driver", "not found", "unavailable"):
        assert word not in said


def test_U04_beside_a_live_bar_every_line_goes_through_the_bar(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tqdm import tqdm

    written: list[str] = []
    original = tqdm.write.__func__

    def write(cls: Any, text: str, *args: Any, **kwargs: Any) -> None:
        written.append(text)
        original(cls, text, *args, **kwargs)

    monkeypatch.setattr(tqdm, "write", classmethod(write))
    model = make_model()
    with scaledl.track(model, epochs=2, run_dir=tmp_path), tqdm(total=20, mininterval=0) as bar:
        for _ in range(2):
            for batch in make_loader():
                steps(model, [batch])
                bar.update()
        steps(model, make_loader(2))
    said = capfd.readouterr().err
    assert any("an epoch is one pass" in text for text in written)
    screen = pyte.Screen(120, 80)
    stream = pyte.Stream(screen)
    stream.feed(said.replace("\n", "\r\n"))
    for row in (row.rstrip() for row in screen.display):
        assert not ("it/s" in row and "scaledl" in row), row
    assert any("20/20" in row for row in screen.display)


class Broken:
    """A stream whose reader went away."""

    encoding = "utf-8"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        raise self.error

    def flush(self) -> None:
        return

    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), ValueError("I/O operation on closed file"), OSError(errno.EIO, "")]
)
def test_U07_a_stream_that_went_away_makes_it_silent(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Broken(error)
    monkeypatch.setattr(sys, "stderr", stream)
    with scaledl.track(make_model(), epochs=3, run_dir=tmp_path) as run:
        steps(run._model, make_loader(), 3)
    assert stream.num_writes == 1
    assert of_kind(recorded(tmp_path), RunEnd)[0].outcome == "finished"


def test_without_any_standard_error_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # pythonw, some services
    with scaledl.track(make_model(), epochs=3, run_dir=tmp_path) as run:
        steps(run._model, make_loader(), 3)
    assert of_kind(recorded(tmp_path), RunEnd)[0].outcome == "finished"


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["a file is there", "no such device", "a dangling link"])
def test_U08_a_folder_that_cannot_be_written_is_told_once_and_training_goes_on(
    place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if place == "a file is there":
        (tmp_path / "runs").write_text("")
        target = tmp_path / "runs"
    elif place == "a dangling link":
        (tmp_path / "runs").symlink_to(tmp_path / "gone" / "away")
        target = tmp_path / "runs" / "deeper"
    else:
        target = Path("/proc/scaledl-test/runs")
    expected = train("plain", no_tracking, num_steps=30).as_dict()
    done = train("plain", lambda m: scaledl.track(m, epochs=3, run_dir=target), num_steps=30)
    assert done.as_dict() == expected
    said = capfd.readouterr().err
    assert said.count("cannot write") == 1
    assert "training goes on" in said
    assert "What if" in said


def test_U08_a_disk_that_fills_up_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import scaledl.writer as writer

    whole, count = writer._write_all, 0

    def write(fd: int, data: bytes) -> None:
        nonlocal count
        count += 1
        if count >= 4:  # the head of the run, the head of the file, the first records
            whole(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(fd, data)

    monkeypatch.setattr(writer, "_write_all", write)
    monkeypatch.setattr(writer, "_FLUSH_S", 0.01)
    expected = train("plain", no_tracking, num_steps=30).as_dict()
    tracked = train(
        "plain",
        lambda m: scaledl.track(m, epochs=3, run_dir=tmp_path),
        num_steps=30,
        on_batch=lambda step: time.sleep(0.002),
    )
    assert tracked.as_dict() == expected
    said = capfd.readouterr().err
    assert said.count("No space left on device") == 1
    assert "training goes on" in said
    (folder,) = tmp_path.iterdir()
    list(read_lines(folder))  # what was written is still readable
    assert read_info(folder).model == "Sequential"
    assert count == 4


def test_X04_files_are_private_and_a_link_is_not_followed(tmp_path: Path) -> None:
    with quietly(run_dir=tmp_path / "a" / "runs")(make_model()) as run:
        steps(run._model, make_loader(3))
    for path in (tmp_path / "a").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert sorted(path.name for path in run.folder.iterdir()) == ["rank0.jsonl", "run.json"]


# --- children ------------------------------------------------------------------------------------

HEAD = f"""
import os, signal, sys, time
sys.path.insert(0, {str(HERE.parent)!r})
import torch
from torch import nn
import scaledl
import scaledl.engine, scaledl.report.pace
from training import make_model, make_loader
scaledl.engine.FLUSH_S = 0.0
scaledl.report.pace.LOG_FIRST_S = scaledl.report.pace.LOG_GAP_S = 0.0
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = make_loader()

def fit(epochs, on_step=lambda step: None, model=model):
    step = 0
    for _ in range(epochs):
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            on_step(step)
"""


def script(body: str, folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(body))
    return path


def environment(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "SCALEDL_HOME": str(home), **more}


@pytest.mark.slow
def test_U11_a_run_that_was_killed_can_be_read_and_does_not_stop_the_next(tmp_path: Path) -> None:
    body = """
    def on_step(step):
        time.sleep(0.01)
        if step == 200:
            os.kill(os.getpid(), signal.SIGKILL)

    with scaledl.track(model, epochs=100, report="none"):
        fit(100, on_step)
    """
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, script(body, tmp_path)], env=environment(home), timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    killed = scaledl.open_run("latest", home=home)
    assert killed.ended is None
    assert killed.state != "finished"
    assert len(killed.epochs) >= 12  # of 20; the writer is at most a second behind
    assert killed.graph is not None
    assert "epoch" in killed.render("console", layers=5)
    assert sorted(path.name for path in killed.folder.iterdir()) == ["rank0.jsonl", "run.json"]
    with quietly(run_dir=home / "runs")(make_model()) as run:
        steps(run._model, make_loader(3))
    assert len(scaledl.list_runs(home)) == 2


@pytest.mark.slow
def test_U07_a_training_piped_to_head_runs_to_its_end(tmp_path: Path) -> None:
    body = f"""
    with scaledl.track(model, epochs=30):
        fit(30)
    open({str(tmp_path / "finished")!r}, "w").write("yes")
    """
    command = (
        f"'{sys.executable}' '{script(body, tmp_path)}' 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (tmp_path / "finished").read_text() == "yes"
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert scaledl.open_run("latest", home=tmp_path / "home").state == "finished"


@pytest.mark.slow
def test_X04_no_secret_of_environment_or_arguments_is_said_or_stored(tmp_path: Path) -> None:
    body = """
    import socket, getpass
    with scaledl.track(model, epochs=3):
        fit(3)
    """
    secret, home = "hunter2-swordfish", tmp_path / "home"
    done = subprocess.run(
        [sys.executable, script(body, tmp_path), "--api-key", secret],
        env=environment(
            home, WANDB_API_KEY=secret, SCALEDL_NOTE=secret, USER=secret, HOSTNAME=secret
        ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    files = [path for path in home.rglob("*") if path.is_file()]
    assert len(files) == 2
    said = done.stdout + done.stderr + "".join(path.read_text() for path in files)
    assert "What if" in said
    for private in (secret, "--api-key", socket.gethostname(), str(tmp_path), str(Path.home())):
        assert private not in said, private


def read_terminal(command: list[str], env: dict[str, str], size: tuple[int, int]) -> str:
    """Everything a program writes to a terminal of its own (columns, rows)."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.clear()
        os.environ.update(env, COLUMNS=str(size[0]), LINES=str(size[1]), TERM="xterm-256color")
        os.execv(command[0], command)
    data, until = b"", time.monotonic() + 60
    with contextlib.suppress(OSError):  # EIO: the other end closed
        while time.monotonic() < until:
            if select.select([fd], [], [], 1.0)[0]:
                chunk = os.read(fd, 65536)
                if not chunk:
                    break
                data += chunk
    os.close(fd)
    if time.monotonic() >= until:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert status == 0, data.decode(errors="replace")
    return data.decode()


@pytest.mark.slow
def test_a_terminal_shows_one_line_redrawn_in_place(tmp_path: Path) -> None:
    body = """
    scaledl.report.pace.TTY_REDRAW_S = 0.0
    with scaledl.track(model, total_steps=200, epochs=20) as run:
        fit(19)
        print("words of the user")
        fit(1)
    """
    data = read_terminal(
        [sys.executable, str(script(body, tmp_path))], environment(tmp_path / "home"), (100, 200)
    )
    screen = pyte.HistoryScreen(100, 200, history=1000)
    pyte.Stream(screen).feed(data)
    rows = [row.rstrip() for row in screen.display if row.strip()]
    live = [row for row in rows if re.match(r"scaledl .*step +\d+/200", row)]
    assert data.count("\r") > 100  # it was drawn again and again
    # one standing line at most for each report or word that came between
    blocks = sum("took" in row for row in rows) + 2
    assert 1 <= len(live) <= blocks + 1, "\n".join(rows)
    assert any("done: 200 steps" in row for row in rows)
    assert all(len(row) <= 100 for row in rows)
    assert not any("Traceback" in row for row in rows)
    spoken = next(row for row in rows if "words of the user" in row)
    assert spoken.endswith("words of the user")


# --- security ------------------------------------------------------------------------------------


def test_X05_no_socket_is_opened_in_a_run_that_is_not_distributed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    with quietly(run_dir=tmp_path, epochs=3)(make_model()) as run:
        steps(run._model, make_loader(), 3)
        run.what_if([1, 2])
    assert run.status()["off"] == {}


def test_X08_nobody_listens(tmp_path: Path) -> None:
    def listening() -> list[Any]:
        found = psutil.Process().net_connections("all")
        return sorted(c.laddr for c in found if c.status == psutil.CONN_LISTEN)

    before = listening()
    with quietly(run_dir=tmp_path)(make_model()) as run:
        steps(run._model, make_loader())
        assert listening() == before
        assert psutil.Process().children(recursive=True) == []


def test_X02_nothing_is_ever_unpickled() -> None:
    for path in Path(scaledl.__file__).parent.rglob("*.py"):
        source = path.read_text()
        assert not re.search(r"import (?:pickle|marshal|shelve|joblib)\b", source), path.name
        assert not re.search(r"torch\.load\(|(?<![\w.])eval\(|(?<![\w.])exec\(", source), path.name


class Evil(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("ev\x1b[2Jil\nscaledl  done: 5 steps\r\u202e", nn.Linear(12, 3))

    def forward(self, x: torch.Tensor) -> Any:
        (inner,) = self.children()
        return inner(x)


Evil.__name__ = "Ev\x1b[31mil\nname"


def test_X07_a_name_cannot_steer_the_terminal_nor_fake_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with scaledl.track(Evil(), epochs=2, run_dir=tmp_path / "runs") as run:
        steps(run._model, make_loader(), 2)
    said = capfd.readouterr().err
    past = scaledl.open_run("latest", home=tmp_path)
    assert any("ev" in node.fqn for node in past.graph.nodes)
    for text in (said, past.render("console", layers=9), past.render("console")):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\x9b\u202e]", text)
        assert not re.search(r"^scaledl  done: 5 steps", text, re.M)
    assert "\x1b" not in past.render("json", layers=9)
    assert re.fullmatch(r"[a-z0-9-]+", run.run_id)


# --- private names of torch ----------------------------------------------------------------------

PRIVATE = (
    "torch._C._current_graph_task_id",
    "torch._C._autograd._profiler_enabled",
    "torch.autograd.profiler._prepare_profiler",
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
    "torch.nn.parallel.DistributedDataParallel._active_ddp_module",
    "torch.distributed.distributed_c10d._get_default_store",
)


@pytest.mark.parametrize("name", [*PRIVATE, "queue_callback"])
def test_K05_without_a_private_name_of_torch_training_goes_on_and_steps_are_counted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train("plain", no_tracking, num_steps=24).as_dict()
    with monkeypatch.context() as patch:
        if name == "queue_callback":  # torch itself needs the engine that has it
            patch.setattr("scaledl.capture.root._queue_callback", lambda: None)
        else:
            patch.delattr(name)
            if name == "torch._C._current_graph_task_id":  # looked up at import
                patch.setattr("scaledl.capture.root._graph_task", lambda: -1)
        # strict: a missing name is met by a fallback, not by an error
        tracked = train("plain", quietly(run_dir=tmp_path), num_steps=24)
    assert tracked.as_dict() == expected
    lines = recorded(tmp_path)
    assert [e.num_steps for e in of_kind(lines, EpochRecord)] == [10, 10, 4]
    assert of_kind(lines, RunEnd)[0].outcome == "finished"


def test_K05_the_list_of_private_names_is_complete() -> None:
    source = Path(scaledl.__file__).parent / "capture"
    text = "\n".join(path.read_text() for path in source.rglob("*.py"))
    probed = set(re.findall(r'getattr\([\w.]+, "(_[a-z]\w+)"', text))
    used = set(re.findall(r"torch\.(?:\w+\.)*(_[a-z]\w+)", text))
    of_modules = {"_orig_mod", "_compiled_call_impl", "_nvmlGetFunctionPointer"}
    of_modules |= {"_autograd", "_input_metadata"}
    known = {name.rpartition(".")[2] for name in PRIVATE}
    known |= {"_enable_profiler", "_disable_profiler"}  # wrapped together with the first
    known |= {"_listener"}  # ours
    known |= {"_subclasses"}  # where it is gone a real forward stands in: tests/capture/test_dry.py
    known |= {"_execution_engine"}  # torch itself needs it; its queue is tried above
    assert (probed | used) - of_modules <= known


def test_a_cluster_given_by_the_user_keeps_its_links_and_price(tmp_path: Path) -> None:
    with quietly(run_dir=tmp_path, cluster=CLUSTER)(make_model()) as run:
        steps(run._model, make_loader())
    known = read_info(run.folder).cluster
    assert (known.gpu, known.intra, known.inter) == (CLUSTER.gpu, CLUSTER.intra, CLUSTER.inter)
    assert known.num_gpus == 1


def test_what_an_earlier_run_forecast_for_this_one_is_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Kin(Family, frozen=True):
        def told(self, measured: Measurement) -> ScalingRow:
            asked.append(measured.signature)
            return scaling_rows()[0]

    monkeypatch.setattr("scaledl.outlook.load_relatives", lambda *args, **kwargs: Kin())
    with quietly(run_dir=tmp_path, epochs=3)(make_model()) as run:
        for _ in range(3):
            steps(run._model, make_loader(10))
    notes = [note.text for note in of_kind(recorded(tmp_path), Note) if note.key == "audit"]
    assert len(asked) == len(notes) == 1
    assert notes[0].startswith("an earlier run's forecast for 1 process: told ")
