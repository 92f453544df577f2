"""Which steps are sampled, and what sampling may cost.

Two kinds of window, each one step long: "layers" (hooks on the leaves) and "comm" (a profiled step,
only where ranks communicate). Each kind runs once early; afterwards a window is due when enough
steps have passed since the last (the gap grows, so a long run has few) and its expected cost stays
within ``budget_fraction`` of the time so far.
"""

from collections.abc import Callable

from scaledl.capture.collectives import DdpView, StepComm
from scaledl.capture.modules import LayerWindow
from scaledl.capture.profile import ProfileSession
from scaledl.capture.timers import EventTimer, Timer
from scaledl.records import LayerGraph, ProfileWindow, StepRecord
from scaledl.timeline.kernels import NS, Attribution, layer_timings

FIRST_LAYERS = 6  # steps of this process; the first ones compile, allocate and warm caches
FIRST_COMM = 10
GROWTH = 1.6
MIN_GAP = 40
STOP_MOST_S = 2.0  # other ranks wait meanwhile, and their watchdog with them


class Schedule:
    """When the next window of one kind is due."""

    def __init__(self, first: int, budget_fraction: float) -> None:
        self._next = first
        self._budget_fraction = budget_fraction
        self.count = 0
        self.spent_s = 0.0

    def is_due(self, num_steps: int, elapsed_s: float) -> bool:
        """Whether to sample the step after ``num_steps`` steps and ``elapsed_s`` of training."""
        if num_steps < self._next:
            return False
        if self.count == 0:
            return True
        expected_s = self.spent_s / self.count
        return self.spent_s + expected_s <= self._budget_fraction * elapsed_s

    def took(self, num_steps: int, cost_s: float) -> None:
        """A window ended."""
        self.count += 1
        self.spent_s += max(0.0, cost_s)
        self._next = num_steps + MIN_GAP + int(num_steps * (GROWTH - 1))

    def skip(self, num_steps: int) -> None:
        """A window could not start (another profiler); look again later."""
        self._next = num_steps + MIN_GAP + int(num_steps * (GROWTH - 1))


