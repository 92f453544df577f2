"""The one facade of the predictor: learn measurements, predict steps, audit what was predicted."""

import math
from collections.abc import Iterable
from typing import Self

import msgspec

from scaledl.errors import StoreError, UsageError
from scaledl.predictor.analytic import FloatArray, forecast, step_draws
from scaledl.predictor.batch import BatchCurve, batch_curve
from scaledl.predictor.blend import pooled, wider, widest
from scaledl.predictor.conformal import ConformalScale
from scaledl.predictor.draws import normal_quantile
from scaledl.predictor.experience import Case, Experience, cases_of, shipped
from scaledl.predictor.shipped import shipped_layers
from scaledl.predictor.sight import look
from scaledl.records import (
    Basis,
    ClusterSpec,
    Coverage,
    GpuSpec,
    Interval,
    LayerGraph,
    Measurement,
    ParallelPlan,
    StepForecast,
    StepParts,
)

STATE_VERSION = 1
OLD_WEIGHT = 0.25
"""What a step of the older measurement of a regime counts against one of the newer."""
MAX_OLD_SHARE = 0.4
"""However long the older one was, the newer is at least 60 %: machines change."""


class _Scale(msgspec.Struct, frozen=True, kw_only=True):
    scores: tuple[float, ...]
    num_held: int
    num_seen: int


