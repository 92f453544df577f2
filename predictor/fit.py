"""What measurements say about the parameters of the step model; what they cannot say stays prior.

Links: log-parameters theta = (log alpha_intra, log beta_intra, log alpha_inter, log beta_inter)
with a normal prior from each ``LinkSpec``. An observed collective took

    log d = log( sum_j c_j exp(theta_j) ) + noise,    c from ``collective_cost``

The maximum a posteriori is found by Gauss-Newton steps (Bishop 2006, section 4.5, Laplace
approximation): a parameter no observation touches keeps its prior, equal sizes leave alpha there,
differing sizes settle both.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.anchor import Anchor, is_sharded
from scaledl.predictor.collective_cost import all_reduce_terms
from scaledl.predictor.draws import expected_max_normal
from scaledl.predictor.exchange import exchange_draws, exchange_row, terms_row
from scaledl.records import ClusterSpec, LinkSpec

FloatArray = NDArray[np.float64]
Row = tuple[FloatArray, float, float]
"""An observed collective: its coefficients [4], the log of its seconds, the sd of that log."""

LATENCY_REL_SIGMA = 0.7
"""log-sd of an unmeasured latency: small all-reduces of one link class spread by about 4 to 1
between their ends in NCCL's own table of hop latencies (src/graph/tuning.cc, LL to Simple)."""
DURATION_REL_SIGMA = 0.2
"""log-sd of one bucket's duration about the alpha-beta line (assumed: protocols change with the
size, and shared networks swing)."""
EXPOSED_REL_SIGMA = 0.35
"""The same when only the exposed part was seen, which also holds waiting and launch."""
MAX_WAITING_SHARE = 0.2
"""Of the collectives' time. Where this rank waits more for a slower one, their durations tell of
that rank and not of the links, which are then read from what is exposed beyond the waiting."""
UNKNOWN_BYTES_REL_SIGMA = 1.5
"""Added log-sd of seconds a byte when the model's size is unknown: 1 M to 1 G parameters."""
MAX_ROWS_EACH = 16
"""Buckets taken of one count, spread over the timeline; more would not narrow what their common
error (COLLECTIVE_LOG_SIGMA of the step model) leaves."""
MAX_ROWS = 64
_HUBER = 1.5
_GAUSS_NEWTON_STEPS = 8


class LinkFit(msgspec.Struct, frozen=True, kw_only=True):
    """Posterior of the link parameters. ``root`` times standard normals gives deviations."""

    theta: FloatArray
    root: FloatArray
    num_observed: int

    def draws(self, normals: FloatArray) -> FloatArray:
        """Seconds a hop and a byte, [S, 4]."""
        return np.asarray(np.exp(self.theta + normals @ self.root.T))


def link_prior(cluster: ClusterSpec, *, bytes_known: bool) -> tuple[FloatArray, FloatArray]:
    """Means and standard deviations of theta before anything was observed. Shapes: [4]."""
    theta, sigma = [], []
    extra = 0.0 if bytes_known else UNKNOWN_BYTES_REL_SIGMA
    for link in (cluster.intra, cluster.inter):
        theta += [np.log(max(link.latency_s, 1e-9)), -np.log(link.bytes_per_s)]
        latency_sigma = max(0.2, link.rel_sigma) if link.measured else LATENCY_REL_SIGMA
        sigma += [latency_sigma, np.hypot(max(link.rel_sigma, 0.01), extra)]
    return np.array(theta), np.array(sigma)


def _same_link(one: LinkSpec, other: LinkSpec) -> bool:
    return one.kind == other.kind


def _tells_of(anchor: Anchor, cluster: ClusterSpec) -> bool:
    """Whether the anchor's collectives ran over the links that are asked about."""
    own = anchor.measurement.cluster
    if own.num_gpus == 1 or not _same_link(own.intra, cluster.intra):
        return False
    return not own.crosses_nodes or _same_link(own.inter, cluster.inter)


