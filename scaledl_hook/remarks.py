"""What a user should hear once about how the run is understood, so that it can be corrected."""

from collections.abc import Iterator

from scaledl.config import TrackConfig
from scaledl.records import Progress


def remarks(
    config: TrackConfig, progress: Progress, *, num_gpus: int, walks_all_samples: bool
) -> Iterator[tuple[str, str]]:
    """Pairs of key and text; each key is told once.

    Args:
        config: What the user said.
        progress: What is seen.
        num_gpus: World size of the job.
        walks_all_samples: Whether one rank's loader covers the whole data set.
    """
    if config.epochs is None and config.total_steps is None:
        yield (
            "total",
            "total steps unknown: showing the epoch's ETA only. "
            "Pass epochs= or total_steps= for the whole run.",
        )
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
