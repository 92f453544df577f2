"""``on_eta``: what a logger hears of the time left, how often, and what its faults do."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fakes import FakeClock
from samples import NOW_S
from training import make_loader, make_model, steps

import scaledl
from scaledl.errors import UsageError
from scaledl.listener import GAP_S, SHARE, Listener
from scaledl.records import Eta, Interval, TimeLimit

SPAN = Interval(mean=600.0, low=500.0, high=720.0)
ETA = Eta(at_s=NOW_S, step=7, basis="measured", remaining_s=SPAN, finish_at=NOW_S + 600.0)


def test_it_hears_the_first_estimate_at_once_and_then_one_in_ten_seconds() -> None:
    clock, heard = FakeClock(), []
    listener = Listener(heard.append, clock)
    listener.hear(None)
    for second in range(35):
        listener.hear(msgspec.structs.replace(ETA, step=second))
        clock.tick(1.0)
    assert [eta.step for eta in heard] == [0, 10, 20, 30]
    assert GAP_S == 10.0


def test_where_it_is_slow_it_hears_less_so_that_its_share_of_the_time_is_small() -> None:
    clock, calls = FakeClock(), []

    def slow(eta: Eta) -> None:
        calls.append(clock())
        clock.tick(2.0)

    listener = Listener(slow, clock)
    begin_s = clock()
    while clock() < begin_s + 7200.0:
        listener.hear(ETA)
        clock.tick(1.0)
    assert len(calls) > 1
    assert 2.0 * len(calls) <= SHARE * (clock() - begin_s) + 2.0


def test_a_function_that_asks_for_estimates_itself_is_not_called_inside_itself() -> None:
    calls: list[Eta] = []

    def again(eta: Eta) -> None:
        calls.append(eta)
        listener.hear(eta)

    listener = Listener(again, FakeClock())
    listener.hear(ETA)
    assert calls == [ETA]


def test_scalars_are_the_known_numbers_and_nothing_else() -> None:
    assert Eta(at_s=NOW_S, step=1, basis="prior").scalars() == {}
    whole = msgspec.structs.replace(
        ETA, step_s=SPAN.scaled(1e-3), epoch_remaining_s=SPAN.scaled(0.5)
    )
    limited = msgspec.structs.replace(whole, limit=TimeLimit(at=NOW_S + 60.0))
    assert limited.scalars() == {
        "left_s": 600.0,
        "left_low_s": 500.0,
        "left_high_s": 720.0,
        "epoch_left_s": 300.0,
        "epoch_left_low_s": 250.0,
        "epoch_left_high_s": 360.0,
        "step_s": 0.6,
        "step_low_s": 0.5,
        "step_high_s": 0.72,
        "finish_at": NOW_S + 600.0,
        "limit_left_s": 60.0,
    }


# --- in a run ------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate at each step, and the logger hears each."""
    monkeypatch.setattr("scaledl.engine.FLUSH_S", 0.0)
    monkeypatch.setattr("scaledl.listener.GAP_S", 0.0)
    monkeypatch.setattr("scaledl.listener.SHARE", 1e9)


def fit(on_eta: Any, folder: Path, epochs: int = 4) -> Any:
    model = make_model()
    with scaledl.track(model, epochs=epochs, run_dir=folder, on_eta=on_eta) as run:
        steps(model, make_loader(), epochs)
    return run


@pytest.mark.usefixtures("often")
def test_a_run_tells_each_estimate_as_the_frozen_record_that_eta_is(tmp_path: Path) -> None:
    heard: list[Eta] = []
    fit(heard.append, tmp_path)
    assert len(heard) > 2
    assert [eta.step for eta in heard] == sorted(eta.step for eta in heard)
    last = heard[-1]
    assert last.remaining_s is not None
    assert last.ends_by == "epochs"
    assert {"left_s", "left_low_s", "left_high_s", "step_s"} <= last.scalars().keys()
    with pytest.raises(AttributeError):
        last.step = 3  # type: ignore[misc]


@pytest.mark.usefixtures("often")
def test_a_logger_that_fails_is_told_once_with_its_place_and_hears_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SCALEDL_STRICT")
    calls: list[Eta] = []

    def broken(eta: Eta) -> None:
        calls.append(eta)
        raise ConnectionError("the server is away")

    run = fit(broken, tmp_path)
    said = capfd.readouterr().err
    assert len(calls) == 1
    assert said.count("on_eta stopped at step") == 1
    assert "ConnectionError in test_listener.py:" in said
    assert "done: 40 steps" in said
    assert "on_eta" in run.status()["off"]


@pytest.mark.usefixtures("often")
def test_each_call_of_a_decorated_function_has_its_logger(tmp_path: Path) -> None:
    model, heard = make_model(), []

    @scaledl.track(model, epochs=2, run_dir=tmp_path, report="none", on_eta=heard.append)
    def fit_it() -> None:
        steps(model, make_loader(), 2)

    fit_it()
    first = len(heard)
    fit_it()
    assert 0 < first < len(heard)


@pytest.mark.usefixtures("often")
def test_U03_only_rank_0_tells_a_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    heard: list[Eta] = []
    run = fit(heard.append, tmp_path)
    assert run.status()["rank"] == 1
    assert run.eta is not None
    assert heard == []


def test_a_title_of_the_users_has_the_time_left_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaledl.engine.FLUSH_S", 0.0)
    monkeypatch.setattr("scaledl.report.pace.TTY_REDRAW_S", 0.0)
    model, titles = make_model(), []
    with scaledl.track(model, epochs=4, run_dir=tmp_path, report="none") as run:
        titles.append(run.eta_text)
        for _ in range(4):
            steps(model, make_loader())
            titles.append(run.eta_text)
    assert titles[0] == ""
    assert re.fullmatch(r"done ~?[\d:]+ \([\d:]+ to [\d:]+(, prior)?\)", titles[-1]), titles
    assert run.eta_text.startswith("done ")
    assert scaledl.track(model, enabled=False).eta_text == ""


@pytest.mark.parametrize("wrong", ["print", 3, {}])
def test_what_is_no_function_is_refused_with_an_example(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"on_eta must be a function.*For example"):
        scaledl.track(torch.nn.Linear(1, 1), on_eta=wrong)
