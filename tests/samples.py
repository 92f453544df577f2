"""One consistent toy run, used by the tests of store, reports, past runs and commands.

124 M parameters, global batch 512, A100, NVLink inside, 200 Gb/s between nodes.
"""

from pathlib import Path

import msgspec

from scaledl.records import (
    Basis,
    BucketTiming,
    Cause,
    ClusterSpec,
    CommEvent,
    Coverage,
    EpochRecord,
    EpochSummary,
    GpuSpec,
    Interval,
    LayerGraph,
    LayerNode,
    LayerTiming,
    Line,
    LinkSpec,
    Measurement,
    Note,
    ParallelPlan,
    ProfileWindow,
    RunEnd,
    RunInfo,
    ScalingReport,
    ScalingRow,
    StepBlock,
    StepParts,
)
from scaledl.report.scaling import build
from scaledl.writer import RunWriter

NOW_S = 1_796_120_000.0
RUN = "1201-1402-gpt2-a3f9"
NVLINK = LinkSpec(kind="nvlink", latency_s=3e-6, bytes_per_s=235e9)
INFINIBAND = LinkSpec(kind="ib", latency_s=1e-5, bytes_per_s=25e9)
A100 = GpuSpec(name="A100-80GB", memory_bytes=80 * 2.0**30)
CLUSTER = ClusterSpec(
    gpu=A100, num_gpus=4, gpus_per_node=8, intra=NVLINK, inter=INFINIBAND, usd_per_gpu_hour=2.49
)
PLAN = ParallelPlan(strategy="ddp", replicate=4, batch_per_gpu=128, dtype="bfloat16")
PARTS = StepParts(
    compute_s=0.2060,
    comm_exposed_s=0.0004,
    input_wait_s=0.0,
    optimizer_s=0.005,
    other_s=0.004,
    comm_hidden_s=0.0039,
)
BASE = Measurement(
    cluster=CLUSTER,
    plan=PLAN,
    step_s=PARTS.total_s,
    parts=PARTS,
    num_steps=2000,
    step_sigma_s=0.003,
    rank_sigma_s=0.001,
    forward_s=0.07,
    backward_s=0.136,
    buckets=(BucketTiming(num_bytes=25 * 2**20, ready_s=0.01, duration_s=0.0004),),
    num_layers=150,
    param_bytes=496_000_000,
    signature="gpt2-toy",
    at_s=NOW_S,
)
INFO = RunInfo(
    run_id=RUN,
    started_at=NOW_S - 540,
    model="gpt2",
    cluster=CLUSTER,
    plan=PLAN,
    scaledl_version="0.1.0",
    torch_version="2.13.0",
    epochs=30,
)


def scaling_row(
    num_gpus: int,
    step_ms: float,
    low_ms: float,
    high_ms: float,
    *,
    basis: Basis = "extrapolated",
    limited_by: Cause = "compute",
    limited_fraction: float = 0.9,
    priced: bool = True,
    fits: bool | None = True,
) -> ScalingRow:
    """A row of the toy run: 2500 steps an epoch, 29 epochs left, global batch 512."""
    step = Interval(mean=step_ms / 1e3, low=low_ms / 1e3, high=high_ms / 1e3)
    epoch = step.scaled(2500)
    hours = epoch.mean * num_gpus / 3600
    caveats = ["no-multi-node-data"] if num_gpus > 8 else []
    caveats += ["far-extrapolation"] if num_gpus > 16 else []
    return ScalingRow(
        num_gpus=num_gpus,
        gpus_per_node=8,
        basis=basis,
        step_s=step,
        parts_s=StepParts(
            compute_s=step.mean * 0.9,
            comm_exposed_s=step.mean * 0.05,
            input_wait_s=0.0,
            optimizer_s=step.mean * 0.03,
            other_s=step.mean * 0.02,
        ),
        limited_by=limited_by,
        limited_fraction=limited_fraction,
        batch_per_gpu=512 // num_gpus,
        steps_per_epoch=2500,
        epoch_s=epoch,
        remaining_s=epoch.scaled(29),
        speedup=0.2154 / step.mean,
        efficiency_fraction=0.809 / (num_gpus * step.mean),
        cost_usd=hours * 2.49 if priced else None,
        energy_j=hours * 3.6e6 * 0.55 if priced else None,
        gpu_hours=hours,
        remaining_usd=hours * 29 * 2.49 if priced else None,
        fits=fits,
        caveats=tuple(caveats),
    )


def scaling_rows(*, priced: bool = True) -> tuple[ScalingRow, ...]:
    """1 to 64 GPUs, measured on 4."""
    between: Cause = "all-reduce-inter"
    return (
        scaling_row(1, 809, 773, 850, priced=priced),
        scaling_row(2, 415, 404, 428, priced=priced),
        scaling_row(4, 215.4, 213, 218, basis="measured", priced=priced),
        scaling_row(8, 114, 110, 119, priced=priced),
        scaling_row(16, 73, 65, 82, limited_by=between, limited_fraction=0.15, priced=priced),
        scaling_row(32, 64, 53, 77, limited_by=between, limited_fraction=0.44, priced=priced),
        scaling_row(64, 61, 46, 77, limited_by=between, limited_fraction=0.63, priced=priced),
    )


