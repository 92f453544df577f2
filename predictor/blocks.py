"""The sums of a long series in constant memory: equal blocks, merged pairwise when full."""

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_BLOCKS = 64


class Blocks(msgspec.Struct, kw_only=True):
    """``items`` are (length, sum); all are ``size`` long but the last one."""

    items: list[tuple[int, float]] = []
    size: int = 1

    def add(self, values: list[float]) -> None:
        """Takes the next values of the series in."""
        i = 0
        while i < len(values):
            length, total = 0, 0.0
            if self.items and self.items[-1][0] < self.size:
                length, total = self.items.pop()
            part = values[i : i + self.size - length]
            self.items.append((length + len(part), total + sum(part)))
            i += len(part)
            if len(self.items) == MAX_BLOCKS and self.items[-1][0] == self.size:
                self._merge()

    def _merge(self) -> None:
        pairs = zip(self.items[::2], self.items[1::2], strict=True)
        self.items = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
        self.size *= 2

    def clear(self) -> None:
        """Begins anew."""
        self.items, self.size = [], 1

    @property
    def length(self) -> int:
        """How many values were taken in."""
        return sum(length for length, _ in self.items)

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(total for _, total in self.items)

    def raise_to(self, power: float) -> None:
        """Turns the values into a power of them; inside a block they are taken to be alike."""
        self.items = [(n, n * (total / n) ** power) for n, total in self.items]

    def flatten(self) -> None:
        """Forgets the order of the values."""
        self.items = [(self.length, self.total)]
        self.size = self.items[0][0]

    def means(self) -> tuple[Floats, Floats]:
        """Lengths and means of the blocks. Shapes: both [blocks]."""
        lengths = np.asarray([length for length, _ in self.items], dtype=float)
        return lengths, np.asarray([total for _, total in self.items]) / lengths

    def until(self, place: float) -> float:
        """The sum of the first ``place`` values; inside a block its mean counts."""
        lengths = np.cumsum([0, *(length for length, _ in self.items)])
        totals = np.cumsum([0.0, *(total for _, total in self.items)])
        return float(np.interp(place, lengths, totals))
