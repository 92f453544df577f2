"""Numbers to text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.errors import UsageError
from scaledl.units import (
    format_about,
    format_bytes,
    format_clock,
    format_count,
    format_energy,
    format_fraction,
    format_seconds,
    format_usd,
    parse_counts,
    parse_seconds,
    printable,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (2e-5, "20 us"),
        (0.0041, "4.1 ms"),
        (0.2154, "215 ms"),
        (0.9999, "1.0 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (540, "9.0 min"),
        (3599, "1 h 00 min"),
        (11400, "3 h 10 min"),
        (86399, "1 d 0 h"),
        (200000, "2 d 8 h"),
        (-90, "-90 s"),
        (None, "n/a"),
        (float("inf"), "n/a"),
        (float("nan"), "n/a"),
    ],
)
def test_seconds(value, text):
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "half_width", "text"),
    [
        (15030, 750, "4 h 10 min"),
        (15030, 4000, "4 h"),
        (33.7, 6, "35 s"),
        (33.7, 0.1, "34 s"),
        (5.2, 0.0, "5 s"),
        (300, 75, "5 min"),
        (190_000, 90_000, "2 d"),
        (0.4, 0.1, "under 1 s"),
        (0.0, 0.0, "under 1 s"),
        (float("nan"), 1.0, "n/a"),
    ],
)
def test_a_time_left_has_the_digits_that_its_doubt_allows(value, half_width, text):
    assert format_about(value, half_width) == text


@given(st.floats(1.0, 1e7), st.floats(0.0, 1e7))
def test_rounding_a_time_left_moves_it_by_no_more_than_its_doubt(value, half_width):
    text = format_about(value, half_width)
    unit_s = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    numbers, units = text.split()[::2], text.split()[1::2]
    shown_s = sum(float(n) * unit_s[u] for n, u in zip(numbers, units, strict=True))
    printed = (0.05 if "." in numbers[-1] else 0.5) * unit_s[units[-1]]
    assert abs(shown_s - value) <= max(0.5, half_width / 2) + max(0.5, printed) + 1e-6


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (format_bytes, 512, "512 B"),
        (format_bytes, 1536, "1.5 KiB"),
        (format_bytes, 80 * 2**30, "80.0 GiB"),
        (format_bytes, 3 * 2**40, "3.0 TiB"),
        (format_bytes, None, "n/a"),
        (format_count, 950, "950"),
        (format_count, 124e6, "124 M"),
        (format_count, 3.4e12, "3.4 T"),
        (format_count, None, "n/a"),
        (format_usd, 1.486, "$1.49"),
        (format_usd, 12300, "$12,300"),
        (format_usd, None, "n/a"),
        (format_usd, 0, "$0.00"),
        (format_usd, 0.99, "$0.99"),
        (format_usd, 0.996, "$1.00"),
        (format_usd, 0.05, "$0.050"),
        (format_usd, 0.00171, "$0.0017"),
        (format_usd, 1e-300, "<$0.000001"),
        (format_usd, float("inf"), "n/a"),
        (format_energy, 360, "0.1 Wh"),
        (format_energy, 1.2e6, "0.33 kWh"),
        (format_energy, None, "n/a"),
        (format_fraction, 0.94, "94 %"),
        (format_fraction, 0.003, "0.3 %"),
        (format_fraction, None, "n/a"),
    ],
)
def test_other_units(function, value, text):
    assert function(value) == text


def test_clock_names_the_day_once_it_is_another():
    now = 1_800_000_000.0
    assert len(format_clock(now, now)) == 5
    assert len(format_clock(now + 90_000, now)) > 5


def test_clock_of_a_time_no_calendar_has_is_text_all_the_same():
    for at_s in (1e12, 1e21, 1e300, float("inf"), float("nan")):
        assert format_clock(at_s, 1_800_000_000.0) == "after 9999"


@given(st.floats(0, 1e9))
def test_every_duration_has_a_text_of_two_units_at_most(value):
    assert 1 <= len(format_seconds(value).split()) / 2 <= 2


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("1.5h", 5400), ("30 min", 1800), ("2d", 172800), ("0s", 0)]
)
def test_durations_are_read(text, value):
    assert parse_seconds(text) == value


@pytest.mark.parametrize("text", ["", "x", "-3s", "3 weeks", "1h30"])
def test_what_is_no_duration_is_refused_with_the_value(text):
    with pytest.raises(UsageError, match="not a duration"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["90", " 12 ", "1.5", "0", "9" * 400])
def test_duration_without_a_unit_is_refused_not_guessed(text):
    with pytest.raises(UsageError, match=r"has no unit\. Write for example"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["9" * 400 + "h", "1" + "0" * 12 + "min"])
def test_duration_beyond_all_records_is_refused(text):
    with pytest.raises(UsageError, match="too long"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1,2,4", (1, 2, 4)), ("8-64", (8, 16, 32, 64)), ("1-10", (1, 2, 4, 8, 10)), ("4,4", (4,))],
)
def test_counts_are_read(text, counts):
    assert parse_counts(text) == counts


def test_count_that_is_none_by_its_size_is_named_with_the_limit():
    assert parse_counts("10000000") == (10**7,)
    for text in ("10000001", "1-99999999", "8-10000001"):
        with pytest.raises(UsageError, match="at most 10,000,000, got"):
            parse_counts(text)


def test_a_wide_range_is_a_few_doublings():
    assert parse_counts("1-100000") == (*(2**i for i in range(17)), 100_000)


@pytest.mark.parametrize("text", ["", ",", "0", "-1", "a", "8-4", "1.5", "9" * 11, "9" * 5000])
def test_bad_counts_are_refused(text):
    with pytest.raises(UsageError):
        parse_counts(text)


@given(st.text())
def test_X07_printable_text_has_no_control_character_and_one_line(text):
    shown = printable(text)
    assert shown.splitlines() in ([], [shown])
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    assert len(shown) <= 200
