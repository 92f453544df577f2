"""The one facade of the predictor: learn measurements, predict steps, audit what was predicted."""

from typing import Self

import msgspec

from scaledl.errors import StoreError, UsageError
from scaledl.predictor.analytic import forecast
from scaledl.predictor.conformal import ConformalScale
from scaledl.records import (
    Basis,
    ClusterSpec,
    Coverage,
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


class Forecaster:
    """Forecasts of one job's step on any count, from the regimes it was told of.

    Intervals of what was measured and of what was extrapolated fare differently, so each basis has
    its own conformal scale: many easy hits at the running count must not narrow a guess at 64.
    """

    def __init__(self) -> None:
        self._measurements: tuple[Measurement, ...] = ()  # the newest last
        self._scales: dict[Basis, ConformalScale] = {}

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

    def learn(self, measurement: Measurement) -> None:
        """Take in a regime; one already known is merged, the newer counting most."""
        key = _regime_key(measurement)
        old = next((m for m in self._measurements if _regime_key(m) == key), None)
        rest = tuple(m for m in self._measurements if m is not old)
        newest = measurement if old is None else merge(measurement, old)
        self._measurements = (*rest, newest)

    def knowing(self, measurement: Measurement) -> "Forecaster":
        """This forecaster if it knows the regime, else a copy that learned it."""
        known = {_regime_key(m) for m in self.measurements}
        if _regime_key(measurement) in known:
            return self
        copy = Forecaster()
        copy._measurements, copy._scales = self._measurements, self._scales
        copy.learn(measurement)
        return copy

    def predict(self, cluster: ClusterSpec, plan: ParallelPlan, level: float = 0.9) -> StepForecast:
        """The step on ``cluster`` under ``plan``, its interval adjusted by past audits.

        Raises:
            UsageError: nothing was learned, or the plan does not fit the cluster.
        """
        if not self._measurements:
            raise UsageError("nothing measured yet, got no measurement. Run some steps first.")
        raw = forecast(self.measurements, cluster, plan, level)
        scale = self._scales.get(raw.basis)
        if scale is None:
            return raw
        return msgspec.structs.replace(raw, step_s=scale.adjust(raw.step_s))

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
