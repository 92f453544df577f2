"""Weights as plain bytes: what a file may hold is numbers alone, never code; no torch.

A file of ``torch.save`` is a pickle even where it is read with care; this one is typed msgpack.
"""

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from torch import nn


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one tensor: little-endian float32, row by row.

    Raises:
        ValueError: as many bytes as the shape asks for are not there.
    """

    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if min(self.shape, default=0) < 0 or len(self.data) != 4 * math.prod(self.shape):
            raise ValueError(f"{len(self.data)} bytes are no float32 of shape {self.shape}")


Weights = dict[str, Array]


def weights_of(network: "nn.Module") -> Weights:
    """All parameters and buffers of a network, by name."""
    return {
        name: Array(shape=tuple(value.shape), data=value.cpu().numpy().astype("<f4").tobytes())
        for name, value in network.state_dict().items()
    }


def set_weights(network: "nn.Module", weights: Weights) -> None:
    """Give a network the weights that ``weights_of`` read. Loads torch.

    Raises:
        ValueError: a name or a shape differs, or a number is not finite; nothing is changed.
    """
    import torch

    own = network.state_dict()
    if own.keys() != weights.keys():
        raise ValueError(f"weights of another network: {sorted(own.keys() ^ weights.keys())}")
    found = {}
    for name, array in weights.items():
        values = np.frombuffer(array.data, "<f4").reshape(array.shape)
        if array.shape != tuple(own[name].shape):
            raise ValueError(f"{name} has shape {array.shape}, not {tuple(own[name].shape)}")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} holds no finite numbers")
        found[name] = torch.from_numpy(values.astype(np.float32))
    network.load_state_dict(found)
