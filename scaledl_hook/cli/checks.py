"""The checks of ``scaledl doctor``; each returns lines and raises nothing."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from scaledl.errors import StoreError
from scaledl.linkbook import read_book
from scaledl.report.console import Check
from scaledl.store import home_dir
from scaledl.units import format_bytes, printable

# The private entry points by which scaledl sees another profiler; without them it never profiles.
PROFILER_HOOKS = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
# Packages that install a module named pynvml but are not NVIDIA's own bindings.
FOREIGN_NVML = ("pynvml", "nvidia-ml-py3", "nvidia-ml-py2")
LOW_SPACE_BYTES = 2**30


def all_checks(home: str | None) -> tuple[Check, ...]:
    """Every check in the order shown; one that fails by itself is a line, not a crash."""
    found: list[Check] = []
    for name, check in (
        ("torch", check_torch),
        ("NVML", check_nvml),
        ('module "pynvml"', check_pynvml_package),
        ("torch.profiler", check_profiler),
        ("run folder", lambda: check_folder(home)),
        ("links", lambda: check_links(home)),
        ("launcher", lambda: check_launcher(os.environ, shutil.which)),
        ("CPU energy (RAPL)", check_rapl),
    ):
        try:
            found += check()
        except Exception as error:
            seen = f"the check itself failed ({type(error).__name__}: {error})"
            found.append(Check(name=name, status="warn", seen=seen))
    return tuple(found)


def check_torch() -> list[Check]:
    """The version of torch and what it was built for."""
    try:
        torch = import_module("torch")
    except Exception as error:  # a broken install may raise anything
        seen = f"not importable ({type(error).__name__}: {error})"
        remedy = "pip install 'torch>=2.11'"
        return [Check(name="torch", status="fail", seen=seen, remedy=remedy)]
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    seen = f"{torch.__version__} ({build})"
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 11):
        return [Check(name="torch", status="fail", seen=seen, remedy="pip install 'torch>=2.11'")]
    return [Check(name="torch", status="ok", seen=seen)]


def check_nvml() -> list[Check]:
    """The GPUs, read through NVML without touching CUDA."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return [_no_nvml("the module pynvml is missing", "pip install nvidia-ml-py")]
    except Exception as error:  # a broken foreign module may raise anything
        seen = f"the module pynvml is broken ({type(error).__name__}: {error})"
        return [_no_nvml(seen, "pip install --force-reinstall nvidia-ml-py", status="warn")]
    if not hasattr(nvml, "_nvmlGetFunctionPointer"):
        remedy = "pip uninstall the foreign package, then pip install nvidia-ml-py"
        return [_no_nvml("a module pynvml that is not NVIDIA's", remedy, status="warn")]
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [_no_nvml(f"{error}: power, clocks and energy are off, times still work", "")]
    try:
        return _gpu_checks(nvml)
    finally:
        nvml.nvmlShutdown()


def _no_nvml(seen: str, remedy: str, status: Any = "off") -> Check:
    return Check(name="NVML", status=status, seen=seen, remedy=remedy)


def _gpu_checks(nvml: Any) -> list[Check]:
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    checks = [Check(name="NVML", status="ok", seen=f"driver {driver}")]
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        answers = (
            ("energy counter", _can(nvml.nvmlDeviceGetTotalEnergyConsumption, handle, nvml)),
            ("power", _can(nvml.nvmlDeviceGetPowerUsage, handle, nvml)),
        )
        said = ", ".join(f"{what} {'yes' if can else 'no'}" for what, can in answers)
        name = _text(nvml.nvmlDeviceGetName(handle))
        checks.append(Check(name=f"GPU {index}", status="ok", seen=f"{name}, {said}"))
    return checks


def _can(call: Callable[[Any], Any], handle: Any, nvml: Any) -> bool:
    try:
        call(handle)
    except nvml.NVMLError:
        return False
    return True


