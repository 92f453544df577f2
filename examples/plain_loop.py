"""A plain training loop on one device; scaledl needs the two lines marked `# scaledl`.

python examples/plain_loop.py --epochs 3 --steps 200
"""

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import scaledl  # scaledl


def make_data(num_samples: int, num_features: int, num_classes: int) -> TensorDataset:
    """Random points labelled by a random linear teacher: learnable, and nothing to download."""
    x = torch.randn(num_samples, num_features)
    teacher = torch.randn(num_features, num_classes)
    return TensorDataset(x, (x @ teacher).argmax(dim=1))


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="steps in one epoch")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = make_data(args.steps * args.batch_size + 512, num_features=64, num_classes=10)
    train_set, val_set = torch.utils.data.random_split(data, [len(data) - 512, 512])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=256)

    model = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with scaledl.track(model, epochs=args.epochs):  # scaledl
        for epoch in range(args.epochs):
            for x, y in train_loader:
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            print(f"epoch {epoch}: accuracy {accuracy(model, val_loader, device):.3f}")


if __name__ == "__main__":
    main()
