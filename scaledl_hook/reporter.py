"""An epoch's end on rank 0: measure, predict, learn, forecast, record, print."""

import time
from collections.abc import Callable, Sequence

from scaledl.capture.session import Capture
from scaledl.config import TrackConfig
from scaledl.journal import Journal
from scaledl.narrator import Narrator, summarise_epoch
from scaledl.outlook import Outlook, epochs_left, steps_left
from scaledl.records import (
    EpochRecord,
    Measurement,
    ParallelPlan,
    PhaseRecord,
    ProfileWindow,
    Progress,
    RunEnd,
    ScalingReport,
    ScalingRow,
)
from scaledl.report.exchange import transfer_of
from scaledl.report.left import PhaseTimes
from scaledl.report.scaling import audit_text
from scaledl.store import read_tail

# A report costs milliseconds; with very short epochs only so many of them are made.
REPORT_SHARE = 0.003
_MAX_RANKS_READ = 64
# Of the ends of the other ranks' files so much is read in all, and at least so much of each.
_READ_BYTES, _LEAST_READ_BYTES = 2**20, 2**15


class Reporter:
    """Makes a report at each epoch's end, or less often where epochs are very short.

    Args:
        config: Options of the run.
        model_name: For the heading.
        capture: Tells data set, batch and device.
        outlook: Measures, learns and forecasts.
        journal: Takes measurement and report.
        narrator: Prints.
    """

    def __init__(
        self,
        config: TrackConfig,
        model_name: str,
        capture: Capture,
        outlook: Outlook,
        journal: Journal,
        narrator: Narrator,
    ) -> None:
        self._config = config
        self.progress: Callable[[], Progress] = lambda: capture.clock.progress(
            config.epochs, config.total_steps
        )
        self._model_name = model_name
        self._capture = capture
        self._outlook = outlook
        self._journal = journal
        self._narrator = narrator
        self.rows: tuple[ScalingRow, ...] = ()  # of the last report
        self._cost_s = 0.0
        self._last_s = time.perf_counter()
        self._ranks: tuple[EpochRecord, ...] = ()
        self._peer_windows: dict[tuple[int, int], ProfileWindow] = {}
        self._phase_times = PhaseTimes()
        self._left_out: tuple[EpochRecord, tuple[PhaseRecord, ...]] | None = None

    def epoch_ended(
        self,
        epoch: EpochRecord,
        plan: ParallelPlan,
        phases: Sequence[PhaseRecord],
        overhead_fraction: float | None,
        *,
        is_last: bool,
    ) -> None:
        """Report ``epoch``, or keep it for later where reports would cost too much."""
        self._phase_times.add(epoch, phases)
        since_s = time.perf_counter() - self._last_s
        if self._cost_s and not is_last and since_s * REPORT_SHARE < self._cost_s:
            self._left_out = (epoch, tuple(phases))
            return
        self._report(epoch, plan, phases, overhead_fraction)

    def finish(self, plan: ParallelPlan, overhead_fraction: float | None) -> None:
        """The run is over: report the last epoch, if it was left out."""
        if self._left_out is not None:
            epoch, phases = self._left_out
            self._report(epoch, plan, phases, overhead_fraction)

    def _report(
        self,
        epoch: EpochRecord,
        plan: ParallelPlan,
        phases: Sequence[PhaseRecord],
        overhead_fraction: float | None,
    ) -> None:
        begin_s = time.perf_counter()
        self._left_out = None
        self._ranks = ranks = self._ranks_of(epoch)
        measured = self._outlook.measurement(plan, ranks)
        if measured is None:
            return
        run_id = self._journal.run_id or ""
        clock, sampler = self._capture.clock, self._capture.sampler
        self._outlook.know(
            num_samples=clock.feeds.epoch_samples(self._capture.environment.world_size),
            drop_last=clock.feeds.drop_last,
            power_w=sampler.power_w,
            loader_workers=clock.feeds.num_workers,
        )
        self._outlook.learn(measured, run_id)
        told, self._outlook.told = self._outlook.told, None
        if told is not None:
            note = self._narrator.tell("audit", audit_text(told, measured))
            if note is not None:
                self._journal.write(note)
        epochs = self._config.epochs
        progress = self.progress()
        left = epochs_left(progress)
        report = self._outlook.report(
            measured,
            run_id=run_id,
            steps_per_epoch=epoch.num_steps if epoch.complete else clock.steps_per_epoch,
            remaining_epochs=left,
            remaining_steps=steps_left(progress),
            epoch=epoch.epoch,
        )
        self.rows = report.rows
        self._journal.write(measured)
        self._journal.write(report)
        summary = summarise_epoch(
            measured,
            run=run_id,
            model=self._model_name,
            epoch=epoch.epoch,
            num_epochs=epochs,
            duration_s=epoch.duration_s,
            ended_s=epoch.at_s,
            phases=phases,
            num_steps=epoch.num_steps,
            ranks=ranks,
            transfer=transfer_of(
                (*self._outlook.windows, *self._peer_windows.values()), measured.step_s
            ),
            comm_bytes=sum(plan.bucket_bytes) or None,
            overhead_fraction=overhead_fraction,
            power_w=sampler.power_w,
            energy_j=_energy_j(ranks),
            cpu_run=self._capture.environment.is_cpu,
            **self._rates(measured, report),
        )
        phases_left_s = None if left is None else self._phase_times.left_s(left)
        self._narrator.epoch(summary, report, phases_left_s)
        self._outlook.end_epoch()
        self._last_s = time.perf_counter()
        self._cost_s = self._last_s - begin_s

    def say_end(self, end: RunEnd, duration_s: float, num_steps: int) -> None:
        """The last words: energy and price of the whole run where they are known."""
        cluster = self._outlook.cluster
        gpu_hours = duration_s / 3600 * cluster.num_gpus
        price = cluster.usd_per_gpu_hour
        last = self._ranks[0] if self._ranks else None
        ranks = self._ranks_of(last) if last is not None else ()
        self._narrator.end(
            end,
            run=self._journal.run_id or "",
            duration_s=duration_s,
            num_steps=num_steps,
            energy_j=_energy_j(ranks) if ranks else self._capture.sampler.energy_j,
            energy_of=(sum(r.energy_j is not None for r in ranks) or 1, cluster.num_gpus),
            cost_usd=None if price is None else price * gpu_hours,
            cpu_run=self._capture.environment.is_cpu,
        )

    def _rates(self, measured: Measurement, report: ScalingReport) -> dict[str, float | None]:
        def per_second(amount: int | None) -> float | None:
            return amount / measured.step_s if amount and measured.step_s > 0 else None

        return {
            "samples_per_s": per_second(report.global_batch),
            "tokens_per_s": per_second(self._config.tokens),
        }

    def _ranks_of(self, epoch: EpochRecord) -> tuple[EpochRecord, ...]:
        """This epoch's records of all ranks whose files are there already, ours included.

        A rank that is a little behind has only its last epoch's record there; it will do. Their
        profiled steps are kept too: with ours they tell transfer from waiting.
        """
        folder = self._journal.folder
        found = {epoch.rank: epoch}
        num_ranks = min(self._capture.environment.world_size, _MAX_RANKS_READ)
        own = {window.step for window in self._outlook.windows if window.comm}
        kept = {key: w for key, w in self._peer_windows.items() if w.step in own}
        for rank in range(num_ranks):
            if rank == epoch.rank or folder is None:
                continue
            try:
                lines = read_tail(folder, rank, max(_READ_BYTES // num_ranks, _LEAST_READ_BYTES))
            except Exception:  # not there yet, or on another node's disk
                continue
            for line in lines:
                if isinstance(line, EpochRecord) and epoch.epoch - line.epoch in (0, 1):
                    found[rank] = line
                elif isinstance(line, ProfileWindow) and line.step in own and line.comm:
                    kept[rank, line.step] = line
        self._peer_windows = kept
        return tuple(found[rank] for rank in sorted(found))


def _energy_j(ranks: tuple[EpochRecord, ...]) -> float | None:
    """Sum over the ranks that measured it: each reads its own device."""
    known = [r.energy_j for r in ranks if r.energy_j is not None]
    return sum(known) if known else None
