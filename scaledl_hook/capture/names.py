"""The user's own module names, whatever wrappers stand around the model."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_WRAPPER_PARTS = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
_MULTI_CHILD_LEAVES: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)


def canonical(name: str) -> str:
    """``name`` without the parts that FSDP, ``torch.compile`` and checkpointing add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's module inside DDP, DataParallel, FSDP1 and ``torch.compile`` wrappers."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        elif "_fsdp_wrapped_module" in model._modules:
            model = model._modules["_fsdp_wrapped_module"]  # type: ignore[assignment]
        else:
            return model


def is_compiled(module: nn.Module) -> bool:
    """Whether ``module`` runs as one compiled region, inside which no hook may be placed."""
    return "_orig_mod" in module._modules or (
        getattr(module, "_compiled_call_impl", None) is not None
    )


def leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that are timed as one layer each, with their canonical names, each object once.

    A leaf has no children, or computes by itself without calling them (attention, parametrised
    weights), or is a compiled region. Scripted modules refuse hooks and are passed over.
    """
    seen: set[int] = set()
    stack: list[tuple[str, nn.Module]] = [("", model)]
    while stack:
        name, module = stack.pop()
        if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
            continue
        seen.add(id(module))
        children = [
            (n, c) for n, c in module._modules.items() if c is not None and n != "parametrizations"
        ]
        if not children or isinstance(module, _MULTI_CHILD_LEAVES) or is_compiled(module):
            yield canonical(name) or type(unwrap(module)).__name__, module
            continue
        if isinstance(module, DistributedDataParallel | DataParallel):
            stack.append((name, module.module))
            continue
        prefix = f"{name}." if name else ""
        stack.extend((prefix + n, c) for n, c in reversed(children))
