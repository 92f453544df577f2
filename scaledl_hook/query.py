"""What a user asks of the what-if, checked: counts, link, price."""

from collections.abc import Iterable

from scaledl import arguments
from scaledl.errors import UsageError
from scaledl.records import BatchRule, LinkSpec, Strategy, WhatIfQuery
from scaledl.units import MOST_GPUS

BATCH_RULES = ("fixed-global", "fixed-per-gpu")


def build_query(
    gpus: Iterable[int] | int | str | None,
    running: int,
    *,
    batch_rule: BatchRule = "fixed-global",
    gpus_per_node: int | None = None,
    inter: LinkSpec | str | None = None,
    num_samples: int | None = None,
    steps_per_epoch: int | None = None,
    drop_last: bool = False,
    remaining_epochs: float | None = None,
    remaining_steps: float | None = None,
    usd_per_gpu_hour: float | None = None,
    power_w: float | None = None,
    level: float = 0.9,
    strategies: Iterable[str] | str | None = None,
    loader_workers: int | None = None,
    cores_per_node: int | None = None,
) -> WhatIfQuery:
    """The query with its counts sorted and the running count always among them.

    Args:
        gpus: Counts, or text such as ``"1,2,8-64"``; by default powers of two up to 8 or four
            times the running count.
        running: The count of the run itself.
        batch_rule: What stays fixed when the count changes.
        gpus_per_node: Of the machines in question; ``None``: as in the run.
        inter: Link between nodes, a record or text such as ``"200Gb/s"``.
        num_samples: Size of one epoch over all ranks.
        steps_per_epoch: As seen at the running count.
        drop_last: Whether an uneven rest is dropped.
        remaining_epochs: What is left of the run.
        remaining_steps: The same in steps of the running count.
        usd_per_gpu_hour: Price; 0 is one (a machine of one's own).
        power_w: Mean power of one device.
        level: Probability of the intervals.
        strategies: Ways to spread the job that are compared at every count: ddp, fsdp, hsdp.
        loader_workers: Loader processes of one rank.
        cores_per_node: CPU cores of a machine.

    Raises:
        UsageError: a count, rule, strategy, link, price or level that cannot be.
    """
    if not isinstance(batch_rule, str) or batch_rule not in BATCH_RULES:
        raise UsageError(
            f"no batch rule {arguments.seen_text(batch_rule)}. "
            "Take 'fixed-global' or 'fixed-per-gpu'."
        )
    return WhatIfQuery(
        gpus=checked_counts(gpus, running),
        batch_rule=batch_rule,
        gpus_per_node=(
            None
            if gpus_per_node is None
            else arguments.whole_number("gpus_per_node", gpus_per_node, most=MOST_GPUS)
        ),
        inter=_link(inter),
        num_samples=num_samples,
        steps_per_epoch=steps_per_epoch,
        drop_last=drop_last,
        remaining_epochs=remaining_epochs,
        remaining_steps=remaining_steps,
        usd_per_gpu_hour=(
            None
            if usd_per_gpu_hour is None
            else arguments.price("usd_per_gpu_hour", usd_per_gpu_hour)
        ),
        power_w=power_w,
        level=arguments.probability("level", level),
        strategies=_strategies(strategies),
        loader_workers=loader_workers,
        cores_per_node=cores_per_node,
    )


def checked_counts(gpus: Iterable[int] | int | str | None, running: int) -> tuple[int, ...]:
    """Sorted counts, the running one always among them.

    >>> checked_counts("1,8-16", 2), checked_counts(None, 1)
    ((1, 2, 8, 16), (1, 2, 4, 8))
    """
    if gpus is None:
        asked = tuple(2**i for i in range(max(8, 4 * running).bit_length()))
    else:
        asked = arguments.gpu_counts(gpus)
    return tuple(sorted({*asked, running}))


def _strategies(asked: Iterable[str] | str | None) -> tuple[Strategy, ...]:
    from scaledl.predictor.strategies import checked_strategies

    return checked_strategies(asked)


def _link(inter: LinkSpec | str | None) -> LinkSpec | None:
    if inter is None:
        return None
    if not isinstance(inter, str):
        return arguments.record("inter", inter, LinkSpec)
    from scaledl.predictor.devices import parse_link

    return parse_link(inter)
