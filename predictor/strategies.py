"""How a job is spread over a count: its strategy and its batch."""

import math
from collections.abc import Iterable

import msgspec

from scaledl.errors import UsageError
from scaledl.records import ClusterSpec, ParallelPlan, Strategy

STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp", "hsdp")
UNSUPPORTED = {
    "tp": "tensor parallelism",
    "tensor": "tensor parallelism",
    "sp": "sequence parallelism",
    "cp": "context parallelism",
    "pp": "pipeline parallelism",
    "pipeline": "pipeline parallelism",
    "ep": "expert parallelism",
    "expert": "expert parallelism",
    "moe": "expert parallelism",
}
"""They cut the model itself: nothing of a data-parallel step carries over, so none is forecast."""


def checked_strategies(asked: Iterable[str] | str | None) -> tuple[Strategy, ...]:
    """Strategies to compare, each once and in the order given; text is split at commas.

    >>> checked_strategies("fsdp, ddp")
    ('fsdp', 'ddp')

    Raises:
        UsageError: one that is unknown or not supported.
    """
    if asked is None:
        return ()
    words = asked.split(",") if isinstance(asked, str) else asked
    if not isinstance(words, Iterable):
        raise UsageError(f"strategies must be names, got {str(asked)[:60]!r}. Write 'ddp,fsdp'.")
    found: list[Strategy] = []
    for word in words:
        name = word.strip().lower() if isinstance(word, str) else str(word)[:60]
        if name in UNSUPPORTED:
            raise UsageError(
                f"{UNSUPPORTED[name]} ({name!r}) is not supported: its steps cannot be told from "
                f"these. Take one of {', '.join(STRATEGIES)}."
            )
        known = next((s for s in STRATEGIES if s == name), None)
        if known is None:
            raise UsageError(f"no strategy {name!r}. Take one of {', '.join(STRATEGIES)}.")
        found += [] if known in found else [known]
    return tuple(found)


def spread_plan(plan: ParallelPlan, base_gpus: int, count: int) -> ParallelPlan:
    """The base's strategy on another count; batch untouched."""
    if count == base_gpus:
        return plan
    match plan.strategy:
        case "fsdp":
            return msgspec.structs.replace(plan, replicate=1, shard=count)
        case "hsdp":
            shard = math.gcd(count, plan.shard)
            return msgspec.structs.replace(plan, replicate=count // shard, shard=shard)
        case _:
            strategy = "ddp" if count > 1 else plan.strategy
            return msgspec.structs.replace(plan, strategy=strategy, replicate=count, shard=1)


def other_strategy(
    plan: ParallelPlan, strategy: Strategy, cluster: ClusterSpec
) -> ParallelPlan | None:
    """``plan`` under another strategy; ``None`` where the count gives that strategy no sense.

    HSDP shards inside a node and replicates over nodes, so it needs whole nodes, two at least. One
    GPU has no strategy.
    """
    n, inside = cluster.num_gpus, cluster.gpus_per_node
    if n == 1:
        return None
    if strategy == plan.strategy:
        return plan
    match strategy:
        case "fsdp":
            return msgspec.structs.replace(plan, strategy=strategy, replicate=1, shard=n)
        case "hsdp":
            if n <= inside or n % inside or inside == 1:
                return None
            return msgspec.structs.replace(
                plan, strategy=strategy, replicate=n // inside, shard=inside
            )
        case _:
            return msgspec.structs.replace(plan, strategy="ddp", replicate=n, shard=1)


def batch_plan(
    plan: ParallelPlan, own: ParallelPlan, base_gpus: int, rule: str
) -> tuple[ParallelPlan, tuple[str, ...]]:
    """The plan with its batch by the rule, and what must be said about it.

    fixed-global keeps batch_per_gpu * grad_accum * num_gpus. Accumulation stays while every rank
    still gets a sample in each micro-batch, then shrinks; with more GPUs than samples in the global
    batch each rank gets one and the global batch grows.
    """
    count = plan.replicate * plan.shard if plan.strategy != "single" else 1
    if own.batch_per_gpu is None or rule == "fixed-per-gpu" or count == base_gpus:
        return plan, ()
    total = own.batch_per_gpu * own.grad_accum * base_gpus
    accum = max(1, min(own.grad_accum, total // count))
    batch = -(-total // (accum * count))
    changed = msgspec.structs.replace(plan, batch_per_gpu=batch, grad_accum=accum)
    caveats = {
        "more-gpus-than-samples": count > total,
        "uneven-batch": count <= total and batch * accum * count != total,
    }
    return changed, tuple(key for key, holds in caveats.items() if holds)
