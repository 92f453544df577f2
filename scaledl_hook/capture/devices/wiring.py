"""How the NVIDIA GPUs of this machine are wired, as NVML tells it; never more than nominal."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scaledl.records import GpuLinks

# NVML_NVLINK_VERSION_*: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
_NVLINK_KINDS = {
    1: "nvlink1",
    2: "nvlink2",
    3: "nvlink2",
    4: "nvlink3",
    5: "nvlink3",
    6: "nvlink4",
    7: "nvlink5",
}
_MAX_LINKS = 18  # of one GPU, up to NVLink 5
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_ACROSS_SOCKETS = 50  # NVML_TOPOLOGY_SYSTEM
_SPEED_FIELD = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: MB/s of one link, one way


class _Wires(NamedTuple):
    """The NVLinks of one card that are up."""

    version: int | None
    num_to_switch: int
    to_cards: Counter[str]

    def num_within(self, cards: Sequence[str]) -> int:
        return self.num_to_switch + sum(self.to_cards[card] for card in cards)


def read_links(nvml: Any, own: Any) -> GpuLinks | None:
    """The wiring between this card and the others of the machine; ``None``: nothing is told.

    Which of the machine's cards the job uses is not known for sure, so the slowest way between any
    of them counts. The generation of PCIe is the highest one: links slow down while idle.
    """
    handles = _all_handles(nvml) or [own]
    wires = _wires(nvml, own)
    if wires.num_to_switch:
        num, version = wires.num_to_switch, wires.version
    else:
        num, version = _ring(nvml, handles)
    found = GpuLinks(
        nvlink=_NVLINK_KINDS.get(version or 0) if num else None,
        num_nvlinks=num,
        nvlink_bytes_per_s=_link_speed(nvml, own) if num else None,
        pcie_generation=_least(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handles),
        pcie_width=_least(nvml.nvmlDeviceGetMaxPcieLinkWidth, handles),
        across_sockets=_crosses_sockets(nvml, own, handles),
    )
    return None if found.nvlink is None and found.pcie_generation is None else found


def _all_handles(nvml: Any) -> list[Any]:
    count = _try(nvml.nvmlDeviceGetCount) or 0
    handles = [_try(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
    return [handle for handle in handles if handle is not None]


def _wires(nvml: Any, handle: Any) -> _Wires:
    version, num_to_switch, to_cards = None, 0, Counter[str]()
    for link in range(_MAX_LINKS):
        state = _try(nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None and link == 0:
            break  # no NVLink on this card
        if state != 1:
            continue
        version = version or _try(nvml.nvmlDeviceGetNvLinkVersion, handle, link)
        remote = _try(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if remote == _SWITCH:
            num_to_switch += 1
        else:
            pci = _try(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if pci is not None:
                to_cards[_bus(pci)] += 1
    return _Wires(version, num_to_switch, to_cards)


def _ring(nvml: Any, handles: Sequence[Any]) -> tuple[int, int | None]:
    """NVLinks of the least wired card where cables alone make a ring through all, else 0."""
    infos = [_try(nvml.nvmlDeviceGetPciInfo, h) for h in handles]
    if len(handles) < 2 or None in infos:
        return 0, None
    cards = [_bus(pci) for pci in infos]
    wires = dict(zip(cards, (_wires(nvml, handle) for handle in handles), strict=True))
    reached, fresh = {cards[0]}, [cards[0]]
    while fresh:
        near = set(wires[fresh.pop()].to_cards) & set(cards)
        fresh += near - reached
        reached |= near
    neighbours = min(len(set(one.to_cards) & set(cards)) for one in wires.values())
    if len(reached) < len(cards) or neighbours < min(2, len(cards) - 1):
        return 0, None
    least = min(wires.values(), key=lambda one: one.num_within(cards))
    return least.num_within(cards), least.version


def _link_speed(nvml: Any, handle: Any) -> float | None:
    def ask() -> float:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [_SPEED_FIELD])
        if value.nvmlReturn != 0:
            raise ValueError("not told")
        return float(value.value.uiVal) * 1e6

    return _try(ask) or None


def _crosses_sockets(nvml: Any, own: Any, handles: Sequence[Any]) -> bool | None:
    common = nvml.nvmlDeviceGetTopologyCommonAncestor
    # A handle asked about itself answers 0 (the same board).
    levels = [_try(common, own, other) for other in handles]
    known = [level for level in levels if level is not None]
    return max(known) >= _ACROSS_SOCKETS if known and len(handles) > 1 else None


def _least(query: Callable[[Any], int], handles: Sequence[Any]) -> int | None:
    values = [_try(query, h) for h in handles]
    known = [value for value in values if value]
    return min(known) if known else None


def _bus(pci: Any) -> str:
    """Domain, bus and device: some drivers write four digits of the domain, some eight."""
    return f"{pci.domain:x}:{pci.bus:x}:{pci.device:x}"


def _try(query: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return query(*arguments)
    except Exception:  # every part of the picture may be missing on its own
        return None
