"""The line about the graph network: what it told, what was true, why it learned nothing."""

from typing import Any

import pytest

from scaledl.learned import Learned
from scaledl.report.learned import learned_text


def learned(**fields: Any) -> Learned:
    return Learned(at_s=0.0, state="done", **fields)


@pytest.mark.parametrize("found", [None, learned()])
def test_nothing_learned_and_nothing_wrong_says_nothing(found: Learned | None):
    assert learned_text(found) == ""


def test_why_nothing_was_learned_is_said():
    assert "disk full" in learned_text(learned(left_out="disk full"))


def test_what_was_told_before_and_after_stands_beside_the_truth():
    new = learned(num_windows=1, truth_s=0.05, after_s=0.051)
    assert learned_text(new) == (
        "graph network: nothing was known of this device before; after 1 window it tells 51 ms, "
        "50 ms is true (2% off)"
    )
    known = learned(
        num_windows=3, first_told_s=0.08, first_truth_s=0.05, truth_s=0.05, after_s=0.05
    )
    assert "it first told 80 ms a step and 50 ms was true (60% off); after 3 windows" in (
        learned_text(known)
    )
