"""What the graph network learned from a run, in a line."""

from scaledl.learned import Learned
from scaledl.units import format_seconds


def learned_text(found: Learned | None) -> str:
    """One sentence or two; empty where nothing was learned and nothing is wrong."""
    if found is None:
        return ""
    if found.truth_s is None or found.after_s is None:
        return f"graph network: learned nothing ({found.left_out})" if found.left_out else ""
    told = "nothing was known of this device before"
    if found.first_told_s is not None and found.first_truth_s and found.first_error is not None:
        told = (
            f"it first told {format_seconds(found.first_told_s)} a step and "
            f"{format_seconds(found.first_truth_s)} was true ({found.first_error:.0%} off)"
        )
    after = abs(found.after_s / found.truth_s - 1)
    return (
        f"graph network: {told}; after {found.num_windows} window"
        f"{'' if found.num_windows == 1 else 's'} it tells {format_seconds(found.after_s)}, "
        f"{format_seconds(found.truth_s)} is true ({after:.0%} off)"
    )
