"""Models of usual sizes for the checks on a GPU, from torch alone, with random weights.

ResNet-50, GPT-2 small, BERT base, ViT-B/16 and T5 small; each gives ten logits a sample.
"""

from collections.abc import Callable

import torch
from overhead_models import Workload
from torch import nn


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut (He et al. 2016, figure 5)."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        """``4 * width`` channels come out."""
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *conv_norm(channels_in, width, 1, 1),
            nn.ReLU(inplace=True),
            *conv_norm(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *conv_norm(width, out, 1, 1),
        )
        same = stride == 1 and channels_in == out
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*conv_norm(channels_in, out, 1, stride))
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        out: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


def conv_norm(channels_in: int, channels: int, size: int, stride: int) -> list[nn.Module]:
    """A convolution without bias and its batch norm."""
    conv = nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(channels)]


def resnet50(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> nn.Module:
    """ResNet-50 for images of 224 x 224 pixels."""
    layers: list[nn.Module] = [*conv_norm(3, width, 7, 2), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, padding=1))
    channels = width
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and index == 0 else 1
            layers.append(Bottleneck(channels, width * 2**stage, stride))
            channels = 4 * width * 2**stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    """A transformer over tokens (GPT-2 with ``causal``, else BERT) or over image patches (ViT)."""

    def __init__(
        self,
        *,
        num_layers: int,
        width: int,
        length: int,
        vocabulary: int = 0,
        patch: int = 0,
        causal: bool = False,
    ) -> None:
        """``vocabulary`` for tokens, ``patch`` pixels for images."""
        super().__init__()
        self.embed: nn.Module = (
            nn.Embedding(vocabulary, width) if vocabulary else nn.Conv2d(3, width, patch, patch)
        )
        self.is_image = not vocabulary
        self.place = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.causal = causal
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of each sample."""
        x = self.embed(x)
        if self.is_image:
            x = x.flatten(2).transpose(1, 2)
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = self.body(x + self.place, mask=mask, is_causal=self.causal)
        out: torch.Tensor = self.head(x.mean(1))
        return out


class EncoderDecoder(nn.Module):
    """T5's shape: an encoder and a decoder over the same tokens."""

    def __init__(self, *, num_layers: int, width: int, vocabulary: int) -> None:
        """``num_layers`` of each."""
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.Transformer(
            width, width // 64, num_layers, num_layers, 4 * width, batch_first=True
        )
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each sequence."""
        x = self.embed(tokens)
        out: torch.Tensor = self.head(self.body(x, x).mean(1))
        return out


def tokens(vocabulary: int, length: int) -> Callable[[int], torch.Tensor]:
    """Makes so many random sequences."""
    return lambda n: torch.randint(vocabulary, (n, length))


def images(pixels: int) -> Callable[[int], torch.Tensor]:
    """Makes so many random images."""
    return lambda n: torch.randn(n, 3, pixels, pixels)


WORKLOADS = {
    "resnet50": Workload(make_model=resnet50, make_inputs=images(224), batch_size=64),
    "gpt2": Workload(
        make_model=lambda: Encoder(
            num_layers=12, width=768, length=512, vocabulary=50257, causal=True
        ),
        make_inputs=tokens(50257, 512),
        batch_size=16,
    ),
    "bert_base": Workload(
        make_model=lambda: Encoder(num_layers=12, width=768, length=128, vocabulary=30522),
        make_inputs=tokens(30522, 128),
        batch_size=32,
    ),
    "vit": Workload(
        make_model=lambda: Encoder(num_layers=12, width=768, length=196, patch=16),
        make_inputs=images(224),
        batch_size=64,
    ),
    "t5": Workload(
        make_model=lambda: EncoderDecoder(num_layers=6, width=512, vocabulary=32128),
        make_inputs=tokens(32128, 256),
        batch_size=16,
    ),
}
