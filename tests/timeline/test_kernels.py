"""Kernel time by layer, on made-up streams and on recorded traces where a folder is given."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timelines import ENGINE, MAIN, Stream, times

from scaledl.timeline.events import LAYER_PREFIX, HostTable, KernelTable, Meaning, Role
from scaledl.timeline.kernels import attribute
from scaledl.traces.summary import read_trace


def layer(name: str) -> str:
    return f"nn.Module: {name}"


def test_kernels_of_both_passes_find_the_layer_whose_forward_made_the_node():
    found = (
        Stream()
        .inside(layer("Net_0"), 0, 100)
        .inside(layer("Linear_0"), 10, 50)
        .inside("aten::addmm", 20, 40, sequence=7)
        .launch(30, 10)
        .inside("aten::softmax", 60, 80, sequence=8)
        .launch(70, 3)
        .node("SoftmaxBackward0", 200, 210, 8)
        .launch(205, 5, thread=ENGINE)
        .node("AddmmBackward0", 210, 250, 7)
        .launch(220, 20, thread=ENGINE)
        .read()
    )
    assert times(found) == {"Linear_0": (10, 20, 0), "Net_0": (3, 5, 0)}
    assert found.outside_ns == 0


def test_of_operators_with_one_number_the_last_made_the_node():
    # Batch norm counts its batches before it makes its node; the add sees the same number.
    found = (
        Stream()
        .inside(layer("Linear_0"), 0, 50)
        .inside("aten::add_", 10, 20, sequence=7)
        .inside(layer("BatchNorm_0"), 50, 100)
        .inside("aten::batch_norm", 60, 90, sequence=7)
        .inside("aten::native_batch_norm", 65, 85, sequence=7)
        .node("NativeBatchNormBackward0", 200, 250, 7)
        .launch(220, 20, thread=ENGINE)
        .read()
    )
    assert times(found) == {"BatchNorm_0": (0, 20, 0)}


def test_a_node_of_work_outside_all_layers_takes_the_number_from_a_layer():
    found = (
        Stream()
        .inside(layer("Linear_0"), 0, 50)
        .inside("aten::add_", 10, 20, sequence=7)
        .inside("aten::mse_loss", 60, 90, sequence=7)
        .node("MseLossBackward0", 200, 250, 7)
        .launch(220, 20, thread=ENGINE)
        .read()
    )
    assert found.outside_backward_ns == 20
    assert found.layers == ()


def test_optimizer_loss_and_unlinked_kernels_are_told_apart():
    stream = Stream().launch(1, 10).inside("Optimizer.step#SGD.step", 100, 200, is_range=True)
    stream.inside(layer("Linear_0"), 110, 120).launch(115, 4)  # a module that the optimizer calls
    stream.kernels.add(0, 7, launch=99)
    found = stream.read()
    parts = (found.outside_forward_ns, found.optimizer_ns, found.unlinked_ns)
    assert parts == (10, 4, 7)
    assert found.layers == ()


def test_sums_add_streams_and_the_union_counts_a_moment_once():
    stream = Stream().inside(layer("Linear_0"), 0, 50).launch(10, 20).launch(12, 20)
    found = stream.read()
    assert (found.layers[0].sum_ns, found.layers[0].union_ns) == (40, 22)
    assert (found.total_ns, found.union_ns) == (40, 22)


@pytest.mark.parametrize("forward_of", ["CheckpointFunction", ""])
def test_recomputation_by_checkpointing_is_named_apart_from_the_backward(forward_of: str):
    stream = Stream().inside(layer("Block_0"), 0, 100).inside(layer("Linear_0"), 10, 90)
    stream.inside("aten::mm", 20, 40, sequence=7).launch(30, 10)
    name = f"{forward_of}Backward" if forward_of else "MmBackward0"
    stream.node(name, 200, 300, 7)
    stream.inside(layer("Linear_0"), 210, 250, ENGINE)
    stream.inside("aten::mm", 220, 240, ENGINE, sequence=0).launch(230, 11, thread=ENGINE)
    if forward_of:  # its backward then runs inside the node, on the numbers of this thread
        inner = "autograd::engine::evaluate_function: MmBackward0"
        stream.inside(inner, 260, 290, ENGINE, sequence=0, forward_thread=2)
    stream.launch(270, 20, thread=ENGINE)
    assert times(stream.read()) == {"Linear_0": (10, 20, 11)}


def test_reentrant_recomputation_is_seen_without_a_module_inside_it():
    stream = Stream().inside(layer("Block_0"), 0, 100)
    stream.inside("CheckpointFunction", 10, 90, sequence=7).launch(30, 10)
    stream.node("CheckpointFunctionBackward", 200, 300, 7).launch(230, 11, thread=ENGINE)
    assert times(stream.read()) == {"Block_0": (10, 0, 11)}


def test_a_second_derivative_is_no_recomputation():
    stream = Stream().inside(layer("Linear_0"), 0, 50).inside("aten::mm", 20, 40, sequence=7)
    stream.node("MmBackward0", 200, 300, 7)
    stream.inside("aten::mm", 220, 240, ENGINE, sequence=9).launch(230, 11, thread=ENGINE)
    assert times(stream.read()) == {"Linear_0": (0, 11, 0)}


def test_a_compiled_region_is_one_node_with_all_its_kernels():
    stream = Stream().inside("Torch-Compiled Region: 0/0", 0, 100, is_range=True)
    stream.inside("CompiledFunction", 10, 90, sequence=7)
    stream.inside(layer("Linear_0"), 15, 30).launch(20, 10).launch(50, 5)
    stream.node("CompiledFunctionBackward", 200, 250, 7).launch(210, 20, thread=ENGINE)
    assert times(stream.read()) == {"compiled region: 0/0": (15, 20, 0)}
    stream = Stream().inside(layer("Net_0"), 0, 200)
    stream.inside("Torch-Compiled Region: 0/1", 10, 100, is_range=True).launch(20, 10)
    assert times(stream.read()) == {"Net_0": (10, 0, 0)}


def test_one_launch_of_a_cuda_graph_brings_all_its_kernels_to_its_layer():
    found = Stream().inside(layer("Net_0"), 0, 100).launch(20, 10, 20, 30).read()
    assert times(found) == {"Net_0": (60, 0, 0)}
    assert found.layers[0].num_kernels == 3


def test_calls_are_counted_in_the_forward_only():
    stream = Stream().inside(layer("Linear_0"), 0, 10).launch(5, 1)
    stream.inside(layer("Linear_0"), 20, 30).launch(25, 1)
    stream.node("MmBackward0", 200, 300, 7).inside(layer("Linear_0"), 210, 250, ENGINE)
    assert stream.read().layers[0].num_calls == 2


def test_without_modules_the_users_own_ranges_stand_for_layers():
    stream = Stream().inside("ProfilerStep#1", 0, 900, is_range=True)
    stream.inside("attn", 10, 50, is_range=True).launch(20, 10)
    found = stream.launch(60, 5).read()
    assert (found.basis, times(found), found.outside_ns) == ("ranges", {"attn": (10, 0, 0)}, 5)
    stream.inside(LAYER_PREFIX + "net.0", 30, 40).launch(35, 2)
    found = stream.read()
    assert (found.basis, times(found)) == ("modules", {"net.0": (2, 0, 0)})


def test_ddp_buckets_are_counted_from_each_forward_of_the_wrapper():
    stream = Stream()
    for start in (0, 1000):
        stream.inside("DistributedDataParallel.forward", start, start + 100, is_range=True)
        stream.launch(start + 10, 1, is_comm=True)  # buffers
        for index in range(2):
            at = start + 200 + 50 * index
            stream.node("torch::autograd::AccumulateGrad", at, at + 20)
            stream.launch(at + 10, 5, thread=ENGINE, is_comm=True)
    assert stream.read().owners == ("", "bucket 0", "bucket 1") * 2
    alone = Stream().node("torch::autograd::AccumulateGrad", 0, 20)
    assert alone.launch(10, 5, thread=ENGINE, is_comm=True).read().owners == ("",)


def test_the_unit_of_fsdp_owns_its_gathers_and_reductions():
    stream = Stream().inside("FSDP::all_gather (layers.0)", 0, 20).launch(10, 5, is_comm=True)
    stream.inside("FSDP::post_backward_reduce (layers.1)", 30, 50, ENGINE)
    stream.launch(40, 5, thread=ENGINE, is_comm=True)
    stream.inside(layer("SyncBatchNorm_0"), 60, 80).launch(70, 5, is_comm=True)
    found = stream.read()
    assert found.owners == ("layers.0", "layers.1", "SyncBatchNorm_0")
    assert (found.comm_ns, found.layers) == (15, ())


moments = st.integers(0, 300)
host_events = st.lists(
    st.tuples(
        st.sampled_from(Role), st.sampled_from(["", "a", "b", "leaf"]), moments,
        st.integers(0, 80), st.sampled_from([MAIN, ENGINE]), st.integers(-1, 5),
        st.integers(0, 2), st.integers(-1, 30),
    ),
    max_size=40,
)  # fmt: skip
kernel_events = st.lists(
    st.tuples(moments, st.integers(0, 50), st.integers(-1, 30), st.integers(-1, 30), st.booleans()),
    max_size=30,
)


def test_an_optimizer_inside_a_module_or_region_keeps_its_kernels():
    host, kernels = HostTable(), KernelTable()
    host.add(Meaning(Role.REGION, "region"), 0, 100, 1)
    host.add(Meaning(Role.OPTIMIZER, ""), 10, 90, 1)
    host.add(Meaning(Role.OPERATOR, ""), 20, 30, 1, own_id=5)
    kernels.add(200, 207, operator=5)
    found = attribute(host, kernels)
    assert (found.optimizer_ns, found.layers_ns, found.total_ns) == (7, 0, 7)


@given(host_events, kernel_events)
def test_layers_and_outside_are_the_total_exactly_whatever_the_events(hosts, given_kernels):
    host, kernels = HostTable(), KernelTable()
    for role, label, start, length, thread, sequence, forward, own in hosts:
        more = {"sequence": sequence, "forward_thread": forward, "own_id": own}
        host.add(Meaning(role, label), start, start + length, thread, **more)
    for start, length, launch, operator, is_comm in given_kernels:
        more = {"launch": launch, "operator": operator, "is_comm": is_comm}
        kernels.add(start, start + length, **more)
    found = attribute(host, kernels)
    assert found.layers_ns + found.outside_ns + found.comm_ns == found.total_ns
    assert found.total_ns == sum(length for _, length, *_ in given_kernels)
    assert len(found.owners) == sum(k[-1] for k in given_kernels)
    assert all(0 <= x.union_ns <= x.sum_ns for x in found.layers)
    assert found.union_ns <= found.comm_ns + sum(x.union_ns for x in found.layers) + (
        found.outside_ns
    )


FOLDER = os.environ.get("SCALEDL_TRACES")


@pytest.mark.skipif(FOLDER is None, reason="SCALEDL_TRACES names no folder of recorded traces")
@pytest.mark.timeout(600)
def test_the_parts_of_every_recorded_trace_are_its_kernel_time():
    paths = sorted(Path(FOLDER or "").glob("*.json.gz"))
    assert paths
    for path in paths:
        found = read_trace(path).kernels
        if found is None:
            continue
        parts = (
            found.layers_s, found.outside_forward_s, found.outside_backward_s,
            found.optimizer_s, found.comm_s, found.unlinked_s,
        )  # fmt: skip
        assert sum(parts) == pytest.approx(found.total_s, rel=1e-12, abs=1e-15), path
        if found.basis == "modules":
            linked_s = found.total_s - found.unlinked_s - found.comm_s
            assert found.layers_s > 0.99 * linked_s, path
