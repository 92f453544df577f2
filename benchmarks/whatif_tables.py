"""Reads tables of step times in the forms their sources publish them.

| form | known by the column | what is read |
|---|---|---|
| grid | ``local_bsz`` | Pollux (OSDI 2021), Sia (SOSP 2023): step, exposed time, many layouts |
| Gavel | ``iteration_time_s`` | Gavel (OSDI 2020): step by placement; servers' sizes are not told |
| MLPerf | ``train_rate_per_s`` | step from rate and batch; the batch changes with the count |
| published | ``throughput`` | step from throughput and batch; also FSDP of llm-foundry |

Left out is what no forecast can be scored on: rows marked suspect or aborted, without a batch (no
step time follows from a throughput then), with model, tensor or pipeline parallelism, or with
accumulation where neither the global batch nor the number of micro-batches is clear.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from whatif_data import Job, Row, group_jobs, tasks_of

Line = Mapping[str, str]

SAME_MODEL = {
    # other tables' names of the jobs of the Pollux and Sia tables: one model never teaches itself
    "ResNet-18": "cifar10",
    "ResNet-50": "imagenet",
    "resnet": "imagenet",
    "resnet50v1.5": "imagenet",
    "RN50v1.5": "imagenet",
}
NOT_DATA_PARALLEL = re.compile(r"dlrm|gpt|llama|flux|mixtral", re.IGNORECASE)
"""MLPerf benchmarks whose submissions cut the model over GPUs, which the columns do not tell."""

MPT = {
    # width and blocks of llm-foundry's own configurations (scripts/train/yamls/pretrain)
    "125m": (768, 12),
    "350m": (1024, 24),
    "760m": (1536, 24),
    "1b": (2048, 24),
    "3b": (2560, 32),
    "7b": (4096, 32),
    "13b": (5120, 40),
    "30b": (7168, 48),
    "70b": (8192, 80),
}
MPT_VOCABULARY = 50_368
MODULES_PER_BLOCK = 9
"""Two norms, four linear layers, attention, activation, dropout."""
BF16_BYTES = 2
LONGEST_STEP_S = 3600.0
"""Beyond it a throughput is not in the unit its table states (millions a second, unsaid)."""


def read_tables(paths: Iterable[Path]) -> list[Job]:
    """The jobs of all tables, in a fixed order; of a ladder those with two counts or more.

    Raises:
        ValueError: a table has none of the known forms.
    """
    rows: list[Row] = []
    for path in paths:
        with path.open(newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(lines)
            read = _reader_of(reader.fieldnames or (), path)
            rows += [row for line in reader for row in [read(line)] if row is not None]
    jobs = group_jobs(rows)
    return [job for job in jobs if not job.rows[0].ladder or next(tasks_of(job), None)]


def _reader_of(columns: Iterable[str], path: Path) -> Callable[[Line], Row | None]:
    forms = {
        "local_bsz": grid_row,
        "iteration_time_s": gavel_row,
        "train_rate_per_s": mlperf_row,
        "throughput": published_row,
    }
    for column, read in forms.items():
        if column in columns:
            return read
    raise ValueError(f"{path}: none of the columns {', '.join(forms)}. Give a known table.")


def model_of(name: str) -> str:
    """The name a model has here, whatever its source calls it."""
    short = name.split("/")[-1] if name.startswith("ConvNets/") else name.replace("/", " ")
    return SAME_MODEL.get(short, short)


def grid_row(line: Line) -> Row | None:
    """A row of the Pollux form; ``None`` without a positive time."""
    step_s = float(line["step_time_s"])
    if step_s <= 0:
        return None
    return Row(
        model=line["model"],
        cluster=line["cluster"],
        gpu=line["gpu"],
        num_nodes=int(line["num_nodes"]),
        num_gpus=int(line["num_replicas"]),
        batch=round(float(line["local_bsz"])),
        step_s=step_s,
        sync_s=float(line["sync_time_s"]),
    )


def gavel_row(line: Line) -> Row | None:
    """A measured row of Gavel.

    "Consolidated" counts as one server, "unconsolidated" as one GPU a server. V100 consolidated is
    left out: its counts come from machines that differ.
    """
    spread = line["placement"] == "unconsolidated"
    mixed = line["gpu"] == "v100" and not spread
    unknown = not line["batch_size_per_gpu"] or not line["iteration_time_s"]
    if line["file"] != "physical" or line["suspect"] == "1" or mixed or unknown:
        return None
    count = int(line["n_gpus"])
    return Row(
        model=model_of(line["model"]),
        cluster=f"gavel {line['gpu']} {line['placement']}",
        gpu=line["gpu"].upper(),
        num_nodes=count if spread else 1,
        num_gpus=count,
        batch=int(float(line["batch_size_per_gpu"])),
        step_s=float(line["iteration_time_s"]),
        sync_s=None,
        gpus_per_node=1 if spread else 8,
        ladder=True,
    )


def mlperf_row(line: Line) -> Row | None:
    """A submission to MLPerf. Evaluation is not in its rate; what includes it is left out."""
    if (
        NOT_DATA_PARALLEL.search(line["family"])
        or line["status"] != "success"
        or line["rate_method"] == "eval_points_incl_eval"
        or not line["step_time_s"]
        or not line["per_gpu_batch"]
        or not line["n_nodes"]
        or float(line["per_gpu_batch"]) < 1
    ):
        return None
    count, nodes = int(float(line["n_gpus"])), int(float(line["n_nodes"]))
    return Row(
        model=model_of(line["family"]),
        cluster=f"mlperf {line['submitter']} {line['gpu']}",
        gpu=line["gpu"],
        num_nodes=nodes,
        num_gpus=count,
        batch=round(float(line["per_gpu_batch"])),
        step_s=float(line["step_time_s"]),
        sync_s=None,
        variant=line["scale_group"],
        grad_accum=max(1, int(float(line["grad_accum"] or 1))),
        gpus_per_node=-(-count // nodes),
        ladder=True,
    )


def published_row(line: Line) -> Row | None:
    """A row of a published throughput table."""
    sharded = line["parallelism"].startswith(("FSDP FULL_SHARD", "FSDP SHARD_GRAD_OP"))
    told = _batch_and_accumulation(line)
    if line["suspect"] == "1" or told is None or not (sharded or line["parallelism"] == "DP"):
        return None
    if int(line["gpu_counts_in_group"]) < 2:
        return None
    batch, accum = told
    count, inside = int(line["n_gpus"]), _gpus_per_node(line)
    samples_per_s = _samples_per_s(line)
    if samples_per_s is None:
        return None
    step_s = batch * count / samples_per_s
    if step_s > LONGEST_STEP_S:
        return None
    size = MPT.get(line["model"].removeprefix("MPT-"))
    return Row(
        model=model_of(line["model"]),
        cluster=f"published {line['gpu']}, {inside} a node",
        gpu=line["gpu"],
        num_nodes=int(float(line["n_nodes"])) if line["n_nodes"] else -(-count // inside),
        num_gpus=count,
        batch=batch,
        step_s=step_s,
        sync_s=None,
        variant=line["group"],
        grad_accum=accum,
        gpus_per_node=inside,
        ladder=True,
        strategy="fsdp" if sharded else "ddp",
        param_bytes=_mpt_bytes(*size) if size else None,
        num_layers=size[1] * MODULES_PER_BLOCK if size else None,
    )


def _batch_and_accumulation(line: Line) -> tuple[int, int] | None:
    """Samples a GPU and step, and micro-batches a step; ``None`` where they are not clear."""
    count, accum = int(line["n_gpus"]), line["grad_accum"].strip()
    if accum and (not _is_number(line["global_batch"]) or not _is_number(accum)):
        return None
    if _is_number(line["global_batch"]):
        batch = float(line["global_batch"]) / count
    elif _is_number(line["per_gpu_batch"]) and not line["global_batch"]:
        batch = float(line["per_gpu_batch"])
    else:
        return None
    return (round(batch), int(float(accum or 1))) if batch >= 1 else None


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _samples_per_s(line: Line) -> float | None:
    rate = float(line["throughput"])
    match line["unit"]:
        case "tokens/s":
            return rate / float(line["seq_len"]) if line["seq_len"] else None
        case "molecules/ms":
            return rate * 1e3
        case unit if unit.startswith(("images", "sequences", "samples", "items", "users")):
            return rate
        case _:
            return None  # frames and utterances are no samples of the batch column


def _gpus_per_node(line: Line) -> int:
    """As the heading tells ("DGX-2 (16x V100 32GB)"), else 8, as all machines without one have."""
    found = re.search(r"\((\d+)x ", line["section"])
    return int(found[1]) if found else 8


def _mpt_bytes(width: int, blocks: int) -> int:
    """Bytes of the parameters as FSDP sends them in bfloat16: 12 d^2 a block, tied embeddings."""
    return BF16_BYTES * (12 * blocks * width**2 + MPT_VOCABULARY * width)
