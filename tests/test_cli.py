import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata

import msgspec
import pytest
from samples import INFO, RUN, run_lines, write_run

from scaledl import __version__
from scaledl.cli import checks, main, stream
from scaledl.cli.checks import (
    all_checks,
    check_folder,
    check_launcher,
    check_nvml,
    check_profiler,
    check_pynvml_package,
    check_rapl,
    check_torch,
)
from scaledl.records import Note

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch, capsys) -> Cli:
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scaledl", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return (0 if code is None else int(code)), captured.out, captured.err

    return call


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALEDL_HOME", str(tmp_path / "home"))
    write_run(tmp_path / "home")
    return tmp_path / "home"


# --- commands ----------------------------------------------------------------------------------


def test_version_is_told(cli):
    assert cli("--version") == (0, f"scaledl {__version__}\n", "")


def test_runs_lists_as_text_and_json(cli, home):
    code, out, _ = cli("runs")
    assert code == 0
    assert RUN in out
    code, out, _ = cli("runs", "--json")
    value = msgspec.json.decode(out)
    assert (code, value["schema"], value["num_skipped"]) == (0, "scaledl.runs/1", 0)
    assert value["runs"][0]["run"] == RUN
    assert value["runs"][0]["step_s"] == 0.215


def test_home_option_goes_before_the_environment(cli, home, tmp_path):
    write_run(tmp_path / "other", msgspec.structs.replace(INFO, run_id="other-run"))
    _, out, _ = cli("runs", "--home", str(tmp_path / "other"))
    assert "other-run" in out
    assert RUN not in out
    assert "no runs yet" in cli("runs", "--home", str(tmp_path / "empty"))[1]


def test_show_takes_a_prefix_and_a_folder(cli, home):
    for name in ("1201", "latest", str(home / "runs" / RUN)):
        code, out, _ = cli("show", name)
        assert code == 0
        assert "step 215.4 ms = compute 206.0" in out
    assert "h.0.mlp.c_fc" in cli("show", RUN, "--layers", "15")[1]
    assert "allreduce" in cli("show", RUN, "--comm")[1]
    value = msgspec.json.decode(cli("show", RUN, "--json", "--layers", "1")[1])
    assert len(value["layers"]) == 1


def test_what_if_answers_as_text_and_json(cli, home):
    code, out, err = cli("what-if", RUN, "--gpus", "1,2,4-16", "--price", "2")
    assert (code, err) == (0, "")
    assert "What if, with the same global batch of 512" in out
    assert "the whole run of 30 epochs:" in out
    code, out, _ = cli("what-if", RUN, "--gpus", "8", "--json", "--fixed", "batch-per-gpu")
    value = msgspec.json.decode(out)
    assert (code, value["batch_rule"]) == (0, "fixed-per-gpu")
    assert [row["num_gpus"] for row in value["rows"]] == [4, 8]


def test_exit_code_3_when_no_option_keeps_deadline_or_budget(cli, home):
    code, out, _ = cli("what-if", RUN, "--gpus", "1-8", "--deadline", "1min")
    assert code == 3
    assert "No count keeps the deadline of 60 s" in " ".join(out.split())
    code, out, _ = cli("what-if", RUN, "--gpus", "1-8", "--deadline", "30d", "--budget", "1e6")
    assert code == 0
    assert (
        "These counts keep the deadline of 30 d 0 h and the budget of $1,000,000: 1, 2, 4, 8;"
        in " ".join(out.split())
    )
    code, out, _ = cli("what-if", RUN, "--gpus", "1-8", "--budget", "0.01", "--json")
    value = msgspec.json.decode(out)
    assert (code, value["counts_within"], value["budget_usd"]) == (3, [], 0.01)


