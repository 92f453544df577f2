"""A recorded run: read it, ask "what if" again, render it. Needs neither torch nor a GPU."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from scaledl import arguments, store
from scaledl.errors import StoreError, UsageError
from scaledl.imported import NO_WHAT_IF
from scaledl.linkbook import LinkBook, read_book
from scaledl.query import build_query
from scaledl.recorded import RecordedRun
from scaledl.records import (
    BatchRule,
    LinkSpec,
    Measurement,
    ScalingReport,
)
from scaledl.relatives import load_relatives
from scaledl.report import jsonable, scaling
from scaledl.report.console import RunLine, render_comm, render_layers, render_report, render_show
from scaledl.report.layers import comm_rows, layer_rows
from scaledl.units import LATEST_S

if TYPE_CHECKING:
    from scaledl.predictor.forecaster import Forecaster

RUN_SCHEMA = "scaledl.run/1"

__all__ = ["PastRun", "RunLines", "list_run_lines", "list_runs", "load_relatives", "open_run"]


class RunLines(msgspec.Struct, frozen=True, kw_only=True):
    """A listing, and how many folders could not be read."""

    lines: tuple[RunLine, ...]
    num_skipped: int


class PastRun(RecordedRun):
    """One recorded run: everything it holds, plus ``what_if`` and ``render``."""

    def what_if(
        self,
        gpus: Iterable[int] | int | str | None = None,
        *,
        usd_per_gpu_hour: float | None = None,
        batch_rule: BatchRule = "fixed-global",
        gpus_per_node: int | None = None,
        inter: LinkSpec | str | None = None,
        epochs: int | None = None,
        level: float = 0.9,
        strategies: Iterable[str] | str | None = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
        now_s: float | None = None,
    ) -> ScalingReport:
        """The what-if report of this run, made anew.

        Runs of the same model that were recorded beside it are learned too, so that a count that
        was run counts as measured.

        Args:
            gpus: Counts, or text such as ``"1,2,8-64"``; by default up to 4 times the running one.
            usd_per_gpu_hour: Price (0 is one); by default that given when the run was recorded.
            batch_rule: What stays fixed when the count changes.
            gpus_per_node: Of the machines in question; by default as in the run.
            inter: Link between nodes, a record or text such as ``"200Gb/s"``.
            epochs: Length of the training; by default as recorded.
            level: Probability of the intervals.
            strategies: Ways to spread the job to compare at every count: ddp, fsdp, hsdp.
            deadline_s: Longest time for the rest of the run.
            budget_usd: Most money for the rest of the run; needs a price.
            now_s: Time stamp of the report.

        Raises:
            StoreError: the run has no steady step to forecast from, or was imported from a trace
                that tells too little.
            UsageError: an argument that cannot be.
        """
        from scaledl.predictor.whatif import answer_rows

        if epochs is not None:
            epochs = arguments.whole_number("epochs", epochs, most=arguments.MOST_EPOCHS)
        if deadline_s is not None:
            deadline_s = arguments.amount("deadline_s", deadline_s)
        if budget_usd is not None:
            budget_usd = arguments.amount("budget_usd", budget_usd)
        if now_s is not None:
            now_s = arguments.amount("now_s", now_s, most=LATEST_S)
        forecaster, base = self.learned()
        price = self.info.cluster.usd_per_gpu_hour if usd_per_gpu_hour is None else usd_per_gpu_hour
        query = build_query(
            gpus,
            base.cluster.num_gpus,
            batch_rule=batch_rule,
            gpus_per_node=gpus_per_node,
            inter=inter,
            num_samples=self.samples_per_epoch,
            steps_per_epoch=self.steps_per_epoch,
            remaining_epochs=self.remaining_epochs(epochs),
            remaining_steps=self.remaining_steps if epochs is None else None,
            usd_per_gpu_hour=price,
            power_w=self.power_w,
            level=level,
            strategies=strategies,
        )
        try:
            rows, compared = answer_rows(forecaster, base, query)
        except (ArithmeticError, ValueError) as error:  # the question was checked above
            raise StoreError(
                f"run {self.info.run_id} holds numbers that nothing can be forecast from: {error}"
            ) from error
        return scaling.build(
            rows,
            base=base,
            run=self.info.run_id,
            batch_rule=batch_rule,
            coverage=forecaster.coverage,
            made_at=time.time() if now_s is None else now_s,
            epoch=max((record.epoch for record in self.epochs), default=None),
            level=level,
            compared=compared,
            deadline_s=deadline_s,
            budget_usd=budget_usd,
        )

    def learned(self, book: LinkBook | None = None) -> "tuple[Forecaster, Measurement]":
        """What this run and its relatives tell, and the run's own last measurement.

        Args:
            book: Measured links; by default those kept beside the runs.

        Raises:
            StoreError: the run has no steady step, or was imported from a trace that tells too
                little.
        """
        from scaledl.predictor.forecaster import Forecaster

        refused = [note.text for note in self.notes if note.key == NO_WHAT_IF]
        if refused:  # an imported trace
            raise StoreError(f"run {self.info.run_id} has no what-if: {refused[-1]}")
        if not self.measurements:
            raise StoreError(
                f"run {self.info.run_id} holds no steady step: nothing to forecast from. "
                "Train for at least 20 steps under track()."
            )
        book = read_book(self.folder.parent) if book is None else book
        base = book.applied(self.measurements[-1])
        forecaster = Forecaster()
        relatives = load_relatives(self.folder.parent, base.signature, self.info.run_id, like=base)
        for measurement in [*relatives.measurements, *self.measurements]:
            forecaster.learn(book.applied(measurement))
        if self.graph is not None:
            plan = base.plan
            forecaster.know_layers(self.graph, base.cluster.gpu, plan.batch_per_gpu, plan.dtype)
        return forecaster, base

    def render(
        self,
        kind: Literal["console", "json"] = "console",
        *,
        layers: int = 0,
        comm: bool = False,
        now_s: float | None = None,
        width: int = 96,
        unicode: bool = True,
        color: bool = False,
    ) -> str:
        """The run as text for people or JSON for programs.

        Args:
            kind: ``console`` or ``json``.
            layers: How many rows of the layer table; 0 leaves it out.
            comm: Whether the collectives are shown.
            now_s: The time against which a run without an end counts as running or killed.
            width: Columns of the stream.
            unicode: Whether marks may be unicode.
            color: Whether ANSI colour may be used.
        """
        layers = arguments.whole_number("layers", layers, least=0)
        if kind == "json":
            return jsonable.to_json(self._as_dict(layers, comm))
        if kind != "console":
            raise UsageError(f"no rendering {arguments.seen_text(kind)}. Take 'console' or 'json'.")
        base = self.measurements[-1] if self.measurements else None
        where: dict[str, Any] = {"width": width, "unicode": unicode, "color": color}
        texts = [
            render_show(
                self.line(),
                self.info,
                measurement=base,
                epochs=self.epochs,
                notes=self.notes,
                learned=self.network,
                now_s=time.time() if now_s is None else now_s,
                **where,
            )
        ]
        if layers:
            texts.append(render_layers(self.graph, self.windows, layers, **where))
        if comm:
            texts.append(render_comm(self.windows, **where))
        if self.reports:
            cpu_run = base is not None and base.host_shared
            texts.append(render_report(self.reports[-1], cpu_run=cpu_run, **where))
        return "\n\n".join(texts)

    def _as_dict(self, layers: int, comm: bool) -> dict[str, Any]:
        base = self.measurements[-1] if self.measurements else None
        wanted = {
            "layers": layer_rows(self.graph, self.windows)[:layers] if layers else None,
            "comm": comm_rows(self.windows) if comm else None,
        }
        return {
            "schema": RUN_SCHEMA,
            "run": msgspec.to_builtins(self.info),
            "state": self.state,
            "step_s": self.step_s,
            "parts_s": None if base is None else msgspec.to_builtins(base.parts),
            "steps_per_epoch": self.steps_per_epoch,
            "epochs": [msgspec.to_builtins(record) for record in self.epochs],
            "notes": [msgspec.to_builtins(note) for note in self.notes],
            "learned": None if self.network is None else msgspec.to_builtins(self.network),
            "report": jsonable.report_to_dict(self.reports[-1]) if self.reports else None,
        } | {name: msgspec.to_builtins(rows) for name, rows in wanted.items() if rows is not None}


def open_run(name: str | os.PathLike[str] = "latest", home: str | Path | None = None) -> PastRun:
    """The run named by id, unique prefix, folder, or ``latest``.

    Raises:
        StoreError: no such run, several, or one that cannot be read.
        UsageError: ``name`` is neither text nor a path.
    """
    return PastRun(store.find_run(store.home_dir(None if home is None else str(home)), name))


def list_runs(home: str | Path | None = None) -> tuple[PastRun, ...]:
    """All readable runs, newest first."""
    found = store.list_runs(store.home_dir(None if home is None else str(home)))
    return tuple(PastRun(entry.folder, entry.info) for entry in found.runs)


def list_run_lines(home: str | Path | None = None, most: int = 20) -> RunLines:
    """The newest runs as a listing shows them; only the end of one file of each is read."""
    found = store.list_runs(store.home_dir(None if home is None else str(home)))
    lines: list[RunLine] = []
    num_skipped = found.num_skipped
    for entry in found.runs[:most]:
        try:
            lines.append(PastRun(entry.folder, entry.info).line())
        except (StoreError, OSError):
            num_skipped += 1
    return RunLines(lines=tuple(lines), num_skipped=num_skipped)
