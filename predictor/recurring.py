"""What comes back: evaluations, named phases, checkpoint pauses, each with its rhythm and cost.

A rhythm is learned in optimizer steps. A regular one (equal gaps) gives an exact count of what is
still to come; an irregular one gives a rate. One occurrence alone leaves both readings open.
"""

import math

import msgspec

REGULAR_CV = 0.15  # gaps that differ by less are a rhythm, not chance
KEEP = 16  # costs kept to see growth
GROWTH_T = 4.0  # t value from which growth is believed
GROWTH_BOUND = 3.0  # a growing cost is extrapolated to this multiple of its last level at most
FIRST_SLOW = 1.1  # a first occurrence slower than this by the rest is a one-off (caches, compile)
# What later evaluations are taken to cost as share of a first one: half way between the same and
# the median of 22 recorded runs (0.02 to 1.0, median 0.86; the development half of
# benchmarks/eta_accuracy.py).
LATER_SHARE = 0.93
OVERDUE = 1.25  # in periods: after so long without one, a rhythm seen once was none


class Moments(msgspec.Struct):
    """Count, mean and summed squares of deviations, updated one by one (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def add(self, value: float) -> None:
        """Takes one value in."""
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (value - self.mean)

    def replace(self, old: float, new: float) -> None:
        """Puts ``new`` in the place of ``old``, a value taken in before."""
        mean = self.mean + (new - old) / self.n
        self.m2 = max(self.m2 + (new - old) * (old - self.mean + new - mean), 0.0)
        self.mean = mean

    @property
    def sd(self) -> float:
        """Standard deviation of one value."""
        return math.sqrt(self.m2 / (self.n - 1)) if self.n > 1 else 0.0


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A sum still to come: mean and variance; what it may cost beyond either way."""

    mean_s: float = 0.0
    variance: float = 0.0
    above_s: float = 0.0
    below_s: float = 0.0

    def __add__(self, other: "Expected") -> "Expected":
        return Expected(
            mean_s=self.mean_s + other.mean_s,
            variance=self.variance + other.variance,
            above_s=self.above_s + other.above_s,
            below_s=self.below_s + other.below_s,
        )


class Recurring(msgspec.Struct, kw_only=True):
    """One kind of cost that comes back. ``origin`` is the step at which watching began."""

    origin: int
    count: int = 0
    first_step: int = 0
    last_step: int = 0
    first_cost_s: float = 0.0
    gap: Moments = msgspec.field(default_factory=Moments)
    cost: Moments = msgspec.field(default_factory=Moments)
    costs_s: list[float] = []

    def add(self, step: int, cost_s: float) -> None:
        """Takes in one occurrence after ``step`` steps; a second one there adds to the first."""
        if self.count and step == self.last_step:
            old = self.costs_s[-1]
            self.costs_s[-1] = old + cost_s
            self.cost.replace(old, old + cost_s)
            if self.count == 1:
                self.first_cost_s = old + cost_s
            return
        if self.count and step > self.last_step:
            self.gap.add(step - self.last_step)
        if not self.count:
            self.first_step, self.first_cost_s = step, cost_s
        self.count += 1
        self.last_step = step
        self.cost.add(cost_s)
        self.costs_s = [*self.costs_s[1 - KEEP :], cost_s]

    def forget(self, *, keep: int) -> None:
        """Keeps only the last ``keep`` costs (the cost changed for good); the rhythm stays."""
        self.costs_s = self.costs_s[-keep:]
        self.cost = Moments()
        for cost in self.costs_s:
            self.cost.add(cost)
        self.first_cost_s = self.costs_s[0]

    # --- how often ----------------------------------------------------------------------------

    def period(self, steps_per_epoch: int | None) -> float | None:
        """Steps from one to the next if that is regular, else ``None``.

        One occurrence at an epoch's end is taken as one an epoch.
        """
        if self.gap.n >= 2:
            regular = self.gap.sd <= REGULAR_CV * self.gap.mean + 0.5
            return self.gap.mean if regular else None
        if self.gap.n == 1:
            return self.gap.mean
        if steps_per_epoch and self.last_step and self.last_step % steps_per_epoch == 0:
            return float(steps_per_epoch)
        return None

    def is_due(self, step: int, steps_per_epoch: int | None) -> bool:
        """Whether the rhythm puts an occurrence right after ``step``, not yet seen."""
        period = self.period(steps_per_epoch)
        return (
            period is not None and step > self.last_step and step - self.last_step >= period - 0.5
        )

    def times_left(self, start: int, stop: int, period: float, *, with_stop: bool) -> int:
        """How often a regular one comes back after ``start`` steps and until ``stop``."""
        last = self.last_step
        seen = max(last, start - 1) if start >= last else start - 1
        until = math.floor((stop - last - (not with_stop)) / period + 0.05)
        return max(until - math.floor((seen - last) / period + 1e-9), 0)

    # --- how much -----------------------------------------------------------------------------

    def typical_s(self) -> float:
        """Mean cost, without a first occurrence that was clearly slower than the others."""
        if self.cost.n == 1:
            return LATER_SHARE * self.first_cost_s
        rest = self._rest_s()
        return rest if self.first_cost_s > FIRST_SLOW * rest else self.cost.mean

    def _rest_s(self) -> float:
        n = self.cost.n
        return (self.cost.mean * n - self.first_cost_s) / (n - 1)

    def spread_s(self) -> float:
        """Standard deviation of one cost; half of it while a single one is known."""
        typical = self.typical_s()
        if self.cost.n < 2:
            return 0.5 * typical
        if typical == self.cost.mean:
            return max(self.cost.sd, 0.02 * typical)
        kept = self.costs_s[1:] if self.cost.n == len(self.costs_s) else self.costs_s
        if len(kept) < 2:
            return 0.3 * typical
        return max(
            math.sqrt(sum((c - typical) ** 2 for c in kept) / (len(kept) - 1)), 0.02 * typical
        )

    def growth(self) -> tuple[float, float] | None:
        """Last level and growth from one occurrence to the next, if growth is beyond doubt."""
        n = len(self.costs_s)
        if n < 6:
            return None
        mid, mean = (n - 1) / 2, sum(self.costs_s) / n
        sxx = n * (n * n - 1) / 12
        slope = sum((i - mid) * c for i, c in enumerate(self.costs_s)) / sxx
        rest = sum((c - mean - slope * (i - mid)) ** 2 for i, c in enumerate(self.costs_s))
        error = math.sqrt(max(rest, 0.0) / (n - 2) / sxx)
        if abs(slope) <= GROWTH_T * error or abs(slope) * n < 0.1 * mean:
            return None
        return mean + slope * mid, slope

    def total(self, count: float, count_variance: float) -> Expected:
        """Cost of ``count`` occurrences to come."""
        if count <= 0:
            return Expected()
        each, sd, extra_sd = self.typical_s(), self.spread_s(), 0.0
        grown = self.growth()
        if grown is not None:
            level, slope = grown
            middle = level + slope * (count + 1) / 2
            middle = min(max(middle, level / GROWTH_BOUND), level * GROWTH_BOUND)
            extra_sd = 0.5 * abs(middle - level)
            each = middle
        variance = (
            count * sd**2
            + (count * sd) ** 2 / self.count
            + (count * extra_sd) ** 2
            + each**2 * count_variance
        )
        return Expected(mean_s=count * each, variance=variance)


