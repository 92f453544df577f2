"""Tensors inside whatever a module takes or returns; nothing is indexed that may not exist."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch


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
