"""What every test stands on: strict mode, a run folder of its own, one thread."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# torch reads it when it is first imported, here or in a child process: nothing loads torch for it
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SCALEDL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SCALEDL_STRICT", "1")
    monkeypatch.setenv("SCALEDL_HOME", str(tmp_path / "scaledl-home"))


@pytest.fixture(autouse=True)
def _no_thread_of_ours_is_left() -> Iterator[None]:
    """A thread that a test leaves counts in the next one, and in a process of users it would stay.

    The learner's reaper is no leak: it ends with the process beside, which outlives the block.
    """
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t.name in ("scaledl-writer", "scaledl-sampler")]
    for thread in set(left) - before:
        thread.join(5.0)
        assert not thread.is_alive(), f"{thread.name} goes on"
