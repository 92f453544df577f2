"""The terms of the step model, evaluated for the median parameters and for 256 draws at once.

    step(N, b) = accum * micro(b) * slow(N)                  compute
               + exposed(N, b) + wait(N) + misfit            communication seen by the user
               + input + optimizer + other

Constants stand beside the equation that uses them. None is fitted on a test of this package.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from scaledl.predictor.anchor import Anchor, is_sharded
from scaledl.predictor.batch import BatchCurve, with_floor
from scaledl.predictor.draws import expected_max_normal
from scaledl.predictor.exchange import Exchange, exchange_draws
from scaledl.predictor.fit import Line
from scaledl.predictor.host import slow_draws
from scaledl.records import ClusterSpec, ParallelPlan, StepParts

FloatArray = NDArray[np.float64]

# micro(b) = t_fixed + (t - t_fixed) * b / b0 * d^(log2 of b / b0)
GPU_LAUNCH_S = 40e-6
"""t_fixed of one leaf module, forward and backward: some 8 kernels of 5 us launch each."""
CPU_LAUNCH_S = 25e-6
"""The same on a CPU: operator dispatch without a device queue."""
LAUNCH_LOG_SIGMA = 0.8
FIXED_SHARE = 0.45
FIXED_LOGIT_SIGMA = 1.8
"""t_fixed / t when the number of layers is unknown: median, and sd of its logit. Fitted on four
models on seven clusters (Pollux and Sia traces, one GPU, two batches 2 to 8 times apart); without
any one of the models the median is 0.35 to 0.58, the sd 1.7 to 1.9."""
BATCH_LOG_SIGMA = 0.1
"""sd of log d a doubling, beyond the fixed cost: devices fill up, caches overflow. Whole models
trained at four times the batch miss the two parts by 16 % (NeuSight's set), 8 % a doubling."""

# wait(N) = E[max of N normals] * sqrt(sigma_rank^2 + (share * sigma_step)^2)
RANK_SIGMA_FRACTION = 0.01
"""sigma_rank over compute when unmeasured: equal GPUs differ by about 1 % in clock."""
OWN_JITTER_SHARE = 0.5
"""share of a rank's step-to-step spread that is its own; the rest hits all ranks alike."""
WAIT_LOG_SIGMA = 0.6

INPUT_EXPONENT = 0.5
INPUT_EXPONENT_SIGMA = 0.35
"""input ~ (b / b0)^u: u = 1 where each rank has loaders enough, u = 0 where ranks share cores."""

RUN_TO_RUN_LOG_SIGMA = 0.015
"""log-sd of a steady step from run to run (virtual cluster, 2026: repeats differ by 0.2 to 4.4 %);
it puts the floor of a measured interval at +-2.5 % for the 90 % level."""
PLACEMENT_LOG_SIGMA = 0.03
"""log-sd between jobs that differ in nothing the model sees: layouts of equal nodes, GPUs and
batch have a median max/min of 1.107 (Pollux traces, OSDI 2021), some 3 to 5 % about their mean."""
HOST_RUN_LOG_SIGMA = 0.06
"""The same between jobs of CPU processes: two processes that did exactly the same on a 2-core
virtual machine, in turns of half a second, differed by 4 to 5 % for as long as they lived, and by
more from one hour to the next."""
DOUBLING_LOG_SIGMA = 0.02
"""log-sd added a doubling of the count away from the nearest measured one."""
COLLECTIVE_LOG_SIGMA = 0.25
"""log-sd of the alpha-beta formulas at a count never seen: 3 to 11 % on NVLink (ASTRA-sim's ring
against measured all-reduces), but bandwidths fitted to 8, 16 and 32 GPUs of one T4 cluster differ
by 1.5 to 2 times (Pollux traces, bucket timeline of this package)."""
OTHER_GPU_LOG_SIGMA = 0.3
OTHER_STRATEGY_LOG_SIGMA = 0.05

FIXED, BATCH, HOST, WAIT, STRUCTURE, COLLECTIVE, INPUT, RUN = range(8)
NUM_DIMS = 12  # the last four are the links'


class DrawnParts(msgspec.Struct, frozen=True, kw_only=True):
    """Draws of a step's parts [S]; ``factor`` is the doubt about the step as a whole."""

    compute_s: FloatArray
    fixed_s: FloatArray
    exposed_s: FloatArray
    wait_s: FloatArray
    hidden_s: FloatArray
    input_s: FloatArray
    optimizer_s: float
    other_s: float
    factor: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """The step, the doubt about it as a whole included."""
        own = self.compute_s + self.exposed_s + self.input_s + self.optimizer_s + self.other_s
        return np.asarray(own * self.factor)


class Knowledge(msgspec.Struct, frozen=True, kw_only=True):
    """What all anchors together say, for one target cluster."""

    anchors: tuple[Anchor, ...]
    normals: FloatArray
    links: FloatArray
    fixed: Line | None
    host: Line
    curve: BatchCurve | None = None


def regime(plan: ParallelPlan, num_gpus: int) -> tuple[str, int]:
    """What makes two plans the same regime; one GPU has no strategy."""
    if num_gpus == 1:
        return "single", 1
    return plan.strategy, plan.shard if is_sharded(plan) else 1


def batch_ratio(anchor: Anchor, plan: ParallelPlan) -> float:
    """The asked batch over the anchor's; 1 where one of them is unknown."""
    if anchor.batch is None or plan.batch_per_gpu is None:
        return 1.0
    return plan.batch_per_gpu / anchor.batch


def fixed_prior_s(anchor: Anchor) -> float:
    """t_fixed of one micro-batch as the prior has it, at most 80 % of the micro-batch."""
    launch_s = CPU_LAUNCH_S if anchor.is_cpu else GPU_LAUNCH_S
    layers = anchor.measurement.num_layers
    fixed_s = layers * launch_s if layers else FIXED_SHARE * anchor.micro_s
    return min(0.8 * anchor.micro_s, fixed_s)


def _fixed_draws(anchor: Anchor, knowledge: Knowledge) -> FloatArray:
    z = knowledge.normals[:, FIXED]
    top = 0.98 * anchor.micro_s
    if knowledge.fixed is not None:
        return np.clip(knowledge.fixed.value + knowledge.fixed.sigma * z, 0.0, top)
    if not anchor.measurement.num_layers:
        odds = FIXED_SHARE / (1 - FIXED_SHARE) * np.exp(FIXED_LOGIT_SIGMA * z)
        return np.minimum(top, anchor.micro_s * odds / (1 + odds))
    return np.minimum(top, fixed_prior_s(anchor) * np.exp(LAUNCH_LOG_SIGMA * z))


def median_wait_s(anchor: Anchor, num_gpus: int, compute_s: float) -> float:
    """Median wait for the slowest of ``num_gpus`` ranks, each computing for ``compute_s``."""
    m = anchor.measurement
    rank_s = m.rank_sigma_s
    if rank_s is None:
        rank_s = RANK_SIGMA_FRACTION * anchor.parts.compute_s
    own_s = OWN_JITTER_SHARE * min(m.step_sigma_s, 0.2 * m.step_s)
    scale = compute_s / anchor.parts.compute_s if anchor.parts.compute_s > 0 else 1.0
    return expected_max_normal(num_gpus) * math.hypot(rank_s, own_s) * scale


def _micro_draws(
    anchor: Anchor, knowledge: Knowledge, plan: ParallelPlan, fixed_s: FloatArray
) -> FloatArray:
    """Seconds of a micro-batch of the asked size: by the layers, where no two sizes were measured.

    Without a layer curve a fixed and a proportional part.
    """
    curve = knowledge.curve
    if curve is None or knowledge.fixed is not None or not anchor.batch or not plan.batch_per_gpu:
        return fixed_s + (anchor.micro_s - fixed_s) * batch_ratio(anchor, plan)
    growth = curve.growth(anchor.batch, plan.batch_per_gpu)
    return anchor.micro_s * with_floor(fixed_s / max(anchor.micro_s, 1e-12), growth)


def draw_parts(
    anchor: Anchor, knowledge: Knowledge, cluster: ClusterSpec, plan: ParallelPlan
) -> DrawnParts:
    """The draws of every part, hung on one anchor."""
    z, own = knowledge.normals, anchor.measurement
    ratio = batch_ratio(anchor, plan)
    fixed_s = _fixed_draws(anchor, knowledge)
    bend = np.exp(BATCH_LOG_SIGMA * z[:, BATCH] * math.log2(ratio))
    slow = slow_draws(anchor, knowledge.host, z[:, HOST], cluster)
    micro_s = _micro_draws(anchor, knowledge, plan, fixed_s) * bend * slow
    compute_s = plan.grad_accum * micro_s

    forward_s = micro_s * (anchor.forward_s / anchor.micro_s if anchor.micro_s > 0 else 0.0)
    distance = min(1.0, abs(math.log2(cluster.num_gpus / anchor.num_gpus)))
    if regime(own.plan, anchor.num_gpus)[0] != regime(plan, cluster.num_gpus)[0]:
        distance = 1.0  # another strategy's collectives were never seen at any count
    noise = np.exp(COLLECTIVE_LOG_SIGMA * distance * z[:, COLLECTIVE])
    links = knowledge.links * noise[:, None]
    exchange = exchange_draws(anchor, cluster, plan, links, forward_s, micro_s - forward_s)
    spread = np.exp(WAIT_LOG_SIGMA * z[:, WAIT])
    wait_s = spread * median_wait_s(anchor, cluster.num_gpus, float(compute_s[0]))
    misfit_s = _misfit_draws(anchor, knowledge, cluster, plan, spread, exchange)
    exponent = np.clip(INPUT_EXPONENT + INPUT_EXPONENT_SIGMA * z[:, INPUT], 0.0, 1.0)
    loads = ratio * plan.grad_accum / own.plan.grad_accum
    return DrawnParts(
        compute_s=compute_s,
        fixed_s=plan.grad_accum * fixed_s * slow,
        exposed_s=np.maximum(0.0, exchange.exposed_s + wait_s + misfit_s),
        wait_s=wait_s,
        hidden_s=np.maximum(0.0, exchange.total_s - exchange.exposed_s),
        input_s=anchor.parts.input_wait_s * loads**exponent * (1.0 if own.host_shared else slow),
        optimizer_s=anchor.parts.optimizer_s
        * (float(slow[0]) if own.host_shared else 1.0)
        * _optimizer_share(own.plan, plan),
        other_s=anchor.parts.other_s,
        factor=np.exp(_doubt(anchor, cluster, plan, z)),
    )


def _misfit_draws(
    anchor: Anchor,
    knowledge: Knowledge,
    cluster: ClusterSpec,
    plan: ParallelPlan,
    spread: FloatArray,
    asked: Exchange,
) -> FloatArray:
    """What the anchor's measured exposure has beyond the model, draw by draw; and hidden traffic.

    Traffic that the compute hides slows it; the anchor's own is in its compute.

    Carried along to larger counts, and down to smaller ones as the traffic shrinks, it makes every
    draw pass through the measurement: links drawn too slow are corrected by as much as they
    overshoot there. It has no meaning where one side of the comparison has no communication, or
    another strategy.
    """
    own = anchor.measurement
    if regime(own.plan, anchor.num_gpus)[0] != regime(plan, cluster.num_gpus)[0]:
        return asked.beside_s if anchor.num_gpus == 1 else np.zeros_like(spread)
    ones = np.ones_like(spread)
    modelled = exchange_draws(
        anchor,
        own.cluster,
        own.plan,
        knowledge.links,
        anchor.forward_s * ones,
        anchor.backward_s * ones,
    )
    wait_s = spread * median_wait_s(anchor, anchor.num_gpus, anchor.parts.compute_s)
    misfit_s = anchor.parts.comm_exposed_s - modelled.exposed_s - wait_s
    traffic = asked.total_s / np.maximum(modelled.total_s, 1e-12)
    beside_s = asked.beside_s - modelled.beside_s
    return np.asarray(misfit_s * np.minimum(1.0, traffic) + beside_s)


def _optimizer_share(own: ParallelPlan, plan: ParallelPlan) -> float:
    """Parameters a rank updates, against the anchor's: sharding divides them."""
    before = own.shard if is_sharded(own) else 1
    after = plan.shard if is_sharded(plan) else 1
    return before / after


def between_jobs_log_sigma(anchor: Anchor) -> float:
    """log-sd between jobs that differ in nothing the model sees."""
    return HOST_RUN_LOG_SIGMA if anchor.measurement.host_shared else PLACEMENT_LOG_SIGMA


def _doubt(
    anchor: Anchor, cluster: ClusterSpec, plan: ParallelPlan, normals: FloatArray
) -> FloatArray:
    """Log of the factor for what no term of the model explains."""
    own = anchor.measurement
    doublings = abs(math.log2(cluster.num_gpus / anchor.num_gpus))
    structure = DOUBLING_LOG_SIGMA * doublings
    if own.cluster.gpu.name != cluster.gpu.name:
        structure = math.hypot(structure, OTHER_GPU_LOG_SIGMA)
    if is_sharded(own.plan) != is_sharded(plan):
        structure = math.hypot(structure, OTHER_STRATEGY_LOG_SIGMA)
    relative = own.step_sigma_s / math.sqrt(max(1, own.num_steps)) / own.step_s
    between = between_jobs_log_sigma(anchor)
    run = math.hypot(relative, math.sqrt(2) * between)  # the anchor's and its own
    return np.asarray(structure * normals[:, STRUCTURE] + run * normals[:, RUN])


def median_parts(parts: DrawnParts) -> StepParts:
    """The parts for the median of every parameter; they sum to the forecast's mean."""
    return StepParts(
        compute_s=float(parts.compute_s[0]),
        comm_exposed_s=float(parts.exposed_s[0]),
        input_wait_s=float(parts.input_s[0]),
        optimizer_s=parts.optimizer_s,
        other_s=parts.other_s,
        comm_hidden_s=float(parts.hidden_s[0]),
    )
