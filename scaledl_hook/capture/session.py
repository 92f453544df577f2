"""All sensors of one tracked model, started and stopped together."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from scaledl.capture.border import HOLD_S, Border
from scaledl.capture.clock import Sink, StepClock
from scaledl.capture.collectives import DdpView, find_ddp
from scaledl.capture.environ import Environment, device_of, read_environment, read_plan
from scaledl.capture.guard import GUARD
from scaledl.capture.holdings import read_holdings, with_peak
from scaledl.capture.loaders import LoaderSensor, TrackedIterable
from scaledl.capture.modules import LayerWindow
from scaledl.capture.optimizers import OptimizerSensor
from scaledl.capture.probe_end import ProbeEnd
from scaledl.capture.profile import ProfileSession
from scaledl.capture.ranges import ModuleRanges
from scaledl.capture.root import RootSensor
from scaledl.capture.sampler import Sampler, open_device
from scaledl.capture.timers import EventTimer, HostTimer, Timer
from scaledl.capture.windows import Windows
from scaledl.errors import run_all
from scaledl.records import DeviceSample, Holdings, LayerGraph, ProfileWindow, StepRecord

# Until here every step is watched: the guesses come early, and so do the first windows.
_FIRST_STEPS = 50
_GOLDEN = (5**0.5 - 1) / 2


class CaptureSink(Sink, Protocol):
    """What a :class:`Capture` delivers beside the clock's records."""

    def on_window(self, window: ProfileWindow) -> None: ...
    def on_graph(self, graph: LayerGraph) -> None: ...
    def on_sample(self, sample: DeviceSample) -> None: ...
    def on_error(self, sensor: str, error: Exception) -> None: ...


