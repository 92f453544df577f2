"""Raw events of a profile of this process: who launched which kernel, who caused a collective."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from scaledl.capture.ranges import MAX_RANGES, ModuleRanges
from scaledl.capture.tables import launch_owners, read_tables
from scaledl.timeline.events import LAYER_PREFIX
from scaledl.timeline.kernels import attribute


class Raw:
    """What kineto's events answer."""

    def __init__(
        self,
        name: str,
        start: int,
        end: int,
        activity: str = "cpu_op",
        *,
        thread: int = 1,
        sequence: int = -1,
        forward_thread: int = 0,
        own_id: int = 0,
        link: int = 0,
        resource: int = 0,
    ) -> None:
        on_device = activity in ("kernel", "gpu_memcpy", "gpu_user_annotation")
        answers = {
            "name": name,
            "start_ns": start,
            "duration_ns": end - start,
            "activity_type": activity,
            "device_type": DeviceType.CUDA if on_device else DeviceType.CPU,
            "is_user_annotation": "annotation" in activity,
            "start_thread_id": thread,
            "sequence_nr": sequence,
            "fwd_thread_id": forward_thread,
            "correlation_id": own_id,
            "linked_correlation_id": link,
            "device_resource_id": resource,
        }
        for key, value in answers.items():
            setattr(self, key, lambda value=value: value)


def test_kernels_find_their_layer_by_operator_and_without_one_by_the_call():
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        Raw(LAYER_PREFIX + "net.0", 10, 60, "user_annotation", own_id=1),
        Raw("aten::mm", 20, 40, sequence=3, own_id=2),
        Raw("cudaLaunchKernel", 30, 31, "cuda_runtime", own_id=900, link=2, resource=77),
        Raw("cudaGraphLaunch", 50, 51, "cuda_runtime", own_id=901, resource=77),
        Raw(node, 100, 150, thread=2, sequence=3, forward_thread=1, own_id=3),
        Raw("aten::mm", 110, 120, thread=2, own_id=4),
        Raw("gemm", 200, 210, "kernel", own_id=900, link=2),
        Raw("captured", 210, 225, "kernel", own_id=901),
        Raw("gemm", 300, 320, "kernel", own_id=902, link=4),
        Raw("Memcpy HtoD", 400, 500, "gpu_memcpy", own_id=903),
        Raw("ours", 200, 320, "gpu_user_annotation"),
        Raw("broken", 0, 5, "kernel", own_id=904),
    ]
    found = attribute(*read_tables(events))
    (layer,) = found.layers
    assert (layer.layer, layer.forward_ns, layer.backward_ns) == ("net.0", 25, 20)
    assert (found.total_ns, found.outside_ns) == (45, 0)


def test_a_collective_is_owned_by_the_unit_of_fsdp_around_its_launch():
    events = [
        Raw("FSDP::all_gather (layers.0)", 10, 60, "user_annotation", own_id=1),
        Raw("c10d::_allgather_base_", 20, 40, own_id=2),
        Raw("c10d::allreduce_", 70, 80, own_id=3),
    ]
    assert launch_owners(events) == {20: "layers.0", 70: ""}


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(self.first(x), -1)
        again: Any = checkpoint(self.second, x, use_reentrant=False)
        return again * 2


def step_of(model: nn.Module, failing: bool = False) -> list[Any]:
    """Raw events of one step under ranges."""
    ranges = ModuleRanges(model, lambda error: pytest.fail(str(error)))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        ranges.attach()
        if failing:
            with pytest.raises(RuntimeError):
                model(torch.ones(4, 3))
        model(torch.ones(4, 64)).sum().backward()
        ranges.detach()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    return list(seen.profiler.kineto_results.events())


@pytest.mark.parametrize("failing", [False, True])
def test_operators_of_a_real_step_are_booked_to_the_module_that_called_them(failing: bool):
    events = step_of(nn.Sequential(Twice()), failing)
    # Each of these operators stands for a kernel that it launches: the machine has no device.
    operators = ("aten::mm", "aten::addmm", "aten::_softmax", "aten::mul")
    begins_ns = max(e.start_ns() for e in events if e.name() == LAYER_PREFIX + "0")
    kernels = [
        Raw("kernel", 1 + 10 * i, 2 + 10 * i, "kernel", own_id=10**6 + i, link=e.correlation_id())
        for i, e in enumerate(events)
        if e.name() in operators and e.start_ns() > begins_ns
    ]
    found = {x.layer: x for x in attribute(*read_tables([*events, *kernels])).layers}
    assert {"0", "0.first", "0.second"} == set(found)
    first, second = found["0.first"], found["0.second"]
    assert (first.forward_ns, first.recompute_ns, first.backward_ns) == (1, 0, 1)
    assert (second.forward_ns, second.recompute_ns, second.backward_ns) == (1, 1, 2)
    assert found["0"].forward_ns == 2  # softmax and product


def test_ranges_of_a_very_large_model_are_the_outer_ones():
    model = nn.Sequential(*(nn.Sequential(nn.ReLU()) for _ in range(MAX_RANGES)))
    ranges = ModuleRanges(model, lambda error: pytest.fail(str(error)))
    assert [name for name, _ in ranges._modules] == [str(i) for i in range(MAX_RANGES)]
