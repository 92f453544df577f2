"""The three models that benchmarks/overhead.py trains: an MLP, a ResNet and a BERT.

Each is sized for steps that are short enough to show a cost and long enough to be real: about 5 ms
for the MLP, some tens of ms for the other two, on one or two CPU threads.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import Dataset


class BasicBlock(nn.Module):
    """Two convolutions with batch norm and a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        """Make a block; the shortcut gets a 1 x 1 convolution where the shape changes."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels_in == channels
            else nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.shortcut(x))


def resnet18(width: int = 16, num_classes: int = 10) -> nn.Module:
    """ResNet-18 for images of 32 x 32 pixels, with ``width`` channels in its first stage."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    channels_in = width
    for stage in range(4):
        channels = width * 2**stage
        layers.append(BasicBlock(channels_in, channels, stride=1 if stage == 0 else 2))
        layers.append(BasicBlock(channels, channels, stride=1))
        channels_in = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, num_classes)]
    return nn.Sequential(*layers)


def mlp() -> nn.Module:
    """Six linear layers of 384."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(384, 384), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(384, 10))


class BertClassifier(nn.Module):
    """Hugging Face's BERT with random weights; takes token ids and gives logits."""

    def __init__(self) -> None:
        """Build six layers of width 256."""
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        self.bert = BertForSequenceClassification(
            BertConfig(
                vocab_size=2000,
                hidden_size=256,
                num_hidden_layers=6,
                num_attention_heads=4,
                intermediate_size=1024,
                max_position_embeddings=64,
                num_labels=10,
            )
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each sequence."""
        logits: torch.Tensor = self.bert(input_ids=tokens).logits
        return logits


class Repeated(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """``num_samples`` samples that go round over a small set: any length, little memory."""

    def __init__(self, inputs: torch.Tensor, num_samples: int) -> None:
        """Keep the inputs and draw a label for each."""
        self.inputs = inputs
        self.labels = torch.randint(10, (len(inputs),))
        self.num_samples = num_samples

    def __len__(self) -> int:
        """The number of samples in one epoch."""
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One sample with its label."""
        return self.inputs[index % len(self.inputs)], self.labels[index % len(self.inputs)]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How to make a model and its inputs, and the batch of one rank."""

    make_model: Callable[[], nn.Module]
    make_inputs: Callable[[int], torch.Tensor]
    batch_size: int


WORKLOADS = {
    "mlp": Workload(make_model=mlp, make_inputs=lambda n: torch.randn(n, 384), batch_size=48),
    "resnet": Workload(
        make_model=resnet18, make_inputs=lambda n: torch.randn(n, 3, 32, 32), batch_size=8
    ),
    "bert": Workload(
        make_model=BertClassifier,
        make_inputs=lambda n: torch.randint(2000, (n, 32)),
        batch_size=4,
    ),
}


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    """One ordinary step; the loss stays where it is."""
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
