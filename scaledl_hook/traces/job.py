"""Several ranks of one job: what of a collective is transfer and what is waiting for peers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from scaledl.records import MatchedCollective, TraceCollective, TraceJob, TraceSummary


def group_jobs(traces: Sequence[TraceSummary]) -> tuple[TraceJob, ...]:
    """The traces by job: same world size, GPU and backend, each rank once.

    A trace without rank, or whose rank another trace of that kind has too, stands alone or opens
    the next job; ranks stand in ascending order.
    """
    jobs: list[list[TraceSummary]] = []
    for trace in traces:
        fitting = (job for job in jobs if _same_job(job, trace))
        job = next(fitting, None)
        if job is None:
            jobs.append([trace])
        else:
            job.append(trace)
    return tuple(_job(sorted(job, key=lambda t: t.rank or 0)) for job in jobs)


def _same_job(job: Sequence[TraceSummary], trace: TraceSummary) -> bool:
    first = job[0]
    if trace.rank is None or trace.world_size is None or trace.world_size < 2:
        return False
    return (
        (first.world_size, first.gpu, first.backend) == (trace.world_size, trace.gpu, trace.backend)
        and first.rank is not None
        and all(other.rank != trace.rank for other in job)
    )


def _job(traces: Sequence[TraceSummary]) -> TraceJob:
    return TraceJob(traces=tuple(traces), matched=match(traces))


def match(traces: Sequence[TraceSummary]) -> tuple[MatchedCollective, ...]:
    """Collectives that all ranks took part in, in the order of the first; empty if they differ.

    The n-th of an operation on one rank is the n-th of it on another: a communicator has one order
    for all its ranks. Where counts differ, or known sizes of an all-reduce, a trace was cut or
    sampled or the ranks belong to other groups: then the order tells nothing and none is matched.
    """
    if len(traces) < 2:
        return ()
    by_rank = [_by_op(trace.collectives) for trace in traces]
    if any(_counts(ops) != _counts(by_rank[0]) for ops in by_rank):
        return ()
    found: list[tuple[float, MatchedCollective]] = []
    for op in by_rank[0]:
        for row in zip(*(ops[op] for ops in by_rank), strict=True):
            if op == "all_reduce" and len({c.num_bytes for c in row}) > 1:
                return ()
            found.append((row[0].start_s, _matched(row)))
    return tuple(each for _, each in sorted(found, key=lambda pair: pair[0]))


def _counts(ops: Mapping[str, Sequence[TraceCollective]]) -> dict[str, int]:
    return {op: len(each) for op, each in ops.items()}


def _by_op(collectives: Sequence[TraceCollective]) -> dict[str, list[TraceCollective]]:
    grouped: dict[str, list[TraceCollective]] = defaultdict(list)
    for collective in collectives:
        grouped[collective.op].append(collective)
    return grouped


def _matched(row: Sequence[TraceCollective]) -> MatchedCollective:
    transfer_s = min(c.duration_s for c in row)
    sizes = {c.num_bytes for c in row}
    return MatchedCollective(
        op=row[0].op,
        num_bytes=sizes.pop() if len(sizes) == 1 else None,
        transfer_s=transfer_s,
        waits_s=tuple(c.duration_s - transfer_s for c in row),
    )
