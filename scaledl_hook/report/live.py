"""The live line: one line on a terminal, sparse lines in a log; ``pace`` says when.

Pure functions that return text. Fields keep their order and place, so that the eye finds them
and ``grep`` does; on a narrow terminal the less needed ones are left out.
"""

import time

from scaledl.records import Eta, Interval, Progress
from scaledl.report.pace import LinePolicy, Shown
from scaledl.report.when import (
    SECONDS_BELOW_S,
    is_near,
    limit_text,
    needs_seconds,
    reached_text,
    when_text,
)
from scaledl.units import (
    LATEST_S,
    format_about,
    format_clock,
    format_seconds,
    format_usd,
    printable,
)

__all__ = [
    "LinePolicy",
    "Shown",
    "is_beyond",
    "render_change",
    "render_line",
    "render_log_line",
]

NAME = "scaledl  "
MAX_WIDTH = 100


def _step_field(progress: Progress) -> str:
    total = progress.total_steps
    if total is None:
        return f"step {progress.step}"
    return f"step {progress.step:>{len(str(total))}}/{total}"


def _epoch_number(progress: Progress) -> int:
    """The running epoch as people count, from 1; at the end of the last one still the last."""
    number = progress.epoch + 1
    return number if progress.num_epochs is None else min(number, progress.num_epochs)


def _epoch_field(progress: Progress) -> str:
    if progress.num_epochs is None and progress.steps_per_epoch is None:
        return ""
    number = _epoch_number(progress)
    if progress.num_epochs is None:
        return f"epoch {number}"
    return f"epoch {number}/{progress.num_epochs}"


def is_beyond(progress: Progress) -> bool:
    """Whether training goes on after its planned end."""
    return progress.total_steps is not None and progress.step > progress.total_steps


def _end_name(progress: Progress) -> str:
    """What ends the run, where ``epochs`` was given but is not what ends it."""
    if progress.limited_by in (None, "epochs") or progress.num_epochs is None:
        return ""
    return f"until {progress.limited_by}"


def _left_text(at_s: float, now_s: float, left: Interval, about: str, tail: str) -> str:
    """How long it is to ``at_s``, with the digits that its interval allows."""
    if is_near(at_s, now_s, left):
        return ""  # it was said beside the time of day
    doubt_s = (left.high - left.low) / 2
    return f"{about}{format_about(max(at_s - now_s, 0.0), doubt_s)} {tail}"


def _join(lead: str, fields: list[tuple[int, str]], width: int, *, unicode: bool) -> str:
    """The line with its fields in order; those of the highest rank go first where it is full."""
    fields = [(rank, text) for rank, text in fields if text]
    width = min(width, MAX_WIDTH)
    line = lead + ", ".join(text for _, text in fields)
    while len(line) > width and len(fields) > 1:
        worst = max(range(len(fields)), key=lambda i: fields[i][0])
        if fields[worst][0] == 0:
            break
        del fields[worst]
        line = lead + ", ".join(text for _, text in fields)
    if len(line) <= width:
        return line
    dots = "…" if unicode else "..."
    return line[: max(width - len(dots), 0)] + dots[: max(width, 0)]


def render_line(
    eta: Eta | None,
    progress: Progress,
    *,
    step_s: float | None,
    now_s: float,
    width: int,
    unicode: bool,
    usd_per_hour: float | None = None,
    learning: tuple[int, int] | None = None,
    note: str = "",
) -> str:
    """The line of a terminal, at most ``width`` columns and never more than 100.

    Until a number is earned it carries ``~`` and the word prior, and ``learning`` (steps seen,
    steps wanted) says what is missing. ``note`` is a short clause for the line's end.
    """
    if is_beyond(progress):
        return _beyond_line(eta, progress, step_s, now_s, width, unicode=unicode)
    is_prior = eta is not None and eta.basis == "prior"
    about = "~" if is_prior or learning is not None else ""
    fields = _time_fields(eta, progress, now_s, about, is_prior=is_prior)
    if learning is not None:
        fields.append((1, f"learning: {learning[0]} of {learning[1]} steps"))
    elif usd_per_hour is not None:
        fields.append((4, f"{format_usd(usd_per_hour)}/h"))
    if note:
        fields.append((5, printable(note)))
    if not fields:
        fields = [(0, "no step seen yet")]
    pace = about + format_seconds(step_s) if step_s is not None else ""
    # the epoch waits until there is room beside what is being learned
    epoch = _epoch_field(progress) if learning is None else ""
    lead = _lead((epoch, _step_field(progress), pace), fields[0][1], width)
    return _join(lead, fields, width, unicode=unicode)


