"""The baselines and the cutting of tasks in benchmarks/whatif_*.py."""

import json
import math
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from whatif_baselines import BASELINES, equation_15, ernest, hold, ideal, mean_relative_error
from whatif_data import (
    Row,
    floor_of,
    group_jobs,
    is_dense,
    regime_of,
    tasks_of,
    thinned,
)
from whatif_experience import cases_of, lived
from whatif_ours import tell
from whatif_pollux import PolluxFit, fit_pollux
from whatif_scores import Score, add_conformal, cell_rows, ratio_interval, winkler
from whatif_tables import read_tables

from scaledl.predictor.experience import fit, shipped
from scaledl.records import Interval

TRUE = PolluxFit(parameters=(0.05, 0.004, 0.12, 0.003, 0.06, 0.002, 2.0))
PROGRAM = Path(__file__).parent.parent / "benchmarks" / "whatif_accuracy.py"


def row(num_gpus: int, num_nodes: int = 1, batch: int = 32, step_s: float = 1.0, **more: object):
    told = {"model": "m", "cluster": "c", "gpu": "V100", "sync_s": 0.1 * step_s, **more}
    return Row(num_gpus=num_gpus, num_nodes=num_nodes, batch=batch, step_s=step_s, **told)


def exact(num_gpus: int, num_nodes: int, batch: int, model: str = "m") -> Row:
    """A row where Pollux's model is the truth."""
    step_s = TRUE.step_s(num_nodes, num_gpus, batch)
    compute_s = TRUE.step_s(1, 1, batch)
    return row(num_gpus, num_nodes, batch, step_s, sync_s=step_s - compute_s, model=model)


def exact_rows(model: str = "m") -> list[Row]:
    shapes = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (16, 4)]
    return [exact(n, nodes, b, model) for n, nodes in shapes for b in (8, 16, 32, 64)]


def test_pollux_recovers_a_table_its_model_is_exact_for() -> None:
    rows = exact_rows()
    fitted = BASELINES["pollux"](rows)
    assert mean_relative_error(fitted, rows) < 0.01
    unseen = [exact(12, 3, 24), exact(3, 1, 48)]
    assert mean_relative_error(fitted, unseen) < 0.02


def test_pollux_assumes_little_of_what_it_never_saw() -> None:
    rows = [r for r in exact_rows() if not r.crosses]
    fitted = fit_pollux(*_columns(rows))
    assert fitted.step_s(2, 2, 32) == pytest.approx(fitted.step_s(1, 2, 32), rel=0.1)
    assert fitted.step_s(2, 2, 32) < TRUE.step_s(2, 2, 32)


def _columns(rows: list[Row]) -> tuple[np.ndarray, ...]:
    return (
        np.array([r.num_nodes for r in rows]),
        np.array([r.num_gpus for r in rows]),
        np.array([float(r.batch) for r in rows]),
        np.array([r.step_s for r in rows]),
        np.array([r.sync_s for r in rows]),
    )


def test_hold_takes_the_largest_count_of_that_batch_and_like_rows_first() -> None:
    seen = [row(1, step_s=1.0), row(4, step_s=2.0), row(4, 2, step_s=3.0), row(8, batch=64)]
    assert hold(seen)(row(8)) == 2.0
    assert hold(seen)(row(8, 2)) == 3.0


def test_ideal_is_the_step_of_one_gpu_or_the_step_without_waiting() -> None:
    assert ideal([row(1, step_s=1.0), row(4, step_s=2.0)])(row(8)) == 1.0
    assert ideal([row(4, step_s=2.0, sync_s=0.5)])(row(8)) == 1.5


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (ernest, lambda n, b: 0.1 + 0.01 * b + 0.05 * math.log(n) + 0.02 * n),
        (equation_15, lambda n, b: 0.1 + 0.01 * b + 0.3 * 2 * (n - 1) / n + 0.01 * 2 * (n - 1)),
    ],
)
def test_linear_baselines_recover_their_own_law(make, law) -> None:
    seen = [row(n, batch=b, step_s=law(n, b)) for n in (1, 2, 4, 8) for b in (8, 16, 32)]
    assert make(seen)(row(16, batch=64)) == pytest.approx(law(16, 64), rel=1e-6)


def test_a_regime_tells_what_a_forecast_has_to_bridge() -> None:
    inside, across = [row(2), row(4)], [row(2), row(8, 2)]
    assert regime_of(row(8), inside) == "within a node"
    assert regime_of(row(8, 2), inside) == "first crossing"
    assert regime_of(row(16, 4), across) == "nodes crossed"
    assert regime_of(row(4), across) == "within a node"


def test_dense_rows_use_no_more_nodes_than_they_need() -> None:
    assert is_dense(row(8, 2), 4)
    assert not is_dense(row(8, 3), 4)
    assert is_dense(row(3, 1), 4)


