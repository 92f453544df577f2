"""Optimizer steps of an epoch on N ranks, counted as PyTorch's sampler and loader count them."""

from scaledl.errors import UsageError


def steps_per_epoch(
    num_samples: int,
    batch_per_gpu: int,
    num_ranks: int,
    drop_last: bool = False,
    grad_accum: int = 1,
) -> int:
    """Optimizer steps one rank takes in an epoch; may be 0 with ``drop_last``.

    ``DistributedSampler`` pads the samples to a multiple of the ranks, or drops the remainder;
    ``DataLoader`` then cuts whole batches and keeps or drops the last short one. A short last group
    of accumulated batches still makes a step.

    >>> [steps_per_epoch(1003, 16, n) for n in (1, 2, 4, 8, 16, 64)]
    [63, 32, 16, 8, 4, 1]
    >>> steps_per_epoch(1003, 16, 64, drop_last=True)
    0

    Raises:
        UsageError: a count that is below 1, or a negative number of samples.
    """
    smallest = min(batch_per_gpu, num_ranks, grad_accum)
    if smallest < 1 or num_samples < 0:
        raise UsageError(
            f"batch, ranks and accumulation must be at least 1 and samples at least 0, got "
            f"{batch_per_gpu}, {num_ranks}, {grad_accum} and {num_samples}."
        )
    per_rank = num_samples // num_ranks if drop_last else -(-num_samples // num_ranks)
    batches = per_rank // batch_per_gpu if drop_last else -(-per_rank // batch_per_gpu)
    return -(-batches // grad_accum)
