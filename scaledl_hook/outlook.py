"""What the run's measurements say about other counts: learning, forecasting, the report."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from scaledl.config import TrackConfig
from scaledl.errors import UsageError
from scaledl.predictor.forecaster import Forecaster
from scaledl.predictor.regime import measure
from scaledl.predictor.whatif import answer_rows
from scaledl.query import build_query
from scaledl.records import (
    BatchRule,
    ClusterSpec,
    EpochRecord,
    Holdings,
    LayerGraph,
    LinkSpec,
    Measurement,
    ParallelPlan,
    ProfileWindow,
    Progress,
    ScalingReport,
    ScalingRow,
    StepRecord,
)
from scaledl.relatives import load_relatives
from scaledl.report import scaling

_STEPS_KEPT = 4096
_WINDOWS_KEPT = 16
_WATCHED_KEPT = 64


class Outlook:
    """Collects steps and windows, and turns them into measurements and reports.

    Args:
        config: Options of the run.
        cluster: Where it runs.
        host_slots: How many such processes the host's cores carry; ``None`` on GPUs.
        home: Where other runs are recorded; they tell what was measured at other counts.
    """

    def __init__(
        self, config: TrackConfig, cluster: ClusterSpec, home: Path, *, host_slots: int | None
    ) -> None:
        self._config = config
        self.cluster = cluster
        self._home = home
        self._host_slots = host_slots
        self._forecaster = Forecaster()
        self._steps: deque[StepRecord] = deque(maxlen=_STEPS_KEPT)
        self._watched: deque[StepRecord] = deque(maxlen=_WATCHED_KEPT)
        self._windows: deque[ProfileWindow] = deque(maxlen=_WINDOWS_KEPT)
        self._first = True
        self._knows_relatives = False
        self.told: ScalingRow | None = None  # an earlier run's forecast of this one
        self.latest: Measurement | None = None
        self.graph: LayerGraph | None = None
        self.holdings: Callable[[], Holdings | None] = lambda: None
        self._num_samples: int | None = None
        self._loader_workers: int | None = None
        self._devices: tuple[str, ...] = ()  # of the ranks whose epochs were read
        self._curve_batch: int | None = None  # of the layer curve the forecaster has
        self._drop_last = False
        self._power_w: float | None = None

    @property
    def windows(self) -> tuple[ProfileWindow, ...]:
        """The last sampled steps."""
        return tuple(self._windows)

    def add_step(self, step: StepRecord) -> None:
        """One step of the running regime."""
        self._steps.append(step)
        if step.backward_s is not None and not step.tags:
            self._watched.append(step)

    def add_window(self, window: ProfileWindow) -> None:
        """One sampled step."""
        self._windows.append(window)

    def know(
        self,
        *,
        num_samples: int | None,
        drop_last: bool,
        power_w: float | None,
        loader_workers: int | None = None,
    ) -> None:
        """What the loader and the device tell: size of the data set, rest, workers, mean power."""
        self._num_samples = num_samples
        self._loader_workers = loader_workers
        self._drop_last = bool(self._config.drop_last or drop_last)
        self._power_w = power_w

    def end_epoch(self) -> None:
        """Later measurements start from the next epoch's steps."""
        self._steps.clear()
        self._first = False

    def measurement(
        self, plan: ParallelPlan, ranks: Sequence[EpochRecord] = ()
    ) -> Measurement | None:
        """The regime so far; ``None`` with too few steady steps."""
        measured = measure(
            list(self._steps),
            self.windows,
            cluster=self.cluster,
            plan=plan,
            graph=self.graph,
            rank_times_s=[r.own_p50_s for r in ranks if r.own_p50_s is not None],
            host_shared=self._host_slots is not None,
            host_slots=self._host_slots,
            at_s=time.time(),
            skip=3 if self._first else 0,
            watched=self._watched,
        )
        if measured is None:
            return None
        kinds = tuple(sorted({record.device for record in ranks if record.device}))
        self._devices = kinds or self._devices
        if len(self._devices) > 1:  # then the slowest kind made the measured step
            measured = msgspec.structs.replace(measured, devices=self._devices)
        return self._with_memory(measured)

    def _with_memory(self, measured: Measurement) -> Measurement:
        """The measurement with what the training holds in memory, where that is known."""
        held = self.holdings()
        if held is None:
            return measured
        if self.graph is not None:
            outputs = float(sum(node.activation_bytes for node in self.graph.nodes))
            held = msgspec.structs.replace(held, activation_bytes=outputs)
        return msgspec.structs.replace(measured, holdings=held)

    def learn(self, measurement: Measurement, run_id: str) -> None:
        """Predict, compare, then learn; other runs of the same model are learned first."""
        if self._config.learner != "off" and not self._knows_relatives:
            self._knows_relatives = True
            family = load_relatives(self._home, measurement.signature, run_id, like=measurement)
            self.told = family.told(measurement)
            self._forecaster.remember(family.past)
            for other in family.measurements:
                if other.cluster.num_gpus != measurement.cluster.num_gpus:
                    self._forecaster.learn(other)
        if self._forecaster.measurements and self._config.learner != "off":
            told = self._forecaster.predict(measurement.cluster, measurement.plan)
            self._forecaster.audit(told, measurement.step_s)
        self._forecaster.learn(measurement)
        self.latest = measurement

    def report(
        self,
        base: Measurement,
        *,
        run_id: str,
        gpus: Iterable[int] | int | str | None = None,
        usd_per_gpu_hour: float | None = None,
        batch_rule: BatchRule = "fixed-global",
        gpus_per_node: int | None = None,
        inter: LinkSpec | str | None = None,
        steps_per_epoch: int | None = None,
        remaining_epochs: float | None = None,
        remaining_steps: float | None = None,
        epoch: int | None = None,
        strategies: Iterable[str] | str | None = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
    ) -> ScalingReport:
        """The what-if report around ``base``.

        Raises:
            UsageError: an argument that cannot be.
        """
        # No truth test on what was passed: that of a numpy array raises.
        asked = self._config.gpus or None if gpus is None else gpus
        price = self.cluster.usd_per_gpu_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
        query = build_query(
            asked,
            base.cluster.num_gpus,
            batch_rule=batch_rule,
            gpus_per_node=gpus_per_node,
            inter=inter,
            num_samples=self._num_samples,
            steps_per_epoch=steps_per_epoch,
            drop_last=self._drop_last,
            remaining_epochs=remaining_epochs,
            remaining_steps=remaining_steps,
            usd_per_gpu_hour=price,
            power_w=self._power_w,
            strategies=strategies,
            loader_workers=self._loader_workers,
            cores_per_node=os.cpu_count(),
        )
        plan = base.plan
        if self.graph is not None and plan.batch_per_gpu != self._curve_batch:
            self._curve_batch = plan.batch_per_gpu
            self._forecaster.know_layers(
                self.graph, self.cluster.gpu, plan.batch_per_gpu, plan.dtype
            )
        knowing = (
            self._forecaster
            if base in self._forecaster.measurements
            else self._forecaster.knowing(base)
        )
        rows, compared = answer_rows(knowing, base, query)
        return scaling.build(
            rows,
            compared=compared,
            deadline_s=deadline_s,
            budget_usd=budget_usd,
            loader_workers=self._loader_workers,
            base=base,
            run=run_id,
            batch_rule=batch_rule,
            coverage=self._forecaster.coverage,
            made_at=time.time(),
            epoch=epoch,
        )


def epochs_left(progress: Progress) -> float | None:
    """Epochs to the planned end, the earlier one where two were given; 0 beyond it."""
    total, per_epoch = progress.total_steps, progress.steps_per_epoch
    if total is None or not per_epoch:
        return None
    return max(0, total - progress.step) / per_epoch


def steps_left(progress: Progress) -> float | None:
    """Steps to the planned end; 0 beyond it."""
    total = progress.total_steps
    return None if total is None else float(max(0, total - progress.step))


def require(measurement: Measurement | None) -> Measurement:
    """The measurement, or a clear error where the run has not shown enough yet."""
    if measurement is None:
        raise UsageError(
            "no steady step measured yet: what_if() needs a few more optimizer steps. "
            "Call it after about 20 steps."
        )
    return measurement
