"""A zoo of small models: every way in which a module can be unlike a plain chain of layers.

``make(name)`` gives a :class:`Case`: the model, a batch, and a loss of both. Weights and data come
from a fixed seed, so that two cases of one name are bit-equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH = 8


@dataclass
class Case:
    """One model with what it takes to train it for a step."""

    model: nn.Module
    batch: Callable[[], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]

    def step(self, lr: float = 0.01) -> float:
        """One step of gradient descent; the loss before it."""
        loss = self.loss(self.model, self.batch())
        loss.backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= lr * parameter.grad
                    parameter.grad = None
        return loss.item()


def _points(*shape: int) -> Callable[[], torch.Tensor]:
    def batch() -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(11))

    return batch


def _mean_square(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


def _plain(model: nn.Module, *shape: int) -> Case:
    return Case(model, _points(*(shape or (4, WIDTH))), _mean_square)


# --- hand-made oddities --------------------------------------------------------------------------


class Residual(nn.Module):
    """In-place activations and an in-place residual, as every ResNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.act(self.first(x)))
        y += x
        return F.relu_(y)


class Tied(nn.Module):
    """Embedding and output share their weight, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.embed(tokens))))


class CalledTwice(nn.Module):
    """One layer runs twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 2)
        self.unused = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.shared(torch.tanh(self.shared(x)))))


class DictLeaf(nn.Module):
    """A leaf that returns a dict with things that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"name": "out", "none": None, "out": x @ self.weight, "parts": [1, (2, "x")]}


@dataclass
class Output:
    """A structured output, as Hugging Face's ModelOutput without being a dict."""

    loss: torch.Tensor | None
    hidden: torch.Tensor


class DataclassLeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, x: torch.Tensor) -> Output:
        return Output(loss=None, hidden=x @ self.weight)


class GeneratorLeaf(nn.Module):
    """Returns a generator: looking into it would consume it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return (x @ self.weight for _ in range(2))


class NoneLeaf(nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        return None


class Structured(nn.Module):
    """Dict, dataclass, None and generator between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mapping = DictLeaf()
        self.record = DataclassLeaf()
        self.nothing = NoneLeaf()
        self.stream = GeneratorLeaf()
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.record(self.mapping(x)["out"]).hidden
        self.nothing(x)
        return {"scores": self.last(sum(self.stream(x)))}


class KeywordLeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *, hidden: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.linear(input=hidden) * scale


class KeywordOnly(nn.Module):
    """All inputs by keyword, down to the leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.first = KeywordLeaf()
        self.second = KeywordLeaf()

    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        return self.second(hidden=torch.tanh(self.first(hidden=x)), scale=0.5)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(x)
        return self.last(hidden[-1])


class MultiHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.last(self.attention(x, x, x)[0])


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(WIDTH, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.last(x)


class Frozen(nn.Module):
    """Two layers without gradient before two with."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.prefix.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.prefix(x))


class WithScripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.scripted(self.first(x)))


class WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


class PassThrough(nn.Module):
    """Layers that hand on their input itself: identity, dropout of nothing, a flat flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.same = nn.Identity()
        self.drop = nn.Dropout(0.0)
        self.flat = nn.Flatten()
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.flat(self.drop(self.same(self.first(x)))))


class BypassesCall(nn.Module):
    """One layer runs by ``.forward``, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(WIDTH, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden.forward(self.seen(x))


class Branches(nn.Module):
    """The small net whose edges are known."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)
        self.join = nn.Linear(2 * WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.stem(x))
        return self.join(torch.cat([self.left(x), self.right(x) + x], dim=-1))


class WrittenOutAttention(nn.Module):
    """softmax(Q K^T) V by hand, with dropout between."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class TwoEager(nn.Module):
    """A child that is compiled between two that are not."""

    def __init__(self, compile_child: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        child: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.child = torch.compile(child, backend="aot_eager") if compile_child else child
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.child(self.first(x)))


def wide_chain(num_leaves: int = 800) -> nn.Module:
    """A chain of very many small leaves."""
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(num_leaves)))


# --- convolutions --------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, width: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(
            BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1)
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


# --- transformers --------------------------------------------------------------------------------

LAYERS, HIDDEN, HEADS, LENGTH = 2, 64, 4, 12


def _tokens(extra: dict[str, Any] | None = None) -> Callable[[], dict[str, torch.Tensor]]:
    def batch() -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(11)
        tokens = torch.randint(3, 90, (2, LENGTH), generator=made)
        return {"input_ids": tokens, "labels": tokens, **(extra or {})}

    return batch


def _pixels() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(11)
    return {
        "pixel_values": torch.randn(2, 3, 32, 32, generator=made),
        "labels": torch.tensor([0, 1]),
    }


