"""Gradient accumulation with automatic mixed precision and a gradient scaler.

The last group of an epoch is smaller than the others, as it is in most real data sets. One step is
one call of the optimizer, whatever the number of micro-batches: scaledl sees that by itself.

    python examples/accumulation_amp.py --epochs 2 --steps 100
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import scaledl  # scaledl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps in one epoch")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches in one step")
    parser.add_argument("--micro-batch", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16

    # one micro-batch short of full groups, so that the last group of each epoch is uneven
    num_micro_batches = args.steps * args.accumulate - (args.accumulate > 1)
    x = torch.randn(num_micro_batches * args.micro_batch, 64)
    data = TensorDataset(x, x.abs().mean(dim=1, keepdim=True))
    loader = DataLoader(data, batch_size=args.micro_batch, shuffle=True)

    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type)

    with scaledl.track(model, epochs=args.epochs):  # scaledl
        for epoch in range(args.epochs):
            for index, (inputs, targets) in enumerate(loader):
                first = index - index % args.accumulate
                group_size = min(args.accumulate, len(loader) - first)
                with torch.autocast(device.type, dtype=dtype):
                    outputs = model(inputs.to(device))
                    loss = F.mse_loss(outputs.float(), targets.to(device))
                scaler.scale(loss / group_size).backward()
                if index + 1 == first + group_size:
                    scaler.step(optimizer)  # skips the step when a gradient overflowed
                    scaler.update()
                    optimizer.zero_grad()
            print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
