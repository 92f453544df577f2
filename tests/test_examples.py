"""The examples run as a user would run them: as scripts, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import scaledl

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NUM_STEPS, NUM_EPOCHS = 10, 2
SCRIPTS = ("plain_loop", "accumulation_amp", "hf_trainer", "ddp", "fsdp2")
UNDER_TORCHRUN = {"ddp": 2, "fsdp2": 2}


def run_example(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one example for 20 steps, with its runs in ``folder``."""
    launcher = [sys.executable]
    if name in UNDER_TORCHRUN:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher += [str(UNDER_TORCHRUN[name])]
    size = ["--epochs", str(NUM_EPOCHS), "--steps", str(NUM_STEPS)]
    return subprocess.run(
        [*launcher, str(EXAMPLES / f"{name}.py"), *size],
        env={**os.environ, "SCALEDL_HOME": str(folder), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("name", SCRIPTS)
def test_example_trains_and_leaves_a_finished_run_with_the_right_counts(
    name: str, tmp_path: Path
) -> None:
    done = run_example(name, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]

    run = scaledl.open_run("latest", home=tmp_path)
    assert run.state == "finished"
    assert run.ended is not None
    assert run.ended.step == NUM_STEPS * NUM_EPOCHS
    assert run.info.epochs == NUM_EPOCHS
    assert run.steps_per_epoch == NUM_STEPS
    assert run.info.cluster.num_gpus == UNDER_TORCHRUN.get(name, 1)


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_W17_an_example_needs_two_lines_for_scaledl(path: Path) -> None:
    marked = [line for line in path.read_text().splitlines() if line.endswith("# scaledl")]
    assert len(marked) == 2
    assert all("scaledl" in line.partition("#")[0] for line in marked)
