"""Alpha-beta cost of collectives: ring, tree and two-level over the links of a cluster.

``alpha`` is a link's latency (one hop), ``beta`` the seconds a byte takes through it. All costs
are linear in (alpha, beta) of the two links, so the model keeps the four coefficients
(``CostTerms``) and evaluates them for many parameter draws at once.

References:
    Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in
    MPICH", sections 4.1 to 4.5 (ring all-gather, reduce-scatter, all-reduce; trees).
    ScaleDL 2025 (arXiv 2511.04162), equation 15 (ring all-reduce with a latency term).
"""

import math

import msgspec

from scaledl.records import ClusterSpec, LinkSpec


class CostTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds = intra_hops*alpha_intra + intra_bytes*beta_intra + the same for inter."""

    intra_hops: float = 0.0
    intra_bytes: float = 0.0
    inter_hops: float = 0.0
    inter_bytes: float = 0.0

    def __add__(self, other: "CostTerms") -> "CostTerms":
        return CostTerms(
            intra_hops=self.intra_hops + other.intra_hops,
            intra_bytes=self.intra_bytes + other.intra_bytes,
            inter_hops=self.inter_hops + other.inter_hops,
            inter_bytes=self.inter_bytes + other.inter_bytes,
        )

    def seconds(self, intra: LinkSpec, inter: LinkSpec) -> float:
        """The cost over these links."""
        return (
            self.intra_hops * intra.latency_s
            + self.intra_bytes / intra.bytes_per_s
            + self.inter_hops * inter.latency_s
            + self.inter_bytes / inter.bytes_per_s
        )


def ring_all_reduce_s(num_bytes: float, group_size: int, link: LinkSpec) -> float:
    """Seconds of a ring all-reduce; 0 for a group of one.

    T = 2(N-1)/N * S/B + 2(N-1) * alpha    (ScaleDL 2025, eq. 15; Thakur et al. 2005, 4.4)
    """
    n = group_size
    return 2 * (n - 1) / n * num_bytes / link.bytes_per_s + 2 * (n - 1) * link.latency_s


def ring_all_gather_s(num_bytes: float, group_size: int, link: LinkSpec) -> float:
    """Seconds to gather ``num_bytes`` (the whole result) on every rank; 0 for a group of one.

    T = (N-1)/N * S/B + (N-1) * alpha    (Thakur et al. 2005, section 4.1, ring)
    """
    n = group_size
    return (n - 1) / n * num_bytes / link.bytes_per_s + (n - 1) * link.latency_s


def ring_reduce_scatter_s(num_bytes: float, group_size: int, link: LinkSpec) -> float:
    """Seconds to reduce ``num_bytes`` and leave 1/N of it on each rank; as the all-gather.

    T = (N-1)/N * S/B + (N-1) * alpha    (Thakur et al. 2005, section 4.2; the reduction itself is
    part of the achieved bandwidth)
    """
    return ring_all_gather_s(num_bytes, group_size, link)


def tree_all_reduce_s(num_bytes: float, group_size: int, link: LinkSpec) -> float:
    """Seconds of a pipelined double-tree all-reduce; 0 for a group of one.

    T = 2 S/B * (N-1)/N + 2 ceil(log2 N) * alpha    (Sanders, Speck, Traeff 2009, two trees: full
    bandwidth, logarithmic latency)
    """
    n = group_size
    hops = 2 * math.ceil(math.log2(n)) if n > 1 else 0
    return 2 * (n - 1) / n * num_bytes / link.bytes_per_s + hops * link.latency_s


def group_shape(group_size: int, cluster: ClusterSpec) -> tuple[int, int]:
    """Ranks in the fullest node and number of nodes of a densely placed group."""
    inside = min(group_size, cluster.gpus_per_node)
    return inside, -(-group_size // cluster.gpus_per_node)


def all_reduce_terms(num_bytes: float, group_size: int, cluster: ClusterSpec) -> CostTerms:
    """Coefficients of a ring all-reduce of a densely placed group, as NCCL and gloo lay it.

    One ring goes through all ranks node by node: N edges, of which M cross nodes. Every edge
    carries 2(N-1)/N * S, so the slower kind sets the bandwidth, whatever the number of ranks a
    node; a chunk passes 2(N-1) edges, M/N of them between nodes:

        T = 2(N-1)/N * S/B_slowest + 2(N-1) * ((N-M)/N alpha_intra + M/N alpha_inter)

    One node (M = 0) leaves ScaleDL 2025, eq. 15. On the T4 cluster of the Pollux traces (OSDI 2021)
    exchange between nodes grows far less from 2 to 4 nodes than the 1.5 of a two-level algorithm.
    """
    n, (_, m) = group_size, group_shape(group_size, cluster)
    traffic_bytes, hops = 2 * (n - 1) / n * num_bytes, 2.0 * (n - 1)
    if m == 1:
        return CostTerms(intra_hops=hops, intra_bytes=traffic_bytes)
    network_is_slower = cluster.inter.bytes_per_s <= cluster.intra.bytes_per_s
    return CostTerms(
        intra_hops=hops * (n - m) / n,
        intra_bytes=0.0 if network_is_slower or n == m else traffic_bytes,
        inter_hops=hops * m / n,
        inter_bytes=traffic_bytes if network_is_slower or n == m else 0.0,
    )


def all_gather_terms(num_bytes: float, group_size: int, cluster: ClusterSpec) -> CostTerms:
    """Coefficients of a ring all-gather or reduce-scatter: half an all-reduce."""
    whole = all_reduce_terms(num_bytes, group_size, cluster)
    return CostTerms(
        intra_hops=whole.intra_hops / 2,
        intra_bytes=whole.intra_bytes / 2,
        inter_hops=whole.inter_hops / 2,
        inter_bytes=whole.inter_bytes / 2,
    )


def across_shards_terms(num_bytes: float, replicate: int, shard: int, c: ClusterSpec) -> CostTerms:
    """Coefficients of HSDP's all-reduce: each of ``shard`` ranks averages its part over replicas.

    The peers of one part sit ``shard`` ranks apart. While replicas share a node the ring is inside
    it; once a shard group fills the node, all its ranks use the network at once, so the bytes of
    the whole model pass the node's border.
    """
    if replicate == 1:
        return CostTerms()
    hops, share = 2.0 * (replicate - 1), 2 * (replicate - 1) / replicate
    if replicate * shard <= c.gpus_per_node:
        return CostTerms(intra_hops=hops, intra_bytes=share * num_bytes / shard)
    ranks_sharing = min(shard, c.gpus_per_node)
    return CostTerms(inter_hops=hops, inter_bytes=share * num_bytes / shard * ranks_sharing)


def hierarchical_all_reduce_s(num_bytes: float, cluster: ClusterSpec) -> float:
    """Seconds of a two-level all-reduce over all GPUs of the cluster.

    Reduce-scatter inside each node, all-reduce between nodes, all-gather inside:
    T = 2(g-1)/g * S/B_intra + 2(g-1) alpha_intra + 2(M-1)/M * S/B_inter + 2(M-1) alpha_inter
    with g ranks a node and M nodes. The g ranks of a node send S/g each through the node's network
    at once, hence S against its bandwidth. What a library with such an algorithm would reach; the
    step model takes the ring.
    """
    g, m = group_shape(cluster.num_gpus, cluster)
    inside_s = ring_all_reduce_s(num_bytes, g, cluster.intra)
    return inside_s + ring_all_reduce_s(num_bytes, m, cluster.inter)
