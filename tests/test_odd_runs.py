"""Run folders that are odd: names, numbers at the ends of their ranges, disks that fail."""

import copy
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import INFO, NOW_S, RUN, run_lines, scaling_report, step_block, write_run

from scaledl import store
from scaledl.errors import ScaledlError, StoreError, UsageError
from scaledl.past import list_run_lines, open_run
from scaledl.records import Measurement, RunEnd, ScalingReport
from scaledl.report.lists import SILENT_S, render_runs
from scaledl.units import LATEST_S

# The ends of the ranges that records have, and values just within a float.
ENDS = (0, -1, 5e-324, 2**53, 1.7e308)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["x" * 5000, "a/" * 3000, "x\0y", "\x1b[31m", "nothing\nhere", "", ".." * 300 + "/x"],
    ids=lambda name: repr(name)[:12],
)
def test_a_name_that_is_no_name_is_no_run(name: str, tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(StoreError, match=f"no run .*Candidates: {RUN}") as caught:
        open_run(name, tmp_path)
    said = str(caught.value)
    assert len(said) < 300
    assert said.isprintable()


@pytest.mark.parametrize("name", [5, None, ["latest"], b"latest"], ids=repr)
def test_what_is_neither_text_nor_path_is_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="named by text or a path"):
        open_run(name, tmp_path)


def test_a_run_is_opened_by_the_path_that_the_tracker_tells(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    assert open_run(folder).info.run_id == RUN


@pytest.mark.parametrize("home", ["y" * 5000, "a\0b", "/dev/null", "~nobody-of-that-name/x"])
def test_a_home_that_cannot_be_is_empty(home: str) -> None:
    assert store.list_runs(Path(home)).runs == ()
    with pytest.raises(StoreError, match="no runs in"):
        open_run("latest", home)


def test_one_folder_that_cannot_be_looked_at_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path)
    closed = tmp_path / "runs" / "closed"
    closed.mkdir()
    for kind in ("is_dir", "is_file"):
        real = getattr(Path, kind)

        def look(self: Path, real: Any = real) -> bool:
            if closed in (self, self.parent):
                raise PermissionError(errno.EACCES, "Permission denied")
            return bool(real(self))

        monkeypatch.setattr(Path, kind, look)
    for home in (tmp_path, tmp_path / "runs"):
        assert [entry.folder for entry in store.list_runs(home).runs] == [folder]


# --- disks ---------------------------------------------------------------------------------------


def test_a_folder_that_goes_away_while_it_is_read_is_told(tmp_path: Path) -> None:
    past = open_run(write_run(tmp_path))
    for path in past.folder.iterdir():
        path.unlink()
    past.folder.rmdir()
    for ask in (past.render, past.what_if, past.line, lambda: past.state):
        with pytest.raises(StoreError, match=r"cannot read .*No such file"):
            ask()


def test_a_disk_that_fails_in_the_middle_of_a_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path)

    class Failing:
        def __enter__(self) -> "Failing":
            return self

        def __exit__(self, *exc: object) -> None:
            return

        def readline(self, most: int) -> bytes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(store, "_open_plain", lambda path: Failing())
    with pytest.raises(StoreError, match=r"cannot read .*Stale file handle"):
        list(store.read_lines(folder))
    monkeypatch.undo()
    assert len(list(store.read_lines(folder))) == len(run_lines())


# --- numbers -------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each number inside, and each group of them."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            if isinstance(each, dict | list | int | float) and not isinstance(each, bool):
                yield from places(each, (*path, key))


def with_numbers(value: Any, path: tuple[Any, ...], number: float) -> Any:
    """A copy in which every number at or below ``path`` is ``number``."""
    if path:
        changed = copy.copy(value)
        changed[path[0]] = with_numbers(value[path[0]], path[1:], number)
        return changed
    if isinstance(value, dict):
        return {k: v if k == "schema" else with_numbers(v, (), number) for k, v in value.items()}
    if isinstance(value, list):
        return [with_numbers(each, (), number) for each in value]
    return number if isinstance(value, int | float) and not isinstance(value, bool) else value


