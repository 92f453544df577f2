"""Fits the layer model: robust least squares on log time, drawn to the roofline where data is thin.

minimise  mean_i H(log t_i - log T_i) + sum of L/2 (parameter - start)^2     subject to w >= 0

with H the pseudo-Huber loss (one bad measurement counts like an absolute error). The start is a
roofline with a launch cost, or a model that was fitted before. Exponents of the GPU's peak and
bandwidth are held thirty times more firmly than the others: a set has few GPUs.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from scaledl.errors import UsageError
from scaledl.predictor.layer_work import FEATURES, LayerWork, features
from scaledl.predictor.layers import LayerModel, TypeModel, key, norm_of_terms
from scaledl.records import GpuSpec

FloatArray = NDArray[np.float64]

HUBER = 0.2
"""Where the loss turns from square to straight, in log time: a miss of 20 %."""
FIRM = 1e-2  # L of exponents and device terms
FIRM_DEVICE_EXPONENTS = 0.3  # L of the exponents of peak and bandwidth
FIRM_SCALE = 1e-3  # L of c_k: how far from its peak a GPU works is what data must tell
MAX_ITERATIONS = 250

_START = (
    # log seconds, exponent of FLOPs over peak, of bytes over bandwidth
    (np.log(8e-6), 0.0, 0.0),  # a launch: some microseconds on every GPU
    (np.log(1.3), 0.0, 1.0),  # three quarters of the bandwidth
    (np.log(1.5), 1.0, 0.0),  # two thirds of the peak
    (np.log(0.1), 0.5, 0.5),
    (np.log(1e-6), 0.0, 0.0),  # grows with the sizes that data gives it
)
_FREE = FEATURES.index("taps")


class LayerExample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured pass. ``with_forward`` is a forward pass that ``time_s`` includes as well."""

    work: LayerWork
    gpu: GpuSpec
    time_s: float
    with_forward: LayerWork | None = None


def fit_layers(examples: Sequence[LayerExample], start: LayerModel | None = None) -> LayerModel:
    """A model of every type and direction that the examples hold; others are kept from ``start``.

    Raises:
        UsageError: a time that is not above 0.
    """
    for example in examples:
        if not 0 < example.time_s < np.inf:
            raise UsageError(
                f"a {example.work.kind} layer has the time {example.time_s}. Leave out passes that "
                "were not measured."
            )
    groups: dict[str, list[LayerExample]] = {}
    for example in examples:
        groups.setdefault(key(example.work.kind, example.work.direction), []).append(example)
    model = start or LayerModel()
    # forward first: what of a whole step is backward is only known once forward is
    for name in sorted(groups, key=lambda name: name.endswith("/backward")):
        fitted = _fit_type(groups[name], _beside_s(groups[name], model), model.types.get(name))
        model = LayerModel(types={**model.types, name: fitted})
    return model


def _beside_s(examples: Sequence[LayerExample], model: LayerModel) -> FloatArray:
    """Predicted seconds of the forward passes that are within the examples' times. Shape: [n]."""
    seconds = np.zeros(len(examples))
    members = [i for i, example in enumerate(examples) if example.with_forward is not None]
    works = [w for example in examples if (w := example.with_forward) is not None]
    seconds[members] = model.predict_s(works, [examples[i].gpu for i in members])
    return seconds


