"""Notices about the plan: nothing is asked for that was given, nothing is said that is wrong."""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import BATCHES, make_loader, make_model

import scaledl
from scaledl.config import TrackConfig
from scaledl.past import open_run
from scaledl.records import Eta, Interval, Progress
from scaledl.remarks import remarks


def told(config: TrackConfig, **progress: Any) -> dict[str, str]:
    values = {"step": 100, "epoch": 3, "step_in_epoch": 10, "steps_per_epoch": 30} | progress
    return dict(remarks(config, Progress(**values), num_gpus=1, walks_all_samples=False))


def test_with_nothing_given_both_ways_to_the_end_are_named():
    text = told(TrackConfig())["total"]
    assert "Pass epochs= or total_steps=" in text
    text = told(TrackConfig(), steps_per_epoch=None)["total"]
    assert "no time left can be told" in text
    assert "total_steps=, or epochs= and steps_per_epoch=" in text


def test_what_was_given_is_not_asked_for():
    text = told(TrackConfig(epochs=3), steps_per_epoch=None)["total"]
    assert "epochs=3 was given" in text
    assert "Pass epochs=" not in text
    for given in (TrackConfig(epochs=9), TrackConfig(total_steps=900)):
        assert told(given, total_steps=900, limited_by="epochs") == {}


def test_a_length_that_may_still_be_seen_is_waited_for():
    assert told(TrackConfig(epochs=3), step=5, steps_per_epoch=None) == {}


@pytest.mark.parametrize(
    ("epochs", "total_steps", "said"),
    [
        (10, 240, "epochs=10 ends at step 300, total_steps=240 at step 240: the earlier one, "
                  "total_steps=240, counts."),
        (8, 900, "the earlier one, epochs=8, counts."),
    ],
)  # fmt: skip
def test_which_of_two_ends_counts_is_told(epochs: int, total_steps: int, said: str):
    config = TrackConfig(epochs=epochs, total_steps=total_steps)
    found = told(config, total_steps=min(epochs * 30, total_steps), limited_by="x")
    assert said in found["two-ends"]
    equal = TrackConfig(epochs=10, total_steps=300)
    assert told(equal, total_steps=300, limited_by="epochs") == {}
    assert told(config, steps_per_epoch=None, total_steps=total_steps) == {}


@pytest.mark.parametrize(
    ("config", "limited_by", "by"),
    [
        (TrackConfig(epochs=2), "epochs", "epochs=2"),
        (TrackConfig(total_steps=60), "total_steps", "total_steps=60"),
        (TrackConfig(epochs=9, total_steps=60), "total_steps", "total_steps=60"),
    ],
)
def test_training_past_the_plan_is_told_with_the_plan(
    config: TrackConfig, limited_by: str, by: str
):
    found = told(config, step=61, total_steps=60, limited_by=limited_by)
    assert list(found) == ["beyond"]
    assert f"past its planned end, step 60 by {by}:" in found["beyond"]
    assert told(TrackConfig(epochs=2), step=60, total_steps=60, limited_by="epochs") == {}


# --- in a run ------------------------------------------------------------------------------------


def fit(tmp_path: Path, passes: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    monkeypatch.setattr("scaledl.engine.FLUSH_S", 0.0)
    for name in ("LOG_FIRST_S", "LOG_GAP_S", "LOG_LATER_GAP_S"):
        monkeypatch.setattr(f"scaledl.report.pace.{name}", 0.0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = make_loader()
    options = {"run_dir": tmp_path} | options
    if options.get("loader"):
        options["loader"] = loader
    with scaledl.track(model, **options) as run:
        for _ in range(passes):
            for x, y in loader:
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(0.002)  # long enough that steps are not held back
    return run


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, "Pass loader= or steps_per_epoch= if that is not so."),
        ({"loader": True}, "Pass steps_per_epoch= if that is not so."),
        ({"steps_per_epoch": BATCHES}, "Pass loader= if that is not so."),
        ({"loader": True, "steps_per_epoch": BATCHES}, ""),
    ],
)
def test_the_guess_of_an_epoch_asks_only_for_what_was_not_given(
    options: dict[str, Any], asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = fit(tmp_path, 1, monkeypatch, **options)
    text = run.status()["guesses"]["epoch"]
    assert text == f"an epoch is one pass over the training loader, of 10 batches. {asked}".strip()


@pytest.mark.parametrize(
    "plan", [{"epochs": 2}, {"total_steps": 15}, {"epochs": 2, "total_steps": 15}]
)
def test_a_run_past_its_plan_says_so_once_and_no_nonsense(
    plan: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    run = fit(tmp_path, 5, monkeypatch, **plan)
    said = capfd.readouterr().err
    assert said.count("training goes on past its planned end") == 1
    assert "of 2 took" not in said[said.index("past its planned end") :]
    if "epochs" in plan:
        assert "epoch 5 (2 planned) took" in said
    assert not re.search(r"epoch \d+ of \d+ took", said.split("past its planned end")[1])
    assert "0 epochs left" not in said
    assert "it said" not in said  # the first estimate was of the plan
    ends = {int(total) for total in re.findall(r"step=\d+/(\d+)", said)}
    assert ends == {plan.get("total_steps", 20)}
    shown = " ".join(open_run(run.folder).render().split())
    assert "left" not in shown.replace("no time left can be told", "")
    if plan == {"epochs": 2}:
        assert "epochs recorded: 5 (2 planned)" in shown


def test_an_estimate_reads_well_with_and_without_a_known_end():
    span = Interval(mean=600.0, low=500.0, high=720.0)
    step = Interval(mean=0.0034, low=0.003, high=0.004)
    whole = Eta(at_s=1.0, step=7, basis="measured", step_s=step, remaining_s=span)
    assert str(whole) == "10 min (8.3 min to 12 min) left, measured"
    epoch = Eta(at_s=1.0, step=7, basis="measured", step_s=step, epoch_remaining_s=span)
    assert str(epoch) == (
        "step 7: end of the run unknown, 10 min (8.3 min to 12 min) left in this epoch, "
        "3.4 ms a step"
    )
    assert str(Eta(at_s=1.0, step=7, basis="prior")) == "step 7: end of the run unknown"
    done = Interval(mean=0.0, low=0.0, high=0.0)
    assert str(Eta(at_s=1.0, step=7, basis="measured", remaining_s=done)) == "0 s left, measured"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (RuntimeError(), "error"),
        (SystemExit(1), "error"),
        (SystemExit(0), "finished"),
        (None, "finished"),
    ],
    ids=repr,
)
def test_a_keyboard_interrupt_is_recorded_as_one_and_other_errors_as_errors(
    error: BaseException | None, state: str, tmp_path: Path
):
    run = scaledl.track(make_model(), epochs=2, run_dir=tmp_path, report="none")
    with pytest.raises(type(error)) if error else contextlib.nullcontext(), run:
        if error is not None:
            raise error
    assert open_run(run.folder).state == state
