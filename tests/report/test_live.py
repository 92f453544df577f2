import os
import re
import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from scaledl.records import Eta, Interval, Progress
from scaledl.report.live import (
    LinePolicy,
    render_change,
    render_line,
    render_log_line,
)

NOW_S = 1764582870.0  # 2025-12-01T09:54:30Z
REPLACE = msgspec.structs.replace
PLACE = Progress(
    step=5210,
    epoch=2,
    step_in_epoch=210,
    total_steps=75000,
    num_epochs=30,
    steps_per_epoch=2500,
    limited_by="epochs",
)
ETA = Eta(
    at_s=NOW_S,
    step=5210,
    basis="measured",
    step_s=Interval(mean=0.215, low=0.21, high=0.22),
    remaining_s=Interval(mean=15030, low=14430, high=15930),
    finish_at=NOW_S + 15030,
)
UNKNOWN = REPLACE(
    ETA,
    remaining_s=None,
    finish_at=None,
    epoch_remaining_s=Interval(mean=300, low=250, high=400),
)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.__setitem__("TZ", before)
    time.tzset()


def line(eta=ETA, place=PLACE, width=100, unicode=False, step_s=0.215, **options) -> str:
    return render_line(
        eta, place, step_s=step_s, now_s=NOW_S, width=width, unicode=unicode, **options
    )


@pytest.mark.parametrize("unicode", [False, True])
@pytest.mark.parametrize(
    ("width", "text"),
    [
        (60, "scaledl  step  5210/75000: done 14:05 (13:55 to 14:20)"),
        (80, "scaledl  epoch 3/30, step  5210/75000, 215 ms: done 14:05 (13:55 to 14:20)"),
        (
            100,
            "scaledl  epoch 3/30, step  5210/75000, 215 ms: done 14:05 (13:55 to 14:20), "
            "4 h 10 min left, $9.96/h",
        ),
    ],
)
def test_line_is_exact_at_three_widths(width, text, unicode):
    assert line(width=width, unicode=unicode, usd_per_hour=9.96) == text


def test_a_line_that_cannot_fit_is_cut_with_dots_of_the_streams_kind():
    assert line(width=30) == "scaledl  step  5210/75000: ..."
    assert line(width=30, unicode=True) == "scaledl  step  5210/75000: do…"


@pytest.mark.parametrize("width", [1, 5, 20, 40, 60, 80, 100, 300])
def test_no_line_is_wider_than_asked_nor_than_100(width):
    for eta in (ETA, UNKNOWN, None):
        for options in ({}, {"learning": (3, 20), "note": "first profile at step 15"}):
            assert len(line(eta=eta, width=width, **options)) <= min(width, 100)


def test_until_it_is_earned_a_number_carries_a_tilde_and_the_word_prior():
    prior = REPLACE(ETA, basis="prior")
    text = line(eta=prior, place=REPLACE(PLACE, step=12), learning=(12, 20))
    assert text == (
        "scaledl  step    12/75000, ~215 ms: done ~14:05 (13:55 to 14:20, prior), "
        "learning: 12 of 20 steps"
    )


def test_before_the_first_step_only_what_is_learned_is_said():
    text = line(eta=None, place=REPLACE(PLACE, step=0), step_s=None, learning=(0, 20))
    assert text == "scaledl  step     0/75000: learning: 0 of 20 steps"


def test_fields_before_the_colon_keep_their_place_while_the_step_grows():
    early, late = (line(place=REPLACE(PLACE, step=step)) for step in (7, 74999))
    assert early.index("done") == late.index("done")


def test_E12_the_end_that_wins_is_named():
    place = REPLACE(PLACE, total_steps=50000, limited_by="total_steps")
    assert "until total_steps" in line(place=place)
    assert "until=total_steps" in render_log_line(ETA, place, step_s=0.2, now_s=NOW_S)
    assert "until" not in line()


def test_E14_past_the_end_says_so_without_percentage_or_negative_time():
    place = REPLACE(PLACE, step=130, total_steps=100)
    text = line(eta=REPLACE(UNKNOWN, epoch_remaining_s=None), place=place)
    assert text == "scaledl  step 130, 215 ms: 30 steps beyond planned end, planned were 100"
    log = render_log_line(UNKNOWN, place, step_s=0.215, now_s=NOW_S)
    assert log.endswith("step=130/100 step_ms=215 beyond_planned_end=true")
    assert "%" not in text
    assert "-" not in text


def test_an_unknown_total_leaves_the_epochs_end():
    place = REPLACE(PLACE, total_steps=None, num_epochs=None, limited_by=None)
    assert line(eta=UNKNOWN, place=place, width=110) == (
        "scaledl  epoch 3, step 5210, 215 ms: epoch done 09:59 (09:58 to 10:01), "
        "5 min left in the epoch"
    )
    bare = Progress(step=7, epoch=0, step_in_epoch=7)
    assert line(eta=REPLACE(UNKNOWN, epoch_remaining_s=None), place=bare) == (
        "scaledl  step 7, 215 ms: total unknown"
    )


