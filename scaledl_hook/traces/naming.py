"""What the names in a trace mean: categories of all torch versions, kernels that communicate."""

import re
from functools import lru_cache
from typing import Literal

Kind = Literal["kernel", "memory", "gpu-mark", "launch", "host", "range", "python"]

# torch 1.8 and 1.9 wrote Operator, Kernel, Runtime, Memcpy, Memset.
KINDS: dict[str, Kind] = {
    "kernel": "kernel",
    "gpu_memcpy": "memory",
    "gpu_memset": "memory",
    "memcpy": "memory",
    "memset": "memory",
    "gpu_user_annotation": "gpu-mark",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "hip_runtime": "launch",
    "runtime": "launch",
    "cpu_op": "host",
    "user_annotation": "range",
    "operator": "host",
    "python_function": "python",
}

# The first that occurs wins, so longer names stand before their parts.
_OPS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("sendrecv", "send_recv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("notify", "notify"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("recv", "recv"),
    ("reduce", "reduce"),
)

# DeepEP and its private twin; their get_dispatch_layout is local work and does not fit.
_EXPERT = r"\bep::(?:internode|intranode|internode_ll)::(?:\w*notify\w*|dispatch|combine)\b"
_DEEP_EP = _EXPERT.replace(r"\bep", r"\bdeep_ep")
# One-shot, two-shot and multimem kernels of torch's symmetric memory, vLLM, TensorRT-LLM; NVSHMEM.
_OTHERS = (
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce"
    r"|multimem_\w+|nvshmem\w*|mscclpp\w*"
)
_COMMUNICATES = re.compile(f"{_EXPERT}|{_DEEP_EP}|{_OTHERS}", re.IGNORECASE)

_DTYPE_BYTES = {
    "double": 8, "float64": 8, "long": 8, "long int": 8, "int64": 8, "complexfloat": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "c10::half": 2, "float16": 2, "bfloat16": 2, "c10::bfloat16": 2, "short": 2,
    "char": 1, "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


@lru_cache(maxsize=16384)
def communicates(kernel: str) -> Literal["nccl", "other", ""]:
    """Whether a kernel communicates: by the name of NCCL or RCCL, by another, or not at all."""
    if "nccl" in kernel.lower():
        return "nccl"
    return "other" if _COMMUNICATES.search(kernel) else ""


def op_of(name: str) -> str:
    """The collective that a kernel, an annotation or a "Collective name" stands for.

    >>> op_of("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"), op_of("_allgather_base")
    ('all_reduce', 'all_gather')
    >>> op_of("ncclDevKernel_Generic(ncclDevKernelArgs)")
    'unknown'
    """
    if "nccl" in name.lower():
        name = name.partition("(")[0]  # the arguments name types, not operations
    else:
        found = _COMMUNICATES.search(name)
        name = found[0] if found else name
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((op for part, op in _OPS if part in plain), "unknown")


def dtype_bytes(name: object) -> int | None:
    """Bytes of one element of a type by torch's or C++'s name; ``None``: not known."""
    return _DTYPE_BYTES.get(name.lower()) if isinstance(name, str) else None
