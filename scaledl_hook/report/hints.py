"""What to try: at most three hints, each for a part of over a tenth of the measured step."""

from scaledl.records import Measurement
from scaledl.report.text import words
from scaledl.units import format_fraction

WORTH_FRACTION = 0.1
"""A part below a tenth of the step brings little, however well it is mended."""
MAX_HINTS = 3


def hints_of(base: Measurement, *, loader_workers: int | None = None) -> tuple[str, ...]:
    """Hints for the running job, the largest part first; none where none is worth it.

    Waiting for the slowest rank is told apart from the exchange it lies in.
    """
    parts, step_s = base.parts, base.step_s
    wait_s = min(base.waiting_s or 0.0, parts.comm_exposed_s)
    texts = {
        "input": (parts.input_wait_s, _input_text(loader_workers)),
        "exchange": (parts.comm_exposed_s - wait_s, _exchange_text(base)),
        "straggler": (
            wait_s,
            "of the step is waiting for the slowest rank: look at its batches, host and clocks",
        ),
        "optimizer": (
            parts.optimizer_s,
            "of the step is the optimizer: try fused=True, or accumulate over more micro-batches",
        ),
        "other": (parts.other_s, _other_text(base)),
    }
    ranked = sorted(texts.values(), key=lambda pair: -pair[0])
    return tuple(
        f"{format_fraction(part_s / step_s)} {text}."
        for part_s, text in ranked[:MAX_HINTS]
        if part_s > WORTH_FRACTION * step_s
    )


def _input_text(workers: int | None) -> str:
    if workers == 0:
        return "of the step is waiting for input: the DataLoader has no workers; try num_workers=4"
    have = "" if workers is None else f" (now {workers})"
    return f"of the step is waiting for input: try more loader workers{have}, or cheaper transforms"


def _exchange_text(base: Measurement) -> str:
    if base.plan.strategy in ("fsdp", "hsdp"):
        return (
            "of the step is waiting for FSDP's gathers and scatters: try larger micro-batches, or "
            "sharding inside a node only"
        )
    many = words(base.host_shared).many
    return (
        f"of the step is waiting for the all-reduce: try accumulation under no_sync(), or a larger "
        f"batch per {words(base.host_shared).one}, before more {many}"
    )


def _other_text(base: Measurement) -> str:
    if base.host_shared:
        return "of the step is work of the host beside the model: look at what the loop itself does"
    return (
        "of the step is neither the model nor its waits: look at .item(), prints and copies in the "
        "loop"
    )
