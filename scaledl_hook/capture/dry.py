"""The layer graph of a model that is not training: one forward of a copy on tensors without data.

Under torch's ``FakeTensorMode`` tensors have shapes and autograd nodes and no storage, so the copy
of a model takes no memory, its forward no time, and neither the user's parameters, buffers,
gradients nor random state are touched. A model whose way through its forward depends on values
cannot run so; where it is small, a real copy does the forward on the host instead.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from scaledl.capture.environ import device_of
from scaledl.capture.graph import LayerCall, Walk, build
from scaledl.capture.inert import Hook
from scaledl.capture.names import leaves, unwrap
from scaledl.capture.tensors import batch_size_of
from scaledl.errors import UsageError
from scaledl.records import LayerGraph
from scaledl.units import format_bytes

MOST_REAL_BYTES = 2 * 2**30
"""A larger model is not copied for real: the user may have no room for it."""


class DryModel:
    """What one dry forward showed. ``batch``: the first axis of the first tensor, if any."""

    def __init__(self, graph: LayerGraph, dtype: str, batch: int | None) -> None:
        self.graph = graph
        self.dtype = dtype
        self.batch = batch


def dry_run(model: nn.Module, batch: Any) -> DryModel:
    """The layers that a forward of ``model`` on ``batch`` runs, and how data flows between them.

    Args:
        model: As it is trained, wrapped or not; on any device.
        batch: What the model is called with for one micro-batch of one rank: a tensor, a tuple of
            positional arguments, or a mapping of named ones.

    Raises:
        UsageError: the model does not run on this batch, or nothing in it is a layer.
    """
    model = unwrap(model)
    graph = _graph(model, batch)
    if not any(node.params or node.flops_forward for node in graph.nodes):
        raise UsageError(
            f"no layer that computes ran in the forward of {type(model).__name__}. Pass the module "
            "that is trained, with a batch that it takes."
        )
    dtype = next((str(p.dtype).removeprefix("torch.") for p in model.parameters()), "float32")
    return DryModel(graph, dtype, batch_size_of(batch))


def _graph(model: nn.Module, batch: Any) -> LayerGraph:
    try:
        # Inside: private to torch, and where it is gone a real forward does as well.
        from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

        quiet, random = _without_log(), torch.random.fork_rng(devices=[])
        with quiet, random, FakeTensorMode(allow_non_fake_inputs=True) as mode:
            with FakeCopyMode(mode):
                twin = copy.deepcopy(model)
            device = device_of(model)

            def beside(tensor: torch.Tensor) -> torch.Tensor:
                return mode.from_tensor(tensor).to(device)

            return _forward(twin, _mapped(beside, batch))
    except Exception as error:
        return _real_graph(model, batch, error)


@contextmanager
def _without_log() -> Iterator[None]:
    """Torch logs what a dry forward fails on as an error; here it is none."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _real_graph(model: nn.Module, batch: Any, first: Exception) -> LayerGraph:
    """The same by a real forward on the host, where the model is small enough."""
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    what = f"a dry forward of {type(model).__name__} failed ({type(first).__name__}: {first})"
    if num_bytes > MOST_REAL_BYTES:
        raise UsageError(
            f"{what}, and a real one would copy {format_bytes(num_bytes)}. Track a training "
            "instead: scaledl.track(model)."
        ) from first
    try:
        with torch.random.fork_rng(devices=[]):
            twin = copy.deepcopy(model).cpu()
            return _forward(twin, _mapped(_to_host, batch))
    except Exception as error:
        raise UsageError(
            f"{what}, and so did a real one ({type(error).__name__}: {error}). Pass as batch what "
            "the model is called with: a tensor, a tuple of arguments, or a dict of named ones."
        ) from error


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """The batch with its tensors changed, however deep they lie in lists and mappings."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: _mapped(change, value) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        values = [_mapped(change, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _forward(model: nn.Module, batch: Any) -> LayerGraph:
    """Run ``model``, a copy of ours, with hooks on its layers."""
    calls: list[LayerCall] = []
    for fqn, layer in leaves(model):
        _watch(fqn, layer, calls)
    with torch.enable_grad():
        output = _call(model, batch)
    return build(calls, Walk(calls, output), model.parameters())


def _watch(fqn: str, layer: nn.Module, calls: list[LayerCall]) -> None:
    opened: list[LayerCall] = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        call = LayerCall(fqn, module)
        call.take_inputs(args, kwargs)
        opened.append(call)

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = opened.pop()
        call.take_output(args, kwargs, output)
        calls.append(call)

    layer.register_forward_pre_hook(Hook(enter), with_kwargs=True)
    layer.register_forward_hook(Hook(leave), with_kwargs=True)


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    return model(batch)
