"""The learner's process as the run sees it: when it starts, what it said, that it died; no torch.

The process is spawned, so that nothing of the training is forked, and never waited for.
"""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from scaledl.learned import Learned, read_learned
from scaledl.units import format_bytes, printable

START_S = 10.0
"""A shorter run is over before it has anything to learn from."""
ROOM_BYTES = 2 * 2**30
"""Memory that must be free; the process takes some 300 MB."""
_OF_THE_JOB = (
    "SCALEDL_",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "TORCHELASTIC_",
    "OMPI_",
    "PMI_",
)


def state_file(home: Path, device: str) -> Path:
    """Where what was learned on one kind of device is kept; made of plain letters."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:60] or "device"
    return home / "learner" / f"{name}.msgpack"


def cores_free(threads: int, processes: int, cores: int | None = None) -> int:
    """Cores that the job's processes on this machine leave over."""
    if cores is None:
        try:
            cores = len(os.sched_getaffinity(0))
        except (AttributeError, OSError):
            cores = os.cpu_count() or 1
    return cores - threads * processes


def room_bytes() -> int:
    """Memory that is free: of the machine, and of the container's own limit where it has one."""
    rooms = [int(psutil.virtual_memory().available)]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        rooms.append(most - int((group / "memory.current").read_text()))
    return min(rooms)


def interpreter() -> str | None:
    """The Python that runs us; ``None`` where the program is another that holds a Python."""
    if getattr(sys, "frozen", False) or not sys.executable:
        return None
    name = Path(sys.executable).name.lower()
    return sys.executable if re.match(r"(python|pypy)[0-9.]*(\.exe)?$", name) else None


def environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The process's own: no rank of the job, no device, one thread."""
    kept = {
        name: value
        for name, value in env.items()
        if not name.startswith(_OF_THE_JOB) and name not in ("RANK", "WORLD_SIZE")
    }
    return kept | {
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


class Background:
    """Starts the process when the run has lasted, and tells what it is about.

    Args:
        folder: Of the run.
        state: File of what was learned so far.
        seldom: No core is free: it learns at epochs' ends alone.
        tell: Takes a key and a text for the user; each key is told once.
    """

    def __init__(
        self, folder: Path, state: Path, *, seldom: bool, tell: Callable[[str, str], object]
    ) -> None:
        self._folder, self._state = folder, state
        self._seldom, self._tell = seldom, tell
        self._process: subprocess.Popen[bytes] | None = None
        self._off = False
        self._has_told = False

    def look(self, passed_s: float, *, at_epoch: bool) -> None:
        """Start it if it is time; tell once what it first learned, or that it is gone."""
        if self._off:
            return
        if self._process is None:
            if passed_s >= START_S and (at_epoch or not self._seldom):
                self._start()
            return
        if at_epoch and not self._has_told:
            self._say_first()
        code = self._process.poll()
        if code is not None:
            self._off = True
            found = read_learned(self._folder)
            why = found.left_out if found is not None and found.state == "failed" else ""
            self._tell(
                "learner",
                f"the graph network's process ended ({why or f'code {code}'}): it learns no more "
                "in this run. Training and forecasts go on.",
            )

    def leave(self) -> None:
        """The run is over. The process ends by itself; somebody has to take note of it."""
        process, self._process, self._off = self._process, None, True
        if process is not None and process.poll() is None:
            reaper = threading.Thread(target=process.wait, name="scaledl-reaper", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter is ending
                reaper.start()

    def _start(self) -> None:
        python, room = interpreter(), room_bytes()
        if python is None or room < ROOM_BYTES:
            self._off = True
            why = (
                f"{printable(sys.executable or 'this program', 60)} is no Python to start it with"
                if python is None
                else f"{format_bytes(room)} of memory are free, it wants {format_bytes(ROOM_BYTES)}"
            )
            self._tell("learner", f"the graph network does not learn in this run: {why}.")
            return
        command = [python, "-P", "-m", "scaledl.learning", str(self._folder), str(self._state)]
        command += [str(os.getpid()), *(["--seldom"] if self._seldom else [])]
        try:
            self._process = subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training
            )
        except OSError as error:
            self._off = True
            self._tell("learner", f"the graph network does not learn in this run: {error}.")
            return
        if self._seldom:
            self._tell("learner-seldom", "no core is free: the graph network learns at epoch ends.")

    def _say_first(self) -> None:
        found = read_learned(self._folder)
        if found is None or found.first_told_s is None or found.first_truth_s is None:
            return
        self._has_told = True
        self._tell("learner-first", first_text(found))


def first_text(found: Learned) -> str:
    """What the network said of the first window before it learned from it, and the truth."""
    told_s, truth_s = found.first_told_s or 0.0, found.first_truth_s or 0.0
    newest = f", now {found.errors[-1]:.0%}" if len(found.errors) > 1 else ""
    return (
        f"the graph network told a step of {told_s * 1e3:.3g} ms from the layers, it takes "
        f"{truth_s * 1e3:.3g} ms ({found.first_error or 0.0:.0%} off{newest}); it learns on."
    )
