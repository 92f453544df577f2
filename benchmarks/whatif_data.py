"""Measured step times, cut into forecasting tasks: what was seen, what is asked.

Tables are read by ``whatif_tables``. A grid (Pollux, Sia) has many layouts and batches and all
counts that are powers of two; a ladder has the few counts that its source published.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Scope = Literal["dense", "all", "ddp", "fsdp"]
Group = Literal["several counts", "single count", "in-sample"]
Regime = Literal["within a node", "first crossing", "nodes crossed", "in-sample"]
REGIMES: tuple[Regime, ...] = ("within a node", "first crossing", "nodes crossed")
POWERS = (1, 2, 4, 8, 16)
MAX_ASKED = 120
"""Rows asked for in one task of one job; of more, evenly spaced ones are taken."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured setting of one job.

    ``batch`` is samples a GPU in an optimizer step, over all micro-batches. ``sync_s`` is the
    exposed communication, ``None`` where nobody measured it. Models of equal name in different
    ``variant`` are compared as one and never teach each other.
    """

    model: str
    cluster: str
    gpu: str
    num_nodes: int
    num_gpus: int
    batch: int
    step_s: float
    sync_s: float | None
    variant: str = ""
    grad_accum: int = 1
    gpus_per_node: int | None = None
    ladder: bool = False
    strategy: Literal["ddp", "fsdp"] = "ddp"
    param_bytes: int | None = None
    num_layers: int | None = None

    @property
    def crosses(self) -> bool:
        """Whether the job spans nodes."""
        return self.num_nodes > 1

    @property
    def setting(self) -> tuple[int, int, int, int]:
        """What a forecast is asked for."""
        return self.num_nodes, self.num_gpus, self.batch, self.grad_accum


@dataclass(frozen=True, kw_only=True)
class Job:
    """All rows of one model on one cluster."""

    model: str
    cluster: str
    gpu: str
    gpus_per_node: int
    rows: tuple[Row, ...]
    variant: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Rows a forecaster may see, and rows it is asked for."""

    job: Job
    scope: Scope
    name: str
    group: Group
    seen: tuple[Row, ...]
    asked: tuple[Row, ...]


def group_jobs(rows: Iterable[Row]) -> list[Job]:
    """Rows by cluster, model and variant, in a fixed order.

    A node is as large as the table tells, else as the largest one-node row of the cluster.
    """
    rows = list(rows)
    jobs = []
    for cluster, model, variant in sorted({(r.cluster, r.model, r.variant) for r in rows}):
        mates = [r for r in rows if r.cluster == cluster]
        own = [r for r in mates if (r.model, r.variant) == (model, variant)]
        largest = max((r.num_gpus for r in mates if not r.crosses), default=1)
        jobs.append(
            Job(
                model=model,
                cluster=cluster,
                gpu=own[0].gpu,
                gpus_per_node=own[0].gpus_per_node or largest,
                rows=tuple(sorted(own, key=lambda r: (r.num_gpus, r.num_nodes, r.batch))),
                variant=variant,
            )
        )
    return jobs


def comparable(rows: Iterable[Row], to: Row) -> list[Row]:
    """The rows at that batch and accumulation; where there are none, all."""
    rows = list(rows)
    return [r for r in rows if _alike(r, to)] or rows


def exposed_s(row: Row, seen: Iterable[Row]) -> float:
    """Exposed communication of a seen row.

    Where nobody measured it: what its step has beyond the shortest seen one of that batch with
    fewer GPUs, 0 without such a one.
    """
    if row.sync_s is not None:
        return row.sync_s
    fewer = [r.step_s for r in seen if r.num_gpus < row.num_gpus and _alike(r, row)]
    return max(0.0, row.step_s - min(fewer)) if fewer else 0.0


def _alike(one: Row, other: Row) -> bool:
    return (one.batch, one.grad_accum) == (other.batch, other.grad_accum)


def is_dense(row: Row, gpus_per_node: int) -> bool:
    """Whether the row uses no more nodes than its count needs."""
    return row.num_nodes == math.ceil(row.num_gpus / gpus_per_node)


