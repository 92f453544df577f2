"""What is shown without any display module, and what tracking says of its own cost."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from training import make_model, quietly, train

import scaledl
from scaledl.records import RunEnd
from scaledl.store import read_lines
from scaledl.units import format_fraction

DISPLAY = ("ipywidgets", "IPython", "tqdm", "tqdm.auto", "rich", "colorama", "matplotlib", "curses")


class Broken(types.ModuleType):
    """A display module that is there and fails at every touch."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("kind", ["missing", "broken"])
def test_U05_without_optional_display_modules_it_falls_back_to_text(
    kind: str,
    is_terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in DISPLAY:
        monkeypatch.setitem(sys.modules, name, None if kind == "missing" else Broken(name))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    model = make_model()
    train("plain", lambda m: scaledl.track(m, run_dir=tmp_path), num_steps=20, model=model)
    said = capsys.readouterr().err
    assert "done: 20 steps" in said
    assert "an epoch is one pass" in said


def test_U17_the_cost_that_is_shown_is_that_of_the_status_and_of_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []

    def tracked(model: Any) -> Any:
        runs.append(scaledl.track(model, run_dir=tmp_path))
        return runs[0]

    train("plain", tracked, num_steps=40)
    said = capsys.readouterr().err
    (run,) = runs
    cost = run.status()["overhead_fraction"]
    assert cost > 0
    (end,) = [line for line in read_lines(run.folder) if isinstance(line, RunEnd)]
    assert end.overhead_fraction == cost
    shown = re.findall(r"tracking cost (\S+ ?%)", said[said.rindex("done: ") :])
    assert shown == [format_fraction(cost)]


def test_E13_a_run_left_early_is_recorded_and_told_as_stopped_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track = lambda m: scaledl.track(m, run_dir=tmp_path, total_steps=100)  # noqa: E731
    train("plain", track, num_steps=30)
    (folder,) = tmp_path.iterdir()
    (end,) = [line for line in read_lines(folder) if isinstance(line, RunEnd)]
    assert (end.outcome, end.step) == ("stopped-early", 30)
    assert "stopped early: 30 steps" in capsys.readouterr().err


def test_U17_the_cost_is_unknown_and_not_zero_before_any_step(tmp_path: Path) -> None:
    with quietly(run_dir=tmp_path)(make_model()) as run:
        assert run.status()["overhead_fraction"] is None
