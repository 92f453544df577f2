"""Tables of measured step times, cut into forecasting tasks: what was seen, what is asked.

A table has one row a measurement with the columns model, cluster, gpu, placement, num_nodes,
num_replicas, local_bsz, step_time_s and sync_time_s (the exposed part of the communication).
"""

import csv
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Scope = Literal["dense", "all"]
Regime = Literal["within a node", "first crossing", "nodes crossed", "in-sample"]
REGIMES: tuple[Regime, ...] = ("within a node", "first crossing", "nodes crossed")
POWERS = (1, 2, 4, 8, 16)
MAX_ASKED = 120
"""Rows asked for in one task of one job; of more, evenly spaced ones are taken."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured setting of one job."""

    model: str
    cluster: str
    gpu: str
    num_nodes: int
    num_gpus: int
    batch: int
    step_s: float
    sync_s: float

    @property
    def crosses(self) -> bool:
        """Whether the job spans nodes."""
        return self.num_nodes > 1

    @property
    def setting(self) -> tuple[int, int, int]:
        """What a forecast is asked for."""
        return self.num_nodes, self.num_gpus, self.batch


@dataclass(frozen=True, kw_only=True)
class Job:
    """All rows of one model on one cluster."""

    model: str
    cluster: str
    gpu: str
    gpus_per_node: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Rows a forecaster may see, and rows it is asked for."""

    job: Job
    scope: Scope
    name: str
    group: Literal["several counts", "single count", "in-sample"]
    seen: tuple[Row, ...]
    asked: tuple[Row, ...]


def read_tables(paths: Iterable[Path]) -> list[Job]:
    """The jobs of all tables, in a fixed order. Rows without a positive time are left out."""
    rows: list[Row] = []
    for path in paths:
        with path.open(newline="") as lines:
            for line in csv.DictReader(lines):
                row = Row(
                    model=line["model"],
                    cluster=line["cluster"],
                    gpu=line["gpu"],
                    num_nodes=int(line["num_nodes"]),
                    num_gpus=int(line["num_replicas"]),
                    batch=round(float(line["local_bsz"])),
                    step_s=float(line["step_time_s"]),
                    sync_s=float(line["sync_time_s"]),
                )
                if row.step_s > 0:
                    rows.append(row)
    return group_jobs(rows)


def group_jobs(rows: Iterable[Row]) -> list[Job]:
    """Rows by cluster and model; a cluster's node is as large as the largest one-node row."""
    rows = list(rows)
    jobs = []
    for cluster, model in sorted({(r.cluster, r.model) for r in rows}):
        mates = [r for r in rows if r.cluster == cluster]
        own = [r for r in mates if r.model == model]
        jobs.append(
            Job(
                model=model,
                cluster=cluster,
                gpu=own[0].gpu,
                gpus_per_node=max((r.num_gpus for r in mates if not r.crosses), default=1),
                rows=tuple(sorted(own, key=lambda r: (r.num_gpus, r.num_nodes, r.batch))),
            )
        )
    return jobs


def is_dense(row: Row, gpus_per_node: int) -> bool:
    """Whether the row uses no more nodes than its count needs."""
    return row.num_nodes == math.ceil(row.num_gpus / gpus_per_node)


def regime_of(row: Row, seen: Iterable[Row]) -> Regime:
    """What a forecast of ``row`` has to bridge, given what was seen."""
    if not row.crosses:
        return "within a node"
    return "nodes crossed" if any(r.crosses for r in seen) else "first crossing"


def tasks_of(job: Job) -> Iterator[Task]:
    """Every task of a job for which it has rows, in both scopes."""
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
    groups: dict[tuple[str, tuple[int, int, int]], list[float]] = {}
    for row in rows:
        groups.setdefault((row.model, row.setting), []).append(row.step_s)
    spreads = [max(g) / min(g) - 1 for g in groups.values() if len(g) > 1]
    if not spreads:
        return None
    return statistics.median(spreads), statistics.median(spreads) / 2
