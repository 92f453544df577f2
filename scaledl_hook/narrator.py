"""What rank 0 says while the run goes on: the live line, changes of the ETA, reports, the end."""

from collections.abc import Callable, Sequence

import msgspec

from scaledl.bars import UserBars
from scaledl.records import (
    EpochSummary,
    Eta,
    Measurement,
    Note,
    PhaseRecord,
    Progress,
    RunEnd,
    ScalingReport,
)
from scaledl.report import live
from scaledl.report.console import render_end, render_epoch
from scaledl.report.exchange import Transfer
from scaledl.report.when import limit_text, reached_text, short_texts
from scaledl.speaker import Speaker

LEARNING_STEPS = 20  # until then a number is not earned and the line says "learning"


class Narrator:
    """Decides what is worth saying and says it once.

    Args:
        speaker: The stream.
        now: Wall clock, seconds since the epoch of Unix.
        bars: The user's own bars; one that is alive takes the place of the live line.
    """

    def __init__(
        self, speaker: Speaker, now: Callable[[], float], bars: UserBars | None = None
    ) -> None:
        self._speaker = speaker
        self._bars = bars or UserBars(is_on=False)
        self._now = now
        started_s = now()
        self._redrawn = live.LinePolicy(is_tty=True, started_s=started_s)
        self._sparse = live.LinePolicy(is_tty=False, started_s=started_s)
        self._is_on_bar = False
        self._said: set[str] = set()
        self._summary: EpochSummary | None = None
        self._report: ScalingReport | None = None
        self.first_eta: Eta | None = None
        self.shown: Eta | None = None  # as calm as the live line
        self.notes: list[Note] = []

    def tell(self, key: str, text: str) -> Note | None:
        """A guess or a loss, once for each ``key``; returns the note to record, if new."""
        if key in self._said:
            return None
        self._said.add(key)
        note = Note(at_s=self._now(), key=key, text=text)
        self.notes.append(note)
        self._speaker.notice(text)
        return note

    def progress(
        self, eta: Eta, progress: Progress, step_s: float | None, usd_per_hour: float | None
    ) -> None:
        """Draw the live line if it is due."""
        now_s = self._now()
        seen = progress.step - progress.first_step
        if self.first_eta is None and eta.remaining_s is not None and seen >= LEARNING_STEPS:
            self.first_eta = eta
        speaker = self._speaker
        fresh = self._redraw(eta, progress, now_s)
        if speaker.is_silent:
            return
        is_redrawn = speaker.redraws and (self._is_on_bar or not speaker.is_shared)
        shown = fresh if is_redrawn else self._seldom(eta, progress, now_s)
        if shown is None:
            return
        self._say_change(shown, now_s)
        if not speaker.redraws:
            speaker.line(live.render_log_line(shown.eta, progress, step_s=step_s, now_s=now_s))
        elif not self._is_on_bar:
            speaker.line(
                live.render_line(
                    shown.eta,
                    progress,
                    step_s=step_s,
                    now_s=now_s,
                    width=speaker.width,
                    unicode=speaker.unicode,
                    usd_per_hour=usd_per_hour,
                    learning=(seen, LEARNING_STEPS) if seen < LEARNING_STEPS else None,
                )
            )

    def _redraw(self, eta: Eta, progress: Progress, now_s: float) -> live.Shown | None:
        """What a line that is redrawn shows now, put on a bar of the user's if one takes it."""
        if not self._redrawn.is_due(progress, now_s):
            return None
        fresh = self._redrawn.calm(eta, now_s)
        self.shown = fresh.eta
        if not self._speaker.is_silent:
            texts = () if live.is_beyond(progress) else short_texts(fresh.eta, now_s)
            self._is_on_bar = self._bars.show(texts)
            if self._is_on_bar:
                self._speaker.clear_output()
        return fresh

    def _seldom(self, eta: Eta, progress: Progress, now_s: float) -> live.Shown | None:
        """What a line that stays shows: in a log, and above a bar that takes no text."""
        is_due = self._sparse.is_due(progress, now_s)
        return self._sparse.calm(eta, now_s) if is_due else None

    def _say_change(self, shown: live.Shown, now_s: float) -> None:
        if shown.replaced is not None:
            text = live.render_change(
                shown.replaced, shown.eta, now_s, unicode=self._speaker.unicode
            )
            self._speaker.notice(text.removeprefix(live.NAME))

    def leave_bars(self) -> None:
        """Give the user's bar back as it was."""
        self._bars.leave()

    def epoch(
        self,
        summary: EpochSummary,
        report: ScalingReport | None,
        phases_left_s: float | None = None,
    ) -> None:
        """Print an epoch's report: whole the first time, later what changed."""
        speaker = self._speaker
        text = render_epoch(
            summary,
            report,
            width=min(speaker.width, 100),
            unicode=speaker.unicode,
            color=speaker.color,
            repeat=self._summary is not None,
            previous=self._summary,
            previous_report=self._report,
            phases_left_s=phases_left_s,
        )
        speaker.block(text + self._limit_line())
        self._summary = summary
        self._report = report or self._report

    def _limit_line(self) -> str:
        """Beside the time left in a report: that the job's time limit leaves less."""
        limit = None if self.shown is None else self.shown.limit
        if limit is None or not limit.is_sure:
            return ""
        where = reached_text(limit)
        at = limit_text(limit, self._now())
        return f"\n  the {at} comes first{f', {where}' if where else ''}."

    def end(
        self,
        end: RunEnd,
        *,
        run: str,
        duration_s: float,
        num_steps: int,
        energy_j: float | None,
        energy_of: tuple[int, int],
        cost_usd: float | None,
        cpu_run: bool,
    ) -> None:
        """The last words."""
        speaker = self._speaker
        speaker.end_line()
        if num_steps == 0:
            self.tell("no-steps", "no optimizer step was seen: nothing was measured.")
            return
        speaker.block(
            render_end(
                end,
                run=run,
                duration_s=duration_s,
                num_steps=num_steps,
                first_eta=self.first_eta,
                energy_j=energy_j,
                energy_of=energy_of,
                cost_usd=cost_usd,
                cpu_run=cpu_run,
                width=min(speaker.width, 100),
                unicode=speaker.unicode,
                color=speaker.color,
            )
        )


def summarise_epoch(
    measured: Measurement,
    *,
    run: str,
    model: str,
    epoch: int,
    num_epochs: int | None,
    duration_s: float,
    ended_s: float,
    phases: Sequence[PhaseRecord],
    num_steps: int,
    transfer: Transfer | None = None,
    **more: object,
) -> EpochSummary:
    """The heading of an epoch's report. ``phases``: all since the epoch before it closed.

    ``transfer`` is that of a step's collectives, hidden part and all.
    """
    begins_s = ended_s - duration_s
    inside = [p for p in phases if p.at_s >= begins_s]
    eval_s = sum(p.duration_s for p in inside if p.kind == "eval")
    return EpochSummary(
        run=run,
        model=model,
        epoch=epoch,
        num_epochs=num_epochs,
        duration_s=duration_s,
        eval_s=eval_s,
        pause_s=sum(p.duration_s for p in inside) - eval_s,
        before_s=sum(p.duration_s for p in phases if p.at_s < begins_s),
        num_steps=num_steps,
        cluster=measured.cluster,
        plan=measured.plan,
        step_s=measured.step_s,
        parts=msgspec.structs.replace(
            measured.parts, comm_hidden_s=0.0 if transfer is None else transfer.hidden_s
        ),
        comm_total_s=None if transfer is None else transfer.total_s,
        **more,  # type: ignore[arg-type]
    )
