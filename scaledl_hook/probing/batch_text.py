"""Text that starts a probe where this machine has too few GPUs: Slurm, Kubernetes, Ray.

Nothing here is run. The texts start torchrun on each machine, with the environment that makes
``track`` record the probe into the folder of the run, which the machines must share.
"""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from scaledl.config import PREFIX
from scaledl.errors import UsageError
from scaledl.probe_records import ProbePoint
from scaledl.probing.carry_out import limit_of
from scaledl.probing.command import filled, script_words, starts_itself
from scaledl.probing.link_probe import LIMIT_S
from scaledl.units import format_seconds

PORT = 29500


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One probe as a scheduler starts it. ``words``: what follows torchrun's own options."""

    name: str
    what: str
    num_nodes: int
    gpus_per_node: int
    words: tuple[str, ...]
    environ: Mapping[str, str]
    limit_s: float
    cpu_run: bool = False


def job_of(
    point: ProbePoint, command: Sequence[str], environ: Mapping[str, str], *, cpu_run: bool
) -> Job:
    """The point spread evenly over the fewest machines.

    Raises:
        UsageError: the machines would have unlike numbers of ranks, or the command starts the
            ranks itself.
    """
    nodes = num_nodes(point.num_gpus, point.gpus_per_node)
    if starts_itself(command):
        raise UsageError(
            "the command starts its ranks itself. For --for give the script alone, as in "
            "-- python train.py."
        )
    many = "processes" if cpu_run else "GPUs"
    return Job(
        name=f"scaledl-probe-{point.num_gpus}",
        what=f"scaledl probe: {point.num_gpus} {many}, the first {point.num_steps} steps, "
        f"about {format_seconds(point.wall_s)}",
        num_nodes=nodes,
        gpus_per_node=point.num_gpus // nodes,
        words=tuple(script_words(filled(command, point))),
        environ=environ,
        limit_s=limit_of(point),
        cpu_run=cpu_run,
    )


def links_job(num_ranks: int, gpus_per_node: int, home: Path) -> Job:
    """The probe of the links on several machines.

    Raises:
        UsageError: the machines would have unlike numbers of ranks.
    """
    nodes = num_nodes(num_ranks, gpus_per_node)
    return Job(
        name=f"scaledl-links-{num_ranks}",
        what=f"scaledl probe --links: {num_ranks} GPUs, under a minute",
        num_nodes=nodes,
        gpus_per_node=num_ranks // nodes,
        words=("-m", "scaledl", "probe", "--links"),
        environ={f"{PREFIX}HOME": str(home.absolute())},
        limit_s=LIMIT_S,
    )


def num_nodes(num_ranks: int, gpus_per_node: int) -> int:
    """The fewest machines, each with as many ranks.

    Raises:
        UsageError: they do not spread evenly.
    """
    nodes = -(-num_ranks // gpus_per_node)
    if num_ranks % nodes:
        raise UsageError(
            f"{num_ranks} do not spread evenly over {nodes} machines of {gpus_per_node}. Take a "
            "multiple, or give --gpus-per-node."
        )
    return nodes


def slurm_text(job: Job) -> str:
    """A batch script for sbatch."""
    limit_min = math.ceil(job.limit_s / 60)
    gpus = [] if job.cpu_run else [f"#SBATCH --gpus-per-node={job.gpus_per_node}"]
    lines = [
        "#!/bin/bash",
        f"# {job.what}",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        f"#SBATCH --time={limit_min // 60:02d}:{limit_min % 60:02d}:00",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environ.items()),
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun torchrun --nnodes={job.num_nodes} --nproc-per-node={job.gpus_per_node} \\",
        f'  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:{PORT}" \\',
        f"  {shlex.join(job.words)}",
    ]
    return "\n".join(lines)


def k8s_text(job: Job) -> str:
    """An indexed Job, one pod a machine, and the service by which the pods find the first.

    Needs no operator. Strings are JSON, which is YAML too.
    """
    shell = (
        f"exec torchrun --nnodes={job.num_nodes} --nproc-per-node={job.gpus_per_node} "
        f"--node-rank=$JOB_COMPLETION_INDEX --master-addr={job.name}-0.{job.name} "
        f"--master-port={PORT} {shlex.join(job.words)}"
    )
    environ = [
        f"            - {{name: {name}, value: {json.dumps(value)}}}"
        for name, value in job.environ.items()
    ]
    gpus = f"nvidia.com/gpu: {job.gpus_per_node}"
    limits = [] if job.cpu_run else [f"          resources: {{limits: {{{gpus}}}}}"]
    lines = [
        f"# {job.what}",
        "# Fill in the image, and mount the folder that the environment names.",
        "apiVersion: v1",
        "kind: Service",
        f"metadata: {{name: {job.name}}}",
        "spec:",
        "  clusterIP: None",
        "  publishNotReadyAddresses: true",
        f"  selector: {{job-name: {job.name}}}",
        "---",
        "apiVersion: batch/v1",
        "kind: Job",
        f"metadata: {{name: {job.name}}}",
        "spec:",
        "  completionMode: Indexed",
        f"  completions: {job.num_nodes}",
        f"  parallelism: {job.num_nodes}",
        "  backoffLimit: 0",
        f"  activeDeadlineSeconds: {math.ceil(job.limit_s)}",
        "  template:",
        "    spec:",
        f"      subdomain: {job.name}",
        "      restartPolicy: Never",
        "      containers:",
        "        - name: probe",
        "          image: YOUR_IMAGE",
        *limits,
        "          env:",
        *environ,
        f'          command: ["/bin/sh", "-c", {json.dumps(shell)}]',
    ]
    return "\n".join(lines)


def ray_text(job: Job) -> str:
    """A Python script: one task a machine, each starting torchrun there."""
    resource = "CPU" if job.cpu_run else "GPU"
    wants = "num_cpus" if job.cpu_run else "num_gpus"
    lines = [
        f"# {job.what}",
        "import subprocess",
        "import sys",
        "",
        "import ray",
        "from ray.util.placement_group import placement_group",
        "from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy",
        "",
        f"NODES, EACH = {job.num_nodes}, {job.gpus_per_node}",
        f"ENVIRON = {dict(job.environ)!r}",
        f"WORDS = {list(job.words)!r}",
        'ray.init(runtime_env={"env_vars": ENVIRON})',
        f'group = placement_group([{{"{resource}": EACH}}] * NODES, strategy="STRICT_SPREAD")',
        "ray.get(group.ready())",
        "",
        f"@ray.remote({wants}=EACH)",
        "def address():",
        "    return ray.util.get_node_ip_address()",
        "",
        f"@ray.remote({wants}=EACH, max_retries=0)",
        "def node(rank, head):",
        '    own = [f"--nnodes={NODES}", f"--nproc-per-node={EACH}", f"--node-rank={rank}",',
        f'           f"--master-addr={{head}}", "--master-port={PORT}"]',
        '    return subprocess.call(["torchrun", *own, *WORDS])',
        "",
        "def on(i):",
        "    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i)",
        "",
        "head = ray.get(address.options(scheduling_strategy=on(0)).remote())",
        "ranks = [node.options(scheduling_strategy=on(i)).remote(i, head) for i in range(NODES)]",
        "sys.exit(max(ray.get(ranks)))",
    ]
    return "\n".join(lines)


TEXTS: Mapping[str, Callable[[Job], str]] = {
    "slurm": slurm_text,
    "k8s": k8s_text,
    "ray": ray_text,
}