def test_tasks_ask_only_for_counts_that_were_not_seen() -> None:
    (job,) = group_jobs(exact_rows())
    tasks = {(t.scope, t.name): t for t in tasks_of(job)}
    dense = tasks["dense", "1,2,4 -> 8"]
    assert {r.num_gpus for r in dense.seen} == {1, 2, 4}
    assert not any(r.crosses for r in dense.seen)
    assert {(r.num_gpus, r.num_nodes) for r in dense.asked} == {(8, 2)}
    assert any(r.crosses for r in tasks["all", "1,2,4 -> 8"].seen)
    for task in tasks.values():
        if task.group != "in-sample":
            assert not {r.num_gpus for r in task.seen} & {r.num_gpus for r in task.asked}
    assert ("dense", "8 -> 32") not in tasks


def test_scaledl_is_told_the_seen_rows_and_answers_every_asked_one() -> None:
    (job,) = group_jobs(exact_rows())
    task = next(t for t in tasks_of(job) if t.name == "1,2 -> 4" and t.scope == "dense")
    answers = [t.answer(shipped()) for t in tell(task, link_known=False)]
    assert len(answers) == len(task.asked) == 4
    for asked, answer in zip(task.asked, answers, strict=True):
        assert answer.low <= answer.mean <= answer.high
        assert answer.mean == pytest.approx(asked.step_s, rel=0.3)


def test_a_job_is_never_answered_from_its_own_model_or_for_the_prior_from_its_cluster() -> None:
    rows = [
        r
        for model in ("m", "n")
        for cluster in ("c", "d")
        for r in (replace(x, cluster=cluster) for x in exact_rows(model))
    ]
    told = [t for job in group_jobs(rows) for task in tasks_of(job) for t in tell(task, False)]
    cases = cases_of(told, link_known=False)
    strange = [c for c in cases if c.job not in ("c/n", "d/n")]
    assert {c.job for c in strange} == {"c/m", "d/m"}
    kept = [c for c in cases if c.job in ("c/n", "d/n")]
    assert lived(cases, "c", "m") == lived(kept, "c", "m")
    prior, own = lived(cases, "c", "m")
    assert prior == fit([c for c in cases if c.job == "d/n"])
    assert own != prior


def test_thinning_keeps_both_ends_and_the_limit() -> None:
    rows = [row(1, batch=b) for b in range(1, 101)]
    kept = thinned(rows, 7)
    assert (len(kept), kept[0].batch, kept[-1].batch) == (7, 1, 100)
    assert thinned(rows, 100) == rows


def test_the_floor_is_the_spread_of_equal_settings() -> None:
    spread = floor_of([row(2, step_s=1.0), row(2, step_s=1.2), row(4, step_s=9.0)])
    assert spread == pytest.approx((0.2, 0.1))
    assert floor_of([row(2), row(4)]) is None


def score(model: str, truth_s: float, **forecasts_s: float) -> Score:
    return Score(
        model=model,
        cluster="c",
        scope="dense",
        regime="within a node",
        group="single count",
        task="1 -> 2",
        truth_s=truth_s,
        forecasts_s=forecasts_s,
    )


def test_a_model_with_many_rows_counts_as_one() -> None:
    scores = [score("a", 1.0, x=1.1)] * 9 + [score("b", 1.0, x=1.3)]
    (cell,) = cell_rows(scores, ["x"])
    assert cell["mean_mre"] == pytest.approx(statistics.fmean([0.1, 0.3]))


def test_equal_forecasts_have_a_ratio_of_one() -> None:
    scores = [score(m, 1.0, x=v, y=v) for m, v in (("a", 1.1), ("b", 1.4), ("c", 0.8))]
    assert ratio_interval(scores, "x", "y", draws=50) == pytest.approx((1.0, 1.0))


def test_conformal_widths_come_from_the_other_models_only() -> None:
    scores = [score("a", 1.0, x=2.0), score("b", 1.0, x=1.0), score("c", 1.0, x=1.0)]
    add_conformal(scores, "x", "label")
    by_model = {s.model: s.intervals["label"] for s in scores}
    assert by_model["a"].high == by_model["a"].low == 2.0
    assert by_model["b"].high == pytest.approx(2.0)


def test_a_miss_costs_twenty_times_its_size_at_the_90_percent_level() -> None:
    interval = Interval(mean=1.0, low=0.9, high=1.1, level=0.9)
    assert winkler(interval, 1.0) == pytest.approx(0.2)
    assert winkler(interval, 2.0) == pytest.approx((0.2 + 20 * 0.9) / 2)


def test_the_program_scores_a_table_it_never_saw_and_checks_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "throughput.csv"
    names = "model,cluster,gpu,placement,num_nodes,num_replicas,local_bsz,step_time_s,sync_time_s"
    lines = [
        f"{m},c,V100,,{r.num_nodes},{r.num_gpus},{r.batch}.0,{r.step_s},{r.sync_s}"
        for m in ("a", "b")
        for r in exact_rows(m)
    ]
    path.write_text("\n".join([names, *lines]) + "\n")
    (tmp_path / "README.md").write_text("| model | rows | fit_all |\n| a | 28 | 0.009 | 0.1 |\n")
    assert len(read_tables([path])) == 2
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--table", str(path), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == "whatif_accuracy"
    kinds = {r["kind"] for r in found["results"]}
    assert kinds >= {"overall", "task", "cell", "interval", "floor", "pollux check"}
    assert {b["name"][0] for b in found["bars"]} >= set("abcdef")
