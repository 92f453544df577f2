"""Data-parallel training with DistributedDataParallel, on CPUs (gloo) or GPUs (nccl).

torchrun --standalone --nproc-per-node 2 examples/ddp.py --epochs 3 --steps 100
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import scaledl  # scaledl


def setup() -> torch.device:
    """Join the process group that torchrun prepared; return this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="steps in one epoch")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per rank and step")
    args = parser.parse_args()

    device = setup()
    torch.manual_seed(0)  # the same data on every rank; the sampler gives each its share
    num_samples = args.steps * args.batch_size * dist.get_world_size()
    labels = torch.randint(10, (num_samples,))
    images = torch.randn(num_samples, 3, 16, 16) + labels.view(-1, 1, 1, 1) / 5
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)

    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    with scaledl.track(model, epochs=args.epochs, gpus=[1, 2, 4, 8]):  # scaledl
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
