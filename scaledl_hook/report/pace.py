"""When a live line is due, and how the shown finish is kept calm."""

import msgspec

from scaledl.records import Eta, Progress

TTY_REDRAW_S, TTY_HOLD_S, LOG_HOLD_S = 1.0, 30.0, 300.0
LOG_GAP_S, LOG_LATER_GAP_S, LOG_FIRST_S = 60.0, 600.0, 10.0
LOG_MARKS = (0.01, 0.02, *(i / 20 for i in range(1, 21)))
LOG_LINES = 23  # with the last line and one on a change a run stays at 25
LOG_GROWTH = 1.5


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The ETA to show, and the one it replaces where the move has a cause to tell."""

    eta: Eta
    replaced: Eta | None = None


class LinePolicy:
    """Decides when a line is due and which ETA it shows.

    A terminal is redrawn once a second at most. A log gets a line early, then at 1, 2 and 5 % and
    each 5 %, no closer than 60 s (10 min after 5 %); with the total unknown at times that grow
    geometrically. The shown finish moves only when it leaves half of its own interval, or each
    30 s on a terminal and 5 min in a log.
    """

    def __init__(self, *, is_tty: bool, started_s: float) -> None:
        self._is_tty = is_tty
        self._started_s = started_s
        self._last_s: float | None = None
        self._num_lines = 0
        self._mark = 0.0
        self._gap_s = LOG_GAP_S
        self._held: Eta | None = None
        self._told = ""

    def is_due(self, progress: Progress, now_s: float) -> bool:
        """Whether to write a line now; a yes counts as written."""
        due = self._is_redraw_due(now_s) if self._is_tty else self._is_log_due(progress, now_s)
        if due:
            self._last_s = now_s
            self._num_lines += 1
        return due

    def _is_redraw_due(self, now_s: float) -> bool:
        return self._last_s is None or now_s - self._last_s >= TTY_REDRAW_S

    def _is_log_due(self, progress: Progress, now_s: float) -> bool:
        if self._num_lines >= LOG_LINES or progress.step <= progress.first_step:
            return False
        total = progress.total_steps
        if self._last_s is None:
            if now_s - self._started_s < LOG_FIRST_S:
                return False
            self._mark = self._passed(progress)
            return True
        if total is None or progress.step > total:
            if now_s - self._last_s < self._gap_s:
                return False
            self._gap_s *= LOG_GROWTH
            return True
        mark = self._passed(progress)
        gap_s = LOG_GAP_S if mark <= 0.05 else LOG_LATER_GAP_S
        if mark <= self._mark or now_s - self._last_s < gap_s:
            return False
        self._mark = mark
        return True

    @staticmethod
    def _passed(progress: Progress) -> float:
        if not progress.total_steps:
            return 0.0
        done = progress.step / progress.total_steps
        return max((mark for mark in LOG_MARKS if mark <= done + 1e-9), default=0.0)

    def calm(self, eta: Eta, now_s: float) -> Shown:
        """The ETA to show: the one shown before while it still says about the same."""
        held = self._held
        if held is None or not self._may_hold(held, eta, now_s):
            self._held = eta
            is_news = bool(eta.changed_because) and eta.changed_because != self._told
            moved = held is not None and _moved(held, eta)
            if is_news and moved:
                self._told = eta.changed_because
            return Shown(eta=eta, replaced=held if is_news and moved else None)
        return Shown(eta=held)

    def _may_hold(self, held: Eta, eta: Eta, now_s: float) -> bool:
        if held.finish_at is None or eta.finish_at is None or held.basis != eta.basis:
            return False
        if now_s - held.at_s >= (TTY_HOLD_S if self._is_tty else LOG_HOLD_S):
            return False
        return not _moved(held, eta)


def _moved(held: Eta, eta: Eta) -> bool:
    """Whether the new finish lies outside of half the interval that was shown."""
    if held.remaining_s is None or held.finish_at is None or eta.finish_at is None:
        return False
    left = held.remaining_s
    off = eta.finish_at - held.finish_at
    reach = (left.high - left.mean) if off > 0 else (left.mean - left.low)
    return abs(off) > max(reach / 2, 1.0)
