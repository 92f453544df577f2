"""``scaledl.track``: wires capture, journal, ETA, outlook and narrator around one training loop.

The one place that knows all of them. What comes in on the training thread is handled here and
nothing that fails here reaches the loop: a part that raises is told once and left out.
"""

import functools
import inspect
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from scaledl.arguments import amount, seen_text
from scaledl.config import TrackConfig
from scaledl.engine import Engine
from scaledl.errors import UsageError, is_strict
from scaledl.listener import OnEta
from scaledl.predictor.plan import StepCost, check_step_cost
from scaledl.records import (
    BatchRule,
    ClusterSpec,
    Eta,
    LinkSpec,
    ScalingReport,
)
from scaledl.report.when import short_texts
from scaledl.setting import with_loader
from scaledl.state import checked_state

if TYPE_CHECKING:
    from torch import nn

_F = TypeVar("_F", bound=Callable[..., Any])
_log = logging.getLogger("scaledl")

_open: "weakref.WeakKeyDictionary[nn.Module, str]" = weakref.WeakKeyDictionary()


def track(
    model: "nn.Module",
    *,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    total_steps: int | None = None,
    total_samples: int | None = None,
    total_tokens: int | None = None,
    gpus: Iterable[int] | int | str | None = None,
    usd_per_gpu_hour: float | None = None,
    cluster: ClusterSpec | None = None,
    initial_step: int | None = None,
    tokens: int | None = None,
    loader: object | None = None,
    learner: str | None = None,
    enabled: bool | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    profile: bool | None = None,
    bars: bool | None = None,
    step_cost: StepCost | None = None,
    on_eta: OnEta | None = None,
) -> "Tracker":
    """A context manager (or decorator) that watches the training of ``model``.

    Everything but the model is optional; what is not given comes from ``SCALEDL_*``, then from
    ``[tool.scaledl]`` of a pyproject.toml in the working directory, then from defaults.
    ``SCALEDL_DISABLE=1`` makes it a no-op.

    Args:
        model: What is trained, wrapped in DDP, FSDP or ``torch.compile`` or not.
        epochs: Planned epochs.
        steps_per_epoch: Optimizer steps of an epoch, where no DataLoader shows it.
        total_steps: Planned optimizer steps; with ``epochs`` too, the earlier end wins.
        total_samples: Samples to train over all ranks, from here on (after a resume what is left):
            the planned end where the batch grows and no count of steps is known.
        total_tokens: The same in elements of the batches, padding included.
        gpus: Counts for the what-if report, as ``[1, 2, 4]`` or ``"1,2,8-64"``.
        usd_per_gpu_hour: Price of one GPU; 0 is one (a machine of your own).
        cluster: Machine and links, where known better than by detection.
        initial_step: Optimizer steps done before this process (resume).
        tokens: Tokens of one optimizer step over all ranks.
        loader: The loader that feeds the training, where several are in use.
        learner: ``auto``, ``inline`` or ``off``.
        enabled: ``False`` for a no-op.
        run_dir: Folder in which the run's folder is made.
        report: ``print``, ``none``, or a file that the reports are appended to.
        profile: ``False`` never profiles a step.
        bars: ``False`` leaves the user's own tqdm bars as they are.
        step_cost: Where the time of a step follows a plan (growing batches, sequences or images):
            what a step costs beside other steps, as a function of the share of the run that is
            done, 0 to 1. Only ratios matter: ``lambda done: 1 if done < 0.5 else 4``.
        on_eta: For a logger: called on rank 0 with the latest :class:`Eta`, between two steps,
            each 10 s or less often where it is slow. ``Eta.scalars()`` is a dict of numbers. What
            it raises is told once, and it is not called again.

    Raises:
        UsageError: an argument cannot be; raised here, never inside the loop.
    """
    config = TrackConfig.load(
        {
            "epochs": epochs,
            "steps_per_epoch": steps_per_epoch,
            "total_steps": total_steps,
            "total_samples": total_samples,
            "total_tokens": total_tokens,
            "gpus": gpus,
            "usd_per_gpu_hour": usd_per_gpu_hour,
            "cluster": cluster,
            "initial_step": initial_step,
            "tokens": tokens,
            "learner": learner,
            "enabled": enabled,
            "run_dir": run_dir,
            "report": report,
            "profile": profile,
            "bars": bars,
        }
    )
    return Tracker(model, config, loader=loader, step_cost=step_cost, on_eta=on_eta)


