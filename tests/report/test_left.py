"""What evaluation will take in the rest of a run."""

import time

import msgspec
import pytest
import torch
from samples import NOW_S, epoch_record
from training import make_loader, make_model

import scaledl
from scaledl.records import EpochRecord, PhaseRecord
from scaledl.report.left import PhaseTimes


def epoch(index: int) -> EpochRecord:
    """Epochs of 540 s, 600 s apart."""
    return msgspec.structs.replace(epoch_record(index), at_s=NOW_S + 600 * index)


def phase(at_s: float, duration_s: float = 50.0, kind: str = "eval") -> PhaseRecord:
    return PhaseRecord(kind=kind, at_s=at_s, duration_s=duration_s, after_step=1, epoch=0)


def behind(index: int) -> PhaseRecord:
    """An evaluation between this epoch and the next."""
    return phase(NOW_S + 600 * index + 5)


def test_unknown_until_a_phase_was_seen():
    times = PhaseTimes()
    assert times.left_s(3) is None
    times.add(epoch(0), ())
    assert times.left_s(3) is None


def test_evaluation_inside_each_epoch_comes_once_for_each_that_is_left():
    times = PhaseTimes()
    for index in range(2):
        times.add(epoch(index), (phase(NOW_S + 600 * index - 60),))
    assert times.left_s(3) == pytest.approx(150.0)


def test_evaluation_behind_each_epoch_comes_behind_the_last_one_too():
    times = PhaseTimes()
    times.add(epoch(0), ())
    times.add(epoch(1), (behind(0),))
    assert times.left_s(3) == pytest.approx(4 * 50.0)  # one begins now
    times.add(epoch(2), (behind(1),))
    assert times.left_s(3) == pytest.approx(4 * 50.0)


def test_evaluation_of_every_other_epoch_counts_half():
    times = PhaseTimes()
    for index in range(4):
        times.add(epoch(index), (phase(NOW_S + 600 * index - 60),) if index % 2 else ())
    assert times.left_s(10) == pytest.approx(10 * 25.0)


def test_what_precedes_the_first_epoch_and_a_pause_of_the_user_do_not_return():
    times = PhaseTimes()
    times.add(epoch(0), (phase(NOW_S - 560), phase(NOW_S - 60, kind="paused")))
    assert times.left_s(3) is None


def test_reports_of_a_run_hold_the_evaluation_that_was_seen(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("scaledl.reporter.REPORT_SHARE", 1e9)  # a report after each epoch
    model = make_model()
    loader = make_loader(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with scaledl.track(model, epochs=4, run_dir=tmp_path) as run:
        for _ in range(4):
            for x, y in loader:
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            with run.phase("eval"):
                time.sleep(0.3)
    said = " ".join(capfd.readouterr().err.split())
    for left in (3, 2):
        text = said[said.index(f"{left} epochs left") :]
        assert text[: text.index(")")].count("(evaluation and the like") == 1
    assert "against epoch 1" in said