class Windows:
    """Runs the windows from step boundary to step boundary.

    Args:
        make_layer_window: Makes one layer window for a part of the model.
        ddp: Looks for the DDP wrapper; asked when a comm window starts.
        take: Takes finished windows; ``take_graph`` the layer graph, once.
        mark_sampled: Tells the clock that the running step is sampled.
        tell: Takes (key, text) for the user where sampling is given up.
    """

    def __init__(
        self,
        *,
        rank: int,
        timer: Timer,
        make_layer_window: Callable[[int, bool], LayerWindow],
        make_session: Callable[[], ProfileSession] | None,
        ddp: Callable[[], DdpView | None],
        world_size: int = 1,
        take: Callable[[ProfileWindow], None],
        take_graph: Callable[[LayerGraph], None],
        mark_sampled: Callable[[bool], None],
        clock: Callable[[], float],
        tell: Callable[[str, str], None] = lambda key, text: None,
        budget_fraction: float = 0.002,
    ) -> None:
        self._rank = rank
        self._timer = timer
        self._make_layer_window = make_layer_window
        self._make_session = make_session
        self._ddp = ddp
        self._world_size = world_size
        self._take = take
        self._take_graph = take_graph
        self._mark_sampled = mark_sampled
        self._clock = clock
        self._tell = tell
        self._layers = Schedule(FIRST_LAYERS, budget_fraction)
        self._comm = Schedule(FIRST_COMM, budget_fraction)
        self._layer_window: LayerWindow | None = None
        self._session: ProfileSession | None = None
        self._waiting: list[tuple[LayerWindow, StepRecord, float]] = []
        self._cost_s = 0.0
        self._num_steps = 0
        self._elapsed_s = 0.0
        self._typical_s: float | None = None
        self._has_graph = False
        self.layers_off = False
        self.comm_off = False

    @property
    def typical_s(self) -> float | None:
        """A moving average of ordinary steps."""
        return self._typical_s

    @property
    def spent_s(self) -> float:
        """Time that sampling took so far: own work plus the slow-down of sampled steps."""
        return self._layers.spent_s + self._comm.spent_s

    @property
    def num_steps(self) -> int:
        """Steps of this process so far."""
        return self._num_steps

    def boundary(self, step: StepRecord, *, may_begin: bool = True) -> None:
        """A step ended: end the window that sampled it, read what is ready, begin the next.

        ``may_begin``: the next step begins now; else it is over already and cannot be sampled.
        """
        self._num_steps += 1
        self._elapsed_s += step.wall_s
        if self._layer_window is not None:
            self._end_layers(step)
        elif self._session is not None:
            if self._session.is_here:
                self._end_comm(step)
        else:
            before = self._typical_s
            self._typical_s = step.wall_s if before is None else 0.9 * before + 0.1 * step.wall_s
            if self._waiting:
                self._read_waiting()
            if may_begin:
                self._begin_due(step)

    def stop(self) -> None:
        """The block ends: nothing stays attached, no profiler stays on."""
        self._waiting.clear()
        window, session = self._layer_window, self._session
        try:
            if window is not None:
                window.detach()
        finally:
            if session is not None:
                session.stop()
        self._layer_window = self._session = None

    def leave(self) -> None:
        """In a forked child: no hook stays; the profiler is the parent's."""
        self._session = None
        self.stop()

    def give_up_comm(self, why: str) -> None:
        """Profile no further step, and say why."""
        if not self.comm_off:
            self.comm_off = True
            self._tell("comm", f"{why}: collectives are not timed from here on.")

    # --- inside --------------------------------------------------------------------------------

    def _begin_due(self, step: StepRecord) -> None:
        begin_s = self._clock()
        if not self.layers_off and self._layers.is_due(self._num_steps, self._elapsed_s):
            self._layer_window = self._make_layer_window(self._layers.count, not self._has_graph)
            self._layer_window.attach()
        elif self._wants_comm():
            assert self._make_session is not None
            self._session = self._make_session()
            if not self._session.start():
                self._session = None
                self._comm.skip(self._num_steps)
                return
        else:
            return
        self._cost_s = self._clock() - begin_s
        self._mark_sampled(True)

    def _wants_comm(self) -> bool:
        if self._make_session is None or self.comm_off:
            return False
        return self._comm.is_due(self._num_steps, self._elapsed_s)

    def _extra_s(self, step: StepRecord) -> float:
        return max(0.0, step.wall_s - self._typical_s) if self._typical_s is not None else 0.0

    def _end_layers(self, step: StepRecord) -> None:
        begin_s = self._clock()
        window = self._layer_window
        self._mark_sampled(False)
        if window is None:
            return
        window.detach()
        self._layer_window = None  # not before: what is interrupted here is detached by stop()
        if window.graph is not None and not self._has_graph and not window.is_partial:
            self._has_graph = True
            self._take_graph(window.graph)
        cost_s = self._cost_s + self._clock() - begin_s + self._extra_s(step)
        self._waiting.append((window, step, cost_s))
        begin_s = self._clock()
        self._read_waiting()
        self._layers.took(self._num_steps, cost_s + self._clock() - begin_s)

    def _read_waiting(self) -> None:
        still = []
        for window, step, cost_s in self._waiting:
            if not window.is_ready():
                still.append((window, step, cost_s))
                continue
            times = window.read()
            if times is None:
                continue
            self._take(
                ProfileWindow(
                    step=step.step,
                    rank=self._rank,
                    step_s=step.wall_s,
                    forward_s=times.forward_s,
                    backward_s=times.backward_s,
                    layers=times.layers,
                    outside_forward_s=times.outside_forward_s,
                    outside_backward_s=times.outside_backward_s,
                    comm_exposed_s=times.exposed_s,
                    overhead_s=cost_s,
                )
            )
        self._waiting = still[-4:]
        if not self._waiting and isinstance(self._timer, EventTimer):
            self._timer.recycle()  # no window holds a stamp any more

    def _end_comm(self, step: StepRecord) -> None:
        begin_s = self._clock()
        session = self._session
        self._mark_sampled(False)
        comm = session.stop() if session is not None else None
        self._session = None
        stop_s = self._clock() - begin_s
        cost_s = self._cost_s + stop_s + self._extra_s(step)
        self._comm.took(self._num_steps, cost_s)
        if stop_s > STOP_MOST_S:
            self.give_up_comm(f"stopping the profiler took {stop_s:.0f} s")
        elif session is not None and session.is_blind:
            self.give_up_comm("the profiler sees nothing of the GPU (may its counters be locked?)")
        if comm is not None:
            kernels = session.kernels if session is not None else None
            if kernels is not None and kernels.basis != "modules":
                kernels = None  # ranges of the user's stand for no layer of the graph
            self._take(self._comm_window(step, comm, kernels, cost_s))

    def _comm_window(
        self, step: StepRecord, comm: StepComm, kernels: Attribution | None, cost_s: float
    ) -> ProfileWindow:
        ddp = self._ddp()
        buckets = ddp.buckets() if ddp is not None else ()
        group_size = ddp.group_size() if ddp is not None else self._world_size
        exposed_s = step.comm_exposed_s
        return ProfileWindow(
            step=step.step,
            rank=self._rank,
            step_s=step.wall_s,
            forward_s=step.forward_s,
            backward_s=step.backward_s,
            layers=() if kernels is None else layer_timings(kernels),
            outside_forward_s=None if kernels is None else kernels.outside_forward_ns * NS,
            outside_backward_s=None if kernels is None else kernels.outside_backward_ns * NS,
            comm=comm.events(buckets, group_size),
            buckets=comm.bucket_timings(buckets),
            comm_exposed_s=comm.total_s - comm.overlap_s if exposed_s is None else exposed_s,
            overlap_fraction=comm.overlap_fraction,
            overhead_s=cost_s,
        )
