"""Model families that are measured: transformers with random weights, and plain ones.

Those of Hugging Face are the architectures of the ScaleDL paper (arXiv 2511.04162, table 2), made
small. They need the package ``transformers``, which is imported when one is built.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scaledl.collecting.records import Configuration
from scaledl.errors import UsageError

VOCABULARY = 2048
HEAD_WIDTH = 32
PATCH = 8  # pixels
NUM_CLASSES = 100


class Job(NamedTuple):
    """A model and one batch for it; ``loss(model, batch)`` gives the scalar to go back from."""

    model: nn.Module
    batch: dict[str, Tensor]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of one forward."""
    output = model(**batch)
    loss: Tensor = output if isinstance(output, Tensor) else output.loss
    return loss


def build(configuration: Configuration, seed: int = 0) -> Job:
    """The model of a configuration with random weights, in training mode, and a random batch.

    Raises:
        UsageError: an unknown family, a size that it cannot have, or transformers is missing.
    """
    family = FAMILIES.get(configuration.family)
    if family is None:
        raise UsageError(
            f"unknown model family {configuration.family!r}. Choose of: {', '.join(FAMILIES)}."
        )
    if configuration.width % HEAD_WIDTH:
        raise UsageError(
            f"a width of {configuration.width} is no multiple of {HEAD_WIDTH}. Write for example "
            f"{max(1, configuration.width // HEAD_WIDTH) * HEAD_WIDTH}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family(configuration)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            "the families bert, gpt2, t5, vit and deit need transformers, which is not installed. "
            "pip install transformers, or take mlp or cnn."
        ) from error
    return transformers


def _tokens(c: Configuration) -> Tensor:
    return torch.randint(0, VOCABULARY, (c.batch, c.length))


def _bert(c: Configuration) -> Job:
    hf, tokens = _transformers(), _tokens(c)
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.width // HEAD_WIDTH,
        intermediate_size=4 * c.width,
    )
    return Job(hf.BertForMaskedLM(config).train(), {"input_ids": tokens, "labels": tokens})


def _gpt2(c: Configuration) -> Job:
    hf, tokens = _transformers(), _tokens(c)
    config = hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=c.width,
        n_layer=c.depth,
        n_head=c.width // HEAD_WIDTH,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return Job(hf.GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens})


def _t5(c: Configuration) -> Job:
    hf, tokens = _transformers(), _tokens(c)
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=c.width,
        d_kv=HEAD_WIDTH,
        d_ff=4 * c.width,
        num_layers=c.depth,
        num_heads=c.width // HEAD_WIDTH,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model = hf.T5ForConditionalGeneration(config).train()
    return Job(model, {"input_ids": tokens, "labels": tokens})


def _picture(c: Configuration) -> dict[str, Tensor]:
    side = _side(c.length) * PATCH
    return {
        "pixel_values": torch.randn(c.batch, 3, side, side),
        "labels": torch.randint(0, NUM_CLASSES, (c.batch,)),
    }


def _side(num_patches: int) -> int:
    side = math.isqrt(num_patches)
    if side * side != num_patches:
        raise UsageError(
            f"pictures of {num_patches} patches are not square. Give a length of {side * side}."
        )
    return side


def _vision(c: Configuration, config_of: Any, model_of: Any) -> Job:
    config = config_of(
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.width // HEAD_WIDTH,
        intermediate_size=4 * c.width,
        image_size=_side(c.length) * PATCH,
        patch_size=PATCH,
        num_labels=NUM_CLASSES,
    )
    return Job(model_of(config).train(), _picture(c))


def _vit(c: Configuration) -> Job:
    hf = _transformers()
    return _vision(c, hf.ViTConfig, hf.ViTForImageClassification)


def _deit(c: Configuration) -> Job:
    hf = _transformers()
    return _vision(c, hf.DeiTConfig, hf.DeiTForImageClassification)


class _Classifier(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.body(pixel_values), labels)


def _mlp(c: Configuration) -> Job:
    picture = _picture(c)
    sizes = [picture["pixel_values"][0].numel(), *[c.width] * c.depth]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.GELU()]
    layers.append(nn.Linear(sizes[-1], NUM_CLASSES))
    return Job(_Classifier(nn.Sequential(*layers)).train(), picture)


def _cnn(c: Configuration) -> Job:
    layers: list[nn.Module] = []
    channels = 3
    for index in range(c.depth):
        stride = 2 if index % 2 else 1
        layers += [
            nn.Conv2d(channels, c.width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(c.width),
            nn.ReLU(inplace=True),
        ]
        channels = c.width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c.width, NUM_CLASSES)]
    return Job(_Classifier(nn.Sequential(*layers)).train(), _picture(c))


FAMILIES: dict[str, Callable[[Configuration], Job]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "t5": _t5,
    "vit": _vit,
    "deit": _deit,
    "mlp": _mlp,
    "cnn": _cnn,
}
