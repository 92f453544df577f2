"""The interval chart where there is little or nothing to draw."""

import msgspec
import pytest
from samples import scaling_report, scaling_row

from scaledl.records import Interval, ScalingReport
from scaledl.report.chart import LEAST_S, MOST_S, interval_chart
from scaledl.report.text import Style
from scaledl.report.whatif_text import render_report

WIDTHS = (20, 60, 72, 90, 96, 200)


def with_steps(report: ScalingReport, *spans: tuple[float, float, float]) -> ScalingReport:
    """The report with these (low, mean, high) step times for its first rows, and no others."""
    rows = tuple(
        msgspec.structs.replace(row, step_s=Interval(low=low, mean=mean, high=high))
        for row, (low, mean, high) in zip(report.rows, spans, strict=False)
    )
    return msgspec.structs.replace(report, rows=rows, measured_index=None)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "spans",
    [
        [(0.0, 0.0, 0.0)] * 4,
        [(0.0, 0.1, 0.2)] * 4,
        [(-1.0, -0.5, -0.1)] * 4,
        [(5e-324, 5e-324, 5e-324)] * 4,
        [(1e308, 1.7e308, 1.7e308)] * 4,
        [(5e-324, 1.0, 1.7e308)] * 4,
        [(0.1, 0.1, 0.1)],
        [],
    ],
    ids=repr,
)
def test_what_cannot_stand_on_a_logarithmic_axis_has_no_chart(spans, width):
    report = with_steps(scaling_report(), *spans)
    for fixed_global in (True, False):
        style = Style(width=width)
        assert interval_chart(list(report.rows), None, style, fixed_global=fixed_global) == []
    assert "What if" in render_report(report, width=max(60, width))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("step_s", [LEAST_S * 64, 1e-6, 0.1, 1e6, MOST_S])
def test_equal_times_are_drawn_on_one_line_each(step_s, width):
    report = with_steps(scaling_report(), *[(step_s, step_s, step_s)] * 4)
    for fixed_global in (True, False):
        lines = interval_chart(
            list(report.rows), report.rows[0], Style(width=width), fixed_global=fixed_global
        )
        assert [line.split()[0] for line in lines[:4]] == ["1", "2", "4", "8"]


def test_the_marks_before_the_counts_are_explained_where_they_stand():
    for unicode, advised, now in ((True, "\u25b8", "\u25cf"), (False, ">", "*")):
        text = render_report(scaling_report(), unicode=unicode)
        assert f"{advised} advised  {now} as now" in text.splitlines()[0]
    alone = msgspec.structs.replace(scaling_report(), recommendation=None, measured_index=None)
    assert "advised" not in render_report(alone)
    narrow = render_report(scaling_report(), width=50).splitlines()
    assert "advised" in narrow[0] + narrow[1]


def test_small_costs_keep_two_digits():
    row = scaling_row(1, 2.0, 1.9, 2.1)
    rows = tuple(
        msgspec.structs.replace(row, num_gpus=n, cost_usd=usd)
        for n, usd in ((1, 0.0001234), (2, 0.0234), (4, 0.0))
    )
    text = render_report(msgspec.structs.replace(scaling_report(), rows=rows, measured_index=0))
    for cost in ("$0.00012", "$0.023", "$0.00 "):
        assert cost in text