class Capture:
    """Watches one model. ``start`` attaches, ``stop`` leaves everything as it was.

    Args:
        model: What the user trains, wrappers included.
        sink: Takes the records, on the training thread (samples on the sampler's).
        profile: Whether steps may be profiled at all.
        probe_steps: In a probe, after how many optimizer steps the training is ended.
    """

    def __init__(
        self,
        model: nn.Module,
        sink: CaptureSink,
        *,
        initial_step: int = 0,
        steps_per_epoch: int | None = None,
        loader: object | None = None,
        profile: bool = True,
        probe_steps: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = weakref.ref(model)  # who keeps the run after the block keeps no model
        self._sink = sink
        self._now = clock
        self._thread = threading.get_ident()
        self._loader: object = loader  # kept alive: the clock knows it by its id
        self.environment: Environment = read_environment(model)
        self.plan, self.remark = read_plan(model, self.environment.world_size)
        device = device_of(model)
        is_host = device.type == "cpu"
        self.clock = StepClock(
            sink,
            clock(),
            rank=self.environment.rank,
            initial_step=initial_step,
            steps_per_epoch=steps_per_epoch,
            loader_key=None if loader is None else id(loader),
            host_parts=is_host,
            exposed_parts=self.plan.strategy in ("single", "ddp"),
        )
        self.border = Border(self.clock, lambda e: sink.on_error("step clock", e))
        self._timer: Timer = HostTimer(clock) if device.type != "cuda" else EventTimer()
        self._root = RootSensor(
            model, self.border, clock, lambda e: self._off("forward and backward", e)
        )
        self._optimizers = OptimizerSensor(
            model, self.border.on_optimizer, clock, lambda e: self._off("optimizer", e)
        )
        self._optimizers.model_ran = lambda: self.clock.model_ran
        use_profiler = profile and self.environment.world_size > 1
        self._guarded = use_profiler
        self.windows = Windows(
            rank=self.environment.rank,
            timer=self._timer,
            make_layer_window=self._layer_window,
            make_session=(lambda: self._profile_session(cuda=not is_host))
            if use_profiler
            else None,
            ddp=self.ddp,
            world_size=self.environment.world_size,
            take=sink.on_window,
            take_graph=sink.on_graph,
            mark_sampled=self._mark_sampled,
            clock=clock,
            tell=sink.on_guess,
        )
        self.windows.layers_off = isinstance(model, DataParallel)
        self.sampler = Sampler(
            open_device(device, lambda text: sink.on_guess(f"device:{text.split()[0]}", text)),
            sink.on_sample,
            lambda e: sink.on_error("device sensor", e),
        )
        self._loaders = LoaderSensor(self.border, clock)
        self.probe_end = (
            None if probe_steps is None else ProbeEnd(model, self._optimizers, probe_steps)
        )
        self._started: list[tuple[str, Callable[[], None]]] = []
        self._num_holds = 0
        self._is_ending = False

    def start(self) -> None:
        """Attach every sensor; one that fails to attach is told and left out."""
        steps: list[tuple[str, Callable[[], None], Callable[[], None]]] = [
            ("forward and backward", self._root.start, self._root.stop),
            ("optimizer", self._optimizers.start, self._optimizers.stop),
            ("device sensor", self.sampler.start, self.sampler.stop),
            ("loaders", self._loaders.start, self._loaders.stop),
        ]
        if self._guarded:
            install, remove = lambda: GUARD.install(self), lambda: GUARD.remove(self)
            steps.append(("profiler guard", install, remove))
        if self.probe_end is not None:
            steps.append(("end of the probe", self.probe_end.start, self.probe_end.stop))
        for name, start, stop in steps:
            self._started.append((name, stop))  # first: what is interrupted is undone too
            try:
                start()
            except Exception as error:
                self._sink.on_error(name, error)

    def stop(self) -> None:
        """Close the running step and epoch, then detach all; each part on its own."""
        self._is_ending = True
        ends: list[tuple[str, Callable[[], None]]] = [
            ("step clock", lambda: self.border.call(lambda: self.clock.stop(self._now()))),
            ("windows", self.windows.stop),
            *reversed(self._started),
        ]
        run_all(ends, self._sink.on_error)
        self._started, self._loader = [], None

    def leave_to_parent(self) -> None:
        """In a forked child: the run is the parent's, so nothing is watched here any more."""
        self.border.silence()
        self._root.stop()
        self._optimizers.stop()
        self._loaders.stop()
        if self.probe_end is not None:
            self.probe_end.stop()
        self.windows.leave()

    def settle(self) -> None:
        """Bring the clock up to now; on another thread than the training's nothing happens."""
        if threading.get_ident() == self._thread:
            self.border.call(lambda: None)

    def step_ended(self, step: StepRecord) -> None:
        """The clock closed a step: windows end and begin here."""
        try:
            if self._guarded and threading.get_ident() != self._thread:
                self.windows.give_up_comm("the training left the thread that entered track()")
            self.windows.boundary(step, may_begin=self.border.is_live and not self._is_ending)
        except Exception as error:
            self.windows.layers_off = self.windows.comm_off = True
            self.windows.stop()
            self._mark_sampled(False)
            self._sink.on_error("layer and communication windows", error)
        if self.border.is_live:
            self._choose_watched()

    def _choose_watched(self) -> None:
        """Short steps: watch one, backward and all, then note the events of the next ones.

        Until the model's own optimizer is seen, backwards tell what a step is, so none is left out.
        """
        typical_s = self.windows.typical_s
        short = typical_s is not None and typical_s < HOLD_S
        known = self.windows.num_steps >= _FIRST_STEPS and self._optimizers.knows_own
        was_watched, self._root.watches = self._root.watches, True
        if short and known and was_watched and not self.clock.sampled:
            assert typical_s is not None
            self._root.watches = False
            # The golden ratio spreads the watched steps, so that no rhythm of the loop is met.
            self._num_holds += 1
            spread = 0.5 + self._num_holds * _GOLDEN % 1
            self.border.hold(self._now(), max(1, round(HOLD_S / typical_s * spread)))
        else:
            self.border.release()

    def ddp(self) -> DdpView | None:
        """What DDP tells, where the model or what stands around it is DDP."""
        model = self._model()
        found = find_ddp(model) if model is not None else None
        return DdpView(found) if found is not None else None

    def holdings(self) -> Holdings | None:
        """What the training keeps in memory; ``None`` once the model is gone, or before a step."""
        model, optimizers = self._model(), self._optimizers.own()
        if model is None or not optimizers:
            return None
        try:
            counted = read_holdings(model, optimizers, self.plan)
        except Exception as error:
            self._sink.on_error("memory", error)
            return None
        return with_peak(counted, device_of(model))

    def wrap(self, iterable: Any) -> TrackedIterable:
        """``run.loader``: any iterable as the training loader."""
        return TrackedIterable(iterable, self.border, self._now)

    def _layer_window(self, part: int, want_graph: bool) -> LayerWindow:
        model = self._model()
        assert model is not None  # the open block holds it
        return LayerWindow(
            model,
            self._root,
            self._timer,
            self._window_failed,
            want_graph=want_graph,
            part=part,
        )

    def _profile_session(self, *, cuda: bool) -> ProfileSession:
        model = self._model()
        ranges = None
        # On the host the hooks of a layer window tell the times themselves.
        if cuda and model is not None and not self.windows.layers_off:
            ranges = ModuleRanges(model, self._window_failed)
        return ProfileSession(cuda=cuda, thread=self._thread, ranges=ranges)

    def _mark_sampled(self, sampled: bool) -> None:
        self.clock.sampled = sampled

    def _off(self, sensor: str, error: Exception) -> None:
        self._root.stop()
        self._sink.on_error(sensor, error)

    def _window_failed(self, error: Exception) -> None:
        # Called from inside a hook: the window ends at the next boundary and none follows.
        self.windows.layers_off = True
        self._sink.on_error("layer times", error)


def torch_version() -> str:
    """The running torch."""
    return str(torch.__version__)
