"""Which steps are sampled and what that may cost; ranks that meet; where the job runs."""

import itertools

import pytest
import torch

from scaledl.capture.environ import find_launcher, read_environment, read_plan
from scaledl.capture.meeting import Meeting
from scaledl.capture.windows import FIRST_LAYERS, Schedule


def run_schedule(schedule, num_steps, step_s, cost_s):
    """Simulated training: the steps at which a window was taken."""
    taken = []
    for number in range(1, num_steps + 1):
        if schedule.is_due(number, number * step_s):
            schedule.took(number, cost_s)
            taken.append(number)
    return taken


def test_first_window_comes_early_whatever_it_costs():
    assert run_schedule(Schedule(FIRST_LAYERS, 0.002), 10, 0.01, 1.0) == [FIRST_LAYERS]


@pytest.mark.parametrize(("step_s", "cost_s"), [(0.005, 0.002), (0.1, 0.05), (0.005, 0.5)])
def test_P13_windows_stay_within_the_budget_after_the_first(step_s, cost_s):
    schedule = Schedule(FIRST_LAYERS, 0.002)
    run_schedule(schedule, 20_000, step_s, cost_s)
    assert schedule.spent_s <= max(cost_s, 0.002 * 20_000 * step_s) + 1e-9


def test_windows_of_a_long_run_are_few():
    taken = run_schedule(Schedule(FIRST_LAYERS, 0.002), 100_000, 0.1, 0.001)
    assert 5 < len(taken) < 30
    gaps = [b - a for a, b in itertools.pairwise(taken)]
    assert gaps == sorted(gaps)


def test_window_that_could_not_start_is_tried_again_later():
    schedule = Schedule(6, 0.002)
    assert schedule.is_due(6, 1.0)
    schedule.skip(6)
    assert not schedule.is_due(7, 1.0)
    assert schedule.is_due(60, 1.0)


class FakeStore:
    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key]


@pytest.fixture
def shared(monkeypatch):
    store = FakeStore()
    monkeypatch.setattr("scaledl.capture.meeting._store", lambda: store)
    return store


def test_ranks_find_the_id_that_rank_0_offers(shared):
    first, other = Meeting(0, 2, 1), Meeting(1, 2, 1)
    assert other.look() is None
    first.offer("run-a")
    assert other.look() == "run-a"


def test_E32_second_track_of_a_job_does_not_find_the_first_ones_id(shared):
    Meeting(0, 2, 1).offer("run-a")
    assert Meeting(1, 2, 2).look() is None


def test_rank_whose_rank_0_does_not_track_stops_looking(shared):
    other = Meeting(1, 2, 1)
    looks = 0
    while not other.is_over:
        assert other.look() is None
        looks += 1
        assert looks < 100
    assert looks > 5


def test_single_process_never_looks(shared):
    assert Meeting(0, 1, 1).is_over


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"TORCHELASTIC_RUN_ID": "none"}, "torchrun"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "slurm"),
        ({"SLURM_JOB_ID": "7"}, "none"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "mpi"),
        ({"KUBERNETES_SERVICE_HOST": "x"}, "kubernetes"),
        ({}, "none"),
    ],
)
def test_launcher_is_known_by_its_variables(monkeypatch, variables, launcher):
    names = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    for name in (*names, "PMI_RANK", "RAY_JOB_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_launcher() == launcher


def test_launchers_variables_tell_ranks_before_the_process_group_is_up(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found = read_environment(torch.nn.Linear(2, 2))
    assert (found.rank, found.world_size, found.ranks_per_node) == (3, 8, 4)


def test_variables_that_are_no_numbers_are_one_process(monkeypatch):
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "")
    found = read_environment(torch.nn.Linear(2, 2))
    assert (found.rank, found.world_size) == (0, 1)


def test_H14_data_parallel_is_refused_politely():
    plan, remark = read_plan(torch.nn.DataParallel(torch.nn.Linear(2, 2)), 1)
    assert plan.strategy == "single"
    assert "DistributedDataParallel" in remark
