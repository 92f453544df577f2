"""The examples run as a user would run them: as scripts, in a process of their own."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import scaledl
from scaledl.records import Interval

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


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo's script; its neighbours are imported as from a script."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "demo"))
    for name in ("demo", "check"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("demo")


def test_the_demos_tables_say_what_hold_and_naive_are_and_sum_up_both(demo: ModuleType) -> None:
    near = Interval(mean=1.1, low=0.9, high=1.2)
    step = {"model": "gpt", "watched": 2, "asked": 1, "forecast_s": near, "hold_s": 1.5}
    eta = {"model": "gpt", "num_gpus": 2, "done_fraction": 0.5, "forecast_s": near, "naive_s": 1.5}
    steps = [demo.StepCheck(**step, measured_s=s) for s in (1.0, 2.0)]
    etas = [demo.EtaCheck(**eta, true_s=s) for s in (1.0, 2.0)]
    for text, guess in ((demo.render_steps(steps), "hold"), (demo.render_etas(etas), "naive")):
        assert f"; {guess}: the same for a guess without scaledl" in text
        assert "1 of 2" in text
        assert f"mean size of the error 28 %, of {guess} 38 %" in text
        assert max(map(len, text.splitlines())) <= 100


def test_the_demo_says_where_its_runs_are_and_how_to_ask_about_them(demo: ModuleType) -> None:
    text = demo.where_text(Path("runs"), Path("runs/gpt-1"))
    assert "kept, each in a folder of its own, in\n  runs\n" in text
    assert "scaledl show latest --home runs/gpt-1" in text.replace(os.sep, "/")
    assert demo.title("gpt", 1).endswith(", 1 process")
    assert demo.title("gpt", 2).endswith(", 2 processes")
