"""What a user should hear once about how the run is understood, so that it can be corrected."""

from collections.abc import Iterator

from scaledl.config import TrackConfig
from scaledl.records import Progress

# Steps after which a loader that tells its length has told it.
SETTLED_STEPS = 20


def remarks(
    config: TrackConfig, progress: Progress, *, num_gpus: int, walks_all_samples: bool
) -> Iterator[tuple[str, str]]:
    """Pairs of key and text; each key is told once. Nothing is asked for that was given.

    Args:
        config: What the user said.
        progress: What is seen.
        num_gpus: World size of the job.
        walks_all_samples: Whether one rank's loader covers the whole data set.
    """
    yield from _on_the_end(config, progress)
    if num_gpus > 1 and walks_all_samples:
        yield (
            "same-data",
            "every rank walks the whole data set: more ranks then do more work, not the same "
            "work faster. A DistributedSampler would split it.",
        )
    given, seen = config.steps_per_epoch, progress.steps_per_epoch
    if given is not None and seen is not None and given != seen:
        yield (
            "steps_per_epoch",
            f"steps_per_epoch={given} was given, but the loader and its accumulation give "
            f"{seen} optimizer steps: {seen} is used.",
        )


def _on_the_end(config: TrackConfig, progress: Progress) -> Iterator[tuple[str, str]]:
    """Where the run is expected to end, as far as that is not plain."""
    epochs, total, planned = config.epochs, config.total_steps, progress.total_steps
    if planned is not None and progress.step > planned:
        by = f"{progress.limited_by}={getattr(config, progress.limited_by or 'epochs')}"
        yield (
            "beyond",
            f"training goes on past its planned end, step {planned} by {by}: "
            "no time left can be told from here on.",
        )
    elif epochs is not None and total is not None:
        yield from _on_two_ends(epochs, total, progress)
    elif planned is None and progress.step - progress.first_step >= SETTLED_STEPS:
        yield ("total", _unknown_end(config, progress))


def _on_two_ends(epochs: int, total: int, progress: Progress) -> Iterator[tuple[str, str]]:
    per_epoch = progress.steps_per_epoch
    if per_epoch is None:
        return
    begun = progress.step - progress.step_in_epoch
    by_epochs = begun + (epochs - progress.epoch) * per_epoch
    if by_epochs == total:
        return
    winner = f"epochs={epochs}" if by_epochs < total else f"total_steps={total}"
    yield (
        "two-ends",
        f"epochs={epochs} ends at step {by_epochs}, total_steps={total} at step {total}: "
        f"the earlier one, {winner}, counts.",
    )


def _unknown_end(config: TrackConfig, progress: Progress) -> str:
    if config.total_samples is not None or config.total_tokens is not None:
        name = "total_samples" if config.total_samples is not None else "total_tokens"
        return (
            f"{name} cannot be followed: the loader does not show the size of its batches. "
            "Pass total_steps= instead."
        )
    if config.epochs is not None:
        return (
            f"epochs={config.epochs} was given, but not how long an epoch is: the time left of "
            "the run is told after the first one. Pass steps_per_epoch= or total_steps= to have "
            "it now."
        )
    if progress.steps_per_epoch is None:
        return (
            "total steps unknown: no time left can be told. Pass total_steps=, or epochs= and "
            "steps_per_epoch=."
        )
    return (
        "total steps unknown: showing the epoch's ETA only. "
        "Pass epochs= or total_steps= for the whole run."
    )