def odd_runs() -> Iterator[tuple[Any, list[Any]]]:
    """Head and records, in each case one number or one group of numbers at an end of a range."""
    head, lines = msgspec.to_builtins(INFO), [msgspec.to_builtins(line) for line in run_lines()]
    report = next(line for line in lines if line["type"] == "ScalingReport")
    report["rows"] = report["rows"][::3]  # the measured one is no longer where it was
    report["measured_index"] = None
    for number in ENDS:
        for path in places(head):
            yield with_numbers(head, path, number), lines
        for index, line in enumerate(lines):
            for path in places(line):
                odd = with_numbers(line, path, number)
                yield head, [*lines[:index], odd, *lines[index + 1 :]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_numbers_within_their_ranges_are_shown_or_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    shown, refused = 0, set()
    for head, lines in odd_runs():
        (folder / "run.json").write_bytes(msgspec.json.encode(head))
        encoded = [msgspec.json.encode(line) for line in lines]
        (folder / "rank0.jsonl").write_bytes(b"\n".join(encoded) + b"\n")
        try:
            past = open_run("latest", tmp_path)
            past.render(layers=3, comm=True, now_s=NOW_S)
            past.render("json", layers=3, comm=True)
            render_runs(list_run_lines(tmp_path).lines, now_s=NOW_S)
            str(past.what_if([8], now_s=NOW_S))
            shown += 1
        except ScaledlError as error:
            refused.add(str(error))
    assert shown > 300
    assert all(text.isprintable() for text in refused)


@pytest.mark.parametrize("at_s", [0.0, 1.0, 1e9, 32536799999.0, 1e11, LATEST_S])
def test_a_run_of_any_date_is_listed(at_s: float, tmp_path: Path) -> None:
    write_run(
        tmp_path,
        msgspec.structs.replace(INFO, started_at=at_s),
        lines=(step_block(at_s=at_s),),
    )
    text = render_runs(list_run_lines(tmp_path).lines, now_s=at_s)
    assert RUN in text
    assert len(text.splitlines()[1].split()[0].split("-")) == 3


def test_a_report_whose_own_row_is_not_there_is_unreadable(tmp_path: Path) -> None:
    line = msgspec.to_builtins(scaling_report())
    for index in (-1, len(line["rows"]), 2**60):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(line | {"measured_index": index}, ScalingReport)


# --- how a run ended -----------------------------------------------------------------------------


def listed(tmp_path: Path, *lines: Any, now_s: float) -> str:
    write_run(tmp_path, lines=lines)
    (line,) = list_run_lines(tmp_path).lines
    text = render_runs((line,), now_s=now_s).splitlines()[1]
    shown = open_run("latest", tmp_path).render(now_s=now_s).splitlines()[1]
    assert text.split("  ")[-1].strip() in shown
    return shown


def test_a_run_without_an_end_is_running_while_it_gives_signs_and_then_perhaps_killed(
    tmp_path: Path,
) -> None:
    block = step_block(at_s=NOW_S)
    assert listed(tmp_path, block, now_s=NOW_S + SILENT_S - 1).endswith(", running")
    killed = listed(tmp_path, block, now_s=NOW_S + SILENT_S + 1)
    assert "killed? after 100 steps (no end was recorded; last sign 20" in killed
    (line,) = list_run_lines(tmp_path).lines
    assert (line.state, line.last_at) == ("not ended", NOW_S)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("interrupted", "interrupted after 300 steps"),
        ("stopped-early", "stopped early after 300 steps"),
        ("exception", "error after 300 steps"),
        ("finished", "finished"),
    ],
)
def test_how_a_run_ended_is_said_with_its_steps(outcome: Any, said: str, tmp_path: Path) -> None:
    end = RunEnd(at_s=NOW_S, step=300, outcome=outcome)
    assert listed(tmp_path, step_block(), end, now_s=NOW_S + 1e6).endswith(f", {said}")


def test_measurements_of_no_time_at_all_are_not_read() -> None:
    (base,) = (line for line in run_lines() if isinstance(line, Measurement))
    for step_s in (0.0, 5e-324, 1e-300):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(msgspec.to_builtins(base) | {"step_s": step_s}, Measurement)