def test_question_without_its_facts_is_wrong_use_not_a_no(cli, tmp_path):
    bare = msgspec.structs.replace(
        INFO, epochs=None, cluster=msgspec.structs.replace(INFO.cluster, usd_per_gpu_hour=None)
    )
    lines = tuple(
        msgspec.structs.replace(
            line, cluster=msgspec.structs.replace(line.cluster, usd_per_gpu_hour=None)
        )
        if hasattr(line, "cluster")
        else line
        for line in run_lines()
    )
    write_run(tmp_path / "bare", bare, lines)
    where = ("--home", str(tmp_path / "bare"))
    code, _, err = cli("what-if", *where, "--deadline", "12h")
    assert code == 2
    assert "Pass --epochs" in err
    code, _, err = cli("what-if", *where, "--budget", "5", "--epochs", "3")
    assert code == 2
    assert "Pass --price" in err
    assert cli("what-if", *where, "--deadline", "12h", "--epochs", "3")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["what-if", RUN, "--gpus", "0"], 2, "num_gpus must be at least 1, got 0."),
        (["what-if", RUN, "--gpus", "eight"], 2, "not a GPU count: 'eight'"),
        (["what-if", RUN, "--link", "fast"], 2, "not a link: 'fast'"),
        (["what-if", RUN, "--deadline", "soon"], 2, "--deadline: not a duration: 'soon'"),
        (["what-if", RUN, "--deadline", "12"], 2, "--deadline: '12' has no unit. Write for"),
        (["what-if", RUN, "--deadline", "9" * 400 + "h"], 2, "is too long"),
        (["what-if", RUN, "--budget", "nan"], 2, "--budget must be 0 or more, got nan"),
        (["what-if", RUN, "--budget=-5"], 2, "--budget must be 0 or more, got -5"),
        (["what-if", RUN, "--price", "inf"], 2, "--price must be at most 1,000,000, got inf"),
        (["what-if", RUN, "--gpus", ",".join(map(str, range(1, 400)))], 2, "than 256 counts"),
        (["what-if", RUN, "--gpus", "1-99999999"], 2, "at most 10,000,000, got 99999999"),
        (["what-if", RUN, "--gpus-per-node", "99999999"], 2, "Invalid value for '--gpus-per-node'"),
        (["what-if", RUN, "--epochs", "9" * 30], 2, "Invalid value for '--epochs'"),
        (["import", "--world-size", "9" * 12, "x.json"], 2, "Invalid value for '--world-size'"),
        (["show", "x" * 5000], 1, "no run 'xxxxx"),
        (["show", "\x1b[31mred"], 1, "no run '?[31mred'"),
        (["what-if", RUN, "--price", "-1"], 2, "--price must be 0 or more, got -1"),
        (["what-if", RUN, "--price", "cheap"], 2, "Invalid value for '--price'"),
        (["show", "nothing"], 1, f"no run 'nothing'. Candidates: {RUN}"),
        (["show", "--layers", "-3"], 2, "Invalid value for '--layers'"),
        (["dance"], 2, "dance"),
    ],
)
def test_mistakes_are_one_message_and_an_exit_code(cli, home, words, code, told):
    seen, out, err = cli(*words)
    assert (seen, out) == (code, "")
    assert told in " ".join(err.split())
    assert "Traceback" not in err
    assert len(err) < 600
    assert "\x1b" not in err


def test_a_price_of_nothing_is_shown_and_small_costs_have_two_digits(cli, home):
    out = cli("what-if", RUN, "--gpus", "8", "--price", "0", "--budget", "0")[1]
    assert out.count("$0.00") == 4
    assert "These counts keep the budget of $0.00: 4, 8;" in out
    out = cli("what-if", RUN, "--gpus", "8", "--price", "0.0001")[1]
    assert "$0.000060" in out


def test_show_adds_what_is_asked_for(cli, home):
    plain, more = cli("show", RUN)[1], cli("show", RUN, "--layers", "2", "--comm")[1]
    assert set(plain.splitlines()) <= set(more.splitlines())
    assert "h.0.mlp.c_fc" in more
    assert "h.0.mlp.c_fc" not in plain


def test_runs_shows_ids_whole_at_any_width(cli, tmp_path, monkeypatch):
    long = "1201-1402-" + "m" * 24 + "-a3f9"
    write_run(tmp_path / "home", msgspec.structs.replace(INFO, run_id=long, model="m" * 80))
    monkeypatch.setenv("SCALEDL_HOME", str(tmp_path / "home"))
    for width in (60, 72, 80, 96, 200):
        look = stream.Look(width=width, unicode=True, color=False)
        monkeypatch.setattr("scaledl.cli.runs.look_of_stdout", lambda look=look: look)
        out = cli("runs")[1]
        assert long in out
        assert "finished" in out
        assert max(map(len, out.splitlines())) <= max(width, 69)


def test_newer_run_says_how_to_upgrade(cli, home):
    (home / "runs" / RUN / "run.json").write_bytes(b'{"schema":2}')
    code, _, err = cli("show", str(home / "runs" / RUN))
    assert code == 1
    assert "Upgrade: pip install -U scaledl" in err


@pytest.mark.parametrize(
    "words", [[], ["runs"], ["show"], ["what-if"], ["import"], ["collect"], ["doctor"]]
)
def test_help_opens_with_an_example(cli, words):
    code, out, _ = cli(*words, "--help")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert code == 0
    assert lines[0].startswith("Usage:")
    assert lines[1].startswith("Example: scaledl")


def test_U18_help_explains_each_printed_field(cli):
    said = " ".join(cli("what-if", "--help")[1].split())
    for field in ("step:", "epoch:", "speed:", "eff.:", "cost,", "~:", "prior:", "limited by:"):
        assert field in said
    said = " ".join(cli("show", "--help")[1].split())
    for field in ("compute:", "exposed comm.:", "input wait:", "optimizer:", "other:", "n/a:"):
        assert field in said


