"""The live benchmark of the ETA: what it scores, and that its trainings do what they say."""

from pathlib import Path
from typing import Any

import pytest
from eta_live import CASES, bars, chosen, others_s, rows_of, summaries
from eta_live_job import Case, Training

import scaledl
from scaledl.records import Eta, Interval

STEP_S, TOTAL = 0.5, 100


def seen(first_step: int = 0) -> dict[str, Any]:
    """A training of even steps that evaluates for two seconds at its end."""
    ends_s = [1000.0 + STEP_S * (i + 1) for i in range(TOTAL - first_step)]
    return {
        "started_s": 1000.0,
        "ended_s": ends_s[-1] + 2.0,
        "first_step": first_step,
        "total_steps": TOTAL,
        "step_ends_s": ends_s,
    }


def told(at_s: float, left_s: float) -> Eta:
    left = Interval(mean=left_s, low=0.9 * left_s, high=1.1 * left_s)
    return Eta(at_s=at_s, step=1, basis="measured", remaining_s=left, finish_at=at_s + left_s)


def test_what_was_said_last_runs_down_until_the_point_is_reached() -> None:
    etas = [told(1003.0, 49.0), told(1024.0, 30.0)]
    rows = {row["point"]: row for row in rows_of(Case(name="x"), seen(), etas)}
    assert set(rows) == {0.1, 0.25, 0.5, 0.75}  # at 5 % nothing was said yet
    assert rows[0.1]["left_s"] == pytest.approx(47.0)
    assert rows[0.1]["scaledl_s"] == pytest.approx(47.0)
    assert rows[0.1]["error"] == pytest.approx(0.0)
    assert rows[0.5]["scaledl_s"] == pytest.approx(29.0)
    assert rows[0.5]["left_s"] == pytest.approx(27.0)
    assert rows[0.5]["inside"]
    assert rows[0.75]["low_s"] == pytest.approx(27.0 - 13.5)


def test_the_others_see_the_steps_of_this_process_alone() -> None:
    whole, resumed = others_s(seen(), 1010.0), others_s(seen(first_step=40), 1010.0)
    assert whole["mean_error"] == pytest.approx(80 * STEP_S)
    assert resumed["mean_error"] == pytest.approx(40 * STEP_S)
    assert resumed["tqdm_error"] == pytest.approx(40 * STEP_S)
    assert others_s(seen(), 1000.0) == {}


def test_what_comes_later_stays_out_of_the_bars_until_it_came() -> None:
    rows = rows_of(Case(name="x", slow_from=0.5), seen(), [told(1001.0, 51.0)])
    assert [row["point"] for row in rows if row["foreseeable"]] == [0.75]
    assert [row["point"] for row in summaries(rows)] == [0.75]
    assert all("(1 forecasts)" in bar["name"] for bar in bars(rows))
    assert bars([]) == []


def test_a_resumed_case_is_scored_after_its_resume() -> None:
    rows = rows_of(Case(name="x", kill_at=0.5), seen(first_step=40), [told(1001.0, 31.0)])
    assert [row["point"] for row in rows] == [0.45, 0.5, 0.75]


def test_a_wrong_name_is_refused_with_the_known_ones() -> None:
    assert [case.name for case in chosen("plain,stalls")] == ["plain", "stalls"]
    assert len({case.name for case in CASES}) == len(chosen(None))
    with pytest.raises(SystemExit, match=r"no case 'fast'\. Known: plain"):
        chosen("fast")


@pytest.mark.parametrize(
    "case",
    [
        Case(name="x", seconds=0.3, epochs=2, saves_an_epoch=2, accumulate=2),
        Case(name="x", seconds=0.3, epochs=2, sorted_lengths=True),
    ],
)
def test_a_training_runs_as_planned_and_records_what_it_was_told(
    case: Case, tmp_path: Path
) -> None:
    training = Training(case, tmp_path)
    found = training.run(tmp_path)
    assert len(found["step_ends_s"]) == found["total_steps"] == 2 * training.steps_an_epoch
    assert found["started_s"] < found["step_ends_s"][0] < found["ended_s"]
    assert (tmp_path / "checkpoint.pt").exists() == bool(case.saves_an_epoch)
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_resumed_training_goes_on_at_its_checkpoint_and_is_not_killed_again(
    tmp_path: Path,
) -> None:
    case = Case(name="x", seconds=0.3, epochs=3, kill_at=0.5)
    whole = Training(case, tmp_path)
    assert whole.may_be_killed
    with scaledl.track(whole.model, run_dir=tmp_path / "third", report="none") as run:
        learned = run.state_dict()
    whole.save(2, learned)
    again = Training(case, tmp_path)
    assert not again.may_be_killed
    assert again.steps_an_epoch == whole.steps_an_epoch
    assert again.run(tmp_path)["first_step"] == 2 * whole.steps_an_epoch