def _lead(place: tuple[str, str, str], first: str, width: int) -> str:
    """Where the run stands; without epoch, then without pace too where ``first`` has no room."""
    epoch, step, pace = place
    lead = ""
    for parts in ((epoch, step, pace), (step, pace), (step,)):
        lead = NAME + ", ".join(text for text in parts if text) + ": "
        if len(lead) + len(first) <= width:
            break
    return lead


def _time_fields(
    eta: Eta | None, progress: Progress, now_s: float, about: str, *, is_prior: bool
) -> list[tuple[int, str]]:
    if eta is None or eta.remaining_s is None or eta.finish_at is None:
        return _epoch_time_fields(eta, progress, now_s, about)
    word = "prior" if is_prior else ""
    when = when_text(eta, eta.remaining_s, now_s, about, word)
    if eta.limit is not None and eta.limit.is_sure:
        return [
            (0, f"ends with the {limit_text(eta.limit, now_s)}"),
            (1, reached_text(eta.limit)),
            (2, f"all of it {when}"),
        ]
    return [
        (0, f"done {when}"),
        (2, _left_text(eta.finish_at, now_s, eta.remaining_s, about, "left")),
        (1, _end_name(progress)),
        (1, _limit_field(eta, now_s)),
    ]


def _limit_field(eta: Eta | None, now_s: float) -> str:
    return "" if eta is None or eta.limit is None else limit_text(eta.limit, now_s)


def _epoch_time_fields(
    eta: Eta | None, progress: Progress, now_s: float, about: str
) -> list[tuple[int, str]]:
    """What can be said while the run's end is unknown."""
    unknown = (3, "total unknown") if progress.total_steps is None else (3, "")
    if eta is None or eta.epoch_remaining_s is None:
        return [unknown] if eta is not None else []
    left = eta.epoch_remaining_s
    ends_at = eta.at_s + left.mean
    return [
        (0, f"epoch done {when_text(eta, left, now_s, about)}"),
        (2, _left_text(ends_at, now_s, left, about, "left in the epoch")),
        (1, _limit_field(eta, now_s)),
        unknown,
    ]


def _beyond_line(
    eta: Eta | None,
    progress: Progress,
    step_s: float | None,
    now_s: float,
    width: int,
    *,
    unicode: bool,
) -> str:
    assert progress.total_steps is not None
    over = progress.step - progress.total_steps
    fields = [(0, f"{over} step{'s' if over > 1 else ''} beyond planned end")]
    fields.append((1, f"planned were {progress.total_steps}"))
    fields.append((2, _limit_field(eta, now_s)))
    pace = f", {format_seconds(step_s)}" if step_s is not None else ""
    return _join(f"{NAME}step {progress.step}{pace}: ", fields, width, unicode=unicode)


# --- logs --------------------------------------------------------------------------------------


def _iso(at_s: float, *, seconds: bool = False) -> str:
    at = time.gmtime(min(at_s, LATEST_S))
    return time.strftime("%Y-%m-%dT%H:%M:%SZ" if seconds else "%Y-%m-%dT%H:%MZ", at)


