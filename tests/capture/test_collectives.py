"""Arithmetic on intervals, and collectives read from the events of a profiled step."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.capture.collectives import DdpView, RawEvent, read_collectives
from scaledl.intervals import fair_shares, overlap, total, uncovered, union

# whole numbers, so that sums are exact
spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(-3, 20)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


def _moments(several: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in several for moment in range(start, end)}


@given(spans)
def test_P23_union_counts_every_moment_once(several: Any):
    merged = union(several)
    assert _moments(merged.astype(int).tolist()) == _moments(several)
    assert total(several) == len(_moments(several))
    assert all(a[1] < b[0] for a, b in pairwise(merged.tolist()))
    assert union(merged).tolist() == merged.tolist()


@given(spans, spans)
def test_P23_overlap_is_the_moments_in_both(first: Any, second: Any):
    shared = len(_moments(first) & _moments(second))
    assert overlap(first, second) == shared == overlap(second, first)
    assert shared <= min(total(first), total(second))
    assert total([*first, *second]) == total(first) + total(second) - shared


@given(spans, spans)
def test_P23_uncovered_parts_sum_to_the_union_outside_the_cover(several: Any, cover: Any):
    ordered = sorted((a, b) for a, b in several if b >= a)
    parts = uncovered(ordered, cover)
    assert len(parts) == len(ordered)
    assert (parts >= 0).all()
    assert parts.sum() == len(_moments(ordered) - _moments(cover))


@given(spans)
def test_fair_shares_sum_to_the_union_and_leave_what_is_alone_as_it_is(several: Any):
    shares = fair_shares(several)
    assert shares.sum() == pytest.approx(total(several))
    for (start, end), share in zip(several, shares.tolist(), strict=True):
        others = [each for each in several if each != (start, end)]
        alone = total([(start, end)]) - overlap([(start, end)], others)
        twins = several.count((start, end))
        assert alone / twins - 1e-9 <= share <= max(0, end - start) + 1e-9


def _event(name: str, start_s: float, end_s: float, *, device: bool = False) -> RawEvent:
    return RawEvent(name, start_s, end_s, on_device=device)


_BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def test_gloo_all_reduces_are_read_with_launch_duration_and_overlap():
    comm = read_collectives(
        [
            _event(_BACKWARD, 10.0, 12.0),
            _event("aten::mm", 10.0, 11.5),
            _event("c10d::allreduce_", 11.0, 11.1),
            _event("gloo:all_reduce", 11.0, 14.0),
            _event(_BACKWARD, 12.0, 13.0),
            _event("aten::mm", 12.0, 13.0),
            _event("c10d::allreduce_", 13.0, 13.1),
            _event("gloo:all_reduce", 14.0, 15.0),
        ]
    )
    assert comm is not None
    assert [(c.op, c.start_s, c.end_s, c.launched_s) for c in comm.collectives] == [
        ("all_reduce", 1.0, 4.0, 1.0),
        ("all_reduce", 4.0, 5.0, 3.0),
    ]
    assert comm.backward == (0.0, 3.0)
    assert comm.total_s == 4.0
    assert comm.overlap_s == pytest.approx(1.5)  # 11 to 11.5 and 12 to 13
    assert comm.overlap_fraction == pytest.approx(1.5 / 4.0)
    ready = comm.bucket_timings((100, 200))
    assert [(b.num_bytes, b.ready_s, b.duration_s) for b in ready] == [
        (100, 1.0, 3.0),
        (200, 3.0, 1.0),
    ]
    events = comm.events((100, 200), 2)
    assert [(e.op, e.num_bytes, e.owner, e.group_size) for e in events] == [
        ("all_reduce", 100, "bucket 0", 2),
        ("all_reduce", 200, "bucket 1", 2),
    ]


def test_buckets_that_do_not_match_the_collectives_are_not_guessed():
    comm = read_collectives([_event("gloo:all_reduce", 1.0, 2.0)])
    assert comm is not None
    assert comm.bucket_timings((1, 2)) == ()
    assert [e.num_bytes for e in comm.events((1, 2), 2)] == [None]
    assert comm.bucket_timings((1,)) == (), "no backward was seen"


def test_nccl_kernels_overlap_with_device_kernels_and_not_with_the_host():
    comm = read_collectives(
        [
            _event("aten::mm", 1.0, 9.0),  # the host runs ahead of the device
            _event("c10d::allreduce_", 1.0, 1.1),
            _event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 2, 6, device=True),
            _event("ampere_sgemm_128x64_nn", 1.0, 3.0, device=True),
            _event("ampere_sgemm_128x64_nn", 2.0, 4.0, device=True),  # a second stream
        ]
    )
    assert comm is not None
    assert [c.op for c in comm.collectives] == ["all_reduce"]
    assert comm.total_s == 4.0
    assert comm.overlap_s == 2.0


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(x)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(x)", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_Generic(x)", "other"),
    ],
)
def test_nccl_kernels_are_known_by_name(kernel: str, op: str):
    comm = read_collectives([_event(kernel, 1.0, 2.0, device=True)])
    assert comm is not None
    assert [c.op for c in comm.collectives] == [op]


def test_annotations_around_nccl_kernels_are_no_second_collective():
    kernel = _event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 2.0, 3.0, device=True)
    note = _event("nccl:all_reduce", 2.0, 3.0, device=True)
    comm = read_collectives([note, kernel])
    assert comm is not None
    assert len(comm.collectives) == 1
    assert comm.overlap_s == 0.0


def test_P08_events_without_sense_are_dropped():
    broken = [
        _event("gloo:all_reduce", 0.0, 5.0),
        _event("gloo:all_reduce", 8.0, 7.0),
        _event("aten::mm", 0.0, 0.0),
        _event("aten::mm", -4.0, 2.0),
    ]
    assert read_collectives(broken) is None
    assert read_collectives([]) is None
    comm = read_collectives([*broken, _event("gloo:all_reduce", 3.0, 4.0)])
    assert comm is not None
    assert [(c.start_s, c.end_s) for c in comm.collectives] == [(0.0, 1.0)]
    assert comm.total_s == 1.0


def test_P08_collective_of_no_duration_makes_no_time_and_no_division_by_zero():
    comm = read_collectives([_event("gloo:all_reduce", 3.0, 3.0), _event("aten::mm", 2.0, 4.0)])
    assert comm is not None
    assert comm.total_s == 0.0
    assert comm.overlap_fraction is None


def test_P08_launches_are_not_paired_when_some_collectives_are_missing():
    comm = read_collectives(
        [
            _event("c10d::allreduce_", 1.0, 1.1),
            _event("c10d::allreduce_", 5.0, 5.1),
            _event("gloo:all_reduce", 5.2, 6.0),  # the first one was lost
        ]
    )
    assert comm is not None
    assert [c.launched_s for c in comm.collectives] == [None]


def test_P08_launch_after_its_collective_is_no_launch():
    comm = read_collectives(
        [_event("gloo:all_reduce", 2.0, 3.0), _event("c10d::allreduce_", 2.5, 2.6)]
    )
    assert comm is not None
    assert comm.collectives[0].launched_s is None


def test_P23_overlapping_collectives_are_counted_once():
    comm = read_collectives(
        [
            _event("gloo:all_reduce", 1.0, 5.0),
            _event("gloo:all_reduce", 2.0, 4.0),
            _event("gloo:all_reduce", 4.5, 6.0),
            _event("aten::mm", 1.0, 3.0),
            _event("aten::add", 2.0, 3.5),
        ]
    )
    assert comm is not None
    assert comm.total_s == 5.0
    assert comm.overlap_s == 2.5
    assert comm.overlap_fraction == 0.5


def test_buckets_reduced_side_by_side_count_what_each_took_of_the_link():
    comm = read_collectives(
        [
            _event(_BACKWARD, 10.0, 12.0),
            _event("c10d::allreduce_", 11.0, 11.1),
            _event("gloo:all_reduce", 11.0, 15.0),
            _event("c10d::allreduce_", 11.5, 11.6),
            _event("gloo:all_reduce", 13.0, 16.0),
        ]
    )
    assert comm is not None
    timings = comm.bucket_timings((100, 100))
    # alone from 11 to 13 and from 15 to 16, half each from 13 to 15: five seconds of one link
    assert [t.duration_s for t in timings] == pytest.approx([3.0, 2.0])
    assert [e.duration_s for e in comm.events((100, 100), 2)] == pytest.approx([4.0, 3.0])


def test_gloo_reduce_scatter_is_told_from_the_all_reduce_that_implements_it():
    comm = read_collectives(
        [
            _event("c10d::_allgather_base_", 1.0, 1.1),
            _event("gloo:all_gather", 1.0, 2.0),
            _event("c10d::_reduce_scatter_base_", 3.0, 3.1),
            _event("gloo:all_reduce", 3.0, 4.0),
        ]
    )
    assert comm is not None
    assert [(c.op, c.launched_s) for c in comm.collectives] == [
        ("all_gather", 0.0),
        ("reduce_scatter", 2.0),
    ]
    assert comm.events((8,), 2)[1].num_bytes is None, "no bucket of DDP's"


def test_wanted_events_are_those_that_tell_of_communication_or_work():
    wanted = ("gloo:all_reduce", "c10d::allreduce_", _BACKWARD, "aten::mm", "nccl:all_reduce")
    assert all(RawEvent.is_wanted(name) for name in wanted)
    assert not RawEvent.is_wanted("ProfilerStep#1")
    assert not RawEvent.is_wanted("DataLoader")


@given(spans, spans)
def test_overlap_never_exceeds_the_communication(comm: Any, work: Any):
    events = [_event("gloo:all_reduce", a + 1, b + 1) for a, b in comm]
    events += [_event("aten::mm", a + 1, b + 1) for a, b in work]
    read = read_collectives(events)
    if read is None:
        assert not [span for span in comm if span[1] >= span[0]]
        return
    assert 0.0 <= read.overlap_s <= read.total_s
    assert read.overlap_fraction is None or 0.0 <= read.overlap_fraction <= 1.0
    assert all(c.end_s >= c.start_s >= 0.0 for c in read.collectives)


class _FakeDdp:
    def __init__(self, **data: Any) -> None:
        self._data = data

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self._data


def _view(**data: Any) -> DdpView:
    return DdpView(_FakeDdp(**data))  # type: ignore[arg-type]


def test_ddp_tells_its_rebuilt_buckets_before_its_first_ones():
    assert _view(rebuilt_bucket_sizes="2101248, 400", bucket_sizes="9").buckets() == (2101248, 400)
    assert _view(rebuilt_bucket_sizes="", bucket_sizes="9").buckets() == (9,)
    assert _view(rebuilt_bucket_sizes="odd").buckets() == ()
    assert _view().buckets() == ()


def test_ddp_times_are_seconds_and_hidden_never_exceeds_the_whole():
    view = _view(backward_comm_time=2_000_000, backward_compute_comm_overlap_time=3_000_000)
    assert view.times_s() == (2e-3, 2e-3)
    assert _view(backward_comm_time=0, backward_compute_comm_overlap_time=0).times_s() is None
    assert _view(backward_comm_time=5).times_s() is None


def test_exposed_parts_of_collectives_that_overlap_count_each_moment_once():
    comm = read_collectives(
        [
            _event("gloo:all_reduce", 10.0, 14.0),
            _event("gloo:all_reduce", 12.0, 16.0),
            _event("aten::mm", 13.0, 15.0),
        ]
    )
    assert comm is not None
    assert [c.exposed_s for c in comm.collectives] == pytest.approx([3.0, 1.0])
    assert sum(e.exposed_s or 0.0 for e in comm.events((), 2)) == pytest.approx(
        comm.total_s - comm.overlap_s
    )


def test_a_collective_has_the_owner_of_its_launch_and_a_bucket_its_number():
    launch = RawEvent("c10d::_allgather_base_", 9.0, 9.1, owner="layers.0")
    gather = [launch, _event("gloo:all_gather", 10.0, 11.0)]
    reduce = [RawEvent("c10d::allreduce_", 12.0, 12.1), _event("gloo:all_reduce", 13.0, 14.0)]
    comm = read_collectives([*gather, *reduce])
    assert comm is not None
    assert [e.owner for e in comm.events((8,), 2)] == ["layers.0", "bucket 0"]
