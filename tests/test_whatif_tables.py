"""The forms of published tables and how they are cut: benchmarks/whatif_tables.py."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from whatif_baselines import hold, ideal
from whatif_data import Row, comparable, exposed_s, group_jobs, tasks_of
from whatif_experience import cases_of, lived
from whatif_ours import measurement_of, tell
from whatif_tables import read_tables

from scaledl.predictor.experience import Experience


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, lines[0].keys())
        writer.writeheader()
        writer.writerows(lines)
    return path


def gavel(n_gpus: int, placement: str = "consolidated", **more: object) -> dict[str, object]:
    line = {
        "file": "physical",
        "model": "LM",
        "batch_size_per_gpu": "20",
        "gpu": "k80",
        "placement": placement,
        "n_gpus": n_gpus,
        "iteration_time_s": 0.1 * n_gpus,
        "suspect": 0,
    }
    return line | more


def mlperf(n_gpus: int, per_gpu_batch: float = 16, **more: object) -> dict[str, object]:
    line = {
        "submitter": "a",
        "family": "resnet",
        "gpu": "H100",
        "n_gpus": n_gpus,
        "n_nodes": -(-n_gpus // 8),
        "per_gpu_batch": per_gpu_batch,
        "grad_accum": "1.0",
        "train_rate_per_s": 1e3,
        "step_time_s": 0.05,
        "rate_method": "eval_segments",
        "status": "success",
        "scale_group": "g",
    }
    return line | more


def published(n_gpus: int, **more: object) -> dict[str, object]:
    line = {
        "model": "BART",
        "gpu": "A100 80GB",
        "n_gpus": n_gpus,
        "n_nodes": "",
        "parallelism": "DP",
        "per_gpu_batch": 40,
        "global_batch": "",
        "seq_len": "",
        "grad_accum": "",
        "throughput": 50 * n_gpus,
        "unit": "sequences/s",
        "section": "DGX A100 (8x A100 80GB)",
        "group": "g",
        "suspect": 0,
        "gpu_counts_in_group": 2,
    }
    return line | more


def rows_of(path: Path) -> list[Row]:
    return [row for job in read_tables([path]) for row in job.rows]


def test_gavel_counts_a_spread_placement_as_one_gpu_a_server(tmp_path: Path) -> None:
    lines = [gavel(n, where) for n in (1, 2) for where in ("consolidated", "unconsolidated")]
    rows = rows_of(write(tmp_path / "t.csv", lines))
    assert {(r.cluster, r.num_gpus, r.num_nodes) for r in rows} == {
        ("gavel k80 consolidated", 1, 1),
        ("gavel k80 consolidated", 2, 1),
        ("gavel k80 unconsolidated", 1, 1),
        ("gavel k80 unconsolidated", 2, 2),
    }
    assert {r.step_s for r in rows if r.num_gpus == 2} == {0.2}


@pytest.mark.parametrize(
    "bad",
    [{"suspect": 1}, {"file": "simulation"}, {"gpu": "v100"}, {"iteration_time_s": ""}],
)
def test_gavel_rows_that_cannot_be_scored_are_left_out(tmp_path: Path, bad: dict) -> None:
    lines = [gavel(1), gavel(2), gavel(4, **bad)]
    assert {r.num_gpus for r in rows_of(write(tmp_path / "t.csv", lines))} == {1, 2}


@pytest.mark.parametrize(
    "bad",
    [
        {"family": "dlrm_dcnv2"},
        {"status": "aborted"},
        {"rate_method": "eval_points_incl_eval"},
        {"per_gpu_batch": 0.5},
        {"step_time_s": ""},
    ],
)
def test_mlperf_rows_that_cannot_be_scored_are_left_out(tmp_path: Path, bad: dict) -> None:
    lines = [mlperf(8), mlperf(64), mlperf(512, **bad)]
    rows = rows_of(write(tmp_path / "t.csv", lines))
    assert {(r.num_gpus, r.num_nodes) for r in rows} == {(8, 1), (64, 8)}
    assert {r.model for r in rows} == {"imagenet"}, "one model has one name in all tables"


def test_published_throughput_and_batch_give_the_step(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path / "t.csv", [published(1), published(16)]))
    assert [r.step_s for r in rows] == [0.8, 0.8]
    assert [r.num_nodes for r in rows] == [1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        {"per_gpu_batch": ""},
        {"grad_accum": "512 and 256"},
        {"grad_accum": "4"},
        {"global_batch": "same at every count"},
        {"parallelism": "TP 4 PP 8 DP 1"},
        {"unit": "frames/s"},
        {"suspect": 1},
    ],
)
def test_published_rows_whose_step_is_not_clear_are_left_out(tmp_path: Path, bad: dict) -> None:
    lines = [published(1), published(2), published(8, **bad)]
    assert {r.num_gpus for r in rows_of(write(tmp_path / "t.csv", lines))} == {1, 2}


def test_fsdp_rows_carry_size_and_micro_batch(tmp_path: Path) -> None:
    common = {
        "model": "MPT-1b",
        "parallelism": "FSDP FULL_SHARD",
        "seq_len": 2048,
        "unit": "tokens/s",
        "throughput": 204_800,
    }
    lines = [
        published(8, global_batch=512, grad_accum=8, n_nodes=1, **common),
        published(16, global_batch=160, grad_accum=1, n_nodes=2, **common),
    ]
    (job,) = read_tables([write(tmp_path / "t.csv", lines)])
    small, large = job.rows
    assert (small.batch, small.grad_accum, large.batch) == (64, 8, 10)
    assert small.step_s == pytest.approx(512 / 100)
    told = measurement_of(job, small, job.rows, link_known=False)
    assert (told.plan.shard, told.plan.batch_per_gpu, told.plan.grad_accum) == (8, 8, 8)
    assert told.param_bytes == pytest.approx(2 * 1.3e9, rel=0.02)
    assert {t.scope for t in tasks_of(job)} == {"fsdp"}


def test_a_table_of_no_known_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of the columns"):
        read_tables([write(tmp_path / "t.csv", [{"a": 1}])])


def row(num_gpus: int, batch: int = 32, step_s: float = 1.0, **more: object) -> Row:
    told = {"model": "m", "cluster": "c", "gpu": "V100", "num_nodes": 1, "sync_s": None, **more}
    return Row(num_gpus=num_gpus, batch=batch, step_s=step_s, ladder=True, gpus_per_node=8, **told)


def test_a_ladder_asks_for_larger_counts_only_and_holds_every_pair() -> None:
    (job,) = group_jobs([row(1), row(4), row(8)])
    tasks = list(tasks_of(job))
    for task in tasks:
        assert max(r.num_gpus for r in task.seen) < min(r.num_gpus for r in task.asked)
    pairs = {
        (r.num_gpus, a.num_gpus)
        for t in tasks
        if t.group == "single count"
        for r in t.seen
        for a in t.asked
    }
    assert pairs == {(1, 4), (1, 8), (4, 8)}


def test_a_batch_never_seen_is_held_by_the_sample() -> None:
    seen = [row(1, 32, 1.0), row(8, 32, 1.2)]
    assert hold(seen)(row(16, 16)) == pytest.approx(0.6)
    assert ideal(seen)(row(16, 16)) == pytest.approx(0.5)
    assert comparable(seen, row(16, 32)) == seen


def test_unmeasured_exposure_is_what_the_step_has_beyond_fewer_gpus() -> None:
    seen = [row(1, step_s=1.0), row(4, step_s=1.3), row(4, 64, step_s=9.0)]
    assert exposed_s(seen[1], seen) == pytest.approx(0.3)
    assert exposed_s(seen[0], seen) == 0.0
    assert exposed_s(seen[2], seen) == 0.0, "another batch tells nothing"
    assert exposed_s(replace(seen[1], sync_s=0.1), seen) == 0.1


def test_scaledl_answers_a_batch_that_was_never_seen() -> None:
    (job,) = group_jobs([row(1, 32, 1.0), row(8, 16, 0.6), row(8, 32, 1.1)])
    task = next(t for t in tasks_of(job) if t.group == "single count")
    answers = [t.answer(Experience(lessons={})) for t in tell(task, link_known=False)]
    assert len(answers) == 2
    assert answers[0].mean < answers[1].mean


def test_a_prior_from_given_tables_never_holds_the_scored_model() -> None:
    rows = [row(n, model=m, cluster="d", step_s=s) for m in ("m", "n") for n, s in ((1, 1), (2, 2))]
    told = [t for job in group_jobs(rows) for task in tasks_of(job) for t in tell(task, False)]
    public = cases_of(told, link_known=False)
    assert {c.job for c in public} == {"d/m", "d/n"}
    others = [c for c in public if c.job == "d/n"]
    assert lived([], "c", "m", public) == lived([], "c", "m", others)
