"""Why the time left moved: one clause in words, shown for a while after it was found."""

import msgspec

from scaledl.predictor.level import Level
from scaledl.predictor.recurring import Recurring
from scaledl.predictor.steps import Change

SHOWN_S = 30.0
PHASE_CHANGE = 1.3


class Cause(msgspec.Struct, kw_only=True):
    """The last change found. ``until_s`` is set when it is shown for the first time."""

    text: str = ""
    until_s: float | None = None
    trend: int = 0  # sign of the trend told last

    def note_trend(self, level: Level) -> None:
        """Takes in the step time's trend; told once, until it ends or turns."""
        sign = (level.slope_s > 0) - (level.slope_s < 0)
        if sign and sign != self.trend:
            share = abs(level.slope_s) * level.num_steps / max(level.mean_s, 1e-12)
            word = "slower" if sign > 0 else "faster"
            self.text = f"steps get steadily {word}, {share * 100:.0f} % over the last "
            self.text += f"{level.num_steps}"
            self.until_s = None
        self.trend = sign

    def note_steps(self, change: Change, *, first_epoch: int | None) -> None:
        """Takes in a lasting change of the step time.

        ``first_epoch``: length of the first epoch, if it is the only one that is over.
        """
        word = "slower" if change.ratio > 1 else "faster"
        text = f"steps {abs(change.ratio - 1) * 100:.0f} % {word} since step {change.step}"
        if first_epoch is not None and change.ratio < 1:
            is_near = abs(change.step - first_epoch) <= 0.05 * first_epoch + 4
            text += " (the first epoch was slower)" if is_near else ""
        self.text, self.until_s = text, None

    def note_sizes(self, change: Change) -> None:
        """Takes in a lasting change of the batches' size."""
        word = "larger" if change.ratio > 1 else "smaller"
        text = f"batches {abs(change.ratio - 1) * 100:.0f} % {word} since step {change.step}"
        self.text, self.until_s = text, None

    def note_refuted(self, what: str) -> None:
        """Takes in that the steps do not follow what was foretold of them."""
        self.text, self.until_s = f"steps do not follow {what}", None

    def note_phase(self, kind: str, seen: Recurring) -> None:
        """Looks whether the phase's last two costs differ from those before, for good."""
        before = seen.costs_s[1:-2]
        if len(before) < 2 or seen.growth() is not None:
            return
        mean, recent = sum(before) / len(before), seen.costs_s[-2:]
        if min(recent) <= PHASE_CHANGE * max(before) and max(recent) >= min(before) / PHASE_CHANGE:
            return
        ratio = sum(recent) / 2 / mean
        name = "evaluation" if kind == "eval" else f"phase {kind}"
        word = "slower" if ratio > 1 else "faster"
        self.text = f"{name} {abs(ratio - 1) * 100:.0f} % {word} since step {seen.last_step}"
        self.until_s = None
        seen.forget(keep=2)

    def shown(self, now_s: float) -> str:
        """The clause while it is news, else an empty text."""
        if not self.text:
            return ""
        if self.until_s is None:
            self.until_s = now_s + SHOWN_S
        return self.text if now_s <= self.until_s else ""
