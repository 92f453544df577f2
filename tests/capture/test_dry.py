"""A forward without data: what it shows, and that nothing of the user's is touched."""

from typing import Any

import pytest
import torch
from torch import nn

from scaledl.capture import dry
from scaledl.capture.dry import dry_run
from scaledl.errors import UsageError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout())
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.body(x)) * scale}


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(8, 16),
        (torch.zeros(8, 16), 2.0),
        {"x": torch.zeros(8, 16), "scale": 2.0},
        torch.zeros(8, 16, device="meta"),
    ],
    ids=["tensor", "arguments", "names", "meta"],
)
def test_the_layers_are_those_of_a_real_forward(batch: Any):
    found = dry_run(Net(), batch)
    nodes = {node.fqn: node for node in found.graph.nodes}
    assert nodes["body.0"].flops_forward == pytest.approx(2 * 8 * 16 * 32, rel=0.1)
    assert nodes["head"].params == 32 * 4 + 4
    assert (found.batch, found.dtype) == (8, "float32")
    assert {(e.source, e.target) for e in found.graph.edges} >= {("body.0", "body.1")}


def test_nothing_of_the_model_or_of_the_random_state_changes():
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    dry_run(model, torch.ones(8, 16))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class ByValue(nn.Module):
    """Its way depends on a value, which no tensor without data has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if float(x.sum()) > 0 else x


def test_a_model_whose_way_depends_on_values_runs_for_real_where_it_is_small(
    monkeypatch: pytest.MonkeyPatch,
):
    found = dry_run(ByValue(), torch.ones(2, 4))
    assert "linear" in {node.fqn for node in found.graph.nodes}
    monkeypatch.setattr(dry, "MOST_REAL_BYTES", 8)
    with pytest.raises(UsageError, match="Track a training"):
        dry_run(ByValue(), torch.ones(2, 4))


def test_a_batch_that_does_not_fit_and_a_model_without_layers_are_named():
    with pytest.raises(UsageError, match="what the model is called with"):
        dry_run(Net(), torch.zeros(8, 5))
    with pytest.raises(UsageError, match="no layer that computes"):
        dry_run(nn.Identity(), torch.zeros(1))


def test_K05_without_torchs_fake_tensors_a_real_forward_stands_in(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delattr("torch._subclasses.fake_tensor.FakeCopyMode")
    found = dry_run(Net(), {"x": torch.zeros(8, 16), "scale": 2.0})
    assert "head" in {node.fqn for node in found.graph.nodes}
