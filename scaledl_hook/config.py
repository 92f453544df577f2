"""Options of ``track``: arguments, then ``SCALEDL_*``, then ``[tool.scaledl]``, then defaults."""

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from scaledl.errors import UsageError
from scaledl.records import ClusterSpec
from scaledl.units import parse_counts

LEARNERS = ("auto", "inline", "off")


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """How to track one training loop. Every field may be left out."""

    epochs: int | None = None
    """Planned epochs; without them (and ``total_steps``) only the epoch's ETA is shown."""
    steps_per_epoch: int | None = None
    """Optimizer steps of one epoch, where no DataLoader shows it."""
    total_steps: int | None = None
    """Planned optimizer steps; with ``epochs`` too, the earlier end wins."""
    initial_step: int = 0
    """Optimizer steps done before this process (resume)."""
    gpus: tuple[int, ...] = ()
    """Counts for the what-if report; empty: powers of two around the running count."""
    usd_per_gpu_hour: float | None = None
    """Price; without it no cost is shown."""
    tokens: int | None = None
    """Tokens of one optimizer step over all ranks, for tokens per second."""
    cluster: ClusterSpec | None = None
    """Machine and links, where they are known better than by detection."""
    learner: str = "auto"
    """``auto``: learn at each epoch's end; ``inline``: at each window too; ``off``."""
    enabled: bool = True
    """``False`` makes ``track`` a no-op; so does ``SCALEDL_DISABLE=1``."""
    run_dir: str | None = None
    """Folder in which the run's folder is made; default ``~/.cache/scaledl/runs``."""
    report: str = "print"
    """``print``, ``none``, or a file that the reports are appended to."""
    drop_last: bool | None = None
    """How the sampler treats an incomplete batch, where no DataLoader shows it."""
    profile: bool = True
    """Whether single steps of distributed runs may be profiled to time the collectives."""

    def __post_init__(self) -> None:
        for name in ("epochs", "steps_per_epoch", "total_steps", "tokens"):
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or value < 1):
                raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}.")
        if not _is_int(self.initial_step) or self.initial_step < 0:
            raise UsageError(f"initial_step must be 0 or more, got {self.initial_step!r}.")
        if any(not _is_int(count) or count < 1 for count in self.gpus):
            raise UsageError(f"num_gpus must be at least 1, got gpus={list(self.gpus)!r}.")
        price = self.usd_per_gpu_hour
        if price is not None and (
            isinstance(price, bool)
            or not isinstance(price, int | float)
            or not 0 <= price < float("inf")
        ):
            raise UsageError(f"usd_per_gpu_hour must be 0 or more, got {price!r}.")
        for name in ("enabled", "profile"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.learner not in LEARNERS:
            raise UsageError(f"learner must be one of {', '.join(LEARNERS)}, got {self.learner!r}.")
        if self.cluster is not None and not isinstance(self.cluster, ClusterSpec):
            raise UsageError(
                f"cluster must be a scaledl.ClusterSpec, got {type(self.cluster).__name__}."
            )

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Any],
        env: Mapping[str, str] = os.environ,
        folder: Path | None = None,
    ) -> Self:
        """Fill every field from the first source that has it.

        Args:
            arguments: What the user passed; ``None`` means not given.
            env: Environment variables.
            folder: Where to look for a ``pyproject.toml`` (default: the working directory).

        Raises:
            UsageError: a value is wrong; the message names the option and where it came from.
        """
        values: dict[str, Any] = {}
        known = {field.name for field in dataclasses.fields(cls)}
        values.update(_from_pyproject(folder or _working_folder(), known))
        for name in known - {"cluster"}:
            text = env.get(f"SCALEDL_{name.upper()}")
            if text:
                values[name] = _parse(name, text, f"SCALEDL_{name.upper()}")
        values.update({k: v for k, v in arguments.items() if v is not None})
        if env.get("SCALEDL_DISABLE", "") not in ("", "0"):
            values["enabled"] = False
        if env.get("SCALEDL_QUIET", "") not in ("", "0"):
            values["report"] = "none"
        if "gpus" in values:
            values["gpus"] = _counts(values["gpus"])
        for name in {"run_dir", "report"} & values.keys():
            values[name] = _path(name, values[name])
        return cls(**values)


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # the folder was removed under the process
        return None


def _from_pyproject(folder: Path | None, known: set[str]) -> dict[str, Any]:
    if folder is None:
        return {}
    path = folder / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("scaledl", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}  # no file, or not ours to complain about
    if not isinstance(table, dict):
        raise UsageError(f"[tool.scaledl] in {path.name} must be a table, got {table!r}.")
    unknown = sorted(set(table) - (known - {"cluster"}))
    if unknown:
        raise UsageError(
            f"unknown option {unknown[0]!r} in [tool.scaledl] of {path.name}. "
            f"Known: {', '.join(sorted(known - {'cluster'}))}."
        )
    return dict(table)


def _parse(name: str, text: str, source: str) -> Any:
    readers: dict[str, Callable[[str], Any]] = {
        "gpus": parse_counts,
        "usd_per_gpu_hour": float,
        "enabled": _boolean,
        "drop_last": _boolean,
        "profile": _boolean,
        "learner": str,
        "run_dir": str,
        "report": str,
    }
    try:
        return readers.get(name, int)(text)
    except ValueError as error:
        raise UsageError(f"{source} has a value that does not fit: {text!r} ({error}).") from None


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("write 1 or 0")


def _counts(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return parse_counts(value)
    try:
        counts = tuple(value)
    except TypeError:
        counts = (value,)
    if any(not _is_int(c) or c < 1 for c in counts):
        raise UsageError(f"num_gpus must be at least 1, got gpus={value!r}.")
    return tuple(sorted(set(counts)))


def _path(name: str, value: Any) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        raise UsageError(f"{name} must be a path, got {value!r}.") from None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
