"""A user's script: a small model, DDP where there are several ranks, ``track`` around the loop.

train.py [--short] [--alone]
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import scaledl

BATCH, BATCHES, EPOCHS = 8, 100, 50


def main() -> int:
    """The steps that were done."""
    world = 1 if "--alone" in sys.argv else int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model = DistributedDataParallel(model) if world > 1 else model
    data = TensorDataset(torch.randn(BATCH * BATCHES * world, 16))
    sampler: DistributedSampler[Any] | None = DistributedSampler(data) if world > 1 else None
    loader = DataLoader(data, BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    num_steps = 0
    try:
        with scaledl.track(model, epochs=EPOCHS):
            for _ in range(EPOCHS):
                for (x,) in loader:
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                    num_steps += 1
                if "--short" in sys.argv:
                    break
    finally:
        if world > 1:
            dist.destroy_process_group()
    return num_steps


if __name__ == "__main__":
    main()
