"""The exchange of a step: seconds of its collectives, and what of them the compute hides."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.anchor import Anchor, is_sharded
from scaledl.predictor.collective_cost import (
    CostTerms,
    across_shards_terms,
    all_gather_terms,
    all_reduce_terms,
)
from scaledl.predictor.overlap import exposed_draws_s, exposed_sharded_s
from scaledl.records import ClusterSpec, ParallelPlan

FloatArray = NDArray[np.float64]


HIDDEN_SHARE = 0.15
"""Slow-down of compute while a collective runs beside it: its kernel holds some 16 of the 108 SMs
of an A100 (NCCL, one block a channel). Rashidi et al. 2021 (ACE, ISCA, section 3) name the cause:
collectives take SMs and memory bandwidth from the layers they hide behind. Not for CPU processes,
whose slow-down by one another is a term of its own."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed and total seconds of an optimizer step's collectives. Shapes: [S].

    ``beside_s`` is what their hidden part costs the compute it runs beside.
    """

    exposed_s: FloatArray
    total_s: FloatArray
    hidden_share: float

    @property
    def beside_s(self) -> FloatArray:
        """Seconds that the compute takes longer."""
        return np.asarray(self.hidden_share * np.maximum(0.0, self.total_s - self.exposed_s))


def terms_row(terms: CostTerms) -> FloatArray:
    """The coefficients in the order of the fit's parameters."""
    return np.array([terms.intra_hops, terms.intra_bytes, terms.inter_hops, terms.inter_bytes])


def _sharded_rows(
    anchor: Anchor, cluster: ClusterSpec, plan: ParallelPlan
) -> tuple[FloatArray, FloatArray]:
    """Coefficients of all gathers of one pass (scatters cost the same), and of HSDP's reduction."""
    total = anchor.timeline.total_bytes
    per_hop = np.array([anchor.num_units, 1.0, anchor.num_units, 1.0])
    gather = terms_row(all_gather_terms(total, plan.shard, cluster))
    across = terms_row(across_shards_terms(total, plan.replicate, plan.shard, cluster))
    return gather * per_hop, across * per_hop


def _bucket_rows(cluster: ClusterSpec) -> tuple[FloatArray, FloatArray]:
    """Coefficients of what a bucket costs whatever its size, and of what each byte adds."""
    fixed = terms_row(all_reduce_terms(0.0, cluster.num_gpus, cluster))
    return fixed, terms_row(all_reduce_terms(1.0, cluster.num_gpus, cluster)) - fixed


def _slowest_edge(links: FloatArray, cluster: ClusterSpec, group_size: int) -> FloatArray:
    """The links as a ring of that size meets them: across nodes bytes go at the slower kind's pace.

    Which kind is slower is settled draw by draw. A ring that fills the nodes it crosses still has
    edges inside them, so once those were measured to be slow, no network makes the ring faster.
    """
    if group_size <= cluster.gpus_per_node or cluster.gpus_per_node == 1:
        return links
    slowest = links.copy()
    slowest[:, 1] = slowest[:, 3] = np.maximum(links[:, 1], links[:, 3])
    return slowest


def exchange_draws(
    anchor: Anchor,
    cluster: ClusterSpec,
    plan: ParallelPlan,
    links: FloatArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
) -> Exchange:
    """The exchange for S draws of the links.

    DDP reduces gradients once, behind the backward pass of the last micro-batch. FSDP gathers and
    scatters in every micro-batch. Cost in grad_accum is constant: it is a factor.

    Shapes: ``links`` is [S, 4], seconds a hop and a byte (intra, inter); times are [S].
    """
    hidden_share = 0.0 if anchor.is_cpu else HIDDEN_SHARE
    if is_sharded(plan):
        gather, across = _sharded_rows(anchor, cluster, plan)
        gather_s = _slowest_edge(links, cluster, plan.shard) @ gather
        scatter_s = gather_s + links @ across
        exposed_s = exposed_sharded_s(anchor.num_units, forward_s, backward_s, gather_s, scatter_s)
        return Exchange(
            exposed_s=exposed_s * plan.grad_accum,
            total_s=(2 * gather_s + scatter_s) * plan.grad_accum,
            hidden_share=hidden_share,
        )
    fixed, per_byte = _bucket_rows(cluster)
    ring = _slowest_edge(links, cluster, cluster.num_gpus)
    fixed_s, per_byte_s = ring @ fixed, ring @ per_byte
    timeline = anchor.timeline
    return Exchange(
        exposed_s=exposed_draws_s(timeline, backward_s, fixed_s, per_byte_s),
        total_s=sum(timeline.num_buckets) * fixed_s + timeline.total_bytes * per_byte_s,
        hidden_share=hidden_share,
    )


def exchange_row(anchor: Anchor) -> FloatArray:
    """Coefficients of all collectives of the anchor's own step."""
    cluster, plan = anchor.measurement.cluster, anchor.measurement.plan
    if is_sharded(plan):
        gather, across = _sharded_rows(anchor, cluster, plan)
        return (3 * gather + across) * plan.grad_accum
    fixed, per_byte = _bucket_rows(cluster)
    timeline = anchor.timeline
    return sum(timeline.num_buckets) * fixed + timeline.total_bytes * per_byte
