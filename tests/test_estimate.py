"""``scaledl.estimate``: what is told before anything ran, how sure it is, and what it refuses."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import example
from torch import nn

import scaledl
from scaledl.learning.launch import state_file
from scaledl.predictor.online import OnlineLearner
from scaledl.predictor.untried import DOUBT_LOG_SIGMA, doubt_after, doubt_of


def net(width: int = 1024) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def told(width: int = 1024, batch: int = 512, **options: Any) -> scaledl.ScalingReport:
    options.setdefault("cluster", "A100")
    return scaledl.estimate(net(width), torch.zeros(batch, width), **options)


def test_every_row_is_a_prior_with_a_wide_interval_and_no_row_is_as_now():
    report = told(gpus=[1, 2, 8], steps_per_epoch=100, epochs=3)
    assert [row.num_gpus for row in report.rows] == [1, 2, 8]
    assert {row.basis for row in report.rows} == {"prior"}
    assert all(row.step_s.high / row.step_s.low > 2 for row in report.rows)
    assert report.measured_index is None
    assert report.rows[0].remaining_s is not None
    assert report.rows[0].epoch_s is not None
    assert report.rows[0].remaining_s.mean == pytest.approx(3 * report.rows[0].epoch_s.mean)
    assert "as now" not in str(report)
    assert report.caveats[0] == "not-run" or "not-run" in report.caveats
    assert "one-count-only" not in report.caveats


def test_more_work_takes_longer_and_a_faster_gpu_less():
    step_s = told().rows[0].step_s.mean
    assert told(batch=2048).rows[0].step_s.mean > step_s
    assert told(width=2048).rows[0].step_s.mean > step_s
    assert told(cluster="H100").rows[0].step_s.mean < told(cluster="V100").rows[0].step_s.mean


def test_price_memory_and_strategies_are_told_as_in_any_report():
    report = told(gpus=[1, 8], steps_per_epoch=100, usd_per_gpu_hour=2.0, strategies="fsdp")
    assert report.rows[0].cost_usd is not None
    assert report.rows[0].fits is True
    assert {row.strategy for row in report.compared} == {"fsdp"}


def test_of_a_device_that_nobody_measured_nothing_is_told():
    with pytest.raises(scaledl.ScaledlError, match="nothing is known of"):
        scaledl.estimate(net(64), torch.zeros(8, 64))


def test_what_earlier_runs_taught_is_used_on_the_device_they_ran_on():
    learner = OnlineLearner()
    for step_s in (0.2, 0.21, 0.2):
        learner.learn(example(step_s, model="other"))
    learner.first_errors = [0.1] * 12
    file = state_file(Path(os.environ["SCALEDL_HOME"]), "cpu")
    learner.save(file)
    report = scaledl.estimate(net(64), torch.zeros(8, 64), gpus=[1])
    assert report.cpu_run
    row = report.rows[0]
    assert row.basis == "prior"
    assert row.step_s.high / row.step_s.low < 3.0, "twelve jobs that were told within 10 %"
    file.write_bytes(b"damaged")
    with pytest.raises(scaledl.ScaledlError, match="nothing is known of"):
        scaledl.estimate(net(64), torch.zeros(8, 64))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster": "Z9000"}, "no GPU 'Z9000'"),
        ({"cluster": 7}, "cluster must be"),
        ({"epochs": 0}, "epochs"),
        ({"num_samples": -1}, "num_samples"),
        ({"gpus": [0]}, "0"),
        ({"usd_per_gpu_hour": -1}, "usd_per_gpu_hour"),
        ({"batch_rule": "x"}, "batch rule"),
        ({"level": 2}, "level"),
    ],
)
def test_arguments_that_cannot_be_are_named(options: dict[str, Any], words: str):
    with pytest.raises(scaledl.ScaledlError, match=words):
        told(width=64, batch=8, **options)


def test_doubt_starts_from_the_public_figure_and_follows_what_was_told():
    assert doubt_of([]) == doubt_after([]) == DOUBT_LOG_SIGMA
    assert doubt_after([0.0] * 100) < 0.1
    assert doubt_after([1.0] * 100) > 0.9
    assert doubt_of([0.3, -0.3]) == pytest.approx(0.3)
