"""FLOPs of one call of a layer by its kind and shapes; a multiply-add counts as two.

References:
    Hestness et al. 2017 and ScaleDL (arXiv 2511.04162) eq. 10 count a linear layer as
    2 b d_in d_out + b d_out. The backward of a layer with weights computes two products of the
    forward's size (gradients of input and of weights), so it counts twice the forward.
"""

from typing import Any

from torch import nn

# Elementwise work per output element, a rough count that never matters beside the products.
_NORM_FLOPS = 8.0
_ACTIVATION_FLOPS = 1.0

_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
_POOLS = (
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)


def kind_of(module: nn.Module) -> str:
    """The layer type the predictor knows: one of a short list, else ``other``."""
    name = type(module).__name__
    if isinstance(module, nn.Linear) or name in ("Conv1D", "NonDynamicallyQuantizableLinear"):
        return "linear"
    if isinstance(module, _CONVOLUTIONS):
        return "convolution"
    if isinstance(module, nn.MultiheadAttention):
        return "attention"
    if isinstance(module, nn.RNNBase):
        return "recurrent"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if isinstance(module, _NORMS) or name.endswith("Norm"):
        return "normalisation"
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "dropout"
    if isinstance(module, _POOLS):
        return "pooling"
    if type(module).__module__ == "torch.nn.modules.activation" or "Activation" in name:
        return "activation"
    return "compiled" if "_orig_mod" in module._modules else "other"


def forward_flops(module: nn.Module, input_shape: tuple[int, ...], out_elements: int) -> float:
    """FLOPs of one forward call.

    Args:
        module: The layer.
        input_shape: Shape of its first input tensor.
        out_elements: Elements of its output tensors.
    """
    kind = kind_of(module)
    if kind == "linear":
        return out_elements * (2.0 * _in_features(module) + 1.0)
    if kind == "convolution":
        return out_elements * 2.0 * _taps(module)
    if kind == "attention":
        return _multihead_flops(module, input_shape)
    if kind == "recurrent":
        return _recurrent_flops(module, input_shape)
    if kind == "normalisation":
        return _NORM_FLOPS * out_elements
    if kind in ("activation", "dropout", "pooling"):
        return _ACTIVATION_FLOPS * out_elements
    return 0.0


def attention_flops(query: tuple[int, ...], key: tuple[int, ...], value_width: int) -> float:
    """FLOPs of one scaled dot-product attention: Q K^T and P V.

    Shapes:
        query: ``[..., S_q, D]``, key: ``[..., S_k, D]``; value width ``D_v``.
    """
    rows = 1.0
    for size in query[:-1]:
        rows *= size
    return 2.0 * rows * key[-2] * (query[-1] + value_width)


def _in_features(module: Any) -> int:
    features = getattr(module, "in_features", None)
    if isinstance(features, int):
        return features
    weight = getattr(module, "weight", None)  # GPT-2's Conv1D keeps [in, out]
    return int(weight.shape[0]) if weight is not None and weight.dim() == 2 else 0


def _taps(module: Any) -> float:
    size = 1.0
    for k in module.kernel_size:
        size *= k
    if module.transposed:
        stride = 1.0
        for s in module.stride:
            stride *= s
        size /= stride
    return float(size * module.in_channels / module.groups)


def _multihead_flops(module: Any, shape: tuple[int, ...]) -> float:
    if len(shape) < 2:
        return 0.0
    if len(shape) == 2:
        batch, length = 1, shape[0]
    elif module.batch_first:
        batch, length = shape[0], shape[1]
    else:
        batch, length = shape[1], shape[0]
    width = module.embed_dim
    return float(batch * (8.0 * length * width**2 + 4.0 * length**2 * width))


def _recurrent_flops(module: Any, shape: tuple[int, ...]) -> float:
    tokens = 1.0
    for size in shape[:-1]:
        tokens *= size
    gates = {"LSTM": 4, "GRU": 3}.get(type(module).__name__, 1)
    directions = 2 if module.bidirectional else 1
    total, width = 0.0, module.input_size
    for _ in range(module.num_layers):
        total += directions * 2.0 * gates * module.hidden_size * (width + module.hidden_size)
        width = module.hidden_size * directions
    return tokens * total
