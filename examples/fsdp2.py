"""Sharded training of a small transformer with fully_shard (FSDP2), on CPUs or GPUs.

torchrun --standalone --nproc-per-node 2 examples/fsdp2.py --epochs 2 --steps 50
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import scaledl  # scaledl

VOCABULARY, CONTEXT, WIDTH = 64, 32, 128


class TinyTransformer(nn.Module):
    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(num_blocks)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(0, 1))  # one row a token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50, help="steps in one epoch")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per rank and step")
    args = parser.parse_args()

    use_cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    )
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    torch.manual_seed(0)
    num_samples = args.steps * args.batch_size * dist.get_world_size()
    data = TensorDataset(torch.randint(VOCABULARY, (num_samples, CONTEXT)))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)

    model = TinyTransformer(num_blocks=2).to(device)
    for block in model.blocks:  # each block is gathered on its own, then the rest with the root
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after sharding: it sees shards

    with scaledl.track(model, epochs=args.epochs):  # scaledl
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for (tokens,) in loader:
                tokens = tokens.to(device)
                logits = model(tokens)  # the task: name each token again
                loss = F.cross_entropy(logits, tokens.flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