def _text(value: str | bytes) -> str:
    """Old bindings answer bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def check_pynvml_package() -> list[Check]:
    """Whether a package other than nvidia-ml-py claims the module name pynvml."""
    foreign = [name for name in FOREIGN_NVML if _version(name) is not None]
    name = 'module "pynvml"'
    if foreign:
        seen = f"the package {' and '.join(foreign)} is installed; torch warns because of it"
        remedy = f"pip uninstall {' '.join(foreign)} && pip install --force-reinstall nvidia-ml-py"
        return [Check(name=name, status="warn", seen=seen, remedy=remedy)]
    official = _version("nvidia-ml-py")
    if official is None:
        remedy = "pip install nvidia-ml-py"
        return [Check(name=name, status="off", seen="nvidia-ml-py is missing", remedy=remedy)]
    return [Check(name=name, status="ok", seen=f"nvidia-ml-py {official}")]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_profiler() -> list[Check]:
    """Whether sampled steps can be profiled, and whether GPU kernels are seen."""
    try:
        profiler = import_module("torch.autograd.profiler")
    except Exception:  # check_torch has said why
        return [Check(name="torch.profiler", status="off", seen="torch is not importable")]
    missing = [name for name in PROFILER_HOOKS if not hasattr(profiler, name)]
    if missing:
        seen = f"{', '.join(missing)} not found: kernels are not profiled, times still work"
        return [Check(name="torch.profiler", status="warn", seen=seen)]
    kinds = sorted(str(a).rpartition(".")[2] for a in profiler._supported_activities())
    cupti = "with CUPTI" if "CUDA" in kinds else "CPU only, no GPU kernels"
    return [Check(name="torch.profiler", status="ok", seen=cupti)]


def check_folder(home: str | None) -> list[Check]:
    """Whether runs can be recorded, and how much room is left."""
    remedy = "Set SCALEDL_HOME or run_dir= to a folder that you may write."
    try:
        folder = home_dir(home)
    except StoreError as error:
        return [Check(name="run folder", status="warn", seen=str(error))]
    shown = _short(folder)
    existing = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        seen = f"{shown}: {error.strerror}; training would go on unrecorded"
        return [Check(name="run folder", status="warn", seen=seen, remedy=remedy)]
    seen = f"{shown}, {format_bytes(free_bytes)} free"
    low = free_bytes < LOW_SPACE_BYTES
    status: Any = "warn" if low else "ok"
    return [Check(name="run folder", status=status, seen=seen, remedy=remedy if low else "")]


def _short(folder: Path) -> str:
    """The path with the user's own folder as ``~``: output is pasted into reports."""
    try:
        return f"~/{folder.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(folder)


def check_links(home: str | None) -> list[Check]:
    """Which links were measured, the newest of each device."""
    entries = read_book(home_dir(home) / "runs").entries
    newest = {entry.device: entry for entry in reversed(entries)}
    if not newest:
        seen = "none measured: every what-if takes the catalogue's"
        return [Check(name="links", status="off", seen=seen, remedy="scaledl probe --links")]
    found = []
    for device, entry in newest.items():
        kinds = (("inside a machine", entry.intra), ("between machines", entry.inter))
        said = [f"{k} {link.bytes_per_s / 1e9:.3g} GB/s" for k, link in kinds if link is not None]
        when = time.strftime("%Y-%m-%d", time.localtime(entry.at_s))
        seen = f"{printable(device, 40)}: {', '.join(said)}, measured {when}"
        found.append(Check(name="links", status="ok", seen=seen))
    return found


def check_launcher(environ: Mapping[str, str], which: Callable[[str], str | None]) -> list[Check]:
    """What starts several processes here."""
    inside = []
    if "TORCHELASTIC_RUN_ID" in environ:
        inside.append(f"inside torchrun ({environ.get('WORLD_SIZE', 'n/a')} ranks)")
    if "SLURM_JOB_ID" in environ:
        inside.append("inside a Slurm job")
    own = Path(sys.executable).parent / "torchrun"  # an environment that is not on PATH
    found = [
        name
        for name in ("torchrun", "srun", "mpirun")
        if which(name) or (name == own.name and own.exists())
    ]
    seen = "; ".join([*inside, f"found {', '.join(found)}" if found else "none found"])
    return [Check(name="launcher", status="ok" if inside or found else "off", seen=seen)]


def check_rapl(root: Path = Path("/sys/class/powercap")) -> list[Check]:
    """Whether the CPU's energy counters may be read."""
    counters = sorted(root.glob("*/energy_uj")) if root.is_dir() else []
    name = "CPU energy (RAPL)"
    if not counters:
        return [Check(name=name, status="off", seen="no counter here; energy is the GPUs' only")]
    if os.access(counters[0], os.R_OK):
        return [Check(name=name, status="ok", seen=f"{len(counters)} counters")]
    seen = f"{root} needs root; energy is the GPUs' only"
    return [Check(name=name, status="off", seen=seen)]
