"""Jobs over shaped links on one machine: each rank in a network namespace of its own.

Every rank's interface hangs on a bridge, its node's switch. With two levels the switches hang on a
second bridge by one shaped uplink each, as machines do on a network. Needs root, ``ip``, ``tc`` and
``nsenter`` on Linux. All that is made lies inside a namespace of this process and ends with it.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
PORT = 29600
BURST_BYTES = 32_000
GSO_BYTES = 16_000
"""Half the burst: the shaper then passes packets whole instead of cutting them on the CPU."""
TOOLS = ("ip", "tc", "nsenter")

_libc = ctypes.CDLL(None, use_errno=True)


class Wire(NamedTuple):
    """Line rates. ``uplink_mbit`` of ``None``: all ranks hang on one switch, one rank a node."""

    rank_mbit: float
    uplink_mbit: float | None = None
    ranks_per_node: int = 1


class UnavailableError(Exception):
    """This machine does not let us shape links."""


def enter() -> None:
    """Move this process to a fresh network namespace that holds the core switch.

    Raises:
        UnavailableError: a tool or a right is missing.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise UnavailableError(f"not installed: {', '.join(missing)}")
    try:
        _unshare()
        _sh("ip link set lo up")
        _sh("ip link add core type bridge && ip link set core up")
        _sh("ip link add probe0 type veth peer name probe1")
        _sh(f"{_shaper('probe0', 100)} && ip link del probe0")
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"namespaces or traffic shaping are not allowed: {error}") from None


def _unshare() -> None:
    if _libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")


def _sh(command: str) -> None:
    subprocess.run(command, shell=True, check=True, stderr=subprocess.PIPE)


def _shaper(device: str, mbit: float) -> str:
    return f"tc qdisc add dev {device} root tbf rate {mbit}mbit burst {BURST_BYTES} limit 64mb"


def _switch(node: int, uplink_mbit: float) -> str:
    """A node's switch with its shaped uplink to the core; returns its name."""
    name, up, down = f"sw{node}", f"up{node}", f"dn{node}"
    _sh(
        f"ip link add {name} type bridge && ip link set {name} up && "
        f"ip link add {up} type veth peer name {down} && "
        f"ip link set {up} gso_max_size {GSO_BYTES} master {name} up && "
        f"ip link set {down} gso_max_size {GSO_BYTES} master core up && "
        f"{_shaper(up, uplink_mbit)} && {_shaper(down, uplink_mbit)}"
    )
    return name


def _plug(pid: int, rank: int, switch: str, mbit: float) -> None:
    """Give the rank its interface, both directions shaped."""
    gso = f"gso_max_size {GSO_BYTES}"
    _sh(
        f"ip link add v{rank} type veth peer name eth0 netns {pid} && "
        f"ip link set v{rank} {gso} master {switch} up && {_shaper(f'v{rank}', mbit)} && "
        f"nsenter -t {pid} -n sh -c 'ip link set lo up; ip addr add 10.77.0.{rank + 1}/24 dev eth0;"
        f" ip link set eth0 {gso} up; {_shaper('eth0', mbit)}'"
    )


def _unplug(num_ranks: int) -> None:
    """At once, not when the kernel gets round to it: a dead rank's interface still answers."""
    for rank in range(num_ranks):
        subprocess.run(["ip", "link", "del", f"v{rank}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"up{rank}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"sw{rank}"], capture_output=True, check=False)


def run_ranks(
    num_ranks: int, wire: Wire, job: Callable[[int, int], Any], *, limit_s: float = 120.0
) -> list[Any]:
    """What ``job(rank, num_ranks)`` returned on every rank (as JSON), each in a forked process.

    Raises:
        RuntimeError: a rank failed, or the limit passed; no rank is left.
    """
    switches: dict[int, str] = {}
    ranks: list[tuple[int, int]] = []  # process and the pipe that its answer comes through
    gates: list[int] = []
    try:
        for rank in range(num_ranks):
            node = rank // wire.ranks_per_node
            if node not in switches:
                up = wire.uplink_mbit
                switches[node] = "core" if up is None else _switch(node, up)
            pid, answer, gate = _fork(rank, num_ranks, wire, job)
            ranks.append((pid, answer))
            gates.append(gate)
            _plug(pid, rank, switches[node], wire.rank_mbit)
        for gate in gates:
            os.write(gate, b"x")
        return _answers(ranks, time.monotonic() + limit_s)
    finally:
        for pid, answer in ranks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(answer)
        for gate in gates:
            os.close(gate)
        _unplug(num_ranks)


def _fork(
    rank: int, num_ranks: int, wire: Wire, job: Callable[[int, int], Any]
) -> tuple[int, int, int]:
    """A rank that waits in its own namespace until its interface is there."""
    answer_r, answer_w = os.pipe()
    gate_r, gate_w = os.pipe()
    up_r, up_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # else each sleep ends 50 us late
            _unshare()
            os.write(up_w, b"x")
            os.read(gate_r, 1)
            os.environ.update(_launched(rank, num_ranks, wire))
            os.write(answer_w, json.dumps(job(rank, num_ranks)).encode() + b"\n")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            if code:
                os.write(answer_w, b"\n")
            signal.pause()  # the others may still talk to this rank; the parent ends all
    for fd in (answer_w, gate_r, up_w):
        os.close(fd)
    os.read(up_r, 1)
    os.close(up_r)
    return pid, answer_r, gate_w


def _launched(rank: int, num_ranks: int, wire: Wire) -> dict[str, str]:
    """What torchrun would have put into the environment."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank % wire.ranks_per_node),
        "LOCAL_WORLD_SIZE": str(min(num_ranks, wire.ranks_per_node)),
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # addresses here have no names, and torch warns of each
    }


def _answers(ranks: list[tuple[int, int]], deadline_s: float) -> list[Any]:
    found: dict[int, bytes] = {answer: b"" for _, answer in ranks}
    while any(not text.endswith(b"\n") for text in found.values()):
        open_ones = [fd for fd, text in found.items() if not text.endswith(b"\n")]
        ready, _, _ = select.select(open_ones, [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise RuntimeError(f"{len(open_ones)} ranks gave no answer within the limit")
        for fd in ready:
            piece = os.read(fd, 1 << 16)
            found[fd] += piece or b"\n"
            if found[fd] == b"\n":
                raise RuntimeError("a rank failed")
    return [json.loads(found[answer]) for _, answer in ranks]
