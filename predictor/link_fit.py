"""Links of a machine or cluster from timed all-reduces of several sizes.

The same posterior as for the collectives of a training (``fit``): a class of link that nothing was
timed over keeps its nominal numbers and is not called measured.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from scaledl.predictor.collective_cost import all_reduce_terms
from scaledl.predictor.exchange import terms_row
from scaledl.predictor.fit import DURATION_REL_SIGMA, Row, link_prior, posterior
from scaledl.probe_records import LinkTiming
from scaledl.records import ClusterSpec, LinkSpec

JOB_REL_SIGMA = 0.15
"""log-sd of a link in a job about the same link timed alone (assumed: other traffic, and kernels
that share the card with the collective)."""
HOST_JOB_REL_SIGMA = 0.3
"""The same for CPU processes, whose cores do both: twice as much is assumed."""


class MeasuredLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The link inside a machine and that between machines; ``None`` where nothing was timed."""

    intra: LinkSpec | None
    inter: LinkSpec | None


def fit_timings(
    timings: Sequence[LinkTiming], cluster: ClusterSpec, *, is_host: bool
) -> MeasuredLinks:
    """Latency and bandwidth of the links that the timed groups used.

    Args:
        timings: Of groups inside a machine and, on several, of the whole job.
        cluster: The job, with nominal links.
        is_host: Whether the ranks are CPU processes.
    """
    rows = [_row(timing, cluster) for timing in timings if timing.group_size > 1]
    if not rows:
        return MeasuredLinks(intra=None, inter=None)
    fitted = posterior(*link_prior(cluster, bytes_known=True), rows)
    spread = np.sqrt(np.diag(fitted.root @ fitted.root.T))
    used = np.stack([coefs for coefs, _, _ in rows]).max(axis=0) > 0
    job_sigma = HOST_JOB_REL_SIGMA if is_host else JOB_REL_SIGMA

    def link(nominal: LinkSpec, at: int) -> LinkSpec | None:
        if not used[at + 1]:
            return None
        return LinkSpec(
            kind=nominal.kind,
            latency_s=float(np.exp(fitted.theta[at])),
            bytes_per_s=float(np.exp(-fitted.theta[at + 1])),
            measured=True,
            rel_sigma=math.hypot(job_sigma, float(spread[at + 1])),
        )

    return MeasuredLinks(intra=link(cluster.intra, 0), inter=link(cluster.inter, 2))


def _row(timing: LinkTiming, cluster: ClusterSpec) -> Row:
    """One observation. Across machines the bytes are booked on the link between them.

    A ring is as fast as its slowest edge. Should that be one inside a machine, the link between is
    told slower than it is, and a ring across them still right.
    """
    slow = min(cluster.intra.bytes_per_s, cluster.inter.bytes_per_s)
    placed = msgspec.structs.replace(
        cluster,
        num_gpus=timing.group_size,
        inter=msgspec.structs.replace(cluster.inter, bytes_per_s=slow),
    )
    terms = all_reduce_terms(timing.num_bytes, timing.group_size, placed)
    return terms_row(terms), math.log(timing.duration_s), DURATION_REL_SIGMA
