"""Options of ``track``: arguments, then ``SCALEDL_*``, then ``[tool.scaledl]``, then defaults.

A wrong value ends in an error before the training starts, with the place it came from. What has no
effect (a misspelt variable, a project file that cannot be read) is told once and ends nothing.
"""

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from scaledl import arguments as checks
from scaledl.arguments import MOST_EPOCHS, MOST_TRAINED, seen_text
from scaledl.errors import NO_WORDS, UsageError
from scaledl.records import ClusterSpec
from scaledl.units import parse_counts, printable

LEARNERS = ("auto", "inline", "off")
PROJECT_FILE = "pyproject.toml"
PREFIX = "SCALEDL_"
# Read elsewhere or in ``load``: no options, yet known.
SWITCHES = ("HOME", "DISABLE", "QUIET", "STRICT", "ENDS_AT", "PROBE_STEPS")
_YES = ("1", "true", "yes", "on")


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """How to track one training loop. Every field may be left out."""

    epochs: int | None = None
    """Planned epochs; without them (and ``total_steps``) only the epoch's ETA is shown."""
    steps_per_epoch: int | None = None
    """Optimizer steps of one epoch, where no DataLoader shows it."""
    total_steps: int | None = None
    """Planned optimizer steps; with ``epochs`` too, the earlier end wins."""
    total_samples: int | None = None
    """Samples to train over all ranks, from here on: the planned end where batches grow."""
    total_tokens: int | None = None
    """The same in elements of the batches, padding included."""
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
    bars: bool = True
    """Whether the time left is put on the user's own tqdm bar, in place of a line of ours."""
    profile: bool = True
    """Whether single steps of distributed runs may be profiled to time the collectives."""
    probe_steps: int | None = None
    """The training is ended after so many optimizer steps: set by ``scaledl probe`` alone."""
    notices: tuple[tuple[str, str], ...] = ()
    """Key and text of what the user should hear once about the options themselves."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None or name in _NEVER_NONE:
                object.__setattr__(self, name, check(name, value))

    @classmethod
    def load(
        cls,
        arguments: Mapping[str, Any],
        env: Mapping[str, str] = os.environ,
        folder: Path | None = None,
    ) -> Self:
        """Fill every field from the first source that has it.

        ``SCALEDL_DISABLE`` is the way out that always works: nothing else is then looked at. In a
        probe the environment wins: whoever started it must find the run.

        Args:
            arguments: What the user passed; ``None`` means not given.
            env: Environment variables.
            folder: Where to look for a ``pyproject.toml`` (default: the working directory).

        Raises:
            UsageError: a value is wrong; the message names the option and where it came from.
        """
        if _is_on(env, "DISABLE"):
            return cls(enabled=False)
        table, notices = _from_pyproject(folder or _working_folder())
        values = _checked(table, f"in [tool.scaledl] of {PROJECT_FILE}")
        told = _from_environment(env)
        probe_steps = _probe_steps(env)
        values |= told
        values |= {name: value for name, value in arguments.items() if value is not None}
        if probe_steps is not None:
            values |= told | {"probe_steps": probe_steps}
        if _is_on(env, "QUIET"):
            values["report"] = "none"
        return cls(**values, notices=(*notices, *_unknown_variables(env)))


def _learner(name: str, value: object) -> str:
    if not isinstance(value, str) or value not in LEARNERS:
        raise UsageError(f"{name} must be one of {', '.join(LEARNERS)}, got {seen_text(value)}.")
    return value


def _report(name: str, value: object) -> str:
    """``print``, ``none`` or a path; other words that switch are no names of files."""
    path = checks.path_text(name, value)
    text = os.fsdecode(value)  # type: ignore[arg-type]
    word = text.strip().lower()
    if word in ("print", "none"):
        return word
    if not word or word in _YES + NO_WORDS:
        raise UsageError(
            f"{name} must be print, none or a file, got {seen_text(text)}. "
            f"A file of that name is ./{printable(text, 20)}"
        )
    return path


# Every option, in the order of the README, and what it must be. ``cluster`` is no text, so it
# comes as an argument only.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "epochs": partial(checks.whole_number, most=MOST_EPOCHS),
    "steps_per_epoch": checks.whole_number,
    "total_steps": checks.whole_number,
    "total_samples": partial(checks.whole_number, most=MOST_TRAINED),
    "total_tokens": partial(checks.whole_number, most=MOST_TRAINED),
    "initial_step": partial(checks.whole_number, least=0),
    "gpus": lambda name, value: checks.gpu_counts(value),
    "usd_per_gpu_hour": checks.price,
    "tokens": checks.whole_number,
    "cluster": partial(checks.record, kind=ClusterSpec),
    "learner": _learner,
    "enabled": checks.truth,
    "run_dir": checks.path_text,
    "report": _report,
    "drop_last": checks.truth,
    "bars": checks.truth,
    "profile": checks.truth,
}
OPTIONS = tuple(name for name in _CHECKS if name != "cluster")
_NEVER_NONE = {f.name for f in dataclasses.fields(TrackConfig) if f.default is not None}


def _checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The values of one source as they are stored; an error names the source."""
    found = {}
    for name, value in values.items():
        try:
            found[name] = _CHECKS[name](name, value)
        except UsageError as error:
            raise UsageError(f"{str(error).rstrip('.')} ({source}).") from None
    return found


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # the folder was removed under the process
        return None


