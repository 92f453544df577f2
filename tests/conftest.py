"""What every test stands on: strict mode, a run folder of its own, one thread."""

import os
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
