"""The words that start a probe: here with torchrun, elsewhere through a scheduler."""

import ast
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledl.errors import UsageError
from scaledl.probe_records import ProbePoint
from scaledl.probing.batch_text import TEXTS, Job, job_of, links_job
from scaledl.probing.command import check_command, environment, launch_words
from scaledl.records import Interval

POINT = ProbePoint(
    num_gpus=16,
    gpus_per_node=8,
    batch_per_gpu=32,
    num_steps=30,
    step_s=Interval(mean=0.1, low=0.09, high=0.11),
    wall_s=23.0,
    gpu_s=368.0,
)
ENVIRON = environment(30, Path("/shared/my runs"))
AWKWARD = ["python", "train.py", "--note", 'it\'s "5 %" of $HOME', "--out", "a b"]


def job(command: list[str], **changes: int) -> Job:
    point = msgspec.structs.replace(POINT, **changes)
    return job_of(point, command, ENVIRON, cpu_run=False)


def test_a_script_is_started_by_torchrun_and_another_program_as_it_is() -> None:
    words = launch_words(["train.py", "--x"], POINT)
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert words[-5:] == ["--standalone", "--nproc-per-node", "16", "train.py", "--x"]
    assert launch_words(["python", "-u", "-m", "mine"], POINT)[-5:] == (
        ["--no-python", "python", "-u", "-m", "mine"]
    )


def test_a_command_that_takes_the_count_starts_its_ranks_itself() -> None:
    words = ["torchrun", "--nproc-per-node={gpus}", "train.py", "--batch", "{batch}"]
    check_command(words, 128)
    assert launch_words(words, POINT) == (
        ["torchrun", "--nproc-per-node=16", "train.py", "--batch", "32"]
    )


@pytest.mark.parametrize(
    ("command", "batch", "said"),
    [
        ([], 8, "no command to probe"),
        (["/usr/bin/torchrun", "train.py"], 8, "torchrun starts the ranks itself: write {gpus}"),
        (["python", "train.py", "{batch}"], None, "does not tell its batch"),
    ],
)
def test_commands_that_no_count_can_be_put_into_are_refused(
    command: list[str], batch: int | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_command(command, batch)


def test_slurm_asks_for_whole_nodes_and_bash_reads_the_words_as_they_were_given() -> None:
    text = TEXTS["slurm"](job(AWKWARD))
    for line in ("#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8", "#SBATCH --time=00:11:00"):
        assert line in text.splitlines()
    stubs = "scontrol() { echo first; echo second; }; srun() { printf '%s\\n' \"$@\"; }\n"
    done = subprocess.run(
        ["bash", "-c", stubs + text + "\nenv"], capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    assert said[said.index("--no-python") :][: 1 + len(AWKWARD)] == ["--no-python", *AWKWARD]
    assert "--rdzv-endpoint=first:29500" in said
    assert "SCALEDL_RUN_DIR=/shared/my runs" in said
    assert "SCALEDL_PROBE_STEPS=30" in said


def test_kubernetes_gives_a_job_with_a_pod_a_machine_that_find_the_first() -> None:
    yaml = pytest.importorskip("yaml")
    service, work = yaml.safe_load_all(TEXTS["k8s"](job(AWKWARD)))
    assert service["spec"]["selector"] == {"job-name": work["metadata"]["name"]}
    assert work["spec"]["completions"] == work["spec"]["parallelism"] == 2
    pod = work["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert {e["name"]: e["value"] for e in container["env"]} == ENVIRON
    words = shlex.split(container["command"][-1])
    assert words[-len(AWKWARD) :] == AWKWARD
    assert "--master-addr=scaledl-probe-16-0.scaledl-probe-16" in words


def test_the_links_of_several_machines_are_timed_by_a_job_of_its_own(tmp_path: Path) -> None:
    made = links_job(16, 8, tmp_path)
    text = TEXTS["slurm"](made)
    assert "#SBATCH --nodes=2" in text
    assert f"export SCALEDL_HOME={tmp_path}" in text
    assert text.endswith("  -m scaledl probe --links")


def test_ray_gives_a_python_script_with_the_words_and_the_environment() -> None:
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(TEXTS["ray"](job(AWKWARD))).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("WORDS", "ENVIRON")
    }
    assert values == {"WORDS": ["--no-python", *AWKWARD], "ENVIRON": ENVIRON}


@given(st.integers(1, 512), st.integers(1, 16))
def test_ranks_are_spread_evenly_over_the_fewest_machines_or_refused(
    count: int, per_node: int
) -> None:
    if count % -(-count // per_node):
        with pytest.raises(UsageError, match="do not spread evenly"):
            job(["train.py"], num_gpus=count, gpus_per_node=per_node)
        return
    made = job(["train.py"], num_gpus=count, gpus_per_node=per_node)
    assert made.num_nodes * made.gpus_per_node == count
    assert made.gpus_per_node <= per_node
    assert (made.num_nodes - 1) * per_node < count


def test_a_text_for_a_cluster_of_a_command_that_starts_its_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="give the script alone"):
        job(["torchrun", "--nproc-per-node={gpus}", "train.py"])
