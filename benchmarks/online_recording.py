"""Records the stream that ``online_learning.py`` replays: small models trained in turn on this CPU.

    python benchmarks/online_recording.py benchmarks/data/online_windows.json.gz

Each model trains for real (forward, backward, AdamW step); a window is the median of its steps.
Half way through the fourth model a second process begins to compute on the same core and stays
until that model is done: the regime changes and nothing in the model tells so. About two minutes.
"""

import argparse
import gzip
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from scaledl.capture.dry import dry_run
from scaledl.records import LayerGraph

WINDOWS, WINDOW_S, DISTURBED = 10, 1.2, 3


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One model: its graph, its batch, its windows' median step, and what disturbed it."""

    model: str
    batch: int
    graph: LayerGraph
    window_s: tuple[float, ...]
    changes_at: int | None = None


class Attention(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act, self.heads = nn.GELU(), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = (*x.shape[:2], 3, self.heads, -1)
        q, k, v = self.qkv(self.norm1(x)).view(size).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(self.act(self.up(self.norm2(x))))


class Recurrent(nn.Module):
    """The last state of an LSTM, to classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(1000, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(self.embed(x))
        return self.head(states[:, -1])  # type: ignore[no-any-return]


class Mean(nn.Module):
    """Mean over the positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


def conv(channels: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [nn.Conv2d(channels, channels, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def mlp(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def transformer(width: int, depth: int, *, text: bool) -> nn.Module:
    first: list[nn.Module] = [nn.Embedding(1000, width)] if text else [nn.Linear(192, width)]
    blocks = [Attention(width, 4) for _ in range(depth)]
    return nn.Sequential(*first, *blocks, nn.LayerNorm(width), Mean(), nn.Linear(width, 10))


def words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (batch, length))


MODELS: tuple[tuple[str, Callable[[], nn.Module], Callable[[], torch.Tensor]], ...] = (
    ("gpt", lambda: transformer(128, 4, text=True), lambda: words(8, 64)),
    ("cnn", lambda: conv(32, 3), lambda: torch.randn(16, 3, 32, 32)),
    ("mlp", lambda: mlp(512, 6), lambda: torch.randn(64, 512)),
    ("vit", lambda: transformer(192, 3, text=False), lambda: torch.randn(8, 64, 192)),
    ("lstm", lambda: Recurrent(128), lambda: words(16, 48)),
    ("wide gpt", lambda: transformer(256, 2, text=True), lambda: words(4, 128)),
)


def burn() -> None:
    """Compute until ended."""
    while True:
        sum(i * i for i in range(10_000))


def windows_of(net: nn.Module, batch: torch.Tensor, changes_at: int | None) -> tuple[float, ...]:
    """Median step of each window; from ``changes_at`` on another process shares the core."""
    optimizer = torch.optim.AdamW(net.parameters())
    labels = torch.randint(0, 10, (len(batch),))
    other = multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
    found = []
    try:
        for window in range(-1, WINDOWS):  # the first one warms up
            if window == changes_at:
                other.start()
                time.sleep(2.0)
            steps, until_s = [], time.perf_counter() + WINDOW_S
            while len(steps) < 5 or time.perf_counter() < until_s:
                begin_s = time.perf_counter()
                F.cross_entropy(net(batch), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
                steps.append(time.perf_counter() - begin_s)
            if window >= 0:
                found.append(statistics.fmean(steps) if changes_at else statistics.median(steps))
    finally:
        if other.is_alive():
            other.terminate()
            other.join()
    return tuple(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    for index, (name, make, data) in enumerate(MODELS):
        net, batch = make(), data()
        changes_at = WINDOWS // 2 if index == DISTURBED else None
        dry = dry_run(net, batch)
        window_s = windows_of(net, batch, changes_at)
        print(name, " ".join(f"{s * 1e3:.1f}" for s in window_s), "ms", flush=True)
        found.append(
            Recording(
                model=name,
                batch=len(batch),
                graph=dry.graph,
                window_s=window_s,
                changes_at=changes_at,
            )
        )
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_bytes(gzip.compress(msgspec.json.encode(found), mtime=0))


if __name__ == "__main__":
    main()