def render_log_line(
    eta: Eta | None, progress: Progress, *, step_s: float | None, now_s: float
) -> str:
    """The line of a log file: UTC, ``key=value``, no control characters."""
    total = "" if progress.total_steps is None else f"/{progress.total_steps}"
    parts = [_iso(now_s, seconds=True), "scaledl"]
    if progress.num_epochs is not None or progress.steps_per_epoch is not None:
        of = "" if progress.num_epochs is None else f"/{progress.num_epochs}"
        parts.append(f"epoch={_epoch_number(progress)}{of}")
    parts.append(f"step={progress.step}{total}")
    if step_s is not None:
        parts.append(f"step_ms={step_s * 1e3:.3g}" if step_s < 1 else f"step_ms={step_s * 1e3:.0f}")
    if is_beyond(progress):
        return " ".join([*parts, "beyond_planned_end=true", *_log_limit(eta)])
    if eta is not None and eta.remaining_s is not None and eta.finish_at is not None:
        parts += _log_times("", eta, eta.remaining_s, now_s)
    elif eta is not None and eta.epoch_remaining_s is not None:
        parts += [*_log_times("epoch_", eta, eta.epoch_remaining_s, now_s), "total=unknown"]
    elif eta is not None and progress.total_steps is None:
        parts.append("total=unknown")
    if eta is not None and eta.step_s is not None:
        parts.append(f"basis={eta.basis}")
    if eta is not None and eta.limit is not None and eta.limit.is_sure:
        parts.append("until=time-limit")
    elif _end_name(progress):
        parts.append(f"until={progress.limited_by}")
    return " ".join([*parts, *_log_limit(eta)])


def _log_limit(eta: Eta | None) -> list[str]:
    """The job's time limit where it may come first, and how far the run will be by then."""
    if eta is None or eta.limit is None:
        return []
    limit = eta.limit
    told = [f"limit={_iso(limit.at)}"]
    if limit.is_sure and limit.epochs is not None:
        told.append(f"limit_epoch={limit.epochs[0] + 1}-{limit.epochs[1] + 1}")
    elif limit.is_sure and limit.steps is not None:
        told.append(f"limit_step={limit.steps[0]}-{limit.steps[1]}")
    return told


def _log_times(prefix: str, eta: Eta, left: Interval, now_s: float) -> list[str]:
    """Seconds that are left, then the time of day, each with both ends of its interval."""
    ends_s = [eta.at_s + value_s for value_s in (left.mean, left.low, left.high)]
    names = (f"{prefix}left_s", f"{prefix}left_low_s", f"{prefix}left_high_s")
    decimals = 0 if left.high - left.low >= 10 else 1
    said = [
        f"{name}={max(at_s - now_s, 0.0):.{decimals}f}"
        for name, at_s in zip(names, ends_s, strict=True)
    ]
    mean, low, high = (_iso(at_s, seconds=needs_seconds(left)) for at_s in ends_s)
    day = mean[:11]
    short = [t[11:-1] if t.startswith(day) else t for t in (low, high)]
    times = [f"{prefix}eta={mean}", f"{prefix}eta_low={short[0]}", f"{prefix}eta_high={short[1]}"]
    return said + times


# --- changes ------------------------------------------------------------------------------------


def render_change(old: Eta, new: Eta, now_s: float, *, unicode: bool = False) -> str:
    """What moved and why: ``ETA 14:05 -> 14:31 (+26 min): steps 12 % slower since step 5480``."""
    if old.finish_at is None or new.finish_at is None:
        return f"{NAME}{printable(new.changed_because)}"
    arrow = "→" if unicode else "->"
    moved = new.finish_at - old.finish_at
    sign = "+" if moved >= 0 else "-"
    seconds = abs(moved) < SECONDS_BELOW_S
    before, after = (
        format_clock(eta.finish_at, now_s, seconds=seconds)
        for eta in (old, new)
        if eta.finish_at is not None
    )
    text = f"{NAME}ETA {before} {arrow} {after} ({sign}{format_seconds(abs(moved))})"
    return f"{text}: {printable(new.changed_because)}" if new.changed_because else text