# --- the project file ----------------------------------------------------------------------------


def _from_pyproject(folder: Path | None) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The table of the project file, and what should be said where it cannot be read.

    A broken file is the user's own business (other tools stumble over it too) and no reason to stop
    a training; where it may hold settings for us, their loss is told.
    """
    if folder is None:
        return {}, []
    try:
        data = (folder / PROJECT_FILE).read_bytes()
    except PermissionError as error:
        return {}, [_unread(str(error.strerror))]
    except OSError:
        return {}, []
    try:
        parsed = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also of an encoding that is not UTF-8
        return {}, [_unread(str(error))] if b"scaledl" in data else []
    tool = parsed.get("tool")
    table = tool.get("scaledl", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(
            f"[tool.scaledl] in {PROJECT_FILE} must be a table, got {seen_text(table)}."
        )
    for name in table:
        if name not in OPTIONS:
            raise UsageError(
                f"unknown option {seen_text(name)} in [tool.scaledl] of {PROJECT_FILE}. "
                + _closest(name, OPTIONS)
            )
    return dict(table), []


def _unread(why: str) -> tuple[str, str]:
    return ("project-file", f"{PROJECT_FILE} cannot be read ({why}): no setting is taken from it.")


# --- the environment -----------------------------------------------------------------------------


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in OPTIONS:
        variable = PREFIX + name.upper()
        text = env.get(variable)
        if text:
            found |= _checked({name: _parse(name, text, variable)}, f"from {variable}")
    return found


def _probe_steps(env: Mapping[str, str]) -> int | None:
    text = env.get(f"{PREFIX}PROBE_STEPS", "").strip()
    if not text:
        return None
    where = f"{PREFIX}PROBE_STEPS"
    return checks.whole_number(where, int(text) if text.isdecimal() else text)


def _unknown_variables(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables with our prefix that nothing reads; their values are never shown."""
    known = [PREFIX + name.upper() for name in (*OPTIONS, *SWITCHES)]
    for name in sorted(env):
        if name.upper().startswith(PREFIX) and name not in known:
            shown = printable(name, 60)
            endings = [each.removeprefix(PREFIX) for each in known]
            hint = _closest(name.upper().removeprefix(PREFIX), endings, PREFIX)
            yield f"variable:{shown}", f"the variable {shown} has no effect. {hint}"


def _closest(name: str, known: "tuple[str, ...] | list[str]", prefix: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if near:
        return f"Did you mean {prefix}{near[0]}?"
    return f"Known: {', '.join(prefix + each for each in sorted(known))}."


def _is_on(env: Mapping[str, str], switch: str) -> bool:
    """Whether a switch is set to anything but a word for no."""
    return env.get(PREFIX + switch, "").strip().lower() not in ("", *NO_WORDS)


def _parse(name: str, text: str, source: str) -> Any:
    readers: dict[str, Callable[[str], Any]] = {
        "gpus": parse_counts,
        "usd_per_gpu_hour": float,
        "enabled": _boolean,
        "drop_last": _boolean,
        "bars": _boolean,
        "profile": _boolean,
        "learner": str,
        "run_dir": str,
        "report": str,
    }
    try:
        return readers.get(name, int)(text)
    except ValueError as error:
        raise UsageError(
            f"{source} has a value that does not fit: {seen_text(text)} ({printable(str(error))})."
        ) from None


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _YES:
        return True
    if lowered in NO_WORDS:
        return False
    raise ValueError("write 1 or 0")
