"""What is installed: the names, the content of the wheel, and what importing it brings along."""

import configparser
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import scaledl

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"scaledl_hook": "scaledl", "predictor": "scaledl.predictor"}


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a fresh Python far from the source folders."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100
    )


def loaded_after(code: str, names: tuple[str, ...], cwd: Path) -> list[str]:
    """Which of ``names`` are in ``sys.modules`` of a fresh process after ``code``."""
    ask = f"import json, sys; print(json.dumps([n for n in {names!r} if n in sys.modules]))"
    done = run_python("-c", f"{code}\n{ask}", cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def listed_packages() -> set[str]:
    """The packages that setup.cfg installs."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return set(config["options"]["packages"].split())


def test_packages_of_setup_cfg_are_the_folders() -> None:
    folders = {
        ".".join([installed, *init.parent.relative_to(ROOT / source).parts])
        for source, installed in SOURCES.items()
        for init in (ROOT / source).rglob("__init__.py")
    }
    assert listed_packages() == folders


def test_no_module_lies_in_a_folder_without_init() -> None:
    bare = [
        path
        for source in SOURCES
        for path in (ROOT / source).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert bare == []


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in a wheel that is built from a copy of the sources."""
    copy = tmp_path_factory.mktemp("sources")
    skip = shutil.ignore_patterns("__pycache__")
    for source in SOURCES:
        shutil.copytree(ROOT / source, copy / source, ignore=skip)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    out = copy / "out"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    done = run_python("-m", "pip", "wheel", *options, str(copy), cwd=copy)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("scaledl-*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_wheel_holds_only_scaledl(wheel_names: list[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel_names}
    assert tops == {"scaledl", f"scaledl-{scaledl.__version__}.dist-info"}


def test_wheel_holds_every_module_and_data_file(wheel_names: list[str]) -> None:
    expected = {
        "/".join([*installed.split("."), *path.relative_to(ROOT / source).parts])
        for source, installed in SOURCES.items()
        for path in (ROOT / source).rglob("*")
        if path.suffix in {".py", ".toml", ".json", ".msgpack", ".typed"}
    }
    assert {"scaledl/py.typed", "scaledl/predictor/devices.toml"} <= expected
    assert expected == {name for name in wheel_names if name.startswith("scaledl/")}


def test_a_predictor_beside_the_users_script_stays_theirs(tmp_path: Path) -> None:
    (tmp_path / "predictor.py").write_text("OWNER = 'user'\n")
    (tmp_path / "train.py").write_text(
        "import scaledl.predictor\n"
        "import predictor\n"
        "print(predictor.OWNER, predictor is not scaledl.predictor)\n"
    )
    done = run_python("train.py", cwd=tmp_path)
    assert done.stdout.split() == ["user", "True"], done.stderr


def test_no_module_is_loaded_a_second_time_under_its_folders_name(tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, scaledl\n"
        "for module in pkgutil.walk_packages(scaledl.__path__, 'scaledl.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
    )
    assert loaded_after(code, ("predictor", "scaledl_hook", "scaledl"), tmp_path) == ["scaledl"]


def test_K03_import_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("torch", "torch_geometric", "pynvml", "matplotlib", "numpy", "scipy", "rich")
    assert loaded_after("import scaledl", heavy, tmp_path) == []


def test_K03_reading_a_run_needs_no_torch(tmp_path: Path) -> None:
    heavy = ("torch", "torch_geometric", "pynvml")
    assert loaded_after("import scaledl; scaledl.open_run", heavy, tmp_path) == []


def test_K01_import_warns_of_nothing_and_writes_nothing(tmp_path: Path) -> None:
    done = run_python("-W", "error", "-c", "import scaledl", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_K01_requires_nvidia_ml_py_and_not_the_deprecated_pynvml() -> None:
    required = {
        "".join(c if c.isalnum() or c in "-_." else " " for c in line).split()[0].lower()
        for line in metadata.requires("scaledl") or []
    }
    assert "nvidia-ml-py" in required
    assert "pynvml" not in required


@pytest.mark.parametrize("name", scaledl.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(scaledl, name) is not None


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tracks'"):
        scaledl.tracks  # noqa: B018


@pytest.mark.parametrize("command", ["module", "script"])
def test_version_is_told_by_the_command(command: str, tmp_path: Path) -> None:
    script = str(Path(sys.executable).with_name("scaledl"))
    start = [sys.executable, "-m", "scaledl"] if command == "module" else [script]
    done = subprocess.run(
        [*start, "--version"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert scaledl.__version__ in done.stdout
