"""One tracked run from the inside: takes what capture delivers and keeps everything else going.

Runs on the training thread, between steps. A step costs microseconds here; once a second the ETA is
brought up to date and the live line may be drawn; at an epoch's end the report is made.
"""

import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from scaledl.bars import UserBars
from scaledl.capture.meeting import Meeting
from scaledl.capture.session import Capture
from scaledl.config import TrackConfig
from scaledl.ending import outcome_of
from scaledl.errors import run_all
from scaledl.faults import Faults
from scaledl.journal import Journal
from scaledl.learning.launch import Background, cores_free, state_file
from scaledl.limit import limit_of, on_the_limit
from scaledl.linkbook import read_book
from scaledl.listener import Listener, OnEta
from scaledl.lookback import look_back
from scaledl.narrator import Narrator
from scaledl.outlook import Outlook, epochs_left, require, steps_left
from scaledl.predictor.plan import StepCost
from scaledl.pulse import Pulse
from scaledl.quota import quotas_of
from scaledl.records import (
    DeviceSample,
    EpochRecord,
    LayerGraph,
    ParallelPlan,
    PhaseRecord,
    ProfileWindow,
    Progress,
    RunEnd,
    ScalingReport,
    StepRecord,
)
from scaledl.remarks import remarks
from scaledl.report.live import is_beyond
from scaledl.reporter import Reporter
from scaledl.setting import cluster_of, job_of, model_name, run_info
from scaledl.speaker import Speaker
from scaledl.store import home_dir, new_run_id
from scaledl.tally import EpochTally

if TYPE_CHECKING:
    from torch import nn

FLUSH_S = 1.0  # between two estimates
FLUSH_SHARE = 0.001  # of the time, that they may take
FLUSH_STRETCH = 5.0
_num_runs = 0
_running: "weakref.WeakSet[Engine]" = weakref.WeakSet()