def scaling_report(
    *, priced: bool = True, epoch: int = 0, epochs_left: float = 29
) -> ScalingReport:
    """The report of the toy run at the end of its first epoch."""
    rows = tuple(
        msgspec.structs.replace(row, remaining_s=row.epoch_s.scaled(epochs_left))
        for row in scaling_rows(priced=priced)
        if row.epoch_s is not None
    )
    return build(
        rows,
        base=BASE,
        run=RUN,
        batch_rule="fixed-global",
        coverage=Coverage(nominal=0.9, seen=0.917, n=96),
        made_at=NOW_S,
        epoch=epoch,
    )


def epoch_record(epoch: int = 0, rank: int = 0, own_ms: float | None = 211.0) -> EpochRecord:
    """One rank's epoch."""
    return EpochRecord(
        epoch=epoch,
        rank=rank,
        first_step=2500 * epoch,
        num_steps=2500,
        num_batches=2500,
        duration_s=540.0,
        train_s=538.5,
        at_s=NOW_S,
        step_p50_s=0.2154,
        own_p50_s=None if own_ms is None else own_ms / 1e3,
        num_samples=320_000,
    )


def epoch_summary(
    epoch: int = 0, own_ms: tuple[float, ...] = (211.0, 210.0, 212.0, 211.5), **changes: object
) -> EpochSummary:
    """The heading's facts of one epoch on four ranks."""
    values: dict[str, object] = {
        "run": RUN,
        "model": "gpt2",
        "epoch": epoch,
        "num_epochs": 30,
        "duration_s": 540.0,
        "eval_s": 0.0,
        "pause_s": 0.0,
        "num_steps": 2500,
        "cluster": CLUSTER,
        "plan": PLAN,
        "step_s": PARTS.total_s,
        "parts": PARTS,
        "ranks": tuple(epoch_record(epoch, rank, ms) for rank, ms in enumerate(own_ms)),
        "comm_total_s": 0.0043,
        "comm_bytes": 496_000_000,
        "overhead_fraction": 0.003,
    }
    return EpochSummary(**(values | changes))  # type: ignore[arg-type]


GRAPH = LayerGraph(
    nodes=(
        LayerNode(fqn="wte", kind="Embedding", params=38_597_376, param_bytes=154_389_504),
        LayerNode(
            fqn="h.0.mlp.c_fc",
            kind="Linear",
            params=2_362_368,
            param_bytes=9_449_472,
            flops_forward=6.2e11,
            flops_backward=1.24e12,
        ),
        LayerNode(fqn="h.0.attn", kind="attention", flops_forward=1e11, flops_backward=2e11),
        LayerNode(fqn="head", kind="Linear", flops_forward=5e12, flops_backward=1e13),
    ),
    edges=(),
    signature="gpt2-toy",
)


def profile_window(step: int = 15, rank: int = 0, wait_s: float = 0.0) -> ProfileWindow:
    """One sampled step; ``head`` was not called in it."""
    return ProfileWindow(
        step=step,
        rank=rank,
        step_s=0.2,
        forward_s=0.07,
        backward_s=0.12,
        layers=(
            LayerTiming(fqn="wte", forward_s=0.001, backward_s=0.002, num_calls=1),
            LayerTiming(fqn="h.0.mlp.c_fc", forward_s=0.02, backward_s=0.04, num_calls=2),
            LayerTiming(fqn="h.0.attn", forward_s=0.01, backward_s=None, num_calls=1),
        ),
        outside_forward_s=0.004,
        outside_backward_s=0.006,
        comm=(
            CommEvent(
                op="allreduce",
                group_size=4,
                num_bytes=25 * 2**20,
                start_s=0.1,
                duration_s=0.002 + wait_s,
                exposed_s=0.0004,
            ),
        ),
        buckets=(BucketTiming(num_bytes=25 * 2**20, ready_s=0.01, duration_s=0.002),),
        overhead_s=0.001,
    )


def step_block(first_step: int = 0, at_s: float = NOW_S) -> StepBlock:
    """A hundred ordinary steps."""
    return StepBlock(
        first_step=first_step,
        num_steps=100,
        epoch=0,
        at_s=at_s,
        mean_s=0.2154,
        p50_s=0.2150,
        p95_s=0.2210,
        input_wait_s=0.0,
        optimizer_s=0.005,
        num_samples=51_200,
    )


def run_lines() -> tuple[Line, ...]:
    """What rank 0 of the toy run writes."""
    return (
        GRAPH,
        step_block(0),
        profile_window(),
        step_block(100),
        BASE,
        epoch_record(),
        scaling_report(),
        Note(at_s=NOW_S, key="epoch-length", text="an epoch is 2500 steps, seen from the loader"),
        RunEnd(at_s=NOW_S + 1, step=2500, outcome="finished", overhead_fraction=0.003),
    )


def write_run(
    home: Path,
    info: RunInfo = INFO,
    lines: tuple[Line, ...] | None = None,
    ranks: tuple[int, ...] = (0,),
) -> Path:
    """A recorded run under ``home``; returns its folder."""
    folder = home / "runs" / info.run_id
    for rank in ranks:
        told: list[str] = []
        writer = RunWriter(folder, rank, on_trouble=told.append)
        if rank == 0:
            writer.write_info(info)
        for line in run_lines() if lines is None else lines:
            if isinstance(line, EpochRecord | ProfileWindow):
                line = msgspec.structs.replace(line, rank=rank)
            writer.append(line)
        writer.close(10.0)
        assert told == []
    return folder
