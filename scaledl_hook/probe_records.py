"""What probes plan, find and keep: frozen structs, units in the names as in ``records``."""

from typing import Annotated

import msgspec

from scaledl.records import (
    SCHEMA,
    BatchRule,
    Count,
    Interval,
    LinkSpec,
    Ranks,
    UnixTime,
)


class ProbePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One count to run: the step expected there, and what running it takes.

    ``wall_s`` holds an assumed start of the command; ``gpu_s`` is that time on all GPUs.
    """

    num_gpus: Ranks
    gpus_per_node: Ranks
    batch_per_gpu: int | None
    num_steps: Count
    step_s: Interval
    wall_s: float
    gpu_s: float
    cost_usd: float | None = None


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """The step at one count of the what-if, before probes and with them."""

    num_gpus: Ranks
    before: Interval
    after: Interval


class ProbePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is run, and what it narrows if every point comes out as expected."""

    run: str
    cpu_run: bool
    batch_rule: BatchRule
    points: tuple[ProbePoint, ...]
    expected: tuple[Narrowing, ...]


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One count as it came out.

    ``told`` is the forecast for the batch that ran; ``error`` says why it is not used.
    """

    num_gpus: Ranks
    run: str | None = None
    told: Interval | None = None
    step_s: float | None = None
    wall_s: float = 0.0
    error: str = ""


class LinkTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The median all-reduce of one size in one group of ranks, placed densely."""

    group_size: Ranks
    num_bytes: Count
    duration_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]


class TimedLinks(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of a link probe found, before any fit. ``device`` is torch's name of it."""

    device: str
    is_host: bool
    num_ranks: Ranks
    ranks_per_node: Ranks
    timings: tuple[LinkTiming, ...]


class LinkMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Links measured on a machine or cluster; told from others by the device's name alone."""

    at_s: UnixTime
    device: str
    ranks_per_node: Ranks
    num_ranks: Ranks
    intra: LinkSpec | None = None
    inter: LinkSpec | None = None
    timings: tuple[LinkTiming, ...] = ()
    schema: int = SCHEMA
