"""The layer graph of one real forward, from the autograd graph between the layers.

fx and export fail on many models and cost seconds. The autograd graph is there anyway: from the
inputs of each layer it is walked back to the layers whose outputs it comes from, in about a
millisecond. Functional attention calls are found on the way by the names of their nodes.
"""

import hashlib
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from scaledl.capture.flops import attention_flops, forward_flops, kind_of
from scaledl.capture.tensors import num_bytes_of, tensors_in
from scaledl.records import LayerEdge, LayerGraph, LayerNode

OUTSIDE = "outside_layers"


class LayerCall:
    """What one forward call of one leaf showed; plain numbers and autograd nodes, no tensors.

    A tensor without gradient is known by its weak reference: while it lives all are one object, and
    another tensor at the same address later has another.
    """

    __slots__ = (
        "flops",
        "fqn",
        "inputs",
        "module",
        "out_bytes",
        "outs",
        "plain_inputs",
        "plain_outs",
    )

    def __init__(self, fqn: str, module: nn.Module) -> None:
        self.fqn = fqn
        self.module = module
        self.inputs: list[Any] = []
        self.outs: list[Any] = []
        self.plain_inputs: list[weakref.ref[torch.Tensor]] = []
        self.plain_outs: list[weakref.ref[torch.Tensor]] = []
        self.out_bytes = 0
        self.flops = 0.0

    def take_inputs(self, args: Any, kwargs: Any) -> None:
        """Remember the autograd nodes (or, without gradient, the identity) of the inputs."""
        for tensor in tensors_in((args, kwargs), limit=16):
            if tensor.grad_fn is not None:
                self.inputs.append(tensor.grad_fn)
            else:
                self.plain_inputs.append(weakref.ref(tensor))

    def take_output(self, args: Any, kwargs: Any, output: Any) -> None:
        """Remember the output's autograd nodes and sizes, and count the FLOPs."""
        elements = 0
        for tensor in tensors_in(output, limit=16):
            elements += tensor.numel()
            if tensor.grad_fn is not None:
                self.outs.append(tensor.grad_fn)
            else:
                self.plain_outs.append(weakref.ref(tensor))
        self.out_bytes = num_bytes_of(output)
        first = next(tensors_in((args, kwargs), limit=1), None)
        shape = tuple(first.shape) if first is not None else ()
        self.flops = forward_flops(self.module, shape, elements)


class AttentionCall:
    """One functional attention: its autograd nodes (softmax form has several) and FLOPs."""

    __slots__ = ("flops", "fqn", "node", "out_bytes")

    def __init__(self, fqn: str, node: Any, flops: float, out_bytes: int) -> None:
        self.fqn = fqn
        self.node = node
        self.flops = flops
        self.out_bytes = out_bytes


class Walk:
    """Edges between layers and the attention calls between them. Holds autograd nodes: drop it."""

    def __init__(self, calls: list[LayerCall], output: Any) -> None:
        self.attention: list[AttentionCall] = []
        self.edges: dict[tuple[str, str], int] = {}
        self.feeds: dict[str, str] = {}  # layer -> the attention call whose output it takes
        self._owner: dict[Any, str] = {}
        self._bytes: dict[str, int] = {}
        self._by_id: dict[int, str] = {}
        self._names: dict[str, int] = {}
        self._is_attention: set[str] = set()
        self._calls = calls
        for call in calls:
            for node in call.outs:
                self._owner.setdefault(node, call.fqn)
            self._bytes[call.fqn] = call.out_bytes
        # Tensors that carry no gradient (frozen prefixes) are followed by identity.
        for call in calls:
            for reference in call.plain_inputs:
                source = self._by_id.get(id(reference))
                if source is not None and source != call.fqn:
                    self._add(source, call.fqn)
            for reference in call.plain_outs:
                self._by_id[id(reference)] = call.fqn
        for call in calls:
            self._follow(call.inputs, call.fqn)
        last = [t.grad_fn for t in tensors_in(output, limit=8) if t.grad_fn is not None]
        self._follow(last, OUTSIDE)

    def _add(self, source: str, target: str) -> None:
        self.edges[(source, target)] = self._bytes.get(source, 0)

    def _follow(self, starts: Iterable[Any], target: str) -> None:
        stack, seen = list(starts), set()
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            source = self._owner.get(node)
            if source == target:
                continue
            if source is None and is_attention(node):
                source = self._add_attention(node, target)
            if source is not None:
                self._add(source, target)
                if source in self._is_attention:
                    self.feeds.setdefault(target, source)
                continue
            stack.extend(parent for parent, _ in node.next_functions)

    def _add_attention(self, node: Any, target: str) -> str:
        parent = target.rsplit(".", 1)[0] if "." in target else ""
        stem = f"{parent}.attention" if parent else "attention"
        count = self._names.get(stem, 0)
        fqn = f"{stem}.{count}" if count else stem
        self._names[stem] = count + 1
        self._is_attention.add(fqn)
        flops, out_bytes = _attention_size(node)
        self.attention.append(AttentionCall(fqn, node, flops, out_bytes))
        self._owner[node] = fqn
        self._bytes[fqn] = out_bytes
        self._follow([parent_node for parent_node, _ in node.next_functions], fqn)
        return fqn