class Tracker:
    """One tracked training loop. Made by :func:`track`; use it with ``with`` or as a decorator."""

    def __init__(
        self,
        model: "nn.Module",
        config: TrackConfig,
        *,
        loader: object | None = None,
        step_cost: StepCost | None = None,
        on_eta: OnEta | None = None,
    ) -> None:
        _check_module(model)
        if step_cost is not None:
            check_step_cost(step_cost)
        if on_eta is not None and not callable(on_eta):
            raise UsageError(
                f"on_eta must be a function of an Eta, got {seen_text(on_eta)}. "
                "For example: lambda eta: wandb.log(eta.scalars())."
            )
        self._step_cost, self._on_eta = step_cost, on_eta
        self._model: nn.Module | None = model
        self._left: Callable[[], nn.Module | None] = lambda: None  # what was tracked before
        self._config = with_loader(config, loader)
        self._loader = loader
        self._is_open = False  # a disabled block is not, and closes none that stands around it
        self._core: Engine | None = None
        self._past: Engine | None = None
        self._state: Mapping[str, Any] | None = None
        self._state_gpus: int | None = None

    def __enter__(self) -> Self:
        if not self._config.enabled:
            return self
        model = self._model = self._living_model()
        where = _open.get(model)
        if where is not None:
            raise UsageError(
                f"track() is already active on this model (opened at {where}). "
                "Use one track() around both loops."
            )
        self._is_open, _open[model] = True, _caller()
        try:
            self._core = Engine(model, self._config, self._loader, self._step_cost, self._on_eta)
            self._core.start()
            if self._state is not None:
                self._core.resume(self._state, self._state_gpus)
        except BaseException as error:  # Ctrl-C too: no hook may stay behind
            self._abandon()
            if is_strict() or isinstance(error, UsageError) or not isinstance(error, Exception):
                raise
            _log.warning("scaledl could not start (%r). Your training is not affected.", error)
        return self

    def _living_model(self) -> "nn.Module":
        model = self._left() if self._model is None else self._model
        if model is None:
            raise UsageError("the model of this track() is gone. Call track(model) again.")
        return model

    def _abandon(self) -> None:
        core, self._core = self._core, None
        try:
            if core is not None:
                core.detach()
        except Exception as error:
            if is_strict():
                raise
            _log.warning("scaledl could not clean up (%r).", error)
        finally:
            self._release()

    def _release(self) -> None:
        """The block is left: the model is the user's alone again, who may free it."""
        if self._model is not None:
            if self._is_open:
                _open.pop(self._model, None)
                self._is_open = False
            self._left = weakref.ref(self._model)
            self._model = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core, self._core = self._core, None
        self._past = core
        if core is None:
            self._release()
            return
        try:
            core.finish(failed=kind is not None)
        except BaseException:  # interrupted anywhere on the way: what is left is detached
            core.detach()
            raise
        finally:
            self._release()

    def __call__(self, function: _F) -> _F:
        """Decorate a training function: each call is one tracked run."""
        model = self._living_model()

        @functools.wraps(function)
        def tracked(*args: Any, **kwargs: Any) -> Any:
            again = Tracker(
                model,
                self._config,
                loader=self._loader,
                step_cost=self._step_cost,
                on_eta=self._on_eta,
            )
            with again:
                return function(*args, **kwargs)

        return tracked  # type: ignore[return-value]

    # --- what cannot be seen is told ----------------------------------------------------------

    def loader(self, iterable: Iterable[Any]) -> Iterable[Any]:
        """Wrap any iterable of batches: it is the training loader, one pass is one epoch."""
        return iterable if self._core is None else self._core.capture.wrap(iterable)

    def step(self) -> None:
        """An optimizer step ended here; from now on steps are counted by this call alone."""
        core = self._core
        if core is not None:
            clock = core.capture.clock
            core.capture.border.call(lambda: clock.on_manual_step(time.perf_counter()))
            if core.capture.probe_end is not None:
                core.capture.probe_end.note_step()

    def epoch_end(self) -> None:
        """An epoch ended here; from now on epochs are counted by this call alone."""
        core = self._core
        if core is not None:
            clock = core.capture.clock
            core.capture.border.call(lambda: clock.on_manual_epoch(time.perf_counter()))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time inside is of its own kind (``"eval"``, ``"rollout"``), not of training steps."""
        core = self._core
        if core is None:
            yield
            return
        border, clock = core.capture.border, core.capture.clock
        border.call(lambda: clock.on_phase_start(name, time.perf_counter()))
        try:
            yield
        finally:
            border.call(lambda: clock.on_phase_end(time.perf_counter()))

    def paused(self) -> Any:
        """Time inside is not counted as training."""
        return self.phase("paused")

    # --- what is known ------------------------------------------------------------------------

    @property
    def eta(self) -> Eta | None:
        """The latest estimate; ``None`` before the first step, and where tracking is disabled."""
        core = self._core or self._past
        return core.pulse.eta if core is not None else None

    @property
    def eta_text(self) -> str:
        """When the run is done, as ``done 14:05 (13:55 to 14:20)``, for a bar or title of yours.

        As calm as the live line; empty while it is unknown.
        """
        eta = self.eta if self._core is None else self._core.narrator.shown or self.eta
        return next(iter(short_texts(eta, time.time())), "") if eta is not None else ""

    @property
    def run_id(self) -> str | None:
        """Id of this run, the name of its folder; ``None`` while unknown or disabled."""
        core = self._core or self._past
        return core.journal.run_id if core is not None else None

    @property
    def folder(self) -> Path | None:
        """Where this run is recorded."""
        core = self._core or self._past
        return core.journal.folder if core is not None else None

    def what_if(
        self,
        gpus: Iterable[int] | int | str | None = None,
        *,
        usd_per_gpu_hour: float | None = None,
        batch_rule: BatchRule = "fixed-global",
        gpus_per_node: int | None = None,
        inter: LinkSpec | str | None = None,
        strategies: Iterable[str] | str | None = None,
        deadline_s: float | None = None,
        budget_usd: float | None = None,
    ) -> ScalingReport:
        """Step time, epoch time, cost and energy on other counts, from what was seen so far.

        Args:
            gpus: Counts, as ``[1, 2, 4]`` or ``"1,2,8-64"``; by default those given to ``track``.
            usd_per_gpu_hour: Price of one GPU; by default that given to ``track``.
            batch_rule: ``fixed-global`` or ``fixed-per-gpu``: what stays when the count changes.
            gpus_per_node: Of the machines in question; by default as in the run.
            inter: Link between nodes, a record or text such as ``"200Gb/s"``.
            strategies: Ways to spread the job to compare at every count: ``["ddp", "fsdp",
                "hsdp"]``.
            deadline_s: Longest time for the rest of the run, in seconds.
            budget_usd: Most money for the rest of the run; needs a price.

        Raises:
            UsageError: tracking is disabled (there is then nothing to forecast from), too little
                was measured, or an argument cannot be.
        """
        core = self._core or self._past
        if core is None:
            raise UsageError(self._why_untracked())
        return core.what_if(
            gpus=gpus,
            usd_per_gpu_hour=usd_per_gpu_hour,
            batch_rule=batch_rule,
            gpus_per_node=gpus_per_node,
            inter=inter,
            strategies=strategies,
            deadline_s=None if deadline_s is None else amount("deadline_s", deadline_s),
            budget_usd=None if budget_usd is None else amount("budget_usd", budget_usd),
        )

    def _why_untracked(self) -> str:
        if not self._config.enabled:
            return (
                "tracking is disabled (enabled=False or SCALEDL_DISABLE): what_if() has nothing "
                "to forecast from. It needs an enabled track() block."
            )
        return "nothing is tracked yet: call what_if() inside the enabled track() block, or after."

    def status(self) -> dict[str, Any]:
        """What works and what does not, in words: sensors off, guesses made, overhead so far."""
        core = self._core or self._past
        if core is None:
            return {"enabled": False}
        return core.status()

    def state_dict(self) -> dict[str, Any]:
        """What the ETA has learned, for the user's own checkpoint; plain JSON values."""
        core = self._core or self._past
        if core is None:
            return {}
        core.capture.settle()
        return {
            "version": 1,
            "step": core.capture.clock.step,
            "num_gpus": core.num_gpus,
            "eta": core.pulse.estimator.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue from an earlier run's :meth:`state_dict`: rates are kept, counts are not mixed.

        Learned on another number of GPUs, rates say nothing here: they are then learned anew.

        ``None`` and an empty mapping (what a disabled run gives) change nothing.

        Raises:
            UsageError: the state is of another version, or damaged; nothing has then changed.
        """
        if state is None or (isinstance(state, Mapping) and not state):
            return
        eta = checked_state(state)
        self._state = eta
        self._state_gpus = state.get("num_gpus")
        if self._core is not None:
            self._core.resume(eta, self._state_gpus)

    def __repr__(self) -> str:
        return f"<scaledl.Tracker run={self.run_id} {self.eta or ''}>"


def _check_module(model: object) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise UsageError(
            "track() expects a torch.nn.Module (or a DDP/FSDP wrapper), "
            f"got {type(model).__name__}."
        )


def _caller() -> str:
    """File and line outside this package from which ``track`` was entered."""
    here = os.path.dirname(__file__)
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(here):
        frame = frame.f_back
    if frame is None:
        return "unknown place"
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
