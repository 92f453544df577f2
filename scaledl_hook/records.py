"""The vocabulary: everything that crosses a module border is one of these frozen structs.

Units are in the names and always SI: ``_s`` seconds, ``_bytes``, ``_flops``, ``_w`` watts, ``_j``
joules, ``_hz``, ``_usd``; ``_fraction`` is 0 to 1. ``None`` means unknown and is shown as "n/a";
it is never replaced by 0.

Records that stand in a run's files carry their type's name in the key ``type``. Unknown keys and
unknown types are skipped when read, so that files of a newer minor version stay readable. The
ranges stand in the types and hold for what is read: a line with a number that cannot be is skipped
like one that is no JSON.
"""

from typing import Annotated, Any, Literal

import msgspec

from scaledl.memory_records import Footprint as Footprint
from scaledl.memory_records import Holdings as Holdings
from scaledl.units import format_seconds

SCHEMA = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=10**7)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
DollarsPerHour = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
UnixTime = Annotated[float, msgspec.Meta(ge=0.0, le=253402300799.0)]  # to the end of 9999

Basis = Literal["measured", "interpolated", "extrapolated", "prior"]
BatchRule = Literal["fixed-global", "fixed-per-gpu"]
Outcome = Literal["finished", "stopped-early", "interrupted", "exception"]
EndName = Literal["epochs", "total_steps", "total_samples", "total_tokens", "time-limit"]
Strategy = Literal["single", "ddp", "fsdp", "hsdp"]
Cause = Literal[
    "compute",
    "memory-bandwidth",
    "all-reduce-intra",
    "all-reduce-inter",
    "all-gather",
    "input",
    "optimizer",
    "launch",
    "straggler",
    "throttling",
    "small-batch",
    "does-not-fit",
]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A value with the range that should hold it with probability ``level``."""

    mean: float
    low: float
    high: float
    level: float = 0.9

    def __post_init__(self) -> None:
        if not self.low <= self.mean <= self.high:
            raise ValueError(f"interval needs low <= mean <= high, got {self}")

    def scaled(self, factor: float) -> "Interval":
        """The interval times a positive constant."""
        return Interval(
            mean=self.mean * factor,
            low=self.low * factor,
            high=self.high * factor,
            level=self.level,
        )

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def _span_text(span: Interval) -> str:
    """A duration with its range: ``12 min (10 min to 15 min)``."""
    if span.low == span.high:
        return format_seconds(span.mean)
    low, high = format_seconds(span.low), format_seconds(span.high)
    return f"{format_seconds(span.mean)} ({low} to {high})"


# --- hardware and plan -----------------------------------------------------------------------


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator (or, on a CPU run, the share of the host that one process has)."""

    name: str
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    peak_flops: dict[str, float] = {}
    tdp_w: float | None = None


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A link class by its alpha-beta parameters, seen by one rank.

    ``rel_sigma`` is the standard deviation of log(bytes_per_s): small where the link was measured,
    large for a catalogue value.
    """

    kind: str
    latency_s: Seconds
    bytes_per_s: Annotated[float, msgspec.Meta(ge=1.0, le=1e18)]
    measured: bool = False
    rel_sigma: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.5


class GpuLinks(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs of one machine are wired, as the driver tells it: nothing here is measured.

    ``nvlink`` is the class in the catalogue; ``num_nvlinks`` those of one GPU that lead to the
    others, each ``nvlink_bytes_per_s`` one way. PCIe is what card and slot can do at most.
    """

    nvlink: str | None = None
    num_nvlinks: Count = 0
    nvlink_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    across_sockets: bool | None = None


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job runs: how many GPUs, how they are grouped and linked, and what they cost."""

    gpu: GpuSpec
    num_gpus: Ranks
    gpus_per_node: Ranks
    intra: LinkSpec
    inter: LinkSpec
    usd_per_gpu_hour: DollarsPerHour | None = None

    def __post_init__(self) -> None:
        if self.num_gpus < 1:
            raise ValueError(f"num_gpus must be at least 1, got {self.num_gpus}.")
        if self.gpus_per_node < 1:
            raise ValueError(f"gpus_per_node must be at least 1, got {self.gpus_per_node}.")

    @property
    def num_nodes(self) -> int:
        return -(-self.num_gpus // self.gpus_per_node)

    @property
    def crosses_nodes(self) -> bool:
        return self.num_gpus > self.gpus_per_node

    def with_num_gpus(self, num_gpus: int) -> "ClusterSpec":
        """The same machines, another count."""
        return msgspec.structs.replace(self, num_gpus=num_gpus)


class ParallelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the job is spread. ``bucket_bytes`` are DDP's buckets in launch order."""

    strategy: Strategy = "single"
    replicate: Ranks = 1
    shard: Ranks = 1
    grad_accum: Ranks = 1
    batch_per_gpu: Count | None = None
    dtype: str = "float32"
    bucket_bytes: tuple[int, ...] = ()


