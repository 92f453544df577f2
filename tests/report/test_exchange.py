"""What is transfer, what is waiting for others, what is hidden: parts that add up."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import PARTS, epoch_record, epoch_summary, profile_window

from scaledl.records import CommEvent, ProfileWindow, StepParts
from scaledl.report.console import render_epoch
from scaledl.report.exchange import exchange_text, transfer_of
from scaledl.report.parts import render_parts
from scaledl.report.ranks import behind_s

ms = st.floats(0.0, 0.5)


def parts_of(exposed_s: float, hidden_s: float = 0.0) -> StepParts:
    return StepParts(
        compute_s=0.1,
        comm_exposed_s=exposed_s,
        input_wait_s=0.0,
        optimizer_s=0.0,
        other_s=0.0,
        comm_hidden_s=hidden_s,
    )


def window_of(rank: int, durations_s: list[float], step: int = 15, **changes) -> ProfileWindow:
    comm = tuple(
        CommEvent(op="all_reduce", group_size=2, num_bytes=8, start_s=0.1 * i, duration_s=value_s)
        for i, value_s in enumerate(durations_s)
    )
    return msgspec.structs.replace(profile_window(step, rank), comm=comm, **changes)


def shown(text: str) -> list[float]:
    found = re.match(
        r"exposed comm\. ([0-9.]+) \w+ = transfer ([0-9.]+) \+ waiting for others", text
    )
    assert found is not None, text
    waiting = re.search(r"waiting for others ([0-9.]+);", text)
    assert waiting is not None
    return [float(found[1]), float(found[2]), float(waiting[1])]


@given(exposed_s=ms, transfer_s=ms, hidden=st.floats(0.0, 1.0), late_ms=st.floats(100.0, 900.0))
def test_shown_transfer_and_waiting_add_up_to_the_shown_exposed_communication(
    exposed_s, transfer_s, hidden, late_ms
):
    ranks = (epoch_record(0, 0, 100.0), epoch_record(0, 1, late_ms))
    parts = parts_of(exposed_s, hidden * transfer_s)
    total, transfer, waiting = shown(exchange_text(parts, transfer_s, 2**20, ranks))
    assert transfer + waiting == pytest.approx(total)
    assert min(transfer, waiting) >= 0


@given(st.lists(st.floats(0.0, 0.3), min_size=4, max_size=4), st.floats(0.0, 0.3))
def test_exposed_communication_reads_alike_as_part_of_the_step_and_as_a_sum(rest_s, exposed_s):
    names = ("compute_s", "input_wait_s", "optimizer_s", "other_s")
    parts = StepParts(comm_exposed_s=exposed_s, **dict(zip(names, rest_s, strict=True)))
    of_step = re.search(r"exposed comm\. ([0-9.]+) ", render_parts(parts))
    assert of_step is not None
    for transfer_s in (None, exposed_s / 3):
        assert exchange_text(parts, transfer_s, None, ()).split()[2].rstrip(":") == of_step[1]


def test_exposed_communication_beyond_the_transfer_is_called_waiting():
    text = exchange_text(parts_of(0.0141), 0.0043, 2_202_009, ())
    assert text == (
        "exposed comm. 14.1 ms = transfer 4.3 + waiting for others 9.8; "
        "whole transfer 4.3 ms (2.1 MiB), 0 % hidden behind backward"
    )


def test_transfer_that_is_hidden_is_no_part_of_the_exposed_communication():
    text = exchange_text(parts_of(0.0004, 0.0039), 0.0043, None, ())
    assert text.startswith("exposed comm. 0.4 ms = transfer 0.4 + waiting for others 0.0; ")
    assert text.endswith("whole transfer 4.3 ms, 91 % hidden behind backward")


def test_what_a_slow_rank_makes_this_one_wait_is_never_called_transfer():
    ranks = (epoch_record(0, 0, 30.0), epoch_record(0, 1, 39.0))
    assert behind_s(ranks) == pytest.approx(0.009)
    assert shown(exchange_text(parts_of(0.0109), 0.017, None, ranks))[1:] == [1.9, 9.0]
    assert behind_s(ranks, rank=1) == 0.0
    assert behind_s((epoch_record(0, 0, 30.0), epoch_record(0, 1, 31.0))) == 0.0  # nobody is slow


def test_without_another_ranks_window_waiting_is_not_told_from_transfer():
    assert transfer_of((window_of(0, [0.004]),), 0.2) is None
    assert transfer_of((window_of(0, [0.004]), window_of(1, [0.002], step=16)), 0.2) is None
    assert transfer_of((window_of(0, []), window_of(1, [])), 0.2) is None
    text = exchange_text(parts_of(0.0141), None, 2_202_009, ())
    assert text == (
        "exposed comm. 14.1 ms: transfer (2.1 MiB) and waiting for others, not told apart yet"
    )


def test_transfer_is_the_least_over_ranks_of_each_collective_brought_to_the_mean_step():
    own = window_of(0, [0.036, 0.043], overlap_fraction=0.25)
    other = window_of(1, [0.002, 0.050], overlap_fraction=0.9)
    found = transfer_of((own, other), 0.1)  # the windows' steps took 0.2 s
    assert found is not None
    assert found.total_s == pytest.approx((0.002 + 0.043) / 2)
    assert found.hidden_s == pytest.approx(0.25 * found.total_s)  # of the rank that speaks


def test_P23_transfers_that_run_at_once_count_their_moments_once():
    own = window_of(0, [0.15, 0.04])  # the second begins 0.1 s after the first
    other = window_of(1, [0.14, 0.03])
    found = transfer_of((own, other), 0.2)
    assert found is not None
    assert found.total_s == pytest.approx(0.14)


def test_a_later_report_tells_transfer_from_waiting_once_it_can_be_told():
    young = epoch_summary(comm_total_s=None)
    text = render_epoch(epoch_summary(3), repeat=True, previous=young)
    assert "= transfer 0.4 + waiting for others 0.0;" in text
    again = render_epoch(epoch_summary(4), repeat=True, previous=epoch_summary(3))
    assert "waiting for others" not in again


def test_report_of_one_process_says_nothing_of_an_exchange():
    one = epoch_summary(cluster=epoch_summary().cluster.with_num_gpus(1))
    assert "waiting for others" not in render_epoch(one)
    assert "waiting for others" in render_epoch(epoch_summary(parts=PARTS))
