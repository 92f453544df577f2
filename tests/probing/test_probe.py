"""``scaledl probe`` from the command line: real ranks, and every way in which it ends badly."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from samples import RUN, write_run
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

import scaledl
from scaledl.cli import main
from scaledl.config import TrackConfig
from scaledl.errors import UsageError
from scaledl.past import open_run
from scaledl.probing import carry_out
from scaledl.probing.launch import Ended, run_command
from scaledl.probing.links import SIZES_BYTES
from scaledl.store import list_runs

SCRIPT = Path(__file__).with_name("train.py")
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scaledl", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The store of the test, as the tests' settings name it."""
    return tmp_path / "scaledl-home"


@pytest.fixture
def recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of the script in this process; its id."""
    monkeypatch.setenv("SCALEDL_QUIET", "1")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--short"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    monkeypatch.delenv("SCALEDL_QUIET")
    return open_run("latest", home).info.run_id


# --- the training's side -------------------------------------------------------------------------


def loop(num_steps: int, *, optimizers: int = 1) -> int:
    """Steps that a tracked loop did before it was ended."""
    model = nn.Linear(4, 4)
    own = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(optimizers)]
    done = 0
    with scaledl.track(model, total_steps=num_steps):
        for _ in range(num_steps):
            model(torch.ones(2, 4)).sum().backward()
            for optimizer in own:
                optimizer.step()
            done += 1
    return done


def test_a_training_is_ended_after_just_so_many_steps_and_its_run_is_marked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEDL_PROBE_STEPS", "20")
    before = dict(_global_optimizer_post_hooks)
    with pytest.raises(SystemExit) as ended:
        loop(60)
    assert ended.value.code == 0
    assert dict(_global_optimizer_post_hooks) == before
    run = open_run("latest", home)
    assert run.info.probe
    assert run.state == "stopped early"
    assert run.ended is not None
    assert run.ended.step == 20
    assert run.measurements[-1].num_steps >= 10
    assert loop(20 - 1) == 19  # fewer than that end by themselves


def test_of_several_optimizers_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEDL_PROBE_STEPS", "20")
    assert loop(19, optimizers=2) == 19


def test_an_optimizer_inside_the_backward_ends_at_the_next_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SCALEDL_PROBE_STEPS", "5")
    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)
        parameter.register_post_accumulate_grad_hook(lambda _, own=optimizer: own.step())  # type: ignore[no-untyped-call]
    backwards = 0

    def train() -> None:
        nonlocal backwards
        with scaledl.track(model):
            for _ in range(50):
                model(torch.ones(2, 4)).sum().backward()
                backwards += 1

    with pytest.raises(SystemExit):
        train()
    assert backwards == 5
    model(torch.ones(2, 4))  # the model's own hook is gone


def test_steps_that_the_user_tells_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEDL_PROBE_STEPS", "7")
    told = 0

    def train() -> None:
        nonlocal told
        with scaledl.track(nn.Linear(2, 2)) as run:
            for _ in range(50):
                told += 1
                run.step()

    with pytest.raises(SystemExit):
        train()
    assert told == 7


def test_in_a_probe_the_environment_wins_over_the_script_and_nowhere_else(tmp_path: Path) -> None:
    env = {"SCALEDL_RUN_DIR": str(tmp_path / "a")}
    mine = {"run_dir": str(tmp_path / "b")}
    assert TrackConfig.load(mine, env, tmp_path).run_dir == str(tmp_path / "b")
    probe = TrackConfig.load(mine, env | {"SCALEDL_PROBE_STEPS": "9"}, tmp_path)
    assert (probe.run_dir, probe.probe_steps) == (str(tmp_path / "a"), 9)
    for wrong in ("0", "many", "-3"):
        with pytest.raises(UsageError, match="SCALEDL_PROBE_STEPS must be a whole number"):
            TrackConfig.load({}, {"SCALEDL_PROBE_STEPS": wrong}, tmp_path)


# --- from the command ----------------------------------------------------------------------------


@pytest.mark.dist
def test_a_probe_of_two_ranks_is_recorded_compared_and_narrows_the_next_what_if(
    recorded: str, home: Path, cli: Cli
) -> None:
    before = open_run(recorded, home).what_if([2], batch_rule="fixed-per-gpu").rows[-1]
    words = ["--gpus", "2", "--steps", "20", "--", sys.executable, str(SCRIPT)]
    code, out, err = cli("probe", *words)
    assert code == 0, out + err
    assert "The first steps of the real script are run" in out
    assert "running 2 processes" in err
    # the second rank of so short a job may not have learned the run's id
    (probe,) = [e for e in list_runs(home).runs if e.info.probe and "-rank1" not in e.info.run_id]
    assert probe.info.cluster.num_gpus == 2
    assert sum(1 for _ in home.rglob("rank1.jsonl")) == 1
    assert probe.info.run_id in out
    assert "What-if with the same global batch, before and with the probes:" in out
    assert open_run("latest", home).info.run_id == recorded
    after = open_run(recorded, home).what_if([2], batch_rule="fixed-per-gpu").rows[-1]
    assert (before.basis, after.basis) == ("prior", "measured")
    assert " probe\n" in cli("runs")[1]


def test_what_cannot_be_is_refused_with_what_to_do(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = cli("probe", "--", "python", "train.py")
    assert code == 1
    assert "no runs in" in err
    write_run(home)  # of A100s, which are not here
    for words, said in (
        (["--gpus", "2"], "no command to probe"),
        (["--gpus", "0", "--", "x"], "num_gpus must be at least 1, got 0"),
        (["--gpus", "2", "--", "x"], "2 GPUs are not on this machine, which has 0"),
        (["--timeout", "9", "--", "x"], "--timeout: '9' has no unit"),
        (["--budget-min", "-1", "--for", "ray", "--", "x"], "--budget-min must be 0 or more"),
        (["--links", "--", "x"], "Leave the command out"),
        (["--links", "--for", "k8s"], "needs --ranks and --gpus-per-node"),
    ):
        code, _, err = cli("probe", *words)
        assert (code, said in err) == (2, True), err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = cli("probe", "--gpus", "2", "--", "x")
    assert (code, "Run it once, outside of torchrun" in err) == (2, True), err


def test_a_job_for_a_cluster_is_printed_and_nothing_is_run(home: Path, cli: Cli) -> None:
    folder = write_run(home)
    words = ["--gpus", "16", "--gpus-per-node", "8", "--for", "slurm"]
    code, out, _ = cli("probe", *words, "--", "python", "train.py", "--batch", "{batch}")
    assert code == 0
    assert "#SBATCH --nodes=2" in out
    assert f"SCALEDL_RUN_DIR={folder.parent}" in out
    assert out.rstrip().endswith("python train.py --batch 32")  # 512 over 16
    assert [e.info.run_id for e in list_runs(home).runs] == [RUN]


def test_the_plan_alone_is_shown_as_text_and_json(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(home)
    monkeypatch.setattr("scaledl.cli.probe.num_gpus_here", lambda: 8)
    words = ["--dry-run", "--budget-min", "30", "--", "python", "train.py"]
    code, out, _ = cli("probe", *words)
    assert code == 0
    assert "GPU minutes" in out
    code, out, _ = cli("probe", "--json", *words)
    plan = json.loads(out)["plan"]
    assert {point["num_gpus"] for point in plan["points"]} == {1, 2, 8}
    assert sum(point["gpu_s"] for point in plan["points"]) <= 1800


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "own.py"
    path.write_text(text)
    return [sys.executable, str(path), "{gpus}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; print('no such data set'); sys.exit(3)", "failed with code 3"),
        (
            "print('trained')",
            "no run of so many ranks was recorded. The script needs scaledl.track()",
        ),
        ("import time; print('busy', flush=True); time.sleep(60)", "did not end within"),
    ],
)
def test_a_count_that_fails_is_told_with_its_last_words_and_the_others_go_on(
    text: str, said: str, tmp_path: Path, recorded: str, cli: Cli
) -> None:
    words = ["--gpus", "2,3", "--timeout", "1s", "--", *script(tmp_path, text)]
    code, out, _ = cli("probe", *words)
    assert code == 1
    assert out.count(said) == 2
    assert "2 processes:" in out
    assert "3 processes:" in out
    assert any(word in out for word in ("| no such data set", "| trained", "| busy"))


def in_this_process(monkeypatch: pytest.MonkeyPatch, train: Callable[[], object]) -> None:
    """Let what a probe would start be trained here."""

    def start(words: object, environ: dict[str, str], *, limit_s: float) -> Ended:
        with monkeypatch.context() as patch:
            for name in ("SCALEDL_PROBE_STEPS", "SCALEDL_QUIET", "SCALEDL_LEARNER"):
                patch.setenv(name, environ[name])
            with pytest.raises(SystemExit):
                train()
        return Ended(code=0, wall_s=1.0, tail=())

    monkeypatch.setattr(carry_out, "run_command", start)


def test_ranks_that_each_trained_alone_are_no_measurement_of_their_number(
    recorded: str, home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone() -> None:
        with monkeypatch.context() as patch:
            patch.setenv("WORLD_SIZE", "2")  # as torchrun sets it
            patch.setattr(sys, "argv", [str(SCRIPT), "--alone"])
            runpy.run_path(str(SCRIPT), run_name="__main__")

    in_this_process(monkeypatch, alone)
    code, out, _ = cli("probe", "--gpus", "2", "--", "python", "train.py")
    assert code == 1
    assert "its ranks exchanged nothing, so each trained alone" in out
    assert [e.info.run_id for e in list_runs(home).runs] == [recorded]


def test_a_probe_of_another_model_is_not_used(
    recorded: str, home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch, lambda: loop(400))
    code, out, _ = cli("probe", "--gpus", "1", "--", "python", "train.py")
    assert code == 1
    assert "it trained another model than the run" in out


# --- nothing stays behind ------------------------------------------------------------------------

PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
part = pathlib.Path(PID).with_suffix(".part")
part.write_text(str(child.pid))
part.rename(PID)
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


@pytest.mark.parametrize("way", ["limit", "interrupt", "term"])
def test_what_the_command_started_ends_with_it_even_in_sessions_of_its_own(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    words = [
        sys.executable,
        "-c",
        PARENT.replace("CHILD", repr(STUBBORN)).replace("PID", repr(str(pid))),
    ]
    real, calls = subprocess.Popen.wait, [0]

    def wait(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        calls[0] += 1
        if calls[0] > 1:
            return real(process, timeout)
        while not pid.exists():
            time.sleep(0.01)
        if way == "limit":
            raise subprocess.TimeoutExpired(words, 1.0)
        signal.raise_signal(signal.SIGINT if way == "interrupt" else signal.SIGTERM)
        return real(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    handler = signal.getsignal(signal.SIGTERM)
    if way == "limit":
        assert run_command(words, os.environ, limit_s=60.0).code is None
    else:
        with pytest.raises(KeyboardInterrupt if way == "interrupt" else SystemExit):
            run_command(words, os.environ, limit_s=60.0)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not psutil.pid_exists(int(pid.read_text()))


def test_a_program_that_is_not_there_is_a_wrong_use() -> None:
    with pytest.raises(UsageError, match="cannot start '/no/such'"):
        run_command(["/no/such"], os.environ, limit_s=1.0)


@pytest.mark.dist
def test_links_of_two_ranks_are_timed_kept_and_known_to_the_next_run(home: Path, cli: Cli) -> None:
    code, out, err = cli("probe", "--links", "--ranks", "2", "--json")
    assert code == 0, err
    measured = json.loads(out)["measured"]
    assert [t["num_bytes"] for t in measured["timings"]] == list(SIZES_BYTES)
    assert measured["inter"] is None
    loop(30)
    link = open_run("latest", home).info.cluster.intra
    assert link.measured
    assert link.bytes_per_s == measured["intra"]["bytes_per_s"]
    assert link.kind == "loopback"