class _Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Scale, exponents and device terms side by side. Shapes: [K], [K, 9 + devices]."""

    scale: FloatArray
    weights: FloatArray

    def flat(self) -> FloatArray:
        return np.concatenate([self.scale, self.weights.ravel()])

    def like(self, flat: FloatArray) -> "_Parameters":
        size = len(self.scale)
        return _Parameters(scale=flat[:size], weights=flat[size:].reshape(self.weights.shape))


def _starting(model: TypeModel | None, gpu_names: Sequence[str]) -> _Parameters:
    if model is not None:
        scale, exponents = np.array(model.log_scale), np.array(model.exponents)
        zero = (0.0,) * len(scale)
        devices = np.array([model.devices.get(name, zero) for name in gpu_names]).T
        return _Parameters(scale=scale, weights=np.hstack([exponents, devices]))
    exponents = np.zeros((len(_START), len(FEATURES)))
    for k, (_, compute, memory) in enumerate(_START):
        exponents[k, FEATURES.index("flops")] = exponents[k, FEATURES.index("peak")] = compute
        exponents[k, FEATURES.index("num_bytes")] = memory
        exponents[k, FEATURES.index("bandwidth")] = memory
    devices = np.zeros((len(_START), len(gpu_names)))
    return _Parameters(
        scale=np.array([scale for scale, _, _ in _START]), weights=np.hstack([exponents, devices])
    )


def _fit_type(
    examples: Sequence[LayerExample], beside_s: FloatArray, before: TypeModel | None
) -> TypeModel:
    names = sorted({example.gpu.name for example in examples})
    logs = features([e.work for e in examples], [e.gpu for e in examples])
    is_gpu = np.array([[e.gpu.name == name for name in names] for e in examples], dtype=np.float64)
    start = _starting(before, names)
    # Centred columns: then a change of an exponent does not move every time, and the fit converges.
    columns = np.hstack([logs, is_gpu])
    centre = np.concatenate([logs.mean(axis=0), np.zeros(len(names))])
    shifted = _Parameters(scale=start.scale + start.weights @ centre, weights=start.weights)
    found = _minimised(columns - centre, np.log([e.time_s for e in examples]), beside_s, shifted)
    exponents, devices = found.weights[:, : len(FEATURES)], found.weights[:, len(FEATURES) :]
    known = dict(before.devices) if before is not None else {}
    known |= {name: tuple(devices[:, i].tolist()) for i, name in enumerate(names)}
    return TypeModel(
        log_scale=tuple((found.scale - found.weights @ centre).tolist()),
        exponents=tuple(tuple(row) for row in exponents.tolist()),
        devices=known,
    )


def _minimised(
    columns: FloatArray, log_s: FloatArray, beside_s: FloatArray, start: _Parameters
) -> _Parameters:
    firm = _firmness(start)
    first = start.flat()
    with np.errstate(divide="ignore"):
        beside_log = np.log(beside_s)  # -inf where a time holds nothing else

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        now = start.like(flat)
        own_log, shares = norm_of_terms(columns @ now.weights.T + now.scale)
        whole_log = np.logaddexp(own_log, beside_log)
        off = whole_log - log_s
        bend = np.sqrt(1 + (off / HUBER) ** 2)
        # chain rule: Huber's slope, the own share of the whole time, the term's share of that
        slope = (off / bend * np.exp(own_log - whole_log) / len(off))[:, None] * shares
        gradient = np.concatenate([slope.sum(axis=0), (slope.T @ columns).ravel()])
        drawn = firm * (flat - first)
        value = HUBER**2 * float((bend - 1).mean()) + 0.5 * float(drawn @ (flat - first))
        return value, gradient + drawn

    result = minimize(
        loss,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=_bounds(start),
        options={"maxiter": MAX_ITERATIONS, "ftol": 1e-10, "gtol": 1e-7, "maxcor": 20},
    )
    return start.like(np.asarray(result.x))


def _firmness(start: _Parameters) -> FloatArray:
    weights = np.full(start.weights.shape, FIRM)
    for name in ("peak", "bandwidth"):
        weights[:, FEATURES.index(name)] = FIRM_DEVICE_EXPONENTS
    return np.concatenate([np.full(start.scale.shape, FIRM_SCALE), weights.ravel()])


def _bounds(start: _Parameters) -> list[tuple[float, float]]:
    low = np.full(start.weights.shape, -np.inf)
    low[:, : len(FEATURES)] = 0.0
    low[:, _FREE] = -np.inf
    lows = [-np.inf] * len(start.scale) + low.ravel().tolist()
    return [(value, np.inf) for value in lows]
