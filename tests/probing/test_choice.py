"""The benchmark of the choice: what it may see, and that its scores mean what they say."""

import math

import pytest
from probe_choice import ANY, BEST, CHOICES, NONE, Situation, results_of, scores_of, situations
from whatif_data import Job, Row

from scaledl.predictor.experience import Experience


def row(num_gpus: int, batch: int = 32) -> Row:
    """A job whose exchange grows with the count."""
    sync_s = 0.02 * math.log2(num_gpus) if num_gpus > 1 else 0.0
    return Row(
        model="m",
        cluster="c",
        gpu="T4",
        num_nodes=-(-num_gpus // 4),
        num_gpus=num_gpus,
        batch=batch,
        step_s=0.1 + sync_s,
        sync_s=sync_s,
    )


JOB = Job(
    model="m",
    cluster="c",
    gpu="T4",
    gpus_per_node=4,
    rows=tuple(row(n) for n in (1, 2, 4, 8, 16)),
)


@pytest.fixture(scope="module")
def cases() -> list[Situation]:
    return list(situations([JOB], 1))


def test_a_probe_is_never_the_running_count_and_on_one_machine_stays_there(
    cases: list[Situation],
) -> None:
    assert {s.reach for s in cases} == {"machine", "cluster"}
    for s in cases:
        assert s.running not in s.candidates
        assert s.running not in s.others
        assert set(s.candidates) < set(s.others)
        if s.reach == "machine":
            assert not any(r.crosses for r in (*s.candidates, s.running))


def test_no_choice_errs_less_than_the_best_and_any_is_their_mean(cases: list[Situation]) -> None:
    scored = scores_of(cases[0], Experience(lessons={}))
    best = scored[BEST][0].error
    assert all(scored[name][0].error >= best for name in CHOICES)
    assert scored[ANY][0].error >= best
    assert scored[NONE][1] == 0
    assert scored[NONE][0].log_width > scored["largest"][0].log_width


def test_the_table_has_a_row_for_each_choice_and_reach() -> None:
    rows = results_of([JOB], [], 1)
    assert len(rows) == 2 * (len(CHOICES) + 3)
    assert {r["jobs"] for r in rows} == {1}