def test_log_line_is_iso_time_and_key_value():
    assert render_log_line(ETA, PLACE, step_s=0.2154, now_s=NOW_S) == (
        "2025-12-01T09:54:30Z scaledl epoch=3/30 step=5210/75000 step_ms=215 "
        "left_s=15030 left_low_s=14430 left_high_s=15930 "
        "eta=2025-12-01T14:05Z eta_low=13:55 eta_high=14:20 basis=measured"
    )


def test_log_line_names_the_day_of_a_bound_on_another_day():
    eta = REPLACE(ETA, remaining_s=Interval(mean=15030, low=14430, high=80000))
    text = render_log_line(eta, PLACE, step_s=0.2, now_s=NOW_S)
    assert "eta_low=13:55 eta_high=2025-12-02T08:07Z" in text


def near(mean_s: float, low_s: float, high_s: float, **changes) -> Eta:
    """An estimate whose end is near."""
    left = Interval(mean=mean_s, low=low_s, high=high_s)
    return REPLACE(ETA, remaining_s=left, finish_at=NOW_S + mean_s, **changes)


def test_near_the_end_seconds_to_go_and_their_interval_are_said():
    assert line(eta=near(20.4, 16.2, 27.9)) == (
        "scaledl  epoch 3/30, step  5210/75000, 215 ms: done 09:54, in 20 s (16 to 28 s)"
    )
    assert line(eta=near(14.0, 13.9, 14.1)).endswith("done 09:54, in 14 s (13 to 15 s)")
    prior = line(eta=near(14.0, 9.0, 30.0, basis="prior"), learning=(12, 20))
    assert prior.endswith("done ~09:54, in ~14 s (9 to 30 s, prior)")


def test_a_narrow_interval_far_away_is_shown_to_the_second():
    text = line(eta=near(3000.0, 2980.0, 3030.0))
    assert text.endswith("done 10:44:30 (10:44:10 to 10:45:00), 50 min left")


def test_the_line_never_lacks_its_interval_nor_counts_milliseconds():
    for mean_s in (0.0, 0.2, 5.0, 99.0, 101.0, 5000.0, 90_000.0):
        for half_s in (0.0, 0.1, 30.0, 59.0, 2000.0):
            text = line(eta=near(mean_s, max(0.0, mean_s - half_s), mean_s + half_s))
            assert " to " in text
            assert not re.search(r"[0-9] [mu]s left|in [0-9]+ [mu]s|-[0-9]", text)
    late = render_line(
        near(14.0, 13.0, 15.0), PLACE, step_s=0.2, now_s=NOW_S + 60, width=100, unicode=False
    )
    assert late.endswith("in 1 s (0 to 1 s)")


@pytest.mark.parametrize("half_s", [600.0, 20.0, 3.0])
def test_a_wide_interval_leaves_fewer_digits_of_the_time_left(half_s):
    text = line(eta=near(15030.0, 15030.0 - half_s, 15030.0 + half_s))
    assert text.endswith("4 h 10 min left")
    doubtful = line(eta=near(15030.0, 15030.0 - 4000, 15030.0 + 4000))
    assert doubtful.endswith("4 h left")


def test_log_line_of_a_near_end_has_seconds_and_tenths():
    text = render_log_line(near(20.4, 16.2, 24.9), PLACE, step_s=0.2, now_s=NOW_S)
    assert "left_s=20.4 left_low_s=16.2 left_high_s=24.9 " in text
    assert "eta=2025-12-01T09:54:50Z eta_low=09:54:46 eta_high=09:54:54 " in text
    later = render_log_line(ETA, PLACE, step_s=0.2, now_s=NOW_S + 30)
    assert "left_s=15000 left_low_s=14400 left_high_s=15900 " in later  # counts from now


def test_log_line_of_an_unknown_total_tells_the_seconds_of_the_epoch():
    text = render_log_line(UNKNOWN, PLACE, step_s=0.2, now_s=NOW_S)
    assert "epoch_left_s=300 epoch_left_low_s=250 epoch_left_high_s=400 epoch_eta=" in text


def test_a_small_move_of_the_finish_is_told_to_the_second():
    new = REPLACE(ETA, finish_at=ETA.finish_at + 12)
    assert "ETA 14:05:00 -> 14:05:12 (+12 s)" in render_change(ETA, new, NOW_S)


def test_a_note_cannot_steer_the_terminal():
    text = line(place=REPLACE(PLACE, total_steps=None), eta=None, note="a\x1b[2J\rb\n")
    assert text.isprintable()


