"""Which configurations are measured, and in which order; no torch."""

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.collecting.records import Configuration, Role, Task
from scaledl.errors import UsageError
from scaledl.predictor.design import choose

FloatArray = NDArray[np.float64]

REPEATED_FRACTION = 0.05
PICTURES = frozenset({"vit", "deit", "mlp", "cnn"})


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a family may have. Pictures take the squares among the lengths, in patches."""

    batch: tuple[int, ...] = (1, 2, 4, 8, 16)
    length: tuple[int, ...] = (16, 25, 36, 49, 64, 100, 144)
    width: tuple[int, ...] = (32, 64, 96, 128, 192, 256)
    depth: tuple[int, ...] = (1, 2, 3, 4, 6)
    work: tuple[float, float] = (1e8, 6e9)
    """FLOPs of one step, least and most: what takes too short or too long is left out."""


def flops(c: Configuration) -> float:
    """About the FLOPs of one training step: six a weight and token, and attention's products."""
    block = 12 * c.width**2 + 2 * c.length * c.width
    per_token = c.depth * block + 2048 * c.width * (c.family not in PICTURES)
    return 6.0 * c.batch * c.length * per_token * (2 if c.family == "t5" else 1)


def candidates(
    family: str, ranges: Ranges, count: int, *, processes: int = 1, seed: int = 0
) -> list[Configuration]:
    """At most ``count`` configurations within the ranges, drawn at random.

    Raises:
        UsageError: none is within them.
    """
    grid = itertools.product(ranges.batch, ranges.length, ranges.width, ranges.depth)
    every = [
        Configuration(family=family, batch=b, length=n, width=w, depth=d, processes=processes)
        for b, n, w, d in grid
    ]
    if family in PICTURES:
        every = [c for c in every if round(c.length**0.5) ** 2 == c.length]
    low, high = ranges.work
    every = [c for c in every if low <= flops(c) <= high]
    if not every:
        raise UsageError(
            f"no configuration of {family} takes {low:g} to {high:g} FLOPs a step within the "
            "ranges given. Widen the ranges or the limits of work."
        )
    order = np.random.default_rng(seed).permutation(len(every))
    return [every[i] for i in order[:count]]


def rows(configurations: Sequence[Configuration]) -> FloatArray:
    """What the design looks at: all squares and products of the logarithms. Shape: [n, 15]."""
    logs = np.log2([[c.batch, c.length, c.width, c.depth] for c in configurations])
    logs = logs - np.array([2.0, 6.0, 7.0, 1.0])  # about centred, so that columns differ
    pairs = itertools.combinations_with_replacement(range(4), 2)
    products = [logs[:, i] * logs[:, j] for i, j in pairs]
    return np.column_stack([np.ones(len(logs)), logs, *products])


def tasks(
    pool: Sequence[Configuration], *, design: int, random: int, test: int, seed: int = 0
) -> list[Task]:
    """One family's tasks: a test set at random, then a D-optimal and a random choice of the rest.

    A configuration that both choices take is measured once, as one of the design.

    Raises:
        UsageError: the pool is too small.
    """
    if design + test > len(pool) or random + test > len(pool):
        raise UsageError(
            f"{len(pool)} candidates are too few for {test} to test on, {design} by design and "
            f"{random} at random. Widen the ranges or ask for fewer."
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(pool)).tolist()
    tested, rest = order[:test], order[test:]
    picked = choose(rows([pool[i] for i in rest]), count=design, seed=seed).chosen
    chosen = [rest[i] for i in picked]
    drawn = [i for i in rest if i not in set(chosen)][:random]
    by_role: list[tuple[Role, list[int]]] = [
        ("test", tested),
        ("design", chosen),
        ("random", drawn),
    ]
    return [Task(configuration=pool[i], role=role) for role, ids in by_role for i in ids]


def ordered(families: Sequence[Sequence[Task]], seed: int = 0) -> list[Task]:
    """All tasks at random, families in turn, so that what is done early is balanced.

    Test and design come before the random ones. One in twenty is measured once more, later.
    """
    generator = np.random.default_rng(seed)
    first: list[list[Task]] = []
    later: list[list[Task]] = []
    for of_family in families:
        shuffled = [of_family[i] for i in generator.permutation(len(of_family))]
        first.append([t for t in shuffled if t.role != "random"])
        later.append([t for t in shuffled if t.role == "random"])
    line = [*_in_turn(first), *_in_turn(later)]
    for place in range(len(line) - 1, -1, -1):
        if generator.random() < REPEATED_FRACTION:
            again = msgspec.structs.replace(line[place], role="repeat", repeat=1)
            line.insert(int(generator.integers(place + 1, len(line) + 1)), again)
    return line


def _in_turn(groups: Sequence[Sequence[Task]]) -> list[Task]:
    rounds = itertools.zip_longest(*groups)
    return [task for one in rounds for task in one if task is not None]
