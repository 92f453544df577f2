"""Where a step's time goes, in one line, and what of it changed between two epochs."""

import msgspec

from scaledl.records import StepParts
from scaledl.report.text import decimals_by_doubt, split_sum, step_unit
from scaledl.units import format_seconds

# In later epochs a part is mentioned when it moved by more than this share of the step.
CHANGED_FRACTION = 0.05
EXPOSED = "exposed comm."
PART_NAMES = {
    "compute_s": "compute",
    "comm_exposed_s": EXPOSED,
    "input_wait_s": "input wait",
    "optimizer_s": "optimizer",
    "other_s": "other",
}


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Figures as printed, in one unit and with digits that fit the step: they add up as shown."""

    unit: str
    factor: float
    decimals: int
    figures: dict[str, str]

    def digits(self, value: float) -> str:
        """A number of this unit with the digits of the others."""
        return f"{value:.{self.decimals}f}"


def shown_parts(parts: StepParts) -> Shown:
    """The step's parts by their keys."""
    unit, factor = step_unit([parts.total_s])
    whole = parts.total_s * factor
    decimals = decimals_by_doubt(whole, whole / 300, most=2)
    figures = split_sum([getattr(parts, key) * factor for key in PART_NAMES], decimals)
    named = dict(zip(PART_NAMES, figures, strict=True))
    return Shown(unit=unit, factor=factor, decimals=decimals, figures=named)


def render_parts(parts: StepParts, name: str = "mean step") -> str:
    """``mean step 215.4 ms = compute 206.0 + ...``: of steady steps, far-out ones left out."""
    shown = shown_parts(parts)
    whole = shown.digits(sum(map(float, shown.figures.values())))
    terms = " + ".join(f"{PART_NAMES[key]} {text}" for key, text in shown.figures.items())
    return f"{name} {whole} {shown.unit} = {terms}"


def changed_text(now: StepParts, before: StepParts) -> str:
    """Which parts of the step moved by more than 5 % of the step: ``input wait 31 ms to 4 ms``."""
    moved = []
    for key, name in PART_NAMES.items():
        was_s, is_s = getattr(before, key), getattr(now, key)
        if abs(is_s - was_s) > CHANGED_FRACTION * before.total_s:
            moved.append(f"{name} {format_seconds(was_s)} to {format_seconds(is_s)}")
    return ", ".join(moved)