def test_change_says_from_to_and_why():
    new = REPLACE(
        ETA, finish_at=ETA.finish_at + 1560, changed_because="steps 12 % slower since step 5480"
    )
    tail = "14:31 (+26 min): steps 12 % slower since step 5480"
    assert render_change(ETA, new, NOW_S) == f"scaledl  ETA 14:05 -> {tail}"
    assert render_change(ETA, new, NOW_S, unicode=True) == f"scaledl  ETA 14:05 → {tail}"
    assert "14:31 -> 14:05 (-26 min)" in render_change(new, ETA, NOW_S)


# --- when ---------------------------------------------------------------------------------------


def log_times(total: int | None, step_s: float, num_steps: int, every: int = 1) -> list[float]:
    """Times at which a log policy writes, asked after each ``every`` steps."""
    policy = LinePolicy(is_tty=False, started_s=0.0)
    found = []
    for step in range(every, num_steps + 1, every):
        place = Progress(step=step, epoch=0, step_in_epoch=step, total_steps=total)
        if policy.is_due(place, step * step_s):
            found.append(step * step_s)
    return found


@pytest.mark.parametrize(
    ("total", "step_s", "num_steps"),
    [(75000, 0.2, 75000), (75000, 20.0, 75000), (None, 1.0, 200_000), (100, 1.0, 150_000)],
)
def test_U01_a_log_gets_25_lines_at_most_and_no_two_within_a_minute(total, step_s, num_steps):
    times = log_times(total, step_s, num_steps, every=5)
    assert 3 <= len(times) <= 25
    assert min(b - a for a, b in pairwise(times)) >= 60


def test_U01_log_lines_hold_no_control_characters():
    for eta in (ETA, UNKNOWN, None):
        text = render_log_line(eta, PLACE, step_s=0.2, now_s=NOW_S)
        assert text.isprintable()
        assert text.isascii()


def test_U02_a_short_run_shows_something_in_a_log():
    assert log_times(total=60, step_s=0.5, num_steps=60) == [10.0]


def test_U02_a_long_run_is_heard_of_to_its_end():
    times = log_times(total=10_000, step_s=1.5, num_steps=10_000)
    assert times[0] == 10.5
    assert times[-1] == 15_000
    assert max(b - a for a, b in pairwise(times)) <= 0.1 * 15_000


def test_a_log_line_waits_for_the_later_of_five_percent_and_ten_minutes():
    fast = log_times(total=10_000, step_s=0.3, num_steps=10_000)  # 5 % are 150 s
    late = [t for t in fast if t > 150]
    assert min(b - a for a, b in pairwise(late)) >= 600


def test_a_terminal_is_redrawn_once_a_second_at_most():
    policy = LinePolicy(is_tty=True, started_s=0.0)
    due = [i for i in range(100) if policy.is_due(PLACE, i * 0.25)]
    assert due == list(range(0, 100, 4))


def at(eta: Eta, now_s: float, finish_at: float, cause: str = "") -> Eta:
    left = finish_at - now_s
    interval = Interval(mean=left, low=left - 600, high=left + 900)
    return REPLACE(
        eta, at_s=now_s, remaining_s=interval, finish_at=finish_at, changed_because=cause
    )


def test_shown_finish_holds_still_within_half_its_interval_for_30_seconds():
    policy = LinePolicy(is_tty=True, started_s=NOW_S)
    first = at(ETA, NOW_S, NOW_S + 15000)
    assert policy.calm(first, NOW_S).eta is first
    jitter = [at(ETA, NOW_S + i, NOW_S + 15000 + (-1) ** i * 250) for i in range(1, 30)]
    assert all(policy.calm(eta, eta.at_s).eta is first for eta in jitter)
    later = at(ETA, NOW_S + 30, NOW_S + 15020)
    assert policy.calm(later, NOW_S + 30).eta is later


def test_a_move_beyond_half_the_interval_is_shown_at_once_with_its_cause_told_once():
    policy = LinePolicy(is_tty=True, started_s=NOW_S)
    first = at(ETA, NOW_S, NOW_S + 15000)
    policy.calm(first, NOW_S)
    moved = at(ETA, NOW_S + 2, NOW_S + 16000, "steps 7 % slower since step 5000")
    shown = policy.calm(moved, NOW_S + 2)
    assert shown.eta is moved
    assert shown.replaced is first
    again = at(ETA, NOW_S + 4, NOW_S + 18000, "steps 7 % slower since step 5000")
    assert policy.calm(again, NOW_S + 4).replaced is None


def test_the_end_of_learning_is_shown_at_once():
    policy = LinePolicy(is_tty=True, started_s=NOW_S)
    policy.calm(REPLACE(at(ETA, NOW_S, NOW_S + 15000), basis="prior"), NOW_S)
    measured = at(ETA, NOW_S + 1, NOW_S + 15010)
    assert policy.calm(measured, NOW_S + 1).eta is measured