def regime_of(row: Row, seen: Iterable[Row]) -> Regime:
    """What a forecast of ``row`` has to bridge, given what was seen."""
    if not row.crosses:
        return "within a node"
    return "nodes crossed" if any(r.crosses for r in seen) else "first crossing"


def tasks_of(job: Job) -> Iterator[Task]:
    """Every task of a job for which it has rows."""
    yield from _ladder_tasks(job) if job.rows[0].ladder else _grid_tasks(job)


def _ladder_tasks(job: Job) -> Iterator[Task]:
    """Each count, and each one with all below it, to all larger ones, whatever their batch."""
    counts = sorted({r.num_gpus for r in job.rows})
    for i, top in enumerate(counts[:-1]):
        asked = [r for r in job.rows if r.num_gpus > top]
        plans: tuple[tuple[str, Group, int], ...] = (
            ("one count -> larger", "single count", top),
            ("all up to one -> larger", "several counts", counts[0]),
        )
        for name, group, low in plans:
            if group == "single count" or i > 0:
                seen = tuple(r for r in job.rows if low <= r.num_gpus <= top)
                yield Task(
                    job=job,
                    scope=job.rows[0].strategy,
                    name=name,
                    group=group,
                    seen=seen,
                    asked=tuple(thinned(asked, MAX_ASKED)),
                )


def _grid_tasks(job: Job) -> Iterator[Task]:
    """Powers of two at equal batch, in both scopes."""
    scopes: tuple[Scope, ...] = ("dense", "all")
    for scope in scopes:
        rows = [r for r in job.rows if scope == "all" or is_dense(r, job.gpus_per_node)]
        far = frozenset(r.num_gpus for r in rows if r.num_gpus >= 24)
        plans: list[tuple[str, tuple[int, ...], frozenset[int]]] = [
            ("1,2 -> 4", (1, 2), frozenset({4})),
            ("1,2,4 -> 8", (1, 2, 4), frozenset({8})),
            ("1..8 -> 16", (1, 2, 4, 8), frozenset({16})),
            ("1..16 -> 24+", POWERS, far),
            *((f"{n} -> {m * n}", (n,), frozenset({m * n})) for n in POWERS for m in (2, 4)),
            ("in-sample", (*POWERS, *far), frozenset({*POWERS, *far})),
        ]
        for name, counts, targets in plans:
            task = _task(job, scope, name, rows, counts, targets)
            if task is not None:
                yield task


def _task(
    job: Job,
    scope: Scope,
    name: str,
    rows: list[Row],
    counts: tuple[int, ...],
    targets: frozenset[int],
) -> Task | None:
    seen = [r for r in rows if r.num_gpus in counts]
    if name != "in-sample" and not set(counts) <= {r.num_gpus for r in seen}:
        return None
    batches = {r.batch for r in seen}
    asked = [r for r in rows if r.num_gpus in targets and r.batch in batches]
    if not asked:
        return None
    group = "single count" if len(counts) == 1 else "several counts"
    return Task(
        job=job,
        scope=scope,
        name=name,
        group="in-sample" if name == "in-sample" else group,
        seen=tuple(seen),
        asked=tuple(thinned(asked, MAX_ASKED)),
    )


def thinned(rows: list[Row], limit: int) -> list[Row]:
    """At most ``limit`` rows, evenly spaced, the first and the last among them."""
    if len(rows) <= limit:
        return rows
    return [rows[round(i * (len(rows) - 1) / (limit - 1))] for i in range(limit)]


def floor_of(rows: Iterable[Row]) -> tuple[float, float] | None:
    """Median max/min - 1, and half of it, of rows equal in all that a forecaster is told.

    ``None`` where no setting was measured twice. The half is what even the best single answer to a
    setting misses.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[float]] = {}
    for row in rows:
        groups.setdefault((row.model, row.variant, row.setting), []).append(row.step_s)
    spreads = [max(g) / min(g) - 1 for g in groups.values() if len(g) > 1]
    if not spreads:
        return None
    return statistics.median(spreads), statistics.median(spreads) / 2
