"""The estimators of other tools, the feeding and the scores in benchmarks/eta_*.py."""

import csv
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from eta_bars import bars_of
from eta_baselines import BASELINES, Baseline, Event
from eta_recordings import Ours, Recording, read_runs
from eta_scores import (
    OURS,
    count_jumps,
    points_of,
    score_resumed,
    score_run,
    summarise,
    winkler,
)

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "eta_accuracy.py"


def events_of(
    num_steps: int = 200, step_s: float = 2.0, first_s: float = 8.0, eval_every: int = 20
) -> list[Event]:
    """A run with a slow first step and evaluations of 5 s."""
    events, now_s = [Event(at_s=0.0, kind="epoch_start", done=None)], 0.0
    for step in range(1, num_steps + 1):
        now_s += step_s + (first_s if step == 1 else 0.0)
        events.append(Event(at_s=now_s, kind="progress", done=float(step)))
        if step % eval_every == 0:
            events.append(Event(at_s=now_s, kind="eval_start", done=None))
            now_s += 5.0
            events.append(Event(at_s=now_s, kind="eval_end", done=None))
    return [*events, Event(at_s=now_s, kind="end", done=float(num_steps))]


def recording(name: str = "a", family: str = "f", **more: float) -> Recording:
    events = events_of(**more)
    last = events[-1]
    return Recording(
        run_id=name,
        family=family,
        schedule="",
        total=last.done or 0.0,
        duration_s=last.at_s,
        unit=1.0,
        events=tuple(events),
    )


def fed(name: str, events: list[Event], total: float = 100.0) -> Baseline:
    rule = BASELINES[name](total)
    for event in events:
        rule.on_event(event)
    return rule


def progress(*marks: tuple[float, float]) -> list[Event]:
    return [Event(at_s=at_s, kind="progress", done=done) for at_s, done in marks]


def test_baselines_match_hand_counts():
    seen = progress((10.0, 10.0), (30.0, 20.0), (60.0, 30.0))
    assert fed("cumulative-mean", seen).left_s() == pytest.approx(140.0)
    assert fed("median-1000", seen).left_s() == pytest.approx(140.0)
    assert fed("window-30s", seen).left_s() == pytest.approx(210.0)
    time_s = 0.3 * 30 + 0.7 * (0.3 * 20 + 0.7 * 0.3 * 10)
    count = 0.3 * 10 * (1 + 0.7 + 0.49)
    assert fed("ema-0.3", seen).left_s() == pytest.approx(time_s / count * 70)


def test_smoothing_in_time_finds_a_steady_pace():
    steady = progress(*((2.0 * i, float(i)) for i in range(1, 41)))
    assert fed("double-smoothed", steady).left_s() == pytest.approx(120.0, rel=1e-6)


def test_composer_skips_the_first_batch_and_counts_evaluations_to_come():
    events = [
        *progress((50.0, 10.0), (60.0, 20.0)),
        Event(at_s=60.0, kind="eval_start", done=None),
        Event(at_s=69.0, kind="eval_end", done=None),
        *progress((79.0, 30.0), (89.0, 40.0)),
        Event(at_s=89.0, kind="eval_start", done=None),
        Event(at_s=92.0, kind="eval_end", done=None),
        *progress((102.0, 50.0)),
    ]
    assert fed("composer", events[:1]).left_s() is None
    # 40 units took 52 s, of which 12 s were evaluations; two in half of the run, 3 s without the
    # first one.
    assert fed("composer", events).left_s() == pytest.approx(50.0 + 2 * 3.0)


def test_a_resumed_process_of_another_tool_counts_its_own_steps_only():
    rule = BASELINES["cumulative-mean"](100.0, 500.0, 50.0)
    for event in progress((510.0, 55.0)):
        rule.on_event(event)
    assert rule.left_s() == pytest.approx(90.0)


def test_nothing_comes_from_the_future():
    run = recording()
    for index, points in points_of(run, (0.1, 0.3, 0.7)).items():
        later = [replace(e, at_s=3 * e.at_s) for e in run.events[index + 1 :]]
        other = replace(run, events=(*run.events[: index + 1], *later))
        first, second = score_run(run, points), score_run(other, points)
        assert first
        assert [s.forecasts_s for s in first] == [s.forecasts_s for s in second]
        assert [s.interval for s in first] == [s.interval for s in second]