class Engine:
    """Everything behind one open ``track`` block."""

    def __init__(
        self,
        model: "nn.Module",
        config: TrackConfig,
        loader: object | None,
        step_cost: StepCost | None = None,
        on_eta: OnEta | None = None,
    ) -> None:
        global _num_runs
        _num_runs += 1
        self._config = config
        self._model_name, self._job = model_name(model), job_of(model)
        self._wall_offset_s = time.time() - time.perf_counter()
        self._started_s = time.perf_counter()
        self._pid = os.getpid()
        self._faults = Faults(self.on_guess, lambda: self.capture.clock.step)
        self.capture = Capture(
            model,
            self,
            initial_step=config.initial_step,
            steps_per_epoch=config.steps_per_epoch,
            loader=loader,
            profile=config.profile,
            probe_steps=config.probe_steps,
        )
        environment = self.capture.environment
        self._rank = environment.rank
        voice = Speaker(config.report, environment.rank == 0)
        self.narrator = Narrator(voice, time.time, UserBars(is_on=config.bars))
        self._home = home_dir()
        runs = Path(config.run_dir) if config.run_dir else self._home / "runs"
        self.journal = Journal(runs, environment.rank, lambda text: self.on_guess("store", text))
        self._meeting = Meeting(environment.rank, environment.world_size, _num_runs)
        self._cluster = cluster_of(
            environment, config, self.capture.sampler.links(), read_book(runs)
        )
        self._runs = runs
        self._outlook = Outlook(config, self._cluster, runs, host_slots=environment.host_slots)
        self._outlook.holdings = self.capture.holdings
        self._reporter = Reporter(
            config, self._model_name, self.capture, self._outlook, self.journal, self.narrator
        )
        self._reporter.progress = self.progress
        self._quotas = quotas_of(config.total_samples, config.total_tokens, environment.world_size)
        self._limit_s = limit_of()
        self.pulse = Pulse(self.journal.write, step_cost, self._limit_s)
        self._listener = Listener(on_eta)
        self._fresh: list[StepRecord] = []
        self._tally = EpochTally()
        self._last_flush_s = self._started_s
        self._flush_gap_s = FLUSH_S
        self._own_s = 0.0
        self._train_s = 0.0
        self._planned_steps: int | None = None
        self._learner: Background | None = None

    # --- start and end ------------------------------------------------------------------------

    def start(self) -> None:
        """Attach the sensors and open the run's folder."""
        self._own_id = new_run_id(time.time(), self._model_name)
        if self._rank == 0:
            self._open(self._own_id)
        elif self._meeting.is_over:
            self._open(f"{self._own_id}-rank{self._rank}")
        _running.add(self)
        self.capture.start()
        for key, text in self._config.notices:
            self.on_guess(key, text)
        if self.capture.remark:
            self.on_guess("plan", self.capture.remark)
        if self._rank == 0 and self._config.learner != "off":
            self._faults.part("earlier runs", self._look_back)

    def _study(self, *, at_epoch: bool) -> None:
        """Keep the graph network's process going; it starts once the run has lasted a while."""
        if self._learner is None:
            if self._rank or self._config.learner != "auto" or self.journal.folder is None:
                return
            environment = self.capture.environment
            threads = torch.get_num_threads() if environment.is_cpu else 1
            home = self._runs / ".learner" if self._config.run_dir else self._home
            self._learner = Background(
                self.journal.folder,
                state_file(home, self._cluster.gpu.name),
                seldom=cores_free(threads, environment.ranks_per_node) < 1,
                tell=self.on_guess,
            )
        passed_s = time.perf_counter() - self._started_s
        self._learner.look(passed_s, at_epoch=at_epoch)

    def _look_back(self) -> None:
        """What earlier runs of the job say, shown before the first step."""
        past = look_back(self._runs, self._job, self._cluster, exclude=self._own_id)
        if past is not None:
            self.pulse.know(past)
            self.on_guess("earlier", f"an earlier run of this job, {past.run_id}, leads at first.")
            self._flush(time.perf_counter())

    def detach(self) -> None:
        """Take every sensor off; used where entering failed half way."""
        self._faults.closing = True
        run_all(
            [
                ("sensors", self.capture.stop),
                ("bars", self.narrator.leave_bars),
                ("journal", self.journal.close),
            ],
            self.on_error,
        )
        _running.discard(self)

    def finish(self, *, failed: bool) -> None:
        """Leave: sensors off first, then the last epoch's report, the end and the files."""
        _running.discard(self)
        if os.getpid() != self._pid:
            return  # a forked child: the run goes on in its parent
        self._faults.closing = True
        run_all(
            [
                ("end of the run", self._note_plan),
                ("end of the run", self.capture.stop),
                ("end of the run", self.narrator.leave_bars),
                ("end of the run", lambda: self._finish(failed)),
                ("end of the run", self.journal.close),
                ("end of the run", self._stop_study),
            ],
            self.on_error,
        )
        if self._faults.raised and not failed:
            raise self._faults.raised[0]

    def _stop_study(self) -> None:
        if self._learner is not None:
            self._learner.leave()

    def _note_plan(self) -> None:
        """Keep the planned length: an epoch that is cut off closes, and then tells none."""
        self._planned_steps = self.progress().total_steps

    def _finish(self, failed: bool) -> None:
        now_s = time.perf_counter()
        self._flush(now_s, draw=False)
        if self._rank == 0:
            self._faults.part("report", lambda: self._reporter.finish(self._plan(), self._cost()))
        if self.journal.run_id is None:
            self._open(f"{self._own_id}-rank{self._rank}")
        self._faults.part("journal", lambda: self.journal.close_block(self._wall(now_s)))
        progress = self.progress()
        planned = progress.total_steps or self._planned_steps
        cut = self.capture.probe_end is not None and self.capture.probe_end.was_reached
        end = RunEnd(
            at_s=self._wall(now_s),
            step=progress.step,
            outcome="stopped-early" if cut else outcome_of(progress.step, planned, failed=failed),
            overhead_fraction=self._cost(),
        )
        if is_beyond(progress):
            self.narrator.first_eta = None  # it told the time to a plan that was not kept
        self.journal.write(end)
        if self._rank == 0:
            self._reporter.say_end(
                end, now_s - self._started_s, progress.step - progress.first_step
            )

    def _open(self, run_id: str) -> None:
        self.journal.open(run_id)
        if self._rank == 0 or "-rank" in run_id:
            self._write_info(self.capture.plan)

    def _write_info(self, plan: ParallelPlan) -> None:
        self.journal.write_info(
            run_info(
                self._config,
                self.journal.run_id or "",
                self._model_name,
                self._wall(self._started_s),
                cluster=self._cluster,
                plan=plan,
                job=self._job,
            )
        )

    # --- what capture delivers ----------------------------------------------------------------

    def on_step(self, step: StepRecord) -> None:
        """A step ended: hot path, microseconds."""
        now_s = self.capture.clock.boundary_s
        self._fresh.append(step)
        self._faults.part("forecast", lambda: self._outlook.add_step(step))
        self._train_s += step.wall_s
        self._tally.add_step(step)
        self.capture.step_ended(step)
        is_due = now_s - self._last_flush_s >= self._flush_gap_s
        if (is_due and self.capture.border.is_live) or len(self._fresh) >= 500:
            self._flush(time.perf_counter())

    def on_phase(self, phase: PhaseRecord) -> None:
        """A phase ended. The steps before it are handed on; the estimate waits for its second."""
        self._hand_on(time.perf_counter())
        phase = msgspec.structs.replace(phase, at_s=self._wall(phase.at_s))
        self._tally.add_phase(phase)
        self._faults.part("ETA", lambda: self.pulse.add_phase(phase))
        self._faults.part("journal", lambda: self.journal.write(phase))

    def on_epoch(self, epoch: EpochRecord) -> None:
        """An epoch ended: learn, forecast, report."""
        begin_s = time.perf_counter()
        if (
            self._faults.closing
            or self.pulse.eta is None
            or begin_s - self._last_flush_s >= FLUSH_S
        ):
            self._flush(begin_s, draw=False)
        else:  # epochs of a few steps: an estimate at each would cost more than the steps
            self._hand_on(begin_s)
        energy_j = self.capture.sampler.energy_j
        epoch = msgspec.structs.replace(epoch, device=self.capture.environment.device_name)
        epoch, phases = self._tally.close(epoch, at_s=self._wall(epoch.at_s), energy_j=energy_j)
        self._faults.part("journal", lambda: self._note_epoch(epoch))
        self._faults.part("ETA", lambda: self.pulse.add_epoch(epoch))
        self._faults.part("report", lambda: self._report(epoch, phases))
        self._faults.part("graph network", lambda: self._study(at_epoch=True))
        self._own_s += time.perf_counter() - begin_s

    def _note_epoch(self, epoch: EpochRecord) -> None:
        self.journal.close_block(epoch.at_s)
        self.journal.write(epoch)

    def _report(self, epoch: EpochRecord, phases: tuple[PhaseRecord, ...]) -> None:
        if self._rank == 0:
            self._reporter.epoch_ended(
                epoch, self._plan(), phases, self._cost(), is_last=self._faults.closing
            )
        else:
            self._outlook.end_epoch()

    def on_window(self, window: ProfileWindow) -> None:
        """A sampled step was read."""
        self._outlook.add_window(window)
        self.journal.write(window)
        if self._config.learner == "inline" and self._rank == 0:
            self._faults.part("forecast", self._learn_now)

    def _learn_now(self) -> None:
        measured = self._outlook.measurement(self._plan())
        if measured is not None:
            self._outlook.learn(measured, self.journal.run_id or "")

    def on_graph(self, graph: LayerGraph) -> None:
        """The layer graph, once."""
        self._outlook.graph = graph
        self.journal.write(graph)

    def on_sample(self, sample: DeviceSample) -> None:
        """A device reading, on the sampler's thread."""
        self.journal.write(sample)

    def on_guess(self, key: str, text: str) -> None:
        """A guess or a loss to tell the user, once."""
        if key in ("store", "comm") or key.startswith("device"):
            self._faults.off[key] = text
        if self._rank == 0 or key == "store":
            note = self.narrator.tell(key, text)
            if note is not None and key != "store":
                self.journal.write(note)

    def on_error(self, sensor: str, error: Exception) -> None:
        """An error of ours: told once, the sensor is off; raised in strict mode."""
        self._faults.on_error(sensor, error)

    # --- once a second ------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Where the run stands."""
        progress = self.capture.clock.progress(self._config.epochs, self._config.total_steps)
        for quota in self._quotas:
            progress = quota.limit(progress)
        return progress

    def _cost(self) -> float | None:
        """Our own share of the training time: sampling, ETA, reports."""
        if self._train_s <= 0:
            return None
        return (self._own_s + self.capture.windows.spent_s) / self._train_s

    def _flush(self, now_s: float, *, draw: bool = True) -> None:
        """Bring the journal and the ETA up to date; draw the live line if it is due."""
        self._last_flush_s = now_s
        self._hand_on(now_s)
        self._faults.part("common run id", self._meet)
        self._faults.part("ETA", lambda: self.pulse.beat(self.progress(), self._wall(now_s)))
        if draw and self._rank == 0:
            self._faults.part("live line", self._draw)
            self._faults.part("graph network", lambda: self._study(at_epoch=False))
        cost_s = time.perf_counter() - now_s
        self._own_s += cost_s
        # Where it takes long less often, so that it stays within its share of the time.
        self._flush_gap_s = min(max(FLUSH_S, cost_s / FLUSH_SHARE), FLUSH_STRETCH * FLUSH_S)
        if draw and self._rank == 0:  # the user's own time
            self._faults.part("on_eta", lambda: self._listener.hear(self.pulse.eta))

    def _hand_on(self, now_s: float) -> None:
        fresh, self._fresh = self._fresh, []
        at_s = self._wall(now_s)
        for quota in self._quotas:
            quota.add(fresh)
        self._faults.part("step records", lambda: self._note_steps(fresh, at_s))
        self._faults.part("ETA", lambda: self.pulse.add_steps(fresh, self.progress()))

    def _note_steps(self, fresh: list[StepRecord], at_s: float) -> None:
        for step in fresh:
            self.journal.add_step(step, at_s)

    def _draw(self) -> None:
        eta, progress, price = self.pulse.eta, self.progress(), self._cluster.usd_per_gpu_hour
        if eta is not None:
            self.narrator.progress(
                eta,
                progress,
                eta.step_s.mean if eta.step_s is not None else None,
                None if price is None else price * self._cluster.num_gpus,
            )
            self._tell_once(progress)

    def _tell_once(self, progress: Progress) -> None:
        walks_all = self.capture.clock.feeds.walks_all_samples
        for key, text in remarks(
            self._config,
            progress,
            num_gpus=self._cluster.num_gpus,
            walks_all_samples=walks_all,
        ):
            self.on_guess(key, text)
        if self._limit_s is not None and self.pulse.eta is not None:
            said = on_the_limit(
                self.pulse.eta,
                self._limit_s,
                self._reporter.rows,
                num_gpus=self._cluster.num_gpus,
            )
            if said is not None:
                self.on_guess(*said)

    def _meet(self) -> None:
        if self._rank == 0:
            self._meeting.offer(self.journal.run_id or "")
        elif self.journal.run_id is None:
            found = self._meeting.look()
            if found is not None:
                self._open(found)
            elif self._meeting.is_over:
                self._open(f"{self._own_id}-rank{self._rank}")

    # --- an epoch's end -----------------------------------------------------------------------

    def _plan(self) -> ParallelPlan:
        clock = self.capture.clock
        ddp = self.capture.ddp()
        return msgspec.structs.replace(
            self.capture.plan,
            grad_accum=clock.grad_accum,
            batch_per_gpu=clock.feeds.batch_size,
            bucket_bytes=ddp.buckets() if ddp is not None else (),
        )

    # --- asked by the user ----------------------------------------------------------------------

    def what_if(self, **question: Any) -> ScalingReport:
        """The what-if report from what was seen so far."""
        self.capture.settle()
        self._flush(time.perf_counter(), draw=False)
        clock = self.capture.clock
        base = require(self._outlook.measurement(self._plan()) or self._outlook.latest)
        self._outlook.know(
            num_samples=clock.feeds.epoch_samples(self._cluster.num_gpus),
            drop_last=clock.feeds.drop_last,
            power_w=self.capture.sampler.power_w,
            loader_workers=clock.feeds.num_workers,
        )
        progress = self.progress()
        return self._outlook.report(
            base,
            run_id=self.journal.run_id or "",
            steps_per_epoch=progress.steps_per_epoch,
            remaining_epochs=epochs_left(progress),
            remaining_steps=steps_left(progress),
            epoch=progress.epoch,
            **question,
        )

    @property
    def num_gpus(self) -> int:
        """World size of the job."""
        return self._cluster.num_gpus

    def resume(self, state: Mapping[str, Any], learned_on: int | None) -> None:
        """Go on from what an earlier run's estimate learned, if it ran on as many GPUs."""
        if learned_on is None or learned_on == self.num_gpus:
            self.pulse.estimator.load_state_dict(state)
            return
        self.on_guess(
            "resumed",
            f"the state was learned on {learned_on} GPUs, this job has {self.num_gpus}: "
            "the pace is learned anew.",
        )

    def status(self) -> dict[str, Any]:
        """What works, what is off and why, and what was guessed."""
        self.capture.settle()
        return {
            "enabled": True,
            "run_id": self.journal.run_id,
            "rank": self._rank,
            "step": self.capture.clock.step,
            "off": dict(self._faults.off),
            "guesses": {note.key: note.text for note in self.narrator.notes},
            "overhead_fraction": self._cost(),
            "energy_source": self.capture.sampler.energy_source,
            "device": self.capture.environment.device_name,
        }

    def _wall(self, at_s: float) -> float:
        return at_s + self._wall_offset_s


def _after_fork() -> None:
    for engine in list(_running):
        engine.capture.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
