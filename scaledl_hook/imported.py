"""A run folder from traces, so that ``show`` and ``what-if`` work on a run without scaledl."""

import statistics
from pathlib import Path

import msgspec
import numpy as np

from scaledl import store
from scaledl._version import __version__
from scaledl.errors import StoreError
from scaledl.predictor.devices import default_links, find_gpu
from scaledl.records import (
    ClusterSpec,
    CommEvent,
    GpuSpec,
    KernelTimes,
    LayerTiming,
    Line,
    Measurement,
    Note,
    ParallelPlan,
    ProfileWindow,
    RunEnd,
    RunInfo,
    StepBlock,
    StepParts,
    Strategy,
    TraceCollective,
    TraceJob,
    TraceSummary,
)
from scaledl.traces.steps import by_step, num_steps

NO_WHAT_IF = "no-what-if"
"""Key of the note that tells why an imported run has no what-if."""
MIN_STEPS = 2
# Operations of data parallelism; their bytes and order are what the step model knows.
_PARALLEL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"})
_MOST_OTHER = 0.05
_MAX_EVENTS = 20_000  # of one step; more would not fit into a line of the store
_CPU = "CPU"


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """What the user knows of the job and the trace may not tell."""

    world_size: int | None = None
    gpus_per_node: int | None = None
    gradient_bytes: float | None = None


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one job: the run, or why there is none; why it has no what-if."""

    run_id: str | None = None
    not_recorded: str | None = None
    no_what_if: str | None = None


def record_job(job: TraceJob, home: Path, stated: Stated, now_s: float) -> Imported:
    """Write the job's run folder under ``home``, one file a rank.

    Raises:
        StoreError: the folder cannot be written.
    """
    first = job.traces[0]
    world = world_of(first, stated)
    if not first.step_times_s:
        return Imported(not_recorded="no step is marked. Profile with schedule() and prof.step().")
    if world is None:
        return Imported(not_recorded="the world size is not in the trace. Give --world-size.")
    cluster = _cluster(first, world, stated)
    plan = _plan(job, world)
    problem = what_if_problem(job, world, stated)
    info = RunInfo(
        run_id=store.new_run_id(now_s, f"trace-{first.file.partition('.')[0]}"),
        started_at=now_s,
        model=first.file,
        cluster=cluster,
        plan=plan,
        scaledl_version=__version__,
    )
    for index, trace in enumerate(job.traces):
        lines = _lines(trace, world, now_s)
        if index == 0:
            if trace.num_kernels:
                lines.append(_measurement(job, cluster, plan, stated, now_s))
            lines.append(Note(at_s=now_s, key="imported", text=_about(trace, world, stated)))
            if problem is not None:
                lines.append(Note(at_s=now_s, key=NO_WHAT_IF, text=problem))
        lines.append(RunEnd(at_s=now_s, step=num_steps(trace), outcome="finished"))
        _write(home / "runs" / info.run_id, trace.rank or 0, info if index == 0 else None, lines)
    return Imported(run_id=info.run_id, no_what_if=problem)


def _about(trace: TraceSummary, world: int, stated: Stated) -> str:
    said = f"imported from the trace {trace.file}; profiled steps are slower than others"
    if any(c.group_size is None for c in trace.collectives):
        said += "; group sizes that the trace does not tell are shown as the world size"
    if _gpus_per_node(trace, world, stated) is None:
        said += "; GPUs per machine are unknown and shown as at most 8"
    return said


def world_of(trace: TraceSummary, stated: Stated) -> int | None:
    """Ranks of the job: stated, told, or 1 where nothing in the trace speaks of other ranks."""
    if stated.world_size is not None:
        return stated.world_size
    if trace.world_size is not None:
        return trace.world_size
    alone = not trace.collectives and not trace.announced and trace.strategy is None
    return 1 if alone and trace.rank is None and trace.backend is None else None


def what_if_problem(job: TraceJob, world: int, stated: Stated) -> str | None:
    """Why the step model cannot start from this trace; ``None``: it can."""
    first = job.traces[0]
    if not first.num_kernels:
        return "the trace has no GPU kernels. Profile with ProfilerActivity.CUDA."
    if len(first.step_times_s) < MIN_STEPS:
        return f"one step tells no spread. Profile at least {MIN_STEPS + 1} steps."
    if world > 1:
        other = [c for c in first.collectives if c.op not in _PARALLEL or not c.by_name]
        share = sum(c.duration_s for c in other) / max(first.comm.sum_s, 1e-12)
        if not first.collectives:
            return "no communication kernel was seen although there are several ranks."
        if share > _MOST_OTHER:
            ops = ", ".join(sorted({c.op for c in other}))
            return f"{share:.0%} of its communication is not data parallelism ({ops})."
        if _gpus_per_node(first, world, stated) is None:
            return "GPUs per machine are not in the trace. Give --gpus-per-node."
    if _gradient_bytes(job, stated) is None:
        return "the size of the gradients is not in the trace. Give --gradient-bytes."
    return None


def trace_parts(trace: TraceSummary) -> StepParts:
    """Parts of the median step: totals of the trace over its steps; the rest is ``other``.

    The median, because steps are few and the first one under a profiler is often an odd one.
    """
    step_s = statistics.median(trace.step_times_s)
    each = max(1, num_steps(trace))
    known = np.array([trace.comm.compute_union_s, trace.comm.exposed_s, trace.input_wait_s]) / each
    total = float(known.sum())
    known *= min(1.0, step_s / total) if total > 0 else 1.0
    return StepParts(
        compute_s=float(known[0]),
        comm_exposed_s=float(known[1]),
        input_wait_s=float(known[2]),
        optimizer_s=0.0,  # its kernels are computation here
        other_s=max(0.0, step_s - float(known.sum())),
        comm_hidden_s=trace.comm.overlap_s / each,
    )


# --- what the job was ----------------------------------------------------------------------------


def _gpus_per_node(trace: TraceSummary, world: int, stated: Stated) -> int | None:
    if stated.gpus_per_node is not None:
        return stated.gpus_per_node
    seen = trace.gpus_on_host
    # One visible GPU may be all that a rank was shown of a larger machine.
    return seen if seen is not None and (seen > 1 or world == 1) else None


def _cluster(trace: TraceSummary, world: int, stated: Stated) -> ClusterSpec:
    name = trace.gpu or ("GPU" if trace.num_kernels else _CPU)
    gpu = find_gpu(name)
    intra, inter = default_links(gpu, not trace.num_kernels)
    return ClusterSpec(
        gpu=gpu or GpuSpec(name=name),
        num_gpus=world,
        gpus_per_node=_gpus_per_node(trace, world, stated) or min(world, 8),
        intra=intra,
        inter=inter,
    )


def _plan(job: TraceJob, world: int) -> ParallelPlan:
    if world == 1:
        return ParallelPlan()
    strategy = job.traces[0].strategy or _guessed(job.traces[0])
    if strategy == "fsdp":
        return ParallelPlan(strategy=strategy, shard=world)
    return ParallelPlan(strategy=strategy, replicate=world)


def _guessed(trace: TraceSummary) -> Strategy:
    return "fsdp" if any(c.op == "reduce_scatter" for c in trace.collectives) else "ddp"


def _gradient_bytes(job: TraceJob, stated: Stated) -> float | None:
    """Bytes that are reduced in one step: the median over whole steps, all sizes known."""
    if stated.gradient_bytes is not None:
        return stated.gradient_bytes
    first = job.traces[0]
    told = by_step(first, first.collectives or first.announced)
    sums = [found for step in told if (found := _reduced_bytes(step)) is not None]
    return statistics.median(sums) if sums else None


def _reduced_bytes(step: tuple[TraceCollective, ...]) -> float | None:
    sizes = [c.num_bytes for c in step if c.op in ("all_reduce", "reduce_scatter")]
    known = [size for size in sizes if size is not None]
    return float(sum(known)) if known and len(known) == len(sizes) else None


# --- what is written -----------------------------------------------------------------------------


def _measurement(
    job: TraceJob, cluster: ClusterSpec, plan: ParallelPlan, stated: Stated, now_s: float
) -> Measurement:
    first = job.traces[0]
    own_s = [
        statistics.median(t.step_times_s) - _waiting_s(job, i) for i, t in enumerate(job.traces)
    ]
    return Measurement(
        cluster=cluster,
        plan=plan,
        step_s=statistics.median(first.step_times_s),
        parts=trace_parts(first),
        num_steps=len(first.step_times_s),
        step_sigma_s=statistics.stdev(first.step_times_s) if len(first.step_times_s) > 1 else 0.0,
        rank_sigma_s=statistics.stdev(own_s) if len(own_s) > 1 and job.matched else None,
        param_bytes=round(_gradient_bytes(job, stated) or 0) or None,
        at_s=now_s,
    )


def _waiting_s(job: TraceJob, index: int) -> float:
    """Mean waiting for peers in a step of one rank."""
    waited = sum(each.waits_s[index] for each in job.matched)
    return waited / max(1, num_steps(job.traces[index]))


def _lines(trace: TraceSummary, world: int, now_s: float) -> list[Line]:
    times = trace.step_times_s
    parts = trace_parts(trace)
    lines: list[Line] = [
        StepBlock(
            first_step=0,
            num_steps=len(times),
            epoch=0,
            at_s=now_s,
            mean_s=statistics.fmean(times),
            p50_s=statistics.median(times),
            p95_s=float(np.quantile(times, 0.95)),
            input_wait_s=parts.input_wait_s,
            optimizer_s=0.0,
            comm_exposed_s=parts.comm_exposed_s if trace.num_kernels else None,
        )
    ]
    if trace.kernels is not None and trace.kernels.layers:
        lines.append(_layer_window(trace, trace.kernels))
    for index, step in enumerate(by_step(trace, trace.collectives)):
        if step and len(step) <= _MAX_EVENTS:
            lines.append(_window(trace, index, step, world, parts))
    return lines


def _layer_window(trace: TraceSummary, kernels: KernelTimes) -> ProfileWindow:
    """Kernel time by layer of a mean step: totals of the trace over its steps."""
    each = max(1, num_steps(trace))
    layers = tuple(
        LayerTiming(
            fqn=layer.fqn,
            forward_s=layer.forward_s / each,
            backward_s=None if layer.backward_s is None else layer.backward_s / each,
            recompute_s=None if layer.recompute_s is None else layer.recompute_s / each,
            num_calls=round(layer.num_calls / each),
            source=layer.source,
        )
        for layer in kernels.layers
    )
    return ProfileWindow(
        step=0,
        rank=trace.rank or 0,
        step_s=statistics.median(trace.step_times_s),
        layers=layers,
        outside_forward_s=kernels.outside_forward_s / each,
        outside_backward_s=kernels.outside_backward_s / each,
    )


def _window(
    trace: TraceSummary,
    index: int,
    step: tuple[TraceCollective, ...],
    world: int,
    parts: StepParts,
) -> ProfileWindow:
    starts = [m.start_s for m in trace.gpu_steps or trace.steps] or trace.optimizer_starts_s
    comm = trace.comm
    return ProfileWindow(
        step=index,
        rank=trace.rank or 0,
        step_s=trace.step_times_s[min(index, len(trace.step_times_s) - 1)],
        comm=tuple(
            CommEvent(
                op=c.op,
                group_size=c.group_size or world,
                num_bytes=c.num_bytes,
                start_s=max(0.0, c.start_s - starts[index]),  # one may begin just before the mark
                duration_s=c.duration_s,
                owner=c.owner,
            )
            for c in step
        ),
        comm_exposed_s=parts.comm_exposed_s,
        overlap_fraction=comm.overlap_s / comm.union_s if comm.union_s > 0 else None,
    )


def _write(folder: Path, rank: int, info: RunInfo | None, lines: list[Line]) -> None:
    troubles: list[str] = []
    writer = store.RunWriter(folder, rank, on_trouble=troubles.append)
    if info is not None:
        writer.write_info(info)
    for line in lines:
        writer.append(line)
    writer.close(timeout_s=60.0)
    if troubles:
        raise StoreError(troubles[0])
