"""Tensors inside whatever a module takes or returns; nothing is indexed that may not exist."""

import dataclasses
from collections import UserDict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

_LOOKS = 4
_DEPTH = 3


def tensors_in(value: Any, limit: int = 64, depth: int = 5) -> Iterator[torch.Tensor]:
    """Tensors in tensors, tuples, lists, mappings and dataclasses, at most ``limit``.

    Generators and unknown objects are left alone: looking into them could consume them.
    """
    for count, tensor in enumerate(_walk(value, depth)):
        if count >= limit:
            return
        yield tensor


def _walk(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth <= 0 or value is None:
        return
    elif isinstance(value, tuple | list):
        for item in value[:64]:
            yield from _walk(item, depth - 1)
    elif isinstance(value, Mapping):
        for item in list(value.values())[:64]:
            yield from _walk(item, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name, None), depth - 1)


def num_bytes_of(value: Any) -> int:
    """Bytes of all tensors in ``value``."""
    return sum(t.numel() * t.element_size() for t in tensors_in(value))


def batch_size_of(batch: Any) -> int | None:
    """Length of the first axis of the first tensor that has one."""
    for tensor in tensors_in(batch, limit=8):
        if tensor.dim() > 0:
            return int(tensor.shape[0])
    return None


class SizeReader:
    """How large the batches of one loader are: rows and elements of their largest tensor.

    The tensor is looked for in the first batch (among the first eight, in lists, tuples and dicts)
    and read by its place from then on: a fraction of a microsecond, from its shape alone. No batch
    is kept. A batch that is made in another way is looked through again, a few times at most.
    """

    __slots__ = ("_keys", "_looks_left")

    def __init__(self) -> None:
        self._keys: tuple[Any, ...] | None = None
        self._looks_left = _LOOKS

    def read(self, batch: Any) -> tuple[int, int]:
        """Rows and elements; zeros where they are not known."""
        if self._keys is None:
            return self._look(batch)
        try:
            for key in self._keys:
                batch = batch[key]
            return batch.shape[0], batch.numel()
        except Exception:  # whatever a user's container raises: sizes are no reason to stop
            return self._look(batch)

    def _look(self, batch: Any) -> tuple[int, int]:
        self._keys = None
        if self._looks_left <= 0:
            return 0, 0
        self._looks_left -= 1
        try:
            found = list(islice(_places(batch, ()), 8))
            if not found:
                return 0, 0
            keys, tensor = max(found, key=lambda place: place[1].numel())
            self._keys = keys
            return tensor.size(0), tensor.numel()
        except Exception:
            return 0, 0


def _places(value: Any, keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Tensors with an axis, and the keys that lead to them through plain containers."""
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            yield keys, value
    elif len(keys) >= _DEPTH:
        return
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value[:8]):
            yield from _places(item, (*keys, index))
    elif isinstance(value, dict | UserDict) and not hasattr(type(value), "__missing__"):
        for key in list(value)[:8]:
            yield from _places(value[key], (*keys, key))
