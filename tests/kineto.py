"""Small traces in each of the schemas that torch.profiler has written; times in microseconds."""

import gzip
import json
from pathlib import Path
from typing import Any

NEW = {"op": "cpu_op", "mark": "user_annotation", "kernel": "kernel", "launch": "cuda_runtime",
       "memcpy": "gpu_memcpy", "gpu_mark": "gpu_user_annotation"}  # fmt: skip
OLD = {"op": "Operator", "mark": "Operator", "kernel": "Kernel", "launch": "Runtime",
       "memcpy": "Memcpy", "gpu_mark": "gpu_user_annotation"}  # fmt: skip
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    args = more.pop("args", {})
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": args} | more  # fmt: skip


def training(
    num_steps: int = 4,
    *,
    names: dict[str, str] = NEW,
    origin: float = 1_000_000,
    kernel: str = ALL_REDUCE,
    comm_us: float = 200,
    comm_args: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Steps of 1000 us: compute at 100 to 500, one collective at 400, a copy at 900 to 950."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for step in range(num_steps):
        at = origin + 1000 * step
        events += [
            event(names["mark"], f"ProfilerStep#{step}", at, 990, tid=1),
            event(names["mark"], "enumerate(DataLoader)#_Iter.__next__", at, 60, tid=1),
            event(names["mark"], "DistributedDataParallel.forward", at + 70, 100, tid=1),
            event(names["mark"], "nccl:all_reduce", at + 350, 20, tid=2),
            event(names["launch"], "cudaLaunchKernel", at + 355, 5, tid=2,
                  args={"correlation": 10 + step}),
            event(names["kernel"], "sgemm", at + 100, 250),
            event(names["kernel"], "sgemm", at + 250, 250),
            event(names["kernel"], kernel, at + 400, comm_us,
                  args={"correlation": 10 + step, "External id": 10 + step} | (comm_args or {})),
            event(names["memcpy"], "Memcpy HtoD", at + 900, 50),
            event(names["mark"], "Optimizer.step#SGD.step", at + 800, 50, tid=1),
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 3, "ts": at},
        ]  # fmt: skip
    return events


SIZES = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "dtype": "Float",
    "Group size": 2,
}


def document(events: list[dict[str, Any]], rank: int = 0, world: int = 2) -> dict[str, Any]:
    """The events with what newer versions write beside them."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}, {"id": 1, "name": "NVIDIA A100"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": events,
        "traceName": "trace.json",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_711_964_646_000_000_000,
    }


def write(path: Path, value: Any) -> Path:
    """The value as JSON, packed if the name ends with gz; bytes are written as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value, indent=1).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path