def test_start_up_and_evaluations_are_set_apart_where_the_mean_is_misled():
    scores = {s.point: s for s in score_run(recording())}
    for point in (0.25, 0.5, 0.75):
        assert scores[point].error(OURS) < 0.01
    assert scores[0.05].error("cumulative-mean") > 0.15


def test_a_resumed_process_goes_on_with_what_was_learned():
    scores = score_resumed(recording(first_s=40.0))
    assert {s.point for s in scores} == {0.41, 0.45, 0.5, 0.75}
    for score in scores:
        assert score.error(OURS) < 0.01
        assert score.truth_s < 280


def test_halves_keep_families_whole():
    halves = {recording(str(i), family=f"f{i % 9}").half for i in range(90)}
    assert halves == {"dev", "held"}
    for i in range(9):
        assert len({recording(str(j), family=f"f{i}").half for j in range(5)}) == 1


def test_a_shown_value_that_runs_down_does_not_jump_and_a_swing_does():
    even = recording(first_s=0.0, eval_every=1000)
    assert count_jumps(even).counts == {OURS: 0, "ema-0.3": 0}
    events = []
    for event in events_of():
        late_s = 40.0 if event.kind == "progress" and (event.done or 0) % 20 == 5 else 0.0
        events.append(replace(event, at_s=event.at_s + late_s))
    swinging = replace(recording(), events=tuple(sorted(events, key=lambda e: e.at_s)))
    assert count_jumps(swinging).counts["ema-0.3"] > 5


def test_winkler_adds_twenty_times_the_miss_at_90_percent():
    assert winkler(9.0, 11.0, 10.0) == pytest.approx(0.2)
    assert winkler(9.0, 11.0, 12.0) == pytest.approx((2 + 20) / 12)


def test_bars_know_their_limits_and_the_number_of_runs():
    runs = [recording(str(i), family=str(i), step_s=1.0 + i) for i in range(4)]
    scores = [s for run in runs for s in score_run(run)]
    rows = summarise("steady", scores)
    bars = {b["name"]: b for b in bars_of(rows, scores, [count_jumps(r) for r in runs])}
    bar = bars["steady mean error over cumulative mean's at 25 % (4 runs)"]
    assert bar["holds"]
    assert bar["limit"] == 0.7
    assert any(name.startswith("visible jumps over EMA's") for name in bars)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    rows = []
    for i, schedule in enumerate(["", "", "image-size"]):
        run = recording(str(i), step_s=1.0 + i)
        name = f"run{i}"
        with gzip.open(tmp_path / "runs" / f"{name}.csv.gz", "wt", newline="") as text:
            lines = csv.writer(text)
            lines.writerow(["t_s", "kind", "done", "value"])
            lines.writerows(
                [e.at_s, e.kind, "" if e.done is None else e.done, ""] for e in run.events
            )
        rows.append(
            {
                "run_id": name,
                "source": "s",
                "workload": f"w{i}",
                "total": run.total,
                "duration_s": run.duration_s,
                "schedule": schedule,
            }
        )
    with (tmp_path / "runs.csv").open("w", newline="") as text:
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return tmp_path


def test_runs_are_read_as_they_were_written(folder: Path):
    runs = read_runs(folder)
    assert [r.run_id for r in runs] == ["run0", "run1", "run2"]
    assert [r.group for r in runs] == ["steady", "steady", "scheduled"]
    assert runs[0].events == tuple(events_of(step_s=1.0))
    assert Ours(runs[0]).estimate(0.0).remaining_s is None


def test_the_program_prints_one_object_on_the_last_line(folder: Path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--runs", str(folder), "--json", "--each"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["benchmark"] == "eta_accuracy"
    assert {r["runs"] for r in told["results"]} >= {"steady", "scheduled", "steady, resumed"}
    assert all(set(b) == {"name", "value", "limit", "holds"} for b in told["bars"])
