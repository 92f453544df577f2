"""Runs the points of a plan one after the other and reads what each recorded."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from scaledl import store
from scaledl.errors import ScaledlError, StoreError
from scaledl.past import PastRun
from scaledl.predictor.forecaster import Forecaster
from scaledl.probe_records import ProbePoint, ProbeResult
from scaledl.probing.command import launch_words, whole_environment
from scaledl.probing.launch import Ended, run_command
from scaledl.records import Measurement
from scaledl.relatives import is_same_kind

LEAST_LIMIT_S, STEPS_TAKEN = 600.0, 10.0
"""A probe is stopped after ten minutes and ten times its expected steps: more is no slow start."""

RANK_0 = "rank0.jsonl"


def limit_of(point: ProbePoint) -> float:
    """Seconds after which the command at this count is stopped."""
    return LEAST_LIMIT_S + STEPS_TAKEN * point.num_steps * point.step_s.high


def run_point(
    point: ProbePoint,
    command: Sequence[str],
    base: Measurement,
    forecaster: Forecaster,
    runs: Path,
    *,
    limit_s: float | None = None,
) -> ProbeResult:
    """Run the command at one count; what went wrong is told in the result, not raised.

    Args:
        point: The count.
        command: The user's words.
        base: The running regime: what is measured must be of its model and device.
        forecaster: What was known before.
        runs: The folder of the run, where the probe's own is recorded too.
        limit_s: Stop it after so long; by default by its expected steps.
    """
    before = {path.name for path in store.newest_folders(runs, 10**6)}
    ended = run_command(
        launch_words(command, point),
        whole_environment(point.num_steps, runs),
        limit_s=limit_of(point) if limit_s is None else limit_s,
    )
    wrong = _what_went_wrong(ended)
    found = _recorded(runs, before, point.num_gpus)
    if wrong or found is None:
        return ProbeResult(
            num_gpus=point.num_gpus, wall_s=ended.wall_s, error=wrong or _nothing_recorded(ended)
        )
    return _result(found, point, base, forecaster, ended)


def _what_went_wrong(ended: Ended) -> str:
    if ended.code == 0:
        return ""
    if ended.code is None:
        what = (
            f"it did not end within {ended.wall_s / 60:.0f} min and was stopped. Do all ranks run "
            "their loop inside scaledl.track()? Its last words:"
        )
    else:
        what = f"the command failed with code {ended.code}. Its last words:"
    return "\n".join([what, *(ended.tail or ("(none)",))])


def _nothing_recorded(ended: Ended) -> str:
    what = (
        "no run of so many ranks was recorded. The script needs scaledl.track() around its loop, "
        "and neither enabled=False nor SCALEDL_DISABLE. Its last words:"
    )
    return "\n".join([what, *(ended.tail or ("(none)",))])


def _recorded(runs: Path, before: set[str], num_gpus: int) -> PastRun | None:
    """The run that the probe left; another job may write beside it."""
    for folder in store.newest_folders(runs, len(before) + 64):
        if folder.name in before:
            continue
        try:
            info = store.read_info(folder)
        except StoreError:
            continue
        if info.probe and info.cluster.num_gpus == num_gpus and (folder / RANK_0).exists():
            return PastRun(folder, info)
    return None


def _is_apart(found: PastRun, measured: Measurement) -> bool:
    """Whether no collective was seen of several ranks: a plain script under torchrun."""
    if measured.cluster.num_gpus == 1 or measured.plan.strategy in ("fsdp", "hsdp"):
        return False
    return not measured.plan.bucket_bytes and not any(window.comm for window in found.windows)


def _result(
    found: PastRun, point: ProbePoint, base: Measurement, forecaster: Forecaster, ended: Ended
) -> ProbeResult:
    run = found.info.run_id

    def wrong(text: str) -> ProbeResult:
        return ProbeResult(num_gpus=point.num_gpus, run=run, wall_s=ended.wall_s, error=text)

    try:
        measured = found.measurements[-1] if found.measurements else None
        if measured is None:
            return wrong("too few steady steps were measured. Take more --steps.")
        if measured.signature != base.signature:
            return wrong("it trained another model than the run, so it says nothing about it.")
        if not is_same_kind(measured, base):
            return wrong("it ran on another kind of device, or in another type of numbers.")
        if _is_apart(found, measured):
            # Kept, it would tell every later what-if that this count costs no exchange.
            shutil.rmtree(found.folder, ignore_errors=True)
            return wrong(
                "its ranks exchanged nothing, so each trained alone. Wrap the model in DDP or FSDP "
                "where there are several ranks. What was recorded is dropped."
            )
        told = forecaster.predict(measured.cluster, measured.plan)
    except ScaledlError as error:
        return wrong(str(error))
    return ProbeResult(
        num_gpus=point.num_gpus,
        run=run,
        told=told.step_s,
        step_s=measured.step_s,
        wall_s=ended.wall_s,
    )