def is_attention(node: Any) -> bool:
    """Whether an autograd node is a fused attention, or the P V product of a written-out one."""
    name = node.name()
    if name.startswith(("ScaledDotProduct", "EfficientAttention", "FlashAttention")):
        return True
    return name.startswith("BmmBackward") and _softmax_behind(node) is not None


def _softmax_behind(node: Any, depth: int = 6) -> Any:
    """The softmax node that feeds a product through reshapes, casts and dropout; else ``None``."""
    current = node.next_functions[0][0] if node.next_functions else None
    for _ in range(depth):
        if current is None:
            return None
        name = current.name()
        if name.startswith(("SoftmaxBackward", "SafeSoftmaxBackward")):
            return current
        if not name.startswith(_PASSING):
            return None
        current = current.next_functions[0][0] if current.next_functions else None
    return None


_PASSING = (
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Expand", "Clone", "ToCopy", "Transpose",
    "Permute", "NativeDropout", "FusedDropout", "MulBackward", "Slice", "Squeeze", "Unsqueeze",
)  # fmt: skip


def _shape(node: Any) -> tuple[int, ...]:
    metadata = getattr(node, "_input_metadata", None)
    return tuple(metadata[0].shape) if metadata else ()


def _attention_size(node: Any) -> tuple[float, int]:
    out = _shape(node)
    if not out:
        return 0.0, 0
    elements = 1
    for size in out:
        elements *= size
    width = getattr(getattr(node._input_metadata[0], "dtype", None), "itemsize", 4)
    if node.name().startswith("BmmBackward"):
        scores = _shape(_softmax_behind(node))
        total = 1.0
        for size in scores:
            total *= size
        return 4.0 * total * out[-1], elements * width
    parents = [parent for parent, _ in node.next_functions]
    key = _shape(parents[1]) if len(parents) > 1 and parents[1] is not None else ()
    if len(key) < 2 or len(out) < 2:
        key = out
    return attention_flops((*out[:-1], key[-1]), key, out[-1]), elements * width


def build(
    calls: list[LayerCall], walk: Walk, parameters: Iterable[nn.Parameter] = ()
) -> LayerGraph:
    """The graph of one micro-batch: layers that ran, attention calls, and ``outside_layers``.

    ``outside_layers`` holds those of the model's ``parameters`` that no layer that ran has.
    """
    nodes: dict[str, LayerNode] = {}
    counted: set[int] = set()
    for call in calls:
        before = nodes.get(call.fqn)
        own = list(call.module.parameters())
        new = [p for p in own if id(p) not in counted]  # tied weights belong to their first layer
        counted.update(id(p) for p in new)
        needs_input_grad = bool(call.inputs)
        has_weights = any(p.requires_grad for p in own)
        nodes[call.fqn] = LayerNode(
            fqn=call.fqn,
            kind=kind_of(call.module),
            params=sum(p.numel() for p in new) + (before.params if before else 0),
            param_bytes=sum(p.numel() * p.element_size() for p in new)
            + (before.param_bytes if before else 0),
            flops_forward=call.flops + (before.flops_forward if before else 0.0),
            flops_backward=call.flops * (needs_input_grad + has_weights)
            + (before.flops_backward if before else 0.0),
            activation_bytes=call.out_bytes + (before.activation_bytes if before else 0),
        )
    for attention in walk.attention:
        nodes[attention.fqn] = LayerNode(
            fqn=attention.fqn,
            kind="attention",
            flops_forward=attention.flops,
            # Four products of the forward's two, plus the recomputed scores of fused kernels.
            flops_backward=2.5 * attention.flops,
            activation_bytes=attention.out_bytes,
        )
    rest = [p for p in parameters if id(p) not in counted]
    nodes[OUTSIDE] = LayerNode(
        fqn=OUTSIDE,
        kind="outside",
        params=sum(p.numel() for p in rest),
        param_bytes=sum(p.numel() * p.element_size() for p in rest),
    )
    edges = tuple(
        LayerEdge(source=source, target=target, num_bytes=num_bytes)
        for (source, target), num_bytes in walk.edges.items()
    )
    everything = tuple(nodes.values())
    return LayerGraph(nodes=everything, edges=edges, signature=_signature(everything))


def _signature(nodes: tuple[LayerNode, ...]) -> str:
    """Equal for equal architectures: names, kinds and parameters, not batch sizes."""
    text = "\n".join(f"{n.fqn} {n.kind} {n.params}" for n in nodes)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
