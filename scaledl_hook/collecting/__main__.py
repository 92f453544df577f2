"""``python -m scaledl.collecting TASKS OUT``: measure every task that OUT does not hold yet.

Alone or as one of several ranks under torchrun; rank 0 writes. Killed at any moment it loses the
configuration that was running, and goes on when started again.
"""

import os
import sys
import warnings
from pathlib import Path

import msgspec
import psutil
import torch

from scaledl.collecting.files import done, open_for_append, read_tasks, write_line
from scaledl.collecting.measure import measure
from scaledl.collecting.records import Machine
from scaledl.collecting.status import Status


def main(tasks_path: Path, out: Path) -> None:
    """Measure; one line to standard error after each."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    if world_size > 1:
        torch.distributed.init_process_group("gloo")
    known = done(out)
    if world_size > 1:
        torch.distributed.barrier()  # all have read what is done before rank 0 adds to it
    todo = [task for task in read_tasks(tasks_path) if task not in known]
    status = Status(len(todo))
    with open_for_append(out if rank == 0 else Path(os.devnull), _machine()) as stream:
        for task in todo:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of model libraries, once a configuration
                found = measure(task)
            if rank == 0:
                write_line(stream, found)
                status.add(found)
    if world_size > 1:
        torch.distributed.destroy_process_group()


def _machine() -> Machine:
    try:
        import transformers

        version: str | None = str(transformers.__version__)
    except ImportError:
        version = None
    return Machine(
        cpu=_cpu_name(),
        num_cores=psutil.cpu_count() or 1,
        torch=str(torch.__version__),
        transformers=version,
        threads=torch.get_num_threads(),
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "cpu"
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else "cpu"


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except msgspec.MsgspecError as error:
        sys.exit(f"scaledl collect: {error}")
