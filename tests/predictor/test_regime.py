"""From steps to one measurement."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.predictor.analytic import forecast
from scaledl.predictor.regime import MIN_STEPS, measure, steady
from scaledl.records import (
    BucketTiming,
    ClusterSpec,
    CommEvent,
    GpuSpec,
    LayerTiming,
    LinkSpec,
    ParallelPlan,
    ProfileWindow,
    StepRecord,
)

LINK = LinkSpec(kind="loopback", latency_s=1e-3, bytes_per_s=1e9)
CLUSTER = ClusterSpec(gpu=GpuSpec(name="cpu"), num_gpus=2, gpus_per_node=2, intra=LINK, inter=LINK)
PLAN = ParallelPlan(strategy="ddp", replicate=2, batch_per_gpu=8)


def step(number, wall_s=0.1, tags=(), **parts):
    known = {"input_wait_s": 0.01, "optimizer_s": 0.02, "forward_s": 0.02, "backward_s": 0.03}
    known |= {"comm_exposed_s": 0.01} | parts
    return StepRecord(step=number, epoch=0, wall_s=wall_s, tags=tags, **known)


def test_pauses_warm_up_and_sampled_steps_do_not_move_the_steady_step():
    steps = [step(i, 2.0) for i in range(3)]
    steps += [step(i, 0.1) for i in range(3, 60)]
    steps[20] = step(20, 5.0)
    steps[30] = step(30, 0.4, tags=("sampled",))
    found = measure(steps, (), cluster=CLUSTER, plan=PLAN)
    assert found is not None
    assert found.step_s == pytest.approx(0.1)
    assert found.num_steps == 55


def test_W15_checkpoints_inside_the_run_change_no_forecast_of_another_count():
    def seen(pause_s):
        steps = [step(i, 0.1 + pause_s * (i % 20 == 19)) for i in range(200)]
        return measure(steps, (), cluster=CLUSTER, plan=PLAN)

    plain, saving = seen(0.0), seen(0.5)
    four = msgspec.structs.replace(CLUSTER, num_gpus=4)
    plan = ParallelPlan(strategy="ddp", replicate=4, batch_per_gpu=8)
    told = [forecast([m], four, plan).step_s.mean for m in (plain, saving)]
    assert told[1] == pytest.approx(told[0], rel=0.02)
    assert saving.stall_s == pytest.approx(0.5 / 20, rel=0.05), "kept as time of the epoch"


def test_too_few_steps_are_no_measurement():
    assert measure([step(i) for i in range(MIN_STEPS - 1)], (), cluster=CLUSTER, plan=PLAN) is None


@given(
    st.lists(
        st.tuples(*[st.floats(0, 1) for _ in range(5)], st.floats(0.01, 3)),
        min_size=MIN_STEPS,
        max_size=20,
    )
)
def test_E30_parts_sum_to_the_step_whatever_was_measured(rows):
    steps = [
        step(i, wall, input_wait_s=a, optimizer_s=b, forward_s=c, backward_s=d, comm_exposed_s=e)
        for i, (a, b, c, d, e, wall) in enumerate(rows)
    ]
    found = measure(steps, (), cluster=CLUSTER, plan=PLAN, skip=0)
    assert found is not None
    assert found.parts.total_s == pytest.approx(found.step_s)
    assert min(found.parts.compute_s, found.parts.other_s, found.parts.comm_exposed_s) >= 0


def window(number, **more):
    return ProfileWindow(step=number, rank=0, step_s=0.2, **more)


def test_device_times_come_from_windows_where_the_host_does_not_see_them():
    blind = [step(i, forward_s=None, backward_s=None, comm_exposed_s=None) for i in range(20)]
    layer = LayerTiming(fqn="a", forward_s=0.02, backward_s=0.04, num_calls=1)
    windows = [window(9, forward_s=0.02, backward_s=0.04, layers=(layer,))]
    found = measure(blind, windows, cluster=CLUSTER, plan=PLAN)
    assert found is not None
    assert found.parts.compute_s == pytest.approx(0.06)
    assert found.parts.other_s == pytest.approx(0.1 - 0.06 - 0.03)


def test_fsdp_waits_are_taken_out_of_compute_by_their_share_of_the_profiled_step():
    blind = [step(i, comm_exposed_s=None) for i in range(20)]
    event = CommEvent(op="all_gather", group_size=2, num_bytes=None, start_s=0.0, duration_s=0.05)
    windows = [window(9, comm=(event,), comm_exposed_s=0.04, overlap_fraction=0.2)]
    found = measure(blind, windows, cluster=CLUSTER, plan=PLAN)
    assert found is not None
    assert found.parts.comm_exposed_s == pytest.approx(0.1 * 0.04 / 0.2)
    assert found.parts.compute_s == pytest.approx(0.05 - 0.02)
    assert found.parts.comm_hidden_s == pytest.approx(0.05 * 0.2)


def test_hidden_communication_counts_a_moment_of_two_collectives_once():
    steps = [step(i) for i in range(20)]
    events = tuple(
        CommEvent(op="all_reduce", group_size=2, num_bytes=None, start_s=at, duration_s=0.04)
        for at in (0.0, 0.02)
    )
    found = measure(
        steps, [window(9, comm=events, overlap_fraction=0.5)], cluster=CLUSTER, plan=PLAN
    )
    assert found is not None
    assert found.parts.comm_hidden_s == pytest.approx(0.5 * 0.06)


def test_buckets_are_medians_over_the_windows_of_the_last_sizes():
    def buckets(*rows):
        return tuple(BucketTiming(num_bytes=n, ready_s=r, duration_s=d) for n, r, d in rows)

    windows = [
        window(1, buckets=buckets((99, 0.0, 9.0))),
        window(2, buckets=buckets((10, 0.01, 0.2), (20, 0.03, None))),
        window(3, buckets=buckets((10, 0.03, 0.4), (20, 0.05, 0.6))),
    ]
    found = measure([step(i) for i in range(20)], windows, cluster=CLUSTER, plan=PLAN)
    assert found is not None
    assert [b.num_bytes for b in found.buckets] == [10, 20]
    assert found.buckets[0].ready_s == pytest.approx(0.02)
    assert found.buckets[0].duration_s == pytest.approx(0.3)
    assert found.buckets[1].duration_s == pytest.approx(0.6)


def test_steady_keeps_short_runs_whole():
    few = [step(i) for i in range(4)]
    assert steady(few) == few


def test_far_out_steps_are_no_step_time_but_are_kept_as_stall():
    steps = [step(i) for i in range(100)]
    slow = [msgspec.structs.replace(s, wall_s=10.0) if s.step % 10 == 9 else s for s in steps]
    calm = measure(steps, (), cluster=CLUSTER, plan=PLAN)
    found = measure(slow, (), cluster=CLUSTER, plan=PLAN)
    mean_s = sum(s.wall_s for s in slow[3:]) / 97
    assert calm.stall_s == 0
    assert found.step_s == pytest.approx(calm.step_s)
    assert found.step_s + found.stall_s == pytest.approx(mean_s)
