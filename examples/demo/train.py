"""Trains one of the demo's models under torchrun: an ordinary script, watched by scaledl.

torchrun --standalone --nproc-per-node 2 examples/demo/train.py digits
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from data import digits, stdlib_source
from models import ByteGPT, DigitsNet
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import scaledl

EPOCHS = {"digits": 8, "gpt": 4}
BATCH_PER_RANK = {"digits": 16, "gpt": 8}


def setup() -> torch.device:
    """Join the process group; return this rank's device.

    One thread a rank: on CPUs a rank then computes alike whether it runs alone or beside another.
    """
    torch.set_num_threads(1)
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy of class logits, or of the logits at each place of a text."""
    logits = model(x)
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    losses = [loss_of(model, x.to(device), y.to(device)) for x, y in loader]
    model.train()
    return torch.stack(losses).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("digits", "gpt"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
    args = parser.parse_args()
    epochs = args.epochs or EPOCHS[args.model]

    device = setup()
    torch.manual_seed(0)
    train_set, val_set = digits() if args.model == "digits" else stdlib_source()
    sampler = DistributedSampler(train_set, shuffle=True)
    loader = DataLoader(train_set, batch_size=BATCH_PER_RANK[args.model], sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=64)

    net = DigitsNet() if args.model == "digits" else ByteGPT()
    model = DistributedDataParallel(net.to(device))  # evaluated too: what is tracked is seen
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with scaledl.track(model, epochs=epochs, gpus=args.gpus):
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = loss_of(model, x.to(device), y.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            val_loss = evaluate(model, val_loader, device)
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1}/{epochs}: validation loss {val_loss:.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
