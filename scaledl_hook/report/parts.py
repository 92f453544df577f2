"""Where a step's time goes, in one line, and what of it changed between two epochs."""

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


def sum_text(name: str, parts_s: dict[str, float], *, step_s: float) -> str:
    """``name 14.1 ms = transfer 4.3 + ...``: the shown parts add up to the shown sum.

    Unit and digits are those of the step, ``step_s``, so that one figure reads alike in each sum.
    """
    unit, factor = step_unit([step_s])
    decimals = decimals_by_doubt(step_s * factor, step_s * factor / 300, most=2)
    shown = split_sum([value * factor for value in parts_s.values()], decimals)
    terms = " + ".join(f"{part} {text}" for part, text in zip(parts_s, shown, strict=True))
    return f"{name} {sum(map(float, shown)):.{decimals}f} {unit} = {terms}"


def render_parts(parts: StepParts, name: str = "mean step") -> str:
    """``mean step 215.4 ms = compute 206.0 + ...``: of steady steps, far-out ones left out."""
    named = {name: getattr(parts, key) for key, name in PART_NAMES.items()}
    return sum_text(name, named, step_s=parts.total_s)


def changed_text(now: StepParts, before: StepParts) -> str:
    """Which parts of the step moved by more than 5 % of the step: ``input wait 31 ms to 4 ms``."""
    moved = []
    for key, name in PART_NAMES.items():
        was_s, is_s = getattr(before, key), getattr(now, key)
        if abs(is_s - was_s) > CHANGED_FRACTION * before.total_s:
            moved.append(f"{name} {format_seconds(was_s)} to {format_seconds(is_s)}")
    return ", ".join(moved)
