"""How much of the communication the backward pass hides.

Gradients become ready while the backward pass runs; their buckets go one after the other over one
communication stream (PyTorch DDP, Li et al. 2020, section 3.2.3). What has not finished when the
backward pass ends is exposed. With suffix sums the end of the stream has a closed form, so that
hundreds of parameter draws are replayed in one array operation:

    finish = max over k of ( ready_k + sum of durations from bucket k on )
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.records import BucketTiming

FloatArray = NDArray[np.float64]

FIRST_BUCKET_BYTES = 1024 * 1024
BUCKET_CAP_BYTES = 25 * 1024 * 1024
"""DDP's defaults (torch.nn.parallel.DistributedDataParallel, ``bucket_cap_mb`` = 25)."""
MAX_BUCKETS = 40
"""Of more buckets neighbours are merged; see ``_merged`` for what that changes."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Buckets in launch order: bytes, share of the backward pass done when ready, how many."""

    num_bytes: tuple[float, ...]
    ready_fraction: tuple[float, ...]
    num_buckets: tuple[int, ...]  # more than one where neighbours were merged

    @property
    def total_bytes(self) -> float:
        """Bytes of all buckets."""
        return sum(self.num_bytes)


def exposed_and_hidden_s(
    ready_s: Sequence[float], durations_s: Sequence[float], backward_s: float
) -> tuple[float, float]:
    """Exposed and hidden seconds of buckets sent one after the other; both at least 0.

    Exposed = finish of the last bucket less the end of the backward pass.

    >>> exposed_and_hidden_s([1.0, 2.0], [0.5, 0.25], backward_s=2.0)
    (0.25, 0.5)
    """
    finish_s = 0.0
    for ready, duration in zip(ready_s, durations_s, strict=True):
        finish_s = max(finish_s, ready) + duration
    exposed_s = max(0.0, finish_s - backward_s) if len(ready_s) else 0.0
    total_s = float(sum(durations_s))
    # a bucket that is ready late leaves the stream idle: its wait is exposed without being traffic
    return exposed_s, max(0.0, total_s - exposed_s)


def exposed_draws_s(
    timeline: Timeline, backward_s: FloatArray, fixed_s: FloatArray, per_byte_s: FloatArray
) -> FloatArray:
    """Exposed seconds for S draws: a bucket of b bytes takes ``fixed_s + b * per_byte_s``.

    Shapes: all arguments [S]; result [S].
    """
    sizes = np.asarray(timeline.num_bytes)
    if not sizes.size:
        return np.zeros_like(backward_s)
    ready = np.asarray(timeline.ready_fraction)
    bytes_from = np.cumsum(sizes[::-1])[::-1]
    count_from = np.cumsum(np.asarray(timeline.num_buckets, dtype=np.float64)[::-1])[::-1]
    finish_s = np.outer(backward_s, ready)
    finish_s += np.outer(fixed_s, count_from)
    finish_s += np.outer(per_byte_s, bytes_from)
    return np.asarray(np.maximum(0.0, finish_s.max(axis=1) - backward_s))


def exposed_sharded_s(
    num_units: int,
    forward_s: FloatArray,
    backward_s: FloatArray,
    gather_s: FloatArray,
    scatter_s: FloatArray,
) -> FloatArray:
    """Exposed seconds of FSDP for S draws; ``gather_s`` and ``scatter_s`` are one pass over all.

    Each unit's parameters are gathered one unit ahead of their use, in the forward and again in
    the backward pass; gradients are scattered behind it (Zhao et al. 2023, section 3.3). The first
    gather and the last scatter have nothing to hide behind; the rest hides behind the compute of
    the other units:

        forward:  G/K + max(0, G (K-1)/K - F (K-1)/K)
        backward: R/K + max(0, (G + R)(K-1)/K - B (K-1)/K)

    Shapes: all arrays [S].
    """
    rest = (num_units - 1) / num_units
    forward = gather_s / num_units + np.maximum(0.0, rest * (gather_s - forward_s))
    backward = scatter_s / num_units + np.maximum(0.0, rest * (gather_s + scatter_s - backward_s))
    return np.asarray(forward + backward)


def synthetic_timeline(total_bytes: float) -> Timeline:
    """The timeline to assume when no bucket was seen.

    Bytes spread evenly over the backward pass, in buckets of 25 MiB after a first one of 1 MiB, as
    DDP cuts them.
    """
    if total_bytes <= 0:
        return _merged(np.zeros(0), np.zeros(0))
    edges = np.arange(FIRST_BUCKET_BYTES, total_bytes, BUCKET_CAP_BYTES, dtype=np.float64)
    edges = np.append(edges, total_bytes)
    return _merged(np.diff(edges, prepend=0.0), edges / total_bytes)


def measured_timeline(buckets: Sequence[BucketTiming], backward_s: float) -> Timeline:
    """The timeline of measured buckets, as shares of the backward pass that showed them.

    Sampled steps are slower than ordinary ones, so a last bucket that seems ready after the end
    sets the scale instead.
    """
    ready_s = np.array([bucket.ready_s for bucket in buckets], dtype=np.float64)
    sizes = np.array([bucket.num_bytes for bucket in buckets], dtype=np.float64)
    scale_s = max(backward_s, float(ready_s.max(initial=0.0)))
    share = np.maximum(0.0, ready_s) / scale_s if scale_s > 0 else np.ones_like(ready_s)
    return _merged(sizes, share)


def _merged(sizes: FloatArray, ready: FloatArray) -> Timeline:
    """The timeline of at most MAX_BUCKETS groups of neighbours, each ready with its first.

    The closed form is then its maximum over fewer k with unchanged suffix sums. First and last
    bucket stay, and one of them is where an even timeline has its maximum.
    """
    if not sizes.size:
        return Timeline(num_bytes=(), ready_fraction=(), num_buckets=())
    ends = np.linspace(0, sizes.size - 1, min(sizes.size, MAX_BUCKETS))
    starts = np.unique(ends.round().astype(np.intp))
    counts = np.diff(np.append(starts, sizes.size))
    return Timeline(
        num_bytes=tuple(np.add.reduceat(sizes, starts).tolist()),
        ready_fraction=tuple(ready[starts].tolist()),
        num_buckets=tuple(counts.tolist()),
    )
