"""What comes with the package: the layer model and the graph network, and what they learned from.

Nothing depends on the files: without them the forecasts go on, from less.
"""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from scaledl.predictor.arrays import Weights, set_weights
from scaledl.predictor.layers import LayerModel

if TYPE_CHECKING:
    from scaledl.predictor.gnn import GraphNetwork

FILE = "weights/layers.json"
NETWORK_FILE = "weights/network.msgpack"


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parameters come from."""

    sources: tuple[str, ...]
    command: str
    date: str
    num_timings: int


class ShippedLayers(msgspec.Struct, frozen=True, kw_only=True):
    """The file: parameters and where they come from."""

    provenance: Provenance
    model: LayerModel


class ShippedNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """The file: weights and where they come from."""

    provenance: Provenance
    weights: Weights


@cache
def shipped_layers() -> ShippedLayers | None:
    """The shipped parameters; ``None`` where the file is not there or damaged.

    Nothing depends on it: without the file the forecasts go on with a fixed and a growing part.
    """
    try:
        text = files("scaledl.predictor").joinpath(FILE).read_bytes()
        return msgspec.json.decode(text, type=ShippedLayers)
    except (OSError, msgspec.DecodeError, ValueError):
        return None


def shipped_network() -> "GraphNetwork | None":
    """A new network with the shipped weights; ``None`` where the file is missing or damaged.

    Loads torch.
    """
    from scaledl.predictor.training import new_network

    network = new_network(0)
    try:
        data = files("scaledl.predictor").joinpath(NETWORK_FILE).read_bytes()
        set_weights(network, msgspec.msgpack.decode(data, type=ShippedNetwork).weights)
    except (OSError, msgspec.DecodeError, ValueError):
        return None
    return network
