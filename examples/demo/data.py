"""The demo's two data sets, both on every machine: handwritten digits and Python's own source."""

import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset, TensorDataset


def digits() -> tuple[Dataset, Dataset]:
    """Scikit-learn's 1797 handwritten digits of 8 x 8 pixels, split into training and test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1536], order[1536:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def stdlib_source(num_windows: int = 1024, context: int = 64) -> tuple[Dataset, Dataset]:
    """Windows of bytes from the standard library's modules; each window's target is the next byte.

    The files are read in the order of their names, so every rank sees the same text.
    """
    needed = (num_windows + 128) * context + 1
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= needed:
            break
    tokens = torch.frombuffer(text, dtype=torch.uint8)[:needed].long()
    inputs = tokens[:-1].view(-1, context)
    targets = tokens[1:].view(-1, context)
    return (
        TensorDataset(inputs[:num_windows], targets[:num_windows]),
        TensorDataset(inputs[num_windows:], targets[num_windows:]),
    )