def _duration_rows(anchor: Anchor) -> list[Row]:
    cluster = anchor.measurement.cluster
    seen = [b for b in anchor.measurement.buckets if b.duration_s and b.num_bytes > 0]
    total_s = sum(b.duration_s or 0.0 for b in seen)
    waits = (anchor.measurement.waiting_s or 0.0) > MAX_WAITING_SHARE * total_s
    if waits or is_sharded(anchor.measurement.plan):
        return []
    stride = -(-len(seen) // MAX_ROWS_EACH) if seen else 1
    return [
        (
            terms_row(all_reduce_terms(bucket.num_bytes, cluster.num_gpus, cluster)),
            float(np.log(bucket.duration_s or 1.0)),
            DURATION_REL_SIGMA,
        )
        for bucket in seen[::-1][::stride]
    ]


def _exposed_rows(anchor: Anchor, theta: FloatArray) -> list[Row]:
    """One observation of the whole exchange from its exposed part.

    The exposed time grows with the speed factor of the links, so the factor that reproduces the
    measured value is read off a grid. Nothing exposed tells only that the links are fast enough:
    then the prior stays unless it disagrees.
    """
    measurement = anchor.measurement
    factors = np.geomspace(1 / 64, 64, 193)
    links = factors[:, None] * np.exp(theta)
    ones = np.ones_like(factors)
    modelled_s = exchange_draws(
        anchor,
        measurement.cluster,
        measurement.plan,
        links,
        anchor.forward_s * ones,
        anchor.backward_s * ones,
    ).exposed_s
    wait_s = measurement.waiting_s
    if wait_s is None:
        wait_s = (measurement.rank_sigma_s or 0.0) * expected_max_normal(anchor.num_gpus)
    seen_s = max(0.0, anchor.parts.comm_exposed_s - wait_s)
    fast_enough = seen_s < 0.01 * measurement.step_s
    factor = float(np.interp(max(seen_s, 1e-9), modelled_s, factors))
    if fast_enough and factor >= 1:
        return []
    row = exchange_row(anchor)
    total_s = factor * float(row @ np.exp(theta))
    return [(row, float(np.log(total_s)), EXPOSED_REL_SIGMA)]


def fit_links(anchors: Sequence[Anchor], cluster: ClusterSpec) -> LinkFit:
    """The posterior of the links of ``cluster`` after what the anchors saw."""
    bytes_known = all(anchor.bytes_known for anchor in anchors)
    prior, sigma = link_prior(cluster, bytes_known=bytes_known)
    rows: list[Row] = []
    for anchor in anchors:
        if _tells_of(anchor, cluster):
            rows += _duration_rows(anchor) or _exposed_rows(anchor, prior)
    return posterior(prior, sigma, rows[-MAX_ROWS:])


def posterior(prior: FloatArray, sigma: FloatArray, rows: Sequence[Row]) -> LinkFit:
    """What observed collectives make of the prior. Shapes: [4] each."""
    precision = np.diag(sigma**-2)
    theta = prior.copy()
    if rows:
        coefs = np.stack([row for row, _, _ in rows])
        logs = np.array([y for _, y, _ in rows])
        noise = np.array([sigma for _, _, sigma in rows])
        for _ in range(_GAUSS_NEWTON_STEPS):
            theta, precision = _gauss_newton(theta, prior, sigma, coefs, logs, noise)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    return LinkFit(theta=theta, root=root, num_observed=len(rows))


def _gauss_newton(
    theta: FloatArray,
    prior: FloatArray,
    sigma: FloatArray,
    coefs: FloatArray,
    logs: FloatArray,
    noise: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """One step; a collective may hold waiting for a late rank, so long ones weigh less (Huber)."""
    terms = coefs * np.exp(theta)
    model_s = terms.sum(axis=1)
    jacobian = terms / model_s[:, None]
    residual = logs - np.log(model_s)
    weight = np.minimum(1.0, _HUBER * noise / np.maximum(residual, 1e-12)) / noise**2
    weight = np.where(residual > 0, weight, noise**-2)
    precision = np.diag(sigma**-2) + jacobian.T @ (weight[:, None] * jacobian)
    gradient = jacobian.T @ (weight * residual) - (theta - prior) / sigma**2
    step = np.clip(np.linalg.solve(precision, gradient), -2.0, 2.0)
    return theta + step, precision


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with its standard deviation."""

    value: float
    sigma: float


MICRO_REL_SIGMA = 0.02
"""log-sd of a measured compute time from run to run (virtual cluster: repeats of one set-up
differ by 0.2 to 4.4 %)."""


def fit_fixed_s(anchors: Sequence[Anchor]) -> Line | None:
    """The intercept of compute over batch, or ``None`` with fewer than two batch sizes.

    t(b) = t_fixed + slope * b by weighted least squares; a ratio of batches under 1.2 tells
    nothing above the noise.
    """
    points = [(float(a.batch), a.micro_s) for a in anchors if a.batch and a.micro_s > 0]
    if not points or max(b for b, _ in points) < 1.2 * min(b for b, _ in points):
        return None
    batches, times_s = np.array(points).T
    weight = (MICRO_REL_SIGMA * times_s) ** -2
    design = np.stack([np.ones_like(batches), batches], axis=1)
    covariance = np.linalg.inv(design.T @ (weight[:, None] * design))
    intercept, _ = covariance @ (design.T @ (weight * times_s))
    top = 0.98 * float(times_s.min())
    return Line(value=float(np.clip(intercept, 0.0, top)), sigma=float(np.sqrt(covariance[0, 0])))