def _hf_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss


def _bert(attention: str = "sdpa") -> Case:
    from transformers import AutoModelForMaskedLM, BertConfig

    config = BertConfig(
        vocab_size=100,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        attn_implementation=attention,
    )
    return Case(AutoModelForMaskedLM.from_config(config), _tokens(), _hf_loss)


def _gpt2(attention: str = "sdpa") -> Case:
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(
        vocab_size=100,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=64,
        attn_implementation=attention,
    )
    return Case(AutoModelForCausalLM.from_config(config), _tokens(), _hf_loss)


def _llama(attention: str = "sdpa") -> Case:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        attn_implementation=attention,
    )
    return Case(AutoModelForCausalLM.from_config(config), _tokens(), _hf_loss)


def _t5() -> Case:
    from transformers import AutoModelForSeq2SeqLM, T5Config

    config = T5Config(
        vocab_size=100,
        d_model=HIDDEN,
        d_kv=HIDDEN // HEADS,
        d_ff=2 * HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        decoder_start_token_id=0,
    )
    return Case(AutoModelForSeq2SeqLM.from_config(config), _tokens(), _hf_loss)


def _vit(attention: str = "sdpa") -> Case:
    from transformers import AutoModelForImageClassification, ViTConfig

    config = ViTConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        image_size=32,
        patch_size=8,
        attn_implementation=attention,
    )
    return Case(AutoModelForImageClassification.from_config(config), _pixels_batch, _hf_loss)


def _deit() -> Case:
    from transformers import DeiTConfig, DeiTForImageClassification

    config = DeiTConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        image_size=32,
        patch_size=8,
    )
    # the automatic class cannot map this configuration in transformers 5.24
    return Case(DeiTForImageClassification(config), _pixels_batch, _hf_loss)


def _pixels_batch() -> dict[str, torch.Tensor]:
    return _pixels()


TRANSFORMERS: dict[str, Callable[[], Case]] = {
    "bert": _bert,
    "bert_eager": lambda: _bert("eager"),
    "gpt2": _gpt2,
    "gpt2_eager": lambda: _gpt2("eager"),
    "llama": _llama,
    "llama_eager": lambda: _llama("eager"),
    "t5": _t5,
    "vit": _vit,
    "vit_eager": lambda: _vit("eager"),
    "deit": _deit,
}

# functional attention calls of one forward; T5: encoder, decoder, and decoder to encoder
ATTENTION_CALLS = {name: 3 * LAYERS if name == "t5" else LAYERS for name in TRANSFORMERS}


def _tied() -> Case:
    def batch() -> torch.Tensor:
        return torch.randint(16, (4, 5), generator=torch.Generator().manual_seed(11))

    return Case(Tied(), batch, _mean_square)


def _structured() -> Case:
    return Case(Structured(), _points(4, WIDTH), lambda m, x: m(x)["scores"].square().mean())


def _keywords() -> Case:
    return Case(KeywordOnly(), _points(4, WIDTH), lambda m, x: m(x=x).square().mean())


ODD: dict[str, Callable[[], Case]] = {
    "residual": lambda: _plain(nn.Sequential(Residual(), Residual())),
    "tied": _tied,
    "twice": lambda: _plain(CalledTwice()),
    "structured": _structured,
    "keywords": _keywords,
    "lstm": lambda: _plain(Recurrent(), 4, 5, WIDTH),
    "multihead": lambda: _plain(MultiHead(), 4, 5, WIDTH),
    "checkpoint": lambda: _plain(Checkpointed(reentrant=False)),
    "checkpoint_reentrant": lambda: _plain(Checkpointed(reentrant=True)),
    "frozen": lambda: _plain(Frozen()),
    "scripted": lambda: _plain(WithScripted()),
    "weight_norm": lambda: _plain(WeightNorm()),
    "pass_through": lambda: _plain(PassThrough()),
    "bypass": lambda: _plain(BypassesCall()),
    "branches": lambda: _plain(Branches()),
    "written_out": lambda: _plain(WrittenOutAttention(), 4, 5, WIDTH),
    "wide": lambda: _plain(wide_chain(), 4, 2),
    "resnet": lambda: _plain(ResNet(), 2, 3, 32, 32),
}

COMPILED: dict[str, Callable[[], Case]] = {"compiled_child": lambda: _plain(TwoEager())}

EVERY = {**ODD, **TRANSFORMERS}


def make(name: str) -> Case:
    """The case of that name from a fixed seed, in training mode."""
    torch.manual_seed(5)
    case = {**EVERY, **COMPILED}[name]()
    case.model.train()
    torch.manual_seed(6)  # dropout of the step, whatever the construction drew
    return case