# --- the model ---------------------------------------------------------------------------------


class LayerNode(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf module that ran, one functional attention call, or ``outside_layers``.

    FLOPs count a multiply-add as two, for one micro-batch on one rank.
    """

    fqn: str
    kind: str
    params: int = 0
    param_bytes: Count = 0
    flops_forward: float = 0.0
    flops_backward: float = 0.0
    activation_bytes: Count = 0


class LayerEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Data flow from one node to another (fqns), with the bytes that flow in the forward."""

    source: str
    target: str
    num_bytes: Count = 0


class LayerGraph(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model as it ran. ``signature`` is equal for equal architectures, whatever the run."""

    nodes: tuple[LayerNode, ...]
    edges: tuple[LayerEdge, ...]
    signature: str
    schema: int = SCHEMA


# --- what was measured -------------------------------------------------------------------------


class LayerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one layer in one sampled step, summed over its calls.

    From the profiler: seconds of its kernels. ``backward_s`` is then without ``recompute_s``, the
    forward that activation checkpointing runs again; by other sources the two are one.
    """

    fqn: str
    forward_s: Seconds
    backward_s: Seconds | None
    num_calls: int
    source: Literal["clock", "events", "profiler"] = "clock"
    recompute_s: Seconds | None = None


class CommEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One collective. ``start_s`` counts from the start of the sampled step."""

    op: str
    group_size: Ranks
    num_bytes: Count | None
    start_s: Seconds
    duration_s: Seconds
    crosses_nodes: bool = False
    exposed_s: Seconds | None = None
    owner: str = ""


class BucketTiming(msgspec.Struct, frozen=True, kw_only=True):
    """One DDP bucket: its bytes, when its gradients were ready, how long its all-reduce took.

    ``ready_s`` counts from the start of the backward pass.
    """

    num_bytes: Count
    ready_s: Seconds
    duration_s: Seconds | None = None


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step's wall time goes; the parts (hidden communication aside) sum to the step."""

    compute_s: Seconds
    comm_exposed_s: Seconds
    input_wait_s: Seconds
    optimizer_s: Seconds
    other_s: Seconds
    comm_hidden_s: Seconds = 0.0

    @property
    def total_s(self) -> float:
        return (
            self.compute_s
            + self.comm_exposed_s
            + self.input_wait_s
            + self.optimizer_s
            + self.other_s
        )


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One optimizer step, evaluation and pauses excluded.

    ``forward_s`` and the like are ``None`` where they were not measured in this step.
    ``num_elements``: of the largest tensor of each of its batches on this rank, which is tokens for
    text.
    """

    step: Count
    epoch: Count
    wall_s: Seconds
    input_wait_s: Seconds = 0.0
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    comm_exposed_s: Seconds | None = None
    optimizer_s: Seconds = 0.0
    num_micro_batches: Count = 1
    num_samples: Count | None = None
    num_elements: Count | None = None
    tags: tuple[str, ...] = ()


class StepBlock(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What is kept of ordinary steps: counts, mean, quantiles and mean parts.

    ``first_step`` is the number of steps before the block; ``tags`` are those of every step.
    """

    first_step: Count
    num_steps: Count
    epoch: Count
    at_s: UnixTime
    mean_s: Seconds
    p50_s: Seconds
    p95_s: Seconds
    input_wait_s: Seconds
    optimizer_s: Seconds
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    comm_exposed_s: Seconds | None = None
    num_samples: Count | None = None
    num_micro_batches: Count | None = None
    tags: tuple[str, ...] = ()


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Time that is no training step: evaluation, a named phase, a pause. ``at_s`` is its start."""

    kind: str
    at_s: UnixTime
    duration_s: Seconds
    after_step: Count
    epoch: Count


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One epoch of one rank as it closed. ``duration_s`` includes phases, ``train_s`` does not."""

    epoch: Count
    rank: Count
    first_step: Count
    num_steps: Count
    num_batches: Count
    duration_s: Seconds
    train_s: Seconds
    at_s: UnixTime
    complete: bool = True
    step_p50_s: Seconds | None = None
    own_p50_s: Seconds | None = None  # step time less waiting in collectives: who is slow
    energy_j: float | None = None  # of this rank's device, since the run's start
    num_samples: Count | None = None
    device: str = ""  # name of this rank's


class ProfileWindow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one sampled step showed, and what sampling it cost (``overhead_s``)."""

    step: Count
    rank: Count
    step_s: Seconds
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    layers: tuple[LayerTiming, ...] = ()
    outside_forward_s: Seconds | None = None
    outside_backward_s: Seconds | None = None
    comm: tuple[CommEvent, ...] = ()
    buckets: tuple[BucketTiming, ...] = ()
    comm_exposed_s: Seconds | None = None
    overlap_fraction: float | None = None
    overhead_s: Seconds = 0.0


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One reading of one device. A reading that the driver does not give is ``None``."""

    at_s: UnixTime
    device: str
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    sm_hz: float | None = None
    memory_bytes: float | None = None
    utilization_fraction: float | None = None
    throttled: str | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_generation: int | None = None  # as it runs now; links slow down while idle
    pcie_width: int | None = None
    nvlink_tx_bytes: float | None = None  # counters: their differences tell
    nvlink_rx_bytes: float | None = None
    memory_errors: int | None = None  # uncorrected (ECC), since the driver was loaded


class Measurement(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A regime as the predictor learns it: one job, one count, averaged over steady steps.

    ``step_sigma_s`` is the spread of single steps; ``rank_sigma_s`` that of the ranks' own mean
    times and ``waiting_s`` what this rank waits in a step for the slowest, a part of its exposed
    communication (``None``: only one rank known). ``host_shared`` tells that the ranks are CPU
    processes of one machine, which then compete for its memory; beyond ``host_slots`` of them they
    also share cores. ``stall_s`` is the time a step, over all steps, of those few that took far
    longer (a save, a log, a stall); ``step_s`` is without them, an epoch's time is with them.
    """

    cluster: ClusterSpec
    plan: ParallelPlan
    step_s: Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]
    parts: StepParts
    num_steps: Count
    step_sigma_s: Seconds = 0.0
    rank_sigma_s: Seconds | None = None
    waiting_s: Seconds | None = None
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    buckets: tuple[BucketTiming, ...] = ()
    num_layers: Count | None = None
    param_bytes: Count | None = None
    signature: str = ""
    host_shared: bool = False
    host_slots: int | None = None
    at_s: UnixTime = 0.0
    stall_s: Seconds = 0.0
    holdings: Holdings | None = None
    devices: tuple[str, ...] = ()  # kinds of device among the ranks, where they are unlike


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a run's folder (``run.json``, written by rank 0). No argv, env, host or user."""

    run_id: str
    started_at: UnixTime
    model: str
    cluster: ClusterSpec
    plan: ParallelPlan
    scaledl_version: str
    torch_version: str = ""
    epochs: Count | None = None
    total_steps: Count | None = None
    job: str = ""  # equal for runs of the same parameters, whatever the run; empty: unknown
    probe: bool = False  # a few steps for another run's what-if, ended by ``scaledl probe``
    schema: int = SCHEMA


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Last line of a rank that left the block. Its absence means killed or still running.

    ``interrupted`` is a keyboard interrupt; other errors are ``exception``, an exit with 0 is none.
    """

    at_s: UnixTime
    step: Count
    outcome: Outcome
    overhead_fraction: float | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A guess, a lost sensor, a change of the ETA: what the user was told, with the time."""

    at_s: UnixTime
    key: str
    text: str


# --- forecasts ---------------------------------------------------------------------------------


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the run is, in optimizer steps counted from the very start of the training.

    ``limited_by`` names what ends the run ("epochs", "total_steps" and the like); ``first_step``
    is the step this process started at (above 0 after a resume).
    """

    step: Count
    epoch: Count
    step_in_epoch: Count
    first_step: Count = 0
    total_steps: Count | None = None
    num_epochs: Count | None = None
    steps_per_epoch: Count | None = None
    limited_by: str | None = None


class StepForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The step on one cluster under one plan."""

    cluster: ClusterSpec
    plan: ParallelPlan
    step_s: Interval
    parts: StepParts
    basis: Basis
    bottleneck: Cause
    bottleneck_fraction: float
    memory_bytes: float | None = None
    fits: bool | None = None
    caveats: tuple[str, ...] = ()


class TimeLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The job's time limit, where the training will not, or may not, end before it.

    ``is_sure``: the whole interval of the time left lies beyond it. ``steps`` and ``epochs`` (from
    0) are the first and last that the run may be in by then, of ``total_steps`` and ``num_epochs``;
    ``None`` where that is unknown.
    """

    at: UnixTime
    is_sure: bool = False
    steps: tuple[Count, Count] | None = None
    total_steps: Count | None = None
    epochs: tuple[Count, Count] | None = None
    num_epochs: Count | None = None


class Eta(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Time left. ``finish_at`` is seconds since the epoch of Unix; ``None``: total unknown.

    ``remaining_s`` is what the plan needs, whatever the job's time limit; ``limit`` is there where
    that may come first. ``ends_by`` names what does: the plan's own end or the limit.
    """

    at_s: UnixTime
    step: Count
    basis: Basis
    step_s: Interval | None = None
    remaining_s: Interval | None = None
    finish_at: UnixTime | None = None
    epoch_remaining_s: Interval | None = None
    changed_because: str = ""
    ends_by: EndName | None = None
    limit: TimeLimit | None = None

    def scalars(self) -> dict[str, float]:
        """What is known, as plain numbers for a logger; what is unknown is left out.

        ``left_s``, ``epoch_left_s`` and ``step_s`` with their ``_low_s`` and ``_high_s``,
        ``finish_at`` in Unix seconds, and ``limit_left_s`` where the job's time limit may come
        first. Times left count from ``at_s``.
        """
        known = {"left": self.remaining_s, "epoch_left": self.epoch_remaining_s}
        told: dict[str, float] = {}
        for name, span in {**known, "step": self.step_s}.items():
            if span is not None:
                ends = {"": span.mean, "_low": span.low, "_high": span.high}
                told |= {f"{name}{end}_s": value for end, value in ends.items()}
        if self.finish_at is not None:
            told["finish_at"] = self.finish_at
        if self.limit is not None:
            told["limit_left_s"] = self.limit.at - self.at_s
        return told

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What a notebook shows of ``run.eta`` at the end of a cell."""
        printer.text(str(self))

    def __str__(self) -> str:
        if self.limit is None:
            return self._plan_text()
        verb = "ends" if self.limit.is_sure else "may end"
        after = format_seconds(self.limit.at - self.at_s)
        return f"the time limit {verb} it in {after}; without it: {self._plan_text()}"

    def _plan_text(self) -> str:
        if self.remaining_s is not None:
            return f"{_span_text(self.remaining_s)} left, {self.basis}"
        said = [f"step {self.step}: end of the run unknown"]
        if self.epoch_remaining_s is not None:
            said.append(f"{_span_text(self.epoch_remaining_s)} left in this epoch")
        if self.step_s is not None:
            said.append(f"{format_seconds(self.step_s.mean)} a step")
        return ", ".join(said)


class WhatIfQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks. Counts are whole jobs, not nodes.

    ``num_samples`` is the size of one epoch over all ranks; ``steps_per_epoch`` what was seen at
    the running count, used where the samples are unknown. ``remaining_epochs`` is what is left of
    the run, ``remaining_steps`` the same in steps of the running count, for where no epoch is
    known. ``power_w`` is the mean power of one GPU in this run. ``strategies`` are compared at
    every count. ``loader_workers`` are the loader's processes of one rank.
    """

    gpus: tuple[int, ...]
    batch_rule: BatchRule = "fixed-global"
    gpus_per_node: Ranks | None = None
    inter: LinkSpec | None = None
    num_samples: Count | None = None
    steps_per_epoch: Count | None = None
    drop_last: bool = False
    remaining_epochs: float | None = None
    remaining_steps: float | None = None
    usd_per_gpu_hour: float | None = None
    power_w: float | None = None
    level: float = 0.9
    strategies: tuple[Strategy, ...] = ()
    loader_workers: int | None = None
    cores_per_node: int | None = None


class EpochSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the heading of an epoch's report says.

    ``ranks`` are the epoch records that were found (this rank's at least); ``overhead_fraction`` is
    scaledl's own share of the time.
    """

    run: str
    model: str
    epoch: Count
    num_epochs: Count | None
    duration_s: Seconds
    eval_s: Seconds
    pause_s: Seconds
    before_s: Seconds = 0.0  # evaluation and pauses between the epoch before and this one
    num_steps: Count
    cluster: ClusterSpec
    plan: ParallelPlan
    step_s: Seconds
    parts: StepParts
    ranks: tuple[EpochRecord, ...] = ()
    comm_total_s: Seconds | None = None
    comm_bytes: Count | None = None
    overhead_fraction: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    cpu_run: bool = False
    samples_per_s: float | None = None
    tokens_per_s: float | None = None


class ScalingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the what-if table. ``remedy``: what would make a plan fit that does not."""

    num_gpus: Ranks
    gpus_per_node: Ranks
    basis: Basis
    step_s: Interval
    parts_s: StepParts
    limited_by: Cause
    limited_fraction: float
    batch_per_gpu: Count | None = None
    steps_per_epoch: Count | None = None
    epoch_s: Interval | None = None
    remaining_s: Interval | None = None
    speedup: float | None = None
    efficiency_fraction: float | None = None
    cost_usd: float | None = None
    energy_j: float | None = None
    gpu_hours: float | None = None
    remaining_usd: float | None = None
    remaining_j: float | None = None
    strategy: Strategy | None = None
    grad_accum: Ranks = 1
    memory: Footprint | None = None
    fits: bool | None = None
    remedy: str = ""
    caveats: tuple[str, ...] = ()


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The advised count, the key of its reason and the sentence shown."""

    num_gpus: Ranks
    reason: str
    text: str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the rest of the run may take, the counts that keep to it, and what to do, in words.

    ``best`` is the cheapest count in time, or, with a budget alone, the fastest within it.
    """

    deadline_s: Seconds | None = None
    budget_usd: float | None = None
    within: tuple[int, ...] = ()
    best: int | None = None
    text: str = ""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How often intervals held so far. ``seen`` is ``None`` while ``n`` is 0."""

    nominal: Fraction
    seen: Fraction | None
    n: Count


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The what-if report. ``measured_index`` is the row of the running count.

    ``rows`` are of the running strategy; ``compared`` those of every strategy that was asked for.
    """

    made_at: UnixTime
    run: str
    batch_rule: BatchRule
    rows: tuple[ScalingRow, ...]
    measured_index: Count | None
    coverage: Coverage
    recommendation: Recommendation | None = None
    level: float = 0.9
    global_batch: Count | None = None
    epoch: Count | None = None
    caveats: tuple[str, ...] = ()
    cpu_run: bool = False
    compared: tuple[ScalingRow, ...] = ()
    limits: Limits | None = None
    hints: tuple[str, ...] = ()
    model_version: str = "analytic-1"
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.measured_index is not None and self.measured_index >= len(self.rows):
            raise ValueError(f"no row {self.measured_index} among {len(self.rows)}.")

    def __str__(self) -> str:
        """One line a count; ``scaledl what-if`` shows the whole report with its cautions."""
        one, many = ("process", "processes") if self.cpu_run else ("GPU", "GPUs")
        rule = "global batch" if self.batch_rule == "fixed-global" else f"batch per {one}"
        lines = [f"what if, with the same {rule}:"]
        for index, row in enumerate(self.rows):
            name = f"{row.num_gpus:>7} {many if row.num_gpus > 1 else one:<{len(many)}}"
            if row.fits is False:
                lines.append(f"{name}  does not fit. {row.remedy}".rstrip())
                continue
            step = format_seconds(row.step_s.mean)
            if row.basis != "measured":
                low, high = format_seconds(row.step_s.low), format_seconds(row.step_s.high)
                step += f" ({low} to {high}, {row.basis})"
            said = [f"{name}  step {step}"]
            if row.epoch_s is not None:
                said.append(f"epoch {format_seconds(row.epoch_s.mean)}")
            if row.remaining_s is not None:
                said.append(f"{format_seconds(row.remaining_s.mean)} left")
            if row.speedup is not None:
                said.append(f"{row.speedup:.2f}x")
            said += ["as now"] if index == self.measured_index else []
            said += ["may not fit"] if "may-not-fit" in row.caveats else []
            lines.append(", ".join(said))
        lines += [
            f"{row.num_gpus:>7} {row.strategy}: "
            + ("does not fit" if row.fits is False else f"step {_span_text(row.step_s)}")
            for row in self.compared
        ]
        if self.limits is not None:
            lines.append(self.limits.text)
        if self.recommendation is not None:
            lines.append(f"advised: {self.recommendation.text}")
        return "\n".join(lines)


# --- imported traces -----------------------------------------------------------------------------


class TraceCollective(msgspec.Struct, frozen=True, kw_only=True):
    """One communication kernel of a trace; what the trace does not tell is ``None``.

    ``num_bytes`` is the whole tensor (the larger of input and output). ``by_name`` tells whether
    the kernel has "nccl" in its name. ``start_s`` counts from the trace's first event.
    """

    op: str
    start_s: Seconds
    duration_s: Seconds
    num_bytes: Count | None = None
    group_size: Ranks | None = None
    by_name: bool = True
    owner: str = ""

    @property
    def middle_s(self) -> float:
        """The middle of the kernel, which tells the step it belongs to."""
        return self.start_s + self.duration_s / 2


class TraceComm(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a whole trace against its computation (all other kernels).

    ``sum_s`` adds durations; ``union_s`` and ``compute_union_s`` count each moment once;
    ``overlap_s`` is the time in which both ran.
    """

    num_kernels: int
    sum_s: Seconds
    union_s: Seconds
    compute_union_s: Seconds
    overlap_s: Seconds

    @property
    def exposed_s(self) -> float:
        """Communication beside which nothing was computed."""
        return max(0.0, self.union_s - self.overlap_s)


class TraceMark(msgspec.Struct, frozen=True, kw_only=True):
    """One annotated range. ``start_s`` counts from the trace's first event."""

    start_s: Seconds
    duration_s: Seconds


class KernelTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel time of a trace by layer; the parts sum to ``total_s``, summed over streams.

    ``basis`` tells what stands for layers: modules, or the user's own ranges where the trace has no
    modules. ``outside_*`` found no layer (``unlinked_s``: nor a launch). ``union_s`` counts each
    moment once.
    """

    basis: Literal["modules", "ranges"]
    layers: tuple[LayerTiming, ...]
    outside_forward_s: Seconds
    outside_backward_s: Seconds
    optimizer_s: Seconds
    comm_s: Seconds
    unlinked_s: Seconds
    total_s: Seconds
    union_s: Seconds

    @property
    def layers_s(self) -> float:
        """Kernel time that found a layer."""
        passes = ((t.forward_s, t.backward_s, t.recompute_s) for t in self.layers)
        return sum(seconds or 0.0 for each in passes for seconds in each)


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace of one rank holds.

    ``nccl`` counts as communication what is named so; ``comm`` also kernels that communicate under
    other names. ``announced`` are collectives that the host recorded, whether or not a kernel ran.
    ``step_times_s`` are the steps by the source in ``step_source`` (empty: no step can be told).
    ``input_wait_s`` is time inside the data loader in which the GPU did nothing.
    """

    file: str
    gpu: str | None
    gpus_on_host: int | None
    rank: Count | None
    world_size: Ranks | None
    backend: str | None
    strategy: Strategy | None
    num_kernels: int
    span_s: Seconds
    steps: tuple[TraceMark, ...]
    gpu_steps: tuple[TraceMark, ...]
    optimizer_starts_s: tuple[float, ...]
    step_times_s: tuple[float, ...]
    step_source: Literal["optimizer", "profiler", "gpu", ""]
    nccl: TraceComm
    comm: TraceComm
    gpu_busy_s: Seconds
    input_wait_s: Seconds
    collectives: tuple[TraceCollective, ...]
    announced: tuple[TraceCollective, ...]
    num_events: int
    unpacked_bytes: Count
    kernels: KernelTimes | None = None


class MatchedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective seen by several ranks.

    A rank's kernel also waits for the slowest rank: the shortest duration is the transfer, what a
    rank's own kernel took beyond it is waiting. Both in the order of the ranks.
    """

    op: str
    num_bytes: Count | None
    transfer_s: Seconds
    waits_s: tuple[float, ...]


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of one job, by rank, and the collectives they share (none: not matched)."""

    traces: tuple[TraceSummary, ...]
    matched: tuple[MatchedCollective, ...] = ()


Line = (
    StepBlock
    | PhaseRecord
    | EpochRecord
    | ProfileWindow
    | LayerGraph
    | DeviceSample
    | Measurement
    | ScalingReport
    | Eta
    | Note
    | RunEnd
)
