"""The user's command at one count: its words and its environment."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scaledl.config import PREFIX
from scaledl.errors import UsageError
from scaledl.probe_records import ProbePoint

GPUS, BATCH = "{gpus}", "{batch}"
LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "colossalai"}
)


def check_command(command: Sequence[str], batch_per_gpu: int | None) -> None:
    """Refuse a command that no count can be put into.

    Raises:
        UsageError: it is empty, starts ranks by itself without saying how many, or asks for a
            batch that is not known.
    """
    if not command:
        raise UsageError(
            "no command to probe. Write it behind --: scaledl probe -- python train.py"
        )
    name = os.path.basename(command[0])
    if name in LAUNCHERS and not starts_itself(command):
        raise UsageError(
            f"{name} starts the ranks itself: write {GPUS} where it takes their number, or leave "
            "it out: scaledl starts them with torchrun."
        )
    if any(BATCH in word for word in command) and batch_per_gpu is None:
        raise UsageError(
            f"{BATCH} cannot be filled in: the run does not tell its batch. Write the number."
        )


def starts_itself(command: Sequence[str]) -> bool:
    """Whether the command takes the number of ranks, and so starts them."""
    return any(GPUS in word for word in command)


def filled(command: Sequence[str], point: ProbePoint) -> list[str]:
    """The command with the count and the batch of one rank put in."""
    batch = "" if point.batch_per_gpu is None else str(point.batch_per_gpu)
    return [w.replace(GPUS, str(point.num_gpus)).replace(BATCH, batch) for w in command]


def script_words(words: Sequence[str]) -> list[str]:
    """What follows torchrun's own options: a script as it is, any other program as one."""
    return [*([] if words[0].endswith(".py") else ["--no-python"]), *words]


def launch_words(command: Sequence[str], point: ProbePoint) -> list[str]:
    """What starts all ranks of this machine."""
    words = filled(command, point)
    if starts_itself(command):
        return words
    ranks = ["--standalone", "--nproc-per-node", str(point.num_gpus)]
    return [sys.executable, "-m", "torch.distributed.run", *ranks, *script_words(words)]


def environment(num_steps: int, runs: Path) -> dict[str, str]:
    """What makes ``track`` record a probe there, end it, and do nothing else beside it."""
    values = {
        "PROBE_STEPS": str(num_steps),
        "RUN_DIR": str(runs.absolute()),
        "LEARNER": "off",
        "QUIET": "1",
    }
    return {PREFIX + name: value for name, value in values.items()}


def whole_environment(
    num_steps: int, runs: Path, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The same on top of this process's own."""
    return {**environ, **environment(num_steps, runs)}
