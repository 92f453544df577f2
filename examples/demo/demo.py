"""Trains two small models at one and at two processes, then checks what scaledl forecast.

    make demo      or      python examples/demo/demo.py [--models digits gpt] [--epochs 2]
                                                        [--runs FOLDER]

It takes 2 to 4 minutes on two cores. The runs are kept, and the last lines say where.

Each training has a run folder of its own, so that no forecast can look at the run it is about:
watched at two processes scaledl says how long a step takes at one, and the other way round; then
both are compared with what was measured. The exit status tells of a crash, never of a number.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from check import (
    EtaCheck,
    StepCheck,
    check_etas,
    check_step,
    learned_of,
    render_etas,
    render_learned,
    render_steps,
)

import scaledl
from scaledl.learned import Learned

HERE = Path(__file__).resolve().parent
COUNTS = (2, 1)
TITLES = {
    "digits": "an image classifier on scikit-learn's handwritten digits",
    "gpt": "a small GPT on the source text of Python's standard library",
}


def environment(home: Path) -> dict[str, str]:
    """One thread a process, at one and at two: the processes then differ in nothing else."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SCALEDL_HOME": str(home),
        "PYTHONUNBUFFERED": "1",
    }


def train(model: str, num_gpus: int, home: Path, epochs: int | None) -> None:
    """Run the training script under torchrun; its output is shown as it comes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(num_gpus), str(HERE / "train.py"), model]
    if epochs is not None:
        command += ["--epochs", str(epochs)]
    subprocess.run(command, check=True, env=environment(home))


def show_layers(home: Path) -> None:
    """The table of layers, by the command that users type."""
    print("\n$ scaledl show latest --layers 8", flush=True)
    command = [sys.executable, "-m", "scaledl", "show", "latest", "--layers", "8"]
    subprocess.run(command, check=True, env=environment(home))


def title(model: str, num_gpus: int) -> str:
    """The heading of one training."""
    return f"=== {TITLES[model]}, {num_gpus} process{'' if num_gpus == 1 else 'es'}"


def where_text(folder: Path, last: Path) -> str:
    """Where the runs lie and how to ask about them: they are in no usual place."""
    return (
        f"The runs are kept, each in a folder of its own, in\n  {folder}\n"
        f"To look at one again: scaledl show latest --home {last}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=tuple(TITLES), default=list(TITLES))
    parser.add_argument("--epochs", type=int, help="of each training (default: its own)")
    parser.add_argument("--runs", type=Path, help="where to keep the runs (default: a new folder)")
    args = parser.parse_args()

    folder = args.runs or Path(tempfile.mkdtemp(prefix="scaledl-demo-"))
    started = time.perf_counter()
    steps: list[StepCheck] = []
    etas: list[EtaCheck] = []
    learned: list[tuple[str, Learned | None]] = []
    print(f"The runs are recorded in {folder}", flush=True)
    for model in args.models:
        runs = {}
        for num_gpus in COUNTS:
            print(f"\n{title(model, num_gpus)}\n", flush=True)
            home = folder / f"{model}-{num_gpus}"
            train(model, num_gpus, home, args.epochs)
            show_layers(home)
            runs[num_gpus] = scaledl.open_run("latest", home=home)
            etas += check_etas(model, runs[num_gpus])
            learned.append((f"{model} at {num_gpus}", learned_of(runs[num_gpus])))
        few, many = sorted(runs)
        steps.append(check_step(model, watched=runs[many], truth=runs[few]))
        steps.append(check_step(model, watched=runs[few], truth=runs[many]))

    print("\n=== Was it right? The mean step at a count that was not run\n")
    print(render_steps(steps))
    print("\n=== Was it right? The time left, forecast on the way\n")
    print(render_etas(etas))
    print("\n=== What the graph network told of a step before and after it learned\n")
    print(render_learned(learned))
    print(f"\nThe demo took {time.perf_counter() - started:.0f} s.\n{where_text(folder, home)}")


if __name__ == "__main__":
    main()
