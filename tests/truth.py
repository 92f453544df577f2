"""A generator with known physics: step times of any count, and what a run there would measure.

It is written apart from the model it tests: an event loop replays the buckets, ranks are drawn one
by one, and it holds effects the model does not know (contention of hidden traffic with compute, a
bandwidth that falls a little as the group grows, batch efficiency).
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from scaledl.predictor.devices import find_gpu
from scaledl.records import (
    BucketTiming,
    ClusterSpec,
    GpuSpec,
    LinkSpec,
    Measurement,
    ParallelPlan,
    StepParts,
)

A100 = find_gpu("A100-SXM4-80GB") or GpuSpec(name="missing")


@dataclass(frozen=True)
class Truth:
    fixed_s: float = 0.01
    sample_s: float = 0.004
    batch_power: float = 1.0
    forward_share: float = 0.33
    param_bytes: float = 4e8
    num_layers: int = 150
    num_buckets: int = 12
    alpha_intra_s: float = 5e-6
    intra_bytes_per_s: float = 150e9
    alpha_inter_s: float = 2e-5
    inter_bytes_per_s: float = 10e9
    group_slowdown: float = 0.0  # bandwidth lost a doubling of the group
    contention: float = 0.0  # share of hidden traffic that slows compute
    optimizer_s: float = 0.005
    input_s: float = 0.0
    other_s: float = 0.002
    rank_sigma: float = 0.0  # of compute, persistent
    jitter_sigma: float = 0.0  # of compute, each step and rank
    run_sigma: float = 0.0  # of the whole step, from run to run
    duration_sigma: float = 0.0  # of a bucket's measured duration
    gpus_per_node: int = 8
    intra: LinkSpec = field(
        default_factory=lambda: LinkSpec(
            kind="nvlink3", latency_s=5e-6, bytes_per_s=150e9, rel_sigma=0.3
        )
    )
    inter: LinkSpec = field(
        default_factory=lambda: LinkSpec(
            kind="ib-edr", latency_s=2e-5, bytes_per_s=10e9, rel_sigma=0.4
        )
    )

    def cluster(self, num_gpus: int) -> ClusterSpec:
        return ClusterSpec(
            gpu=A100,
            num_gpus=num_gpus,
            gpus_per_node=self.gpus_per_node,
            intra=self.intra,
            inter=self.inter,
        )

    def plan(self, num_gpus: int, batch: int, grad_accum: int = 1) -> ParallelPlan:
        strategy = "ddp" if num_gpus > 1 else "single"
        return ParallelPlan(
            strategy=strategy, replicate=num_gpus, batch_per_gpu=batch, grad_accum=grad_accum
        )

    def micro_s(self, batch: int) -> float:
        return self.fixed_s + self.sample_s * batch**self.batch_power

    def bucket_bytes(self) -> list[float]:
        first = min(2**20, self.param_bytes / self.num_buckets)
        rest = (self.param_bytes - first) / max(1, self.num_buckets - 1)
        return [first, *[rest] * (self.num_buckets - 1)] if self.num_buckets > 1 else [first]

    def all_reduce_s(self, num_bytes: float, num_gpus: int) -> float:
        """A ring through all ranks, chunk by chunk; each round lasts as its slowest edge."""
        nodes = math.ceil(num_gpus / self.gpus_per_node)
        lost = 1 + self.group_slowdown * math.log2(max(1, num_gpus))
        bandwidth = self.intra_bytes_per_s
        if nodes > 1:
            bandwidth = min(bandwidth, self.inter_bytes_per_s)
        inter_edges = nodes if nodes > 1 else 0
        alpha_s = (
            inter_edges * self.alpha_inter_s + (num_gpus - inter_edges) * self.alpha_intra_s
        ) / num_gpus
        chunk_s = num_bytes / num_gpus / bandwidth * lost + alpha_s
        return sum(chunk_s for _ in range(2 * (num_gpus - 1)))

    def exchange(self, batch: int, num_gpus: int) -> tuple[list[tuple[float, float, float]], float]:
        """Buckets as (bytes, ready, duration), and the exposed seconds."""
        backward_s = self.micro_s(batch) * (1 - self.forward_share)
        sizes = self.bucket_bytes()
        done, free_s, buckets = 0.0, 0.0, []
        for size in sizes:
            done += size
            ready_s = backward_s * done / sum(sizes)
            duration_s = self.all_reduce_s(size, num_gpus)
            free_s = max(free_s, ready_s) + duration_s
            buckets.append((size, ready_s, duration_s))
        return buckets, max(0.0, free_s - backward_s) if num_gpus > 1 else 0.0

    def measure(
        self, num_gpus: int, batch: int, *, grad_accum: int = 1, seed: int = 0, num_steps: int = 200
    ) -> Measurement:
        """What a run of ``num_steps`` steps on ``num_gpus`` would report."""
        rng = np.random.default_rng(seed)
        buckets, exposed_s = self.exchange(batch, num_gpus)
        hidden_s = max(0.0, sum(d for _, _, d in buckets) - exposed_s) if num_gpus > 1 else 0.0
        compute_s = grad_accum * self.micro_s(batch) + self.contention * hidden_s
        own = compute_s * (1 + self.rank_sigma * rng.standard_normal(num_gpus))
        jitter = compute_s * self.jitter_sigma * rng.standard_normal((num_steps, num_gpus))
        slowest_s = (own + jitter).max(axis=1)
        wait_s = float(slowest_s.mean()) - float(own.mean())
        run = math.exp(self.run_sigma * rng.standard_normal())
        input_s = self.input_s * grad_accum
        rest_s = exposed_s + input_s + self.optimizer_s + self.other_s
        steps = (slowest_s + rest_s) * run
        parts = StepParts(
            compute_s=float(own.mean()) * run,
            comm_exposed_s=(exposed_s + (wait_s if num_gpus > 1 else 0.0)) * run,
            input_wait_s=input_s * run,
            optimizer_s=self.optimizer_s * run,
            other_s=self.other_s * run,
            comm_hidden_s=hidden_s,
        )
        noise = np.exp(self.duration_sigma * rng.standard_normal(len(buckets)))
        return Measurement(
            cluster=self.cluster(num_gpus),
            plan=self.plan(num_gpus, batch, grad_accum),
            step_s=float(steps.mean()),
            parts=parts,
            num_steps=num_steps,
            step_sigma_s=float(steps.std()),
            rank_sigma_s=float(own.std(ddof=1)) if num_gpus > 1 else None,
            forward_s=grad_accum * self.micro_s(batch) * self.forward_share,
            backward_s=grad_accum * self.micro_s(batch) * (1 - self.forward_share),
            buckets=tuple(
                BucketTiming(
                    num_bytes=int(size),
                    ready_s=ready_s,
                    duration_s=duration_s * float(noise[i]) if num_gpus > 1 else None,
                )
                for i, (size, ready_s, duration_s) in enumerate(buckets)
            ),
            num_layers=self.num_layers,
            param_bytes=int(self.param_bytes),
            signature="truth",
        )

    def step_s(self, num_gpus: int, batch: int, grad_accum: int = 1) -> float:
        """The step without noise, ranks equal."""
        quiet = replace(self, rank_sigma=0.0, jitter_sigma=0.0, run_sigma=0.0, duration_sigma=0.0)
        return quiet.measure(num_gpus, batch, grad_accum=grad_accum).step_s


def random_truth(seed: int) -> Truth:
    """A truth from wide ranges; the cluster's stated links miss it as their rel_sigma says."""
    rng = np.random.default_rng(seed)

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    num_layers = int(rng.integers(20, 400))
    intra_b, inter_b = log_uniform(5e9, 300e9), log_uniform(0.5e9, 40e9)
    alpha_i, alpha_x = log_uniform(3e-6, 15e-6), log_uniform(8e-6, 60e-6)
    stated = [
        LinkSpec(
            kind=kind,
            latency_s=alpha * float(np.exp(0.7 * rng.standard_normal())),
            bytes_per_s=b * float(np.exp(sigma * rng.standard_normal())),
            rel_sigma=sigma,
        )
        for kind, alpha, b, sigma in (
            ("nvlink3", alpha_i, intra_b, 0.3),
            ("ib-edr", alpha_x, inter_b, 0.5),
        )
    ]
    return Truth(
        fixed_s=num_layers * log_uniform(10e-6, 150e-6),
        sample_s=log_uniform(0.5e-3, 10e-3),
        batch_power=float(rng.uniform(0.92, 1.02)),
        forward_share=float(rng.uniform(0.28, 0.4)),
        param_bytes=log_uniform(1e7, 3e9),
        num_layers=num_layers,
        num_buckets=int(rng.integers(2, 60)),
        alpha_intra_s=alpha_i,
        intra_bytes_per_s=intra_b,
        alpha_inter_s=alpha_x,
        inter_bytes_per_s=inter_b,
        group_slowdown=float(rng.uniform(0.0, 0.15)),
        contention=float(rng.uniform(0.0, 0.15)),
        optimizer_s=log_uniform(1e-3, 2e-2),
        input_s=float(rng.choice([0.0, log_uniform(1e-3, 2e-2)])),
        other_s=log_uniform(0.5e-3, 5e-3),
        rank_sigma=log_uniform(0.003, 0.03),
        jitter_sigma=log_uniform(0.003, 0.05),
        run_sigma=0.03,
        duration_sigma=0.15,
        intra=stated[0],
        inter=stated[1],
    )
