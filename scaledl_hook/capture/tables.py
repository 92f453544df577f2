"""Events of a profile of this process as the tables of ``timeline``: who launched which kernel."""

from collections.abc import Iterable
from typing import Any

from torch._C._autograd import DeviceType

from scaledl.capture.collectives import LAUNCHES
from scaledl.timeline.events import HostTable, KernelTable, Meaning, Role, meaning
from scaledl.timeline.kernels import owners
from scaledl.timeline.scopes import find_scopes

_CALLS = ("cuda_runtime", "cuda_driver", "xpu_runtime")  # HIP's calls go by the first
_COPIES = ("gpu_memcpy", "gpu_memset")


def read_tables(events: Iterable[Any], main_thread: int = 1) -> tuple[HostTable, KernelTable]:
    """Host events and kernels of kineto's raw events.

    A kernel names the operator that launched it. Where there was none (triton, CUDA graphs) the
    runtime call tells the time, and by other calls of its thread the thread as operators know it.

    Args:
        events: What ``kineto_results.events()`` gives.
        main_thread: The thread of calls of which nothing else tells it; torch counts from 1.
    """
    host, kernels = HostTable(), KernelTable()
    calls: list[Any] = []
    plain: list[Any] = []
    for event in events:
        if event.device_type() != DeviceType.CPU:
            if not event.is_user_annotation() and event.activity_type() not in _COPIES:
                _add_kernel(kernels, event)
        elif event.activity_type() in _CALLS:
            calls.append(event)
        else:
            plain.append(event)
    linked = set(kernels.operators)
    thread_of: dict[int, int] = {}
    for event in plain:
        thread_of[event.correlation_id()] = event.start_thread_id()
        what = meaning(event.name(), is_range=event.activity_type() == "user_annotation")
        numbered, links = event.sequence_nr() >= 0, event.correlation_id() in linked
        if what.role != Role.IGNORED and (what.role != Role.OPERATOR or numbered or links):
            _add_host(host, event, what)
    resources = {
        call.device_resource_id(): thread_of[call.linked_correlation_id()]
        for call in calls
        if call.linked_correlation_id() in thread_of
    }
    for call in calls:
        start_ns = call.start_ns()
        thread = resources.get(call.device_resource_id(), main_thread)
        own_id = call.correlation_id()
        host.add(Meaning(Role.LAUNCH), start_ns, start_ns, thread, own_id=own_id)
    return host, kernels


def launch_owners(events: Iterable[Any]) -> dict[int, str]:
    """Who caused each collective, by the start of its launch in nanoseconds."""
    host = HostTable()
    starts: list[int] = []
    for event in events:
        if event.device_type() != DeviceType.CPU:
            continue
        if event.name() in LAUNCHES:
            start_ns = event.start_ns()
            thread, own_id = event.start_thread_id(), len(starts)
            host.add(Meaning(Role.LAUNCH), start_ns, start_ns, thread, own_id=own_id)
            starts.append(start_ns)
            continue
        what = meaning(event.name(), is_range=event.activity_type() == "user_annotation")
        if what.role not in (Role.IGNORED, Role.OPERATOR) or event.sequence_nr() >= 0:
            _add_host(host, event, what)
    found = find_scopes(host).of_launch
    order = sorted(range(len(starts)), key=starts.__getitem__)
    named = owners([found.get(index) for index in order])
    return {starts[index]: owner for index, owner in zip(order, named, strict=True)}


def _add_kernel(kernels: KernelTable, event: Any) -> None:
    start_ns, duration_ns = event.start_ns(), event.duration_ns()
    if start_ns <= 0 or duration_ns < 0:
        return  # a known fault of some sessions
    kernels.add(
        start_ns,
        start_ns + duration_ns,
        launch=event.correlation_id(),
        operator=event.linked_correlation_id() or -1,
        is_comm="nccl" in event.name().lower(),
    )


def _add_host(host: HostTable, event: Any, what: Meaning) -> None:
    host.add(
        what,
        event.start_ns(),
        event.start_ns() + event.duration_ns(),
        event.start_thread_id(),
        sequence=event.sequence_nr(),
        forward_thread=event.fwd_thread_id(),
        own_id=event.correlation_id(),
    )
