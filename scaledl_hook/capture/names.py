"""The user's own module names, whatever wrappers stand around the model."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_WRAPPER_PARTS = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_CONTAINER_NAMES = frozenset(kind.__name__ for kind in _CONTAINERS)
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


def class_name(module: nn.Module) -> str:
    """The user's own class; ``fully_shard`` puts its name before it."""
    return type(unwrap(module)).__name__.removeprefix("FSDP")


def is_bare(module: nn.Module) -> bool:
    """Whether the module only holds others, as torch's own containers, and computes nothing."""
    return isinstance(module, _CONTAINERS) and class_name(module) in _CONTAINER_NAMES


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
            yield canonical(name) or class_name(module), module
            continue
        if isinstance(module, DistributedDataParallel | DataParallel):
            stack.append((name, module.module))
            continue
        prefix = f"{name}." if name else ""
        stack.extend((prefix + n, c) for n, c in reversed(children))


def modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with their canonical names, the outer ones first; a compiled one hides its own."""
    inner = unwrap(model)
    level: list[tuple[str, nn.Module]] = [("", inner)]
    seen: set[int] = set()
    while level:
        following: list[tuple[str, nn.Module]] = []
        for name, module in level:
            if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
                continue
            seen.add(id(module))
            if getattr(module, "_compiled_call_impl", None) is None:
                yield canonical(name) or class_name(inner), module
            if not is_compiled(module):
                prefix = f"{name}." if name else ""
                children = module._modules.items()
                following += [(prefix + n, c) for n, c in children if c is not None]
        level = following