def run_scaledl(*words: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "scaledl", *words]
    return subprocess.run(command, capture_output=True, timeout=100, **options)


def test_U07_reader_that_goes_away_is_no_error(home):
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [sys.executable, "-m", "scaledl", "show", RUN]
        done = subprocess.run(
            command, stdout=write_end, stderr=subprocess.PIPE, timeout=100, check=False
        )
    finally:
        os.close(write_end)
    assert done.returncode == 0
    assert done.stderr == b""


def test_U08_a_disk_that_is_full_is_one_message_and_exit_code_1(home):
    for words in (("show", RUN), ("runs", "--json")):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "scaledl", *words],
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=100,
                check=False,
                text=True,
            )
        assert done.returncode == 1
        assert done.stderr == (
            "scaledl: cannot write to standard output: No space left on device. "
            "Send it to another place.\n"
        )


def test_a_closed_standard_output_is_one_message_and_exit_code_1(home):
    command = f"exec '{sys.executable}' -m scaledl show {RUN} >&-"
    done = subprocess.run(
        ["bash", "-c", command], stderr=subprocess.PIPE, timeout=100, check=False, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "standard output: it is closed" in done.stderr


def test_what_a_stream_cannot_show_is_replaced_and_json_stays_json(home):
    note = Note(at_s=1.0, key="x", text="na\u00efve \U0001f600 note")
    info = msgspec.structs.replace(INFO, run_id="other", model="mod\u00e8le")
    write_run(home, info, lines=(note,))
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = run_scaledl("show", "other", env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"told: na?ve ? note" in done.stdout
    done = run_scaledl("show", "other", "--json", env=env)
    value = msgspec.json.decode(done.stdout)
    assert (value["run"]["model"], value["notes"][0]["text"]) == (info.model, note.text)


def test_ascii_stream_gets_ascii(home):
    done = run_scaledl("show", RUN, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"|-" in done.stdout
    done = run_scaledl("show", RUN, env=os.environ | {"PYTHONIOENCODING": "utf-8"})
    assert "\u251c" in done.stdout.decode("utf-8")
    assert b"\x1b" not in done.stdout  # no terminal, no colour


def test_X05_no_command_opens_a_socket(cli, home, monkeypatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "socketpair", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    for words in (["runs"], ["show", RUN], ["what-if", RUN, "--gpus", "8"], ["doctor"]):
        assert cli(*words)[0] == 0


def test_X04_secrets_of_environment_and_command_line_are_nowhere(home, tmp_path):
    secret = "hunter2-a9f3"
    env = os.environ | {"SECRET_TOKEN": secret, "WANDB_API_KEY": secret}
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {os.path.dirname(__file__)!r})
from samples import write_run
write_run(Path({str(tmp_path / "fresh")!r}))
"""
    subprocess.run([sys.executable, "-c", code, f"--password={secret}"], env=env, check=True)
    written = [p.read_bytes() for p in (tmp_path / "fresh").rglob("*") if p.is_file()]
    assert len(written) == 2
    for words in (["runs"], ["show"], ["show", "--json"], ["what-if", "--json"], ["doctor"]):
        done = run_scaledl(*words, env=env)
        assert done.returncode == 0
        written.append(done.stdout + done.stderr)
    node = os.uname().nodename.encode()
    for text in written:
        assert secret.encode() not in text
        assert b"password" not in text
        assert len(node) < 4 or node not in text


def test_X02_nothing_but_json_is_ever_loaded():
    import scaledl

    (root,) = scaledl.__path__
    for module in ("store.py", "writer.py", "recorded.py", "past.py", "relatives.py", "query.py"):
        with open(os.path.join(root, module)) as stream:
            text = stream.read()
        for name in ("pickle", "torch", "marshal", "eval(", "exec("):
            assert name not in text.replace("Needs neither torch", "").replace(
                "a numpy or torch scalar", ""
            )


def test_commands_but_doctor_load_no_torch(home):
    code = (
        "import sys; from scaledl.cli import main\n"
        "for words in (['runs'], ['show'], ['what-if', '--gpus', '8']):\n"
        "    sys.argv = ['scaledl', *words]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'pynvml' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


# --- doctor ------------------------------------------------------------------------------------


def test_doctor_answers_without_a_gpu(cli, home):
    code, out, _ = cli("doctor")
    assert code == 0
    for name in ("torch ", "NVML", 'module "pynvml"', "torch.profiler", "run folder", "launcher"):
        assert name in out
    value = msgspec.json.decode(cli("doctor", "--json")[1])
    assert value["schema"] == "scaledl.doctor/1"
    assert {check["status"] for check in value["checks"]} <= {"ok", "warn", "off", "fail"}


def test_D04_doctor_creates_no_cuda_context(monkeypatch):
    import torch

    def refuse(*args: object) -> None:
        raise AssertionError("CUDA was asked")

    for name in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert not [c for c in all_checks(None) if "the check itself failed" in c.seen]
    assert not torch.cuda.is_initialized()


class FakeNvml:
    """Two GPUs, the second without an energy counter."""

    class NVMLError(Exception):
        pass

    _nvmlGetFunctionPointer = None

    def __init__(self, driver: bool = True) -> None:
        self.driver, self.open = driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "A100"

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 1

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError("Not Supported")
        return 1


def use_module(monkeypatch, name: str, value: object) -> None:
    def fake_import(wanted: str) -> object:
        if wanted != name:
            return __import__(wanted)
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(checks, "import_module", fake_import)


def test_gpus_are_read_through_nvml_and_it_is_closed(monkeypatch):
    nvml = FakeNvml()
    use_module(monkeypatch, "pynvml", nvml)
    assert [(c.name, c.seen) for c in check_nvml()] == [
        ("NVML", "driver 580.1"),
        ("GPU 0", "A100, energy counter yes, power yes"),
        ("GPU 1", "A100, energy counter no, power yes"),
    ]
    assert nvml.open == 0


def test_absent_driver_is_off_not_a_warning(monkeypatch):
    use_module(monkeypatch, "pynvml", FakeNvml(driver=False))
    (check,) = check_nvml()
    assert check.status == "off"
    assert "Driver Not Loaded" in check.seen


@pytest.mark.parametrize("error", [KeyError("lib"), OSError("no so"), SyntaxError("2to3")])
def test_K06_broken_optional_module_is_named_not_raised(monkeypatch, error):
    use_module(monkeypatch, "pynvml", error)
    (check,) = check_nvml()
    assert check.status == "warn"
    assert type(error).__name__ in check.seen
    use_module(monkeypatch, "torch", error)
    (check,) = check_torch()
    assert check.status == "fail"
    use_module(monkeypatch, "torch.autograd.profiler", error)
    assert check_profiler()[0].status == "off"


def test_foreign_module_named_pynvml_is_told_with_the_remedy(monkeypatch):
    use_module(monkeypatch, "pynvml", object())
    assert check_nvml()[0].status == "warn"

    def version(package: str) -> str:
        if package in ("pynvml", "nvidia-ml-py"):
            return "13.0"
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(checks.metadata, "version", version)
    (check,) = check_pynvml_package()
    assert check.status == "warn"
    assert check.remedy == "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"


def test_K05_missing_profiler_hooks_switch_profiling_off(monkeypatch):
    import torch

    monkeypatch.delattr(torch.autograd.profiler, "_prepare_profiler")
    (check,) = check_profiler()
    assert check.status == "warn"
    assert "_prepare_profiler" in check.seen


def test_old_torch_fails_with_the_remedy(monkeypatch):
    class Old:
        __version__ = "2.4.1+cu121"

        class version:
            cuda = "12.1"

    use_module(monkeypatch, "torch", Old)
    (check,) = check_torch()
    assert check.status == "fail"
    assert "torch>=2.11" in check.remedy


def test_folder_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    (good,) = check_folder(str(tmp_path / "new" / "deep"))
    assert good.status == "ok"
    assert "free" in good.seen
    assert not (tmp_path / "new").exists()  # doctor leaves nothing behind

    def refuse(**kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checks.tempfile, "TemporaryFile", refuse)
    (bad,) = check_folder(str(tmp_path))
    assert bad.status == "warn"
    assert "Permission denied" in bad.seen
    assert "SCALEDL_HOME" in bad.remedy


def test_X04_doctor_shows_the_users_folder_as_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (check,) = check_folder(str(tmp_path / ".cache" / "scaledl"))
    assert check.seen.startswith("~/.cache/scaledl, ")


def test_launcher_is_seen_from_its_environment():
    env = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "SLURM_JOB_ID": "7"}
    (check,) = check_launcher(env, lambda name: None)
    assert check.status == "ok"
    assert "inside torchrun (4 ranks); inside a Slurm job" in check.seen
    (check,) = check_launcher({}, lambda name: f"/bin/{name}")
    assert "found torchrun, srun, mpirun" in check.seen


def test_cpu_energy_counters(tmp_path):
    assert check_rapl(tmp_path / "none")[0].status == "off"
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1")
    assert check_rapl(tmp_path)[0].seen == "1 counters"


def test_check_that_breaks_is_a_line_of_its_own(monkeypatch):
    def broken() -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(checks, "check_rapl", broken)
    last = all_checks(None)[-1]
    assert (last.status, last.name) == ("warn", "CPU energy (RAPL)")
    assert "boom" in last.seen
