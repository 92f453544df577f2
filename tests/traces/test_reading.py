"""A trace of any version becomes the same summary."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import ALL_REDUCE, NEW, OLD, SIZES, document, event, training, write

from scaledl.intervals import overlap, total, union
from scaledl.traces import pieces
from scaledl.traces.naming import communicates, op_of
from scaledl.traces.summary import read_trace

US = 1e-6
DEEP_EP = "void deep_ep::internode::dispatch<false, 8>(int4*, deep_ep::internode::SourceMeta*)"


@pytest.mark.parametrize("names", [NEW, OLD], ids=["new", "old"])
@pytest.mark.parametrize("as_list", [False, True], ids=["object", "list"])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_every_schema_gives_the_same_times(tmp_path, names, as_list, suffix):
    events = training(names=names)
    value = events if as_list else document(events)
    trace = read_trace(write(tmp_path / f"t{suffix}", value))
    assert [m.duration_s for m in trace.steps] == pytest.approx([990 * US] * 4)
    assert (trace.step_source, trace.step_times_s) == ("optimizer", pytest.approx([1000 * US] * 3))
    assert trace.nccl == trace.comm
    assert trace.comm.num_kernels == 4
    assert trace.comm.sum_s == pytest.approx(4 * 200 * US)
    assert trace.comm.compute_union_s == pytest.approx(4 * 400 * US)
    assert trace.comm.overlap_s == pytest.approx(4 * 100 * US)
    assert trace.comm.exposed_s == pytest.approx(4 * 100 * US)
    assert trace.gpu_busy_s == pytest.approx(4 * 550 * US)
    assert trace.input_wait_s == pytest.approx(4 * 60 * US)
    assert trace.strategy == "ddp"
    known = (None, None, None) if as_list else ("NVIDIA A100", 0, 2)
    assert (trace.gpu, trace.rank, trace.world_size) == known


def test_P30_missing_heads_are_unknown_and_not_guessed(tmp_path):
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": training()}))
    assert trace.gpu is trace.rank is trace.world_size is trace.backend is None


def test_heads_are_found_before_and_after_the_events(tmp_path):
    value = document(training())
    tail = {"traceEvents": value.pop("traceEvents")} | value
    trace = read_trace(write(tmp_path / "t.json", tail))
    assert (trace.rank, trace.world_size, trace.gpus_on_host) == (0, 2, 2)


def test_nanosecond_stamps_keep_their_digits(tmp_path):
    events = [
        event("kernel", "sgemm", 4458676524648.797, 0.125),
        event("kernel", "x", 4458676524650, 1),
    ]
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": events}))
    assert trace.gpu_busy_s == pytest.approx(1.125 * US, rel=1e-3)


def test_amd_kernels_without_an_operation_are_named_by_the_host(tmp_path):
    generic = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    trace = read_trace(write(tmp_path / "t.json", document(training(kernel=generic))))
    assert {c.op for c in trace.collectives} == {"all_reduce"}


def test_sizes_come_from_the_kernel_or_from_the_host_record_around_its_launch(tmp_path):
    told = read_trace(write(tmp_path / "a.json", document(training(comm_args=SIZES))))
    assert {(c.num_bytes, c.group_size) for c in told.collectives} == {(4000, 2)}
    events = training()
    for each in events:
        if each["name"] == "nccl:all_reduce":
            each["args"] = {"Input Dims": [[25, 40]], "Input type": ["float"]}
    told = read_trace(write(tmp_path / "b.json", document(events)))
    assert {(c.num_bytes, c.group_size) for c in told.collectives} == {(4000, None)}
    plain = read_trace(write(tmp_path / "c.json", document(training())))
    assert {c.num_bytes for c in plain.collectives} == {None}


def test_other_communication_is_counted_apart(tmp_path):
    events = [*training(1), event("kernel", DEEP_EP, 1_000_600, 100)]
    trace = read_trace(write(tmp_path / "t.json", document(events)))
    assert (trace.nccl.num_kernels, trace.comm.num_kernels) == (1, 2)
    assert trace.nccl.compute_union_s == pytest.approx(500 * US)
    assert trace.comm.compute_union_s == pytest.approx(400 * US)
    assert trace.comm.union_s == pytest.approx(300 * US)


@pytest.mark.parametrize(
    ("kernel", "how", "op"),
    [
        (ALL_REDUCE, "nccl", "all_reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "nccl", "send_recv"),
        (DEEP_EP, "other", "dispatch"),
        ("void x::ep::internode::cached_notify<false>(int)", "other", "notify"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<float>()", "other", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<half, 8>(void*)", "other", "all_reduce"),
        ("void x::ep::cuda::get_dispatch_layout<256>(long const*)", "", "unknown"),
        ("cutlass::device_kernel<flash::CollectiveMainloopBwd<2>>", "", "unknown"),
        ("void at::native::sbtopk::gatherTopK<float>(float)", "", "gather"),
        ("void at::native::reduce_kernel<512>(float)", "", "reduce"),
    ],
)  # fmt: skip
def test_kernels_that_communicate_are_told_from_those_that_compute(kernel, how, op):
    assert communicates(kernel) == how
    if how:
        assert op_of(kernel) == op


@settings(max_examples=40, deadline=None)
@given(st.integers(30, 700), st.integers(0, 6), st.booleans())
def test_where_a_file_is_cut_changes_nothing(tmp_path_factory, chunk, depth, is_list):
    nested: object = {"a": [{"b": 1}, {"c": '},{"'}], "name": "}, {"}
    for _ in range(depth):
        nested = [{"x": nested}, {"y": 2}]
    events = [event("kernel", "sgemm", 10 * i, 5, args={"z": nested}) for i in range(9)]
    value = events if is_list else {"a": [{"b": {}}, {}], "traceEvents": events, "t": [{}, {}]}
    path = write(tmp_path_factory.mktemp("t") / "t.json", json.dumps(value).encode())
    before = pieces.CHUNK_BYTES
    pieces.CHUNK_BYTES = chunk
    try:
        trace = read_trace(path)
    finally:
        pieces.CHUNK_BYTES = before
    assert (trace.num_events, trace.num_kernels) == (9, 9)
    assert trace.unpacked_bytes == path.stat().st_size


times = st.floats(0, 1e9, allow_nan=False)
pairs = st.lists(st.tuples(times, times).map(lambda p: (min(p), max(p))), max_size=30)


@given(pairs, pairs)
def test_union_and_overlap_of_real_times_agree_with_each_other(first, second):
    a, b = total(first), total(second)
    both = overlap(first, second)
    near = 1e-6 * (1 + a + b)
    assert -near <= both <= min(a, b) + near
    assert total([*first, *second]) == pytest.approx(a + b - both, abs=near)
    assert overlap(first, first) == pytest.approx(a, abs=near)
    assert a <= sum(end - start for start, end in first) + near
    merged = union(first)
    assert (merged[1:, 0] > merged[:-1, 1]).all()
