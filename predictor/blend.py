"""Two intervals of one step as one: what the step model says and what earlier jobs say."""

import math

from scaledl.predictor.draws import normal_quantile
from scaledl.records import Interval


def pooled(model: Interval, lived: Interval) -> Interval:
    """The step model and experience, weighted by their variances in log space.

    Experience was gathered where the bytes to exchange were unknown. Where they are known the model
    knows more than it did there. Both saw the same measurements, so that agreeing they are no surer
    than each alone: the width is their weighted mean, plus how far they are apart. A model
    outside what experience holds possible is of a case never lived through: it stands as it is.
    """
    if model.mean not in lived or model.low <= 0:
        return model
    z = normal_quantile(model.level)
    sigmas = [max(1e-6, math.log(i.high / i.low) / 2 / z) for i in (model, lived)]
    weight = sigmas[0] ** -2 / (sigmas[0] ** -2 + sigmas[1] ** -2)
    apart = math.log(model.mean / lived.mean)
    variance = weight * sigmas[0] ** 2 + (1 - weight) * sigmas[1] ** 2
    spread = math.exp(z * math.sqrt(variance + weight * (1 - weight) * apart**2))
    mean = lived.mean * math.exp(weight * apart)
    return Interval(mean=mean, low=mean / spread, high=mean * spread, level=model.level)


def widest(model: Interval, lived: Interval) -> Interval:
    """The model's mean, each end as far off as the farther of both: a few jobs only add doubt.

    A model outside what experience holds possible stands as it is, as in ``pooled``.
    """
    if model.mean not in lived or model.low <= 0:
        return model
    low = model.mean * min(model.low / model.mean, lived.low / lived.mean)
    high = model.mean * max(model.high / model.mean, lived.high / lived.mean)
    return Interval(mean=model.mean, low=low, high=high, level=model.level)


def wider(model: Interval, lived: Interval) -> Interval:
    """The model's mean with both doubts, which have nothing to do with each other."""
    if min(model.low, lived.low) <= 0:
        return model
    below = math.hypot(math.log(model.mean / model.low), math.log(lived.mean / lived.low))
    above = math.hypot(math.log(model.high / model.mean), math.log(lived.high / lived.mean))
    low, high = model.mean * math.exp(-below), model.mean * math.exp(above)
    return Interval(mean=model.mean, low=low, high=high, level=model.level)
