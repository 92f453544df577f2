"""``scaledl collect``: real training steps of many configurations, measured on this machine."""

import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Annotated

import typer

from scaledl.cli.stream import write_out
from scaledl.collecting.files import done, pack, read_tasks, write_tasks
from scaledl.collecting.plan import Ranges, candidates, ordered, tasks
from scaledl.collecting.records import Task
from scaledl.errors import UsageError

SHORT_HELP = "Measure training steps of many configurations."
HELP = (
    "Example: scaledl collect steps.jsonl --families bert,gpt2,vit\n\n"
    "Train small models for a few steps each and write what every step and layer took, one JSON "
    "line a configuration. Which ones is a D-optimal choice, and some at random to test on. "
    "Stopped at any moment, the same command goes on where it was. A file name that ends in .xz "
    "cannot be added to: pack with --pack when all is measured."
)
FAMILIES = ("bert", "gpt2", "t5", "vit", "deit", "mlp", "cnn")


def run(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File of measurements (.jsonl).")],
    families: Annotated[str, typer.Option("--families", help="Of: " + ", ".join(FAMILIES))] = (
        "mlp,cnn"
    ),
    design: Annotated[int, typer.Option("--design", min=1, help="By design, a family.")] = 60,
    test: Annotated[int, typer.Option("--test", min=0, help="To test on, a family.")] = 40,
    random: Annotated[int, typer.Option("--random", min=0, help="At random, a family.")] = 0,
    pool: Annotated[int, typer.Option("--candidates", min=1, help="To choose from.")] = 300,
    processes: Annotated[int, typer.Option("--processes", min=1, max=64, help="DDP ranks.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of every choice.")] = 0,
    pack_to: Annotated[
        Path | None, typer.Option("--pack", help="Also write a packed copy (.xz).")
    ] = None,
) -> None:
    """Plan, start the measuring process or ranks, and wait for them."""
    if out.suffix == ".xz":
        raise UsageError(f"cannot add to the packed file {out}. Give a name that ends in .jsonl.")
    names = _checked(families)
    line = _plan(
        names, pool, processes=processes, design=design, random=random, test=test, seed=seed
    )
    listed = out.with_name(out.name + ".tasks")
    if listed.exists() and read_tasks(listed) != line:
        raise UsageError(
            f"{out} was begun with other options. Give the same ones, or another file."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_tasks(listed, line)
    status = subprocess.run([*_launcher(processes), str(listed), str(out)], env=_environment())
    if status.returncode:
        raise typer.Exit(1)
    write_out(f"{len(done(out))} of {len(line)} configurations are in {out}")
    if pack_to is not None:
        pack(out, pack_to)


def _checked(families: str) -> list[str]:
    names = [name.strip() for name in families.split(",") if name.strip()]
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        raise UsageError(
            f"unknown model family {', '.join(unknown) or families!r}. "
            f"Choose of: {', '.join(FAMILIES)}."
        )
    return names


def _plan(
    names: list[str],
    pool: int,
    *,
    processes: int,
    design: int,
    random: int,
    test: int,
    seed: int,
) -> list[Task]:
    groups = []
    for name in names:
        own = zlib.crc32(f"{name}/{processes}/{seed}".encode())  # another draw for each family
        of_family = candidates(name, Ranges(), pool, processes=processes, seed=own)
        groups.append(tasks(of_family, design=design, random=random, test=test, seed=own))
    return ordered(groups, seed)


def _launcher(processes: int) -> list[str]:
    module = ["-m", "scaledl.collecting"]
    if processes == 1:
        return [sys.executable, *module]
    ranks = ["--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, "-m", "torch.distributed.run", *ranks, *module]


def _environment() -> dict[str, str]:
    """One thread a process unless the user says otherwise: more of them repeat less well."""
    return {"OMP_NUM_THREADS": "1", **os.environ}
