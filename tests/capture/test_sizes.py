"""How large batches are: read from what the loader yields, kept by nobody."""

import dataclasses
import gc
import weakref
from collections import UserDict, defaultdict
from typing import Any

import pytest
import torch
from loops import Collate, Points, SlowNet, VirtualTime, Watched, evaluate, sgd, train_step
from torch.utils.data import DataLoader

from scaledl.capture.tensors import SizeReader

WIDTH = 3
GROUPS = [4, 4, 1, 3, 2]
IDS, LABELS = torch.zeros(4, 16, dtype=torch.long), torch.zeros(4, dtype=torch.long)


def varied(time: VirtualTime, groups: list[int] = GROUPS) -> "DataLoader[torch.Tensor]":
    """A loader whose batches are as large as its batch sampler says."""
    starts = [sum(groups[:i]) for i in range(len(groups))]
    sampler = [list(range(at, at + n)) for at, n in zip(starts, groups, strict=True)]
    return DataLoader(Points(sum(groups)), batch_sampler=sampler, collate_fn=Collate(time))


def watched_sizes(watched: Watched) -> list[int | None]:
    return [step.num_elements for step in watched.steps]


# --- one batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IDS, (4, 64)),
        ([LABELS, IDS], (4, 64)),
        ((IDS, LABELS), (4, 64)),
        ({"labels": LABELS, "input_ids": IDS}, (4, 64)),
        (UserDict(labels=LABELS, input_ids=IDS), (4, 64)),
        (({"x": IDS}, LABELS), (4, 64)),
        (["text", IDS], (4, 64)),
        (torch.tensor(1.0), (0, 0)),
        ("text", (0, 0)),
        (None, (0, 0)),
        ([], (0, 0)),
        (defaultdict(list, x=IDS), (0, 0)),
    ],
)
def test_the_largest_tensor_of_usual_batches_tells_rows_and_elements(
    batch: Any, expected: tuple[int, int]
) -> None:
    reader = SizeReader()
    assert [reader.read(batch) for _ in range(3)] == [expected] * 3


def test_every_batch_is_read_anew_by_the_place_found_in_the_first() -> None:
    reader = SizeReader()
    found = [reader.read((torch.zeros(n, 5), torch.zeros(n))) for n in (2, 7, 1)]
    assert found == [(2, 10), (7, 35), (1, 5)]


def test_batches_of_another_make_are_looked_through_again_a_few_times() -> None:
    reader = SizeReader()
    assert reader.read({"a": IDS}) == (4, 64)
    assert reader.read({"b": IDS}) == (4, 64)
    for _ in range(10):
        reader.read({"a": "nothing"})
        reader.read({"b": "nothing"})
    assert reader.read({"a": IDS}) == (0, 0)


def test_a_container_that_raises_or_makes_what_is_asked_for_is_left_alone() -> None:
    class Lazy(dict[str, Any]):
        def __missing__(self, key: str) -> Any:
            self[key] = IDS
            return IDS

    class Angry(dict[str, Any]):
        def __iter__(self) -> Any:
            raise RuntimeError("do not look at me")

    lazy = Lazy()
    assert SizeReader().read((lazy, LABELS)) == (4, 4)
    assert lazy == {}
    assert SizeReader().read(Angry(x=IDS)) == (0, 0)
    assert SizeReader().read(dataclasses.make_dataclass("Batch", ["x"])(IDS)) == (0, 0)


def test_no_batch_is_kept() -> None:
    reader, batch = SizeReader(), torch.zeros(3, 2)
    gone = weakref.ref(batch)
    reader.read(batch)
    del batch
    gc.collect()
    assert gone() is None


# --- a training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", [False, True])
def test_E22_each_step_knows_the_size_of_its_batch(holds: bool) -> None:
    time = VirtualTime()
    model = SlowNet(time)
    optimizer = sgd(model, time)
    with type("Holding", (Watched,), {"holds": holds})(model, time) as watched:
        for _ in range(2):
            for x in varied(time):
                train_step(model, optimizer, x)
    assert watched_sizes(watched) == [WIDTH * n for n in 2 * GROUPS]
    assert [step.num_samples for step in watched.steps] == 2 * GROUPS
    assert [epoch.num_samples for epoch in watched.epochs] == [sum(GROUPS)] * 2


def test_E22_accumulated_batches_add_up_and_an_evaluation_adds_nothing() -> None:
    time = VirtualTime()
    model = SlowNet(time)
    optimizer = sgd(model, time)
    with Watched(model, time) as watched:
        for _ in range(2):
            for index, x in enumerate(varied(time)):
                model(x).sum().backward()
                if index % 2 or index == len(GROUPS) - 1:
                    optimizer.step()
                    optimizer.zero_grad()
            evaluate(model, varied(time, [9, 9]))
    assert watched_sizes(watched) == [WIDTH * n for n in 2 * [8, 4, 2]]


def test_E22_a_trainer_that_fetches_ahead_gives_each_step_its_own_batch() -> None:
    time = VirtualTime()
    model = SlowNet(time)
    optimizer = sgd(model, time)
    with Watched(model, time) as watched:
        for _ in range(2):
            batches = iter(varied(time))
            ahead = next(batches)
            while ahead is not None:
                x, ahead = ahead, next(batches, None)
                train_step(model, optimizer, x)
    assert watched_sizes(watched) == [WIDTH * n for n in 2 * GROUPS]


def test_E22_a_loader_with_larger_batches_makes_the_next_epochs_shorter() -> None:
    time = VirtualTime()
    model = SlowNet(time)
    optimizer = sgd(model, time)
    with Watched(model, time) as watched:
        for _ in range(2):
            for x in DataLoader(Points(24), batch_size=2, collate_fn=Collate(time)):
                train_step(model, optimizer, x)
        for index, x in enumerate(DataLoader(Points(24), batch_size=8, collate_fn=Collate(time))):
            train_step(model, optimizer, x)
            if index == 1:
                said = watched.clock.progress(4, None)
    assert (said.steps_per_epoch, said.total_steps) == (3, 24 + 2 * 3)
    assert watched_sizes(watched) == [WIDTH * 2] * 24 + [WIDTH * 8] * 3