def phase_cost(
    seen: Recurring, start: int, stop: int, *, steps_per_epoch: int | None, opens: bool, final: bool
) -> Expected:
    """Cost of a phase from ``start`` to ``stop``.

    ``opens`` tells that the phase comes before the steps it belongs to (a rollout before its
    updates), so that none follows the last step; ``final`` that ``stop`` is an end whose own
    phase counts.
    """
    period = seen.period(steps_per_epoch)
    if period is not None:
        with_stop = final and not (opens and seen.first_step <= seen.origin)
        count = seen.times_left(start, stop, period, with_stop=with_stop)
        doubt = 0.25 * count**2 if seen.gap.n == 0 and seen.count == 1 else 0.0
        return seen.total(count, doubt)
    if seen.count == 1 and seen.first_step <= seen.origin:
        return Expected()  # once, before the first step: no sign yet that it comes back
    if seen.count == 1:
        period = max(seen.first_step - seen.origin, 1)
        quiet = start - seen.last_step
        if quiet > OVERDUE * period:
            # A gap longer than the quiet time q, all sizes alike: the mean of 1 / gap is 1 / 2q.
            rare = (stop - start) / (2 * quiet)
            return seen.total(rare, rare**2 / 3 + rare)
        count = seen.times_left(start, stop, float(period), with_stop=final)
        return seen.total(count, 0.25 * count**2)
    mean = (stop - start) / seen.gap.mean
    return seen.total(mean, mean + mean**2 / seen.count)


def pause_cost(seen: Recurring, start: int, stop: int, *, watched: int, cap_s: float) -> Expected:
    """Cost of one kind of pause inside step times, after ``watched`` steps.

    A pause seen once may be a one-off: it counts half, at most ``cap_s`` a step, and the rest of
    what it would cost as a rhythm goes to ``above_s``.
    """
    period = seen.period(None)
    since_origin = seen.first_step + 1 - seen.origin
    if period is not None and seen.gap.n == 1 and abs(since_origin - period) > 0.1 * period:
        period = None  # two pauses make a rhythm only if the first fits into it
    if period is not None and start - seen.last_step <= 2 * period:
        count = seen.times_left(start, stop, period, with_stop=False)
        return seen.total(count, 0.25 + (0.1 * count / seen.gap.n) ** 2)
    steps = stop - start
    mean = seen.count / max(watched, 1) * steps
    if seen.count == 1:
        full = mean * seen.cost.mean
        half = min(0.5 * full, cap_s * steps)
        return Expected(mean_s=half, variance=(0.5 * half) ** 2, above_s=full - half)
    return seen.total(mean, mean + mean**2 / seen.count)
