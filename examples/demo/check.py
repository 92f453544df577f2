"""What scaledl forecast in a run, against what came true; beside it what a naive guess says."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import scaledl
from scaledl.learned import Learned
from scaledl.records import Eta
from scaledl.report.learned import learned_text
from scaledl.store import read_lines

WATCH_POINTS = (0.25, 0.5)
CLOSE = 0.15


@dataclass(frozen=True, kw_only=True)
class StepCheck:
    """A step time forecast for a count that was not run, and the one measured later.

    ``hold_s`` is the naive guess: the step stays as it was in the watched run.
    """

    model: str
    watched: int
    asked: int
    forecast_s: scaledl.Interval
    hold_s: float
    measured_s: float

    @property
    def inside(self) -> bool:
        return self.measured_s in self.forecast_s

    @property
    def error_fraction(self) -> float:
        return self.forecast_s.mean / self.measured_s - 1

    @property
    def hold_error_fraction(self) -> float:
        return self.hold_s / self.measured_s - 1


@dataclass(frozen=True, kw_only=True)
class EtaCheck:
    """The time left as shown at some point of a run, and as it came true.

    ``naive_s`` is time so far, times what is left, over what is done.
    """

    model: str
    num_gpus: int
    done_fraction: float
    forecast_s: scaledl.Interval
    naive_s: float
    true_s: float

    @property
    def inside(self) -> bool:
        return self.true_s in self.forecast_s

    @property
    def error_fraction(self) -> float:
        return self.forecast_s.mean / self.true_s - 1

    @property
    def naive_error_fraction(self) -> float:
        return self.naive_s / self.true_s - 1


def usual_step_s(run: scaledl.PastRun) -> float:
    """The median of what the run's epochs took for a steady step."""
    return statistics.median(measurement.step_s for measurement in run.measurements)


def learned_of(run: scaledl.PastRun, patience_s: float = 30.0) -> Learned | None:
    """What the graph network learned from a run; its process may still be at its last window."""
    until_s = time.monotonic() + patience_s
    while (found := run.network) is not None and found.state == "learning":
        if time.monotonic() > until_s:
            break
        time.sleep(0.5)
    return found


def check_step(model: str, watched: scaledl.PastRun, truth: scaledl.PastRun) -> StepCheck:
    """Ask the watched run for the other run's count; the batch of each process stays the same."""
    asked = truth.info.cluster.num_gpus
    report = watched.what_if(gpus=[asked], batch_rule="fixed-per-gpu")
    row = next(row for row in report.rows if row.num_gpus == asked)
    return StepCheck(
        model=model,
        watched=watched.info.cluster.num_gpus,
        asked=asked,
        forecast_s=row.step_s,
        hold_s=usual_step_s(watched),
        measured_s=usual_step_s(truth),
    )


def check_etas(model: str, run: scaledl.PastRun) -> list[EtaCheck]:
    """The first ETA recorded after each watch point, against the end of the run."""
    etas = [line for line in read_lines(run.folder, 0) if isinstance(line, Eta)]
    if run.ended is None or not etas:
        return []
    checks = []
    for point in WATCH_POINTS:
        later = [e for e in etas if e.remaining_s and e.step >= point * run.ended.step]
        if not later or later[0].step == run.ended.step:
            continue
        eta = later[0]
        done_fraction = eta.step / run.ended.step
        so_far_s = eta.at_s - run.info.started_at
        checks.append(
            EtaCheck(
                model=model,
                num_gpus=run.info.cluster.num_gpus,
                done_fraction=done_fraction,
                forecast_s=eta.remaining_s,
                naive_s=so_far_s * (1 - done_fraction) / done_fraction,
                true_s=run.ended.at_s - eta.at_s,
            )
        )
    return checks


def render_steps(checks: Sequence[StepCheck]) -> str:
    """A row for each forecast step, what ``error`` and ``hold`` mean, and a summary."""
    lines = [
        "model    watched at   asked   forecast (90 % interval)   measured   inside    error   hold"
    ]
    for check in checks:
        f = check.forecast_s
        interval = f"{f.mean * 1e3:.1f} ms ({f.low * 1e3:.1f} to {f.high * 1e3:.1f})"
        lines.append(
            f"{check.model:<8} {check.watched:>10} {check.asked:>7}   {interval:<25}"
            f"{check.measured_s * 1e3:>8.1f} ms {'yes' if check.inside else 'no':>8}"
            f" {check.error_fraction:>+8.1%} {check.hold_error_fraction:>+6.0%}"
        )
    inside = sum(check.inside for check in checks)
    close = sum(abs(check.error_fraction) <= CLOSE for check in checks)
    errors = [check.error_fraction for check in checks]
    hold = [check.hold_error_fraction for check in checks]
    return "\n".join(
        [
            *lines,
            "error: forecast over measured, less 1; hold: the same for a guess without scaledl,",
            "that the step stays as long as it was in the watched run",
            f"{inside} of {len(checks)} measured steps lie in their 90 % interval; "
            f"{close} of {len(checks)} forecasts are within {CLOSE * 100:.0f} %",
            _mean_errors(errors, hold, "hold"),
        ]
    )


def _mean_errors(ours: Sequence[float], theirs: Sequence[float], name: str) -> str:
    """``mean size of the error 5 %, of hold 20 %``."""
    own, other = (statistics.fmean(map(abs, errors)) for errors in (ours, theirs))
    return f"mean size of the error {own * 100:.0f} %, of {name} {other * 100:.0f} %"


def render_etas(checks: Sequence[EtaCheck]) -> str:
    """A row for each watch point, what ``error`` and ``naive`` mean, and a summary."""
    if not checks:
        return "no ETA was recorded: the runs were too short"
    lines = [
        "model    processes   done   forecast (90 % interval)   came true   inside    error   naive"
    ]
    for check in checks:
        f = check.forecast_s
        interval = f"{f.mean:.1f} s ({f.low:.1f} to {f.high:.1f})"
        lines.append(
            f"{check.model:<8} {check.num_gpus:>9} {check.done_fraction:>6.0%}   {interval:<25}"
            f"{check.true_s:>9.1f} s {'yes' if check.inside else 'no':>8}"
            f" {check.error_fraction:>+8.1%} {check.naive_error_fraction:>+7.1%}"
        )
    inside = sum(check.inside for check in checks)
    errors = [check.error_fraction for check in checks]
    naive = [check.naive_error_fraction for check in checks]
    return "\n".join(
        [
            *lines,
            "error: forecast over true, less 1; naive: the same for a guess without scaledl,",
            "that the rest goes on at the pace so far, start-up and all",
            f"{inside} of {len(checks)} times left lie in their 90 % interval; "
            + _mean_errors(errors, naive, "naive"),
        ]
    )


def render_learned(found: Sequence[tuple[str, Learned | None]]) -> str:
    """A line a run: what the network told before it learned, and after."""
    return "\n".join(
        f"{name}: {learned_text(learned) or 'too short for the graph network'}"
        for name, learned in found
    )