class _State(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    measurements: tuple[Measurement, ...]
    scales: dict[Basis, _Scale]


def _regime_key(m: Measurement) -> tuple[object, ...]:
    cluster, plan = m.cluster, m.plan
    return (
        m.signature,
        cluster.gpu.name,
        cluster.num_gpus,
        cluster.num_nodes,
        plan.strategy if cluster.num_gpus > 1 else "single",
        plan.shard,
        plan.batch_per_gpu,
        plan.grad_accum,
    )


def _mixed_parts(new: StepParts, old: StepParts, weight: float) -> StepParts:
    names = StepParts.__struct_fields__
    return StepParts(
        **{n: weight * getattr(new, n) + (1 - weight) * getattr(old, n) for n in names}
    )


def merge(new: Measurement, old: Measurement) -> Measurement:
    """One measurement of a regime from two; steps of the newer count four times as much.

    What the newer did not see (buckets, forward time, ...) is kept from the older.
    """
    old_weight = OLD_WEIGHT * max(1, old.num_steps)
    weight = max(1 - MAX_OLD_SHARE, max(1, new.num_steps) / (max(1, new.num_steps) + old_weight))
    kept = {
        name: getattr(new, name) if getattr(new, name) not in (None, ()) else getattr(old, name)
        for name in (
            "rank_sigma_s",
            "waiting_s",
            "forward_s",
            "backward_s",
            "buckets",
            "num_layers",
            "param_bytes",
        )
    }
    return msgspec.structs.replace(
        new,
        step_s=weight * new.step_s + (1 - weight) * old.step_s,
        parts=_mixed_parts(new.parts, old.parts, weight),
        step_sigma_s=weight * new.step_sigma_s + (1 - weight) * old.step_sigma_s,
        num_steps=new.num_steps + round(OLD_WEIGHT * old.num_steps),
        **kept,
    )


def _moved_parts(parts: StepParts, mean_s: float) -> StepParts:
    """Parts that sum to the moved mean: communication first, what it cannot give from all."""
    exposed_s = max(0.0, parts.comm_exposed_s + mean_s - parts.total_s)
    moved = msgspec.structs.replace(parts, comm_exposed_s=exposed_s)
    factor = mean_s / moved.total_s if moved.total_s > 0 else 1.0
    names = [name for name in StepParts.__struct_fields__ if name != "comm_hidden_s"]
    return msgspec.structs.replace(moved, **{n: factor * getattr(moved, n) for n in names})


class Forecaster:
    """Forecasts of one job's step on any count, from the regimes it was told of.

    Intervals of what was measured and of what was extrapolated fare differently, so each basis has
    its own conformal scale: many easy hits at the running count must not narrow a guess at 64.
    """

    def __init__(self, experience: Experience | None = None) -> None:
        self._experience = shipped() if experience is None else experience
        self._measurements: tuple[Measurement, ...] = ()  # the newest last
        self._scales: dict[Basis, ConformalScale] = {}
        self._curve: BatchCurve | None = None
        self._supposed: float | None = None  # log-sd of a job that nobody measured

    def know_layers(
        self, graph: LayerGraph, gpu: GpuSpec, batch: int | None, dtype: str = "float32"
    ) -> None:
        """Compute by the layers at other batches; nothing changes where they tell too little."""
        layers = shipped_layers()
        if layers is not None and batch:
            self._curve = batch_curve(layers.model, graph, gpu, batch, dtype)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The known regimes of the model learned last, the newest last."""
        if not self._measurements:
            return ()
        signature = self._measurements[-1].signature
        return tuple(m for m in self._measurements if m.signature == signature)

    @property
    def coverage(self) -> Coverage:
        """How often issued intervals held, over all audits at any level."""
        return self.coverage_at(0.9)

    def coverage_at(self, nominal: float) -> Coverage:
        """The same, shown beside the nominal level the intervals had."""
        num_seen = sum(scale.num_seen for scale in self._scales.values())
        num_held = sum(scale.num_held for scale in self._scales.values())
        seen = num_held / num_seen if num_seen else None
        return Coverage(nominal=nominal, seen=seen, n=num_seen)

    def suppose(self, measurement: Measurement, log_sigma: float) -> None:
        """Take a step that was told and never ran for the job, until one is learned.

        Every forecast has then the basis "prior" and is unsure by ``log_sigma`` (log-sd) more.
        """
        self._measurements, self._supposed = (measurement,), log_sigma

    def learn(self, measurement: Measurement) -> None:
        """Take in a regime; one already known is merged, the newer counting most."""
        if self._supposed is not None:
            self._measurements, self._supposed = (), None
        key = _regime_key(measurement)
        old = next((m for m in self._measurements if _regime_key(m) == key), None)
        rest = tuple(m for m in self._measurements if m is not old)
        newest = measurement if old is None else merge(measurement, old)
        self._measurements = (*rest, newest)

    def remember(self, past: Iterable[Measurement]) -> None:
        """Take in what the user's earlier jobs, of any model, say about scaling.

        It is not part of ``to_bytes``: the store of runs tells it anew.
        """
        jobs: dict[tuple[str, str], dict[tuple[object, ...], Measurement]] = {}
        for m in past:
            jobs.setdefault((m.signature, m.cluster.gpu.name), {})[_regime_key(m)] = m
        cases: list[Case] = []
        for key, known in jobs.items():
            cases += cases_of("/".join(key), tuple(known.values()))
        self._experience = self._experience.with_own(cases)

    def knowing(self, measurement: Measurement) -> "Forecaster":
        """This forecaster if it knows the regime, else a copy that learned it."""
        known = {_regime_key(m) for m in self.measurements}
        if _regime_key(measurement) in known:
            return self
        copy = Forecaster(self._experience)
        copy._measurements, copy._scales = self._measurements, self._scales
        copy._curve = self._curve
        copy.learn(measurement)
        return copy

    def predict(self, cluster: ClusterSpec, plan: ParallelPlan, level: float = 0.9) -> StepForecast:
        """The step on ``cluster`` under ``plan``, its interval adjusted by past audits.

        Raises:
            UsageError: nothing was learned, or the plan does not fit the cluster.
        """
        if not self._measurements:
            raise UsageError("nothing measured yet, got no measurement. Run some steps first.")
        told = forecast(self.measurements, cluster, plan, level, self._curve)
        raw = self._experienced(told)
        if self._supposed is not None:
            doubt = math.exp(normal_quantile(level) * self._supposed)
            lived = Interval(mean=1.0, low=1 / doubt, high=doubt, level=level)
            return msgspec.structs.replace(
                raw,
                step_s=wider(raw.step_s, lived),
                basis="prior",
                caveats=(*(c for c in raw.caveats if c != "far-extrapolation"), "not-run"),
            )
        scale = self._scales.get(raw.basis)
        if scale is None:
            return raw
        return msgspec.structs.replace(raw, step_s=scale.adjust(raw.step_s))

    def step_draws(self, cluster: ClusterSpec, plan: ParallelPlan) -> FloatArray:
        """Seconds of the step by draw of the model's parameters, as ``analytic.step_draws``."""
        return step_draws(self.measurements, cluster, plan, self._curve)

    def _experienced(self, told: StepForecast) -> StepForecast:
        """The forecast as earlier jobs correct it; as it is where they have no say."""
        unseen = told.plan.strategy not in {m.plan.strategy for m in self.measurements}
        if unseen and told.plan.strategy in ("fsdp", "hsdp"):
            return self._doubted(told)
        sight = look(self.measurements, told)
        lived = self._experience.interval(sight, told.step_s.level) if sight is not None else None
        if lived is None:
            return told
        if "size-unknown" in told.caveats:
            step_s = lived  # as in the jobs that it was learned from
        elif sight is not None and self._experience.leads(sight, told.step_s.level):
            step_s = pooled(told.step_s, lived)
        else:
            step_s = widest(told.step_s, lived)
        if step_s == told.step_s:
            return told
        parts = _moved_parts(told.parts, step_s.mean)
        return msgspec.structs.replace(told, step_s=step_s, parts=parts)

    def _doubted(self, told: StepForecast) -> StepForecast:
        """A sharded forecast of a job that never ran so: as unsure as one that is not, and more."""
        plain = msgspec.structs.replace(told.plan, strategy="ddp", shard=1)
        sight = look(self.measurements, msgspec.structs.replace(told, plan=plain))
        lived = self._experience.interval(sight, told.step_s.level) if sight is not None else None
        return (
            told
            if lived is None
            else msgspec.structs.replace(told, step_s=wider(told.step_s, lived))
        )

    def audit(self, forecast: StepForecast, truth_s: float) -> None:
        """Compare an issued forecast with the step that came true; do it before ``learn``."""
        self._scales.setdefault(forecast.basis, ConformalScale()).record(forecast.step_s, truth_s)

    def to_bytes(self) -> bytes:
        """The state as JSON; ``from_bytes`` gives a forecaster with identical predictions."""
        scales = {
            basis: _Scale(scores=s.scores, num_held=s.num_held, num_seen=s.num_seen)
            for basis, s in sorted(self._scales.items())
        }
        state = _State(version=STATE_VERSION, measurements=self._measurements, scales=scales)
        return msgspec.json.encode(state)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The forecaster that ``to_bytes`` saved.

        Raises:
            StoreError: the bytes are damaged or from a newer scaledl.
        """
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version > STATE_VERSION:
                raise StoreError(
                    f"forecaster state has version {version}, this scaledl reads up to "
                    f"{STATE_VERSION}. Upgrade: pip install -U scaledl"
                )
            state = msgspec.json.decode(data, type=_State)
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreError(
                f"forecaster state is unreadable: {error}. Delete it; it is learned anew."
            ) from error
        made = cls()
        made._measurements = state.measurements
        made._scales = {
            basis: ConformalScale(saved.scores, saved.num_held, saved.num_seen)
            for basis, saved in state.scales.items()
        }
        return made


class _Version(msgspec.Struct, frozen=True):
    version: int
