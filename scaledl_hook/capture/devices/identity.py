"""Which card of NVML's is CUDA's: by UUID, never by counting across the two orders."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class NoCardError(Exception):
    """The card cannot be told from the others; the text says why and what helps."""


class Card(NamedTuple):
    """A handle of NVML's, and whether it is a MIG slice."""

    handle: Any
    is_slice: bool


def find_card(nvml: Any, uuid: str, index: int, environ: Mapping[str, str]) -> Card:
    """The card with this UUID; of a card cut into slices, the slice this process sees.

    Raises:
        NoCardError: no card, or more than one that it could be.
    """
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not bare:
        return _by_order(nvml, index, visible, environ)
    for full in (f"MIG-{bare}",) if uuid.startswith("MIG-") else (f"GPU-{bare}", f"MIG-{bare}"):
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(full)
        except Exception:
            continue
        if full.startswith("GPU-") and _is_cut(nvml, handle):
            return _slice_of(nvml, handle, visible)
        return Card(handle, full.startswith("MIG-"))
    raise NoCardError(f"NVML knows no card with the UUID {bare} (Not Found)")


def _is_cut(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except Exception:  # a card or driver without MIG
        return False


def _slice_of(nvml: Any, parent: Any, visible: str | None) -> Card:
    """A process sees one slice only: the first that is named, or the only one there is."""
    slices = list(_slices(nvml, parent))
    first = (visible or "").split(",")[0].strip()
    if first.startswith("MIG-"):
        found = [one for one in slices if _is_named(nvml, one, parent, first)]
    else:
        found = slices
    if len(found) != 1:
        raise NoCardError("it is cut into MIG slices and NVML does not tell which one is ours")
    return Card(found[0], True)


def _slices(nvml: Any, parent: Any) -> Iterator[Any]:
    """The numbering has gaps where slices were taken away."""
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number)
        except Exception:
            continue


def _is_named(nvml: Any, piece: Any, parent: Any, name: str) -> bool:
    if text_of(nvml.nvmlDeviceGetUUID(piece)) == name:
        return True
    # Drivers before 470 call it by the parent's UUID and the two instances.
    card = text_of(nvml.nvmlDeviceGetUUID(parent))
    instance = nvml.nvmlDeviceGetGpuInstanceId(piece)
    return name == f"MIG-{card}/{instance}/{nvml.nvmlDeviceGetComputeInstanceId(piece)}"


def _by_order(nvml: Any, index: int, visible: str | None, environ: Mapping[str, str]) -> Card:
    """Without a UUID: by the visible devices, where these leave no doubt."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    uuids = [text_of(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    in_pci_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(handles) == 1
    chosen = visible_cards(visible, uuids, in_pci_order=in_pci_order)
    if index >= len(chosen):
        raise NoCardError("CUDA tells no UUID of it; CUDA_DEVICE_ORDER=PCI_BUS_ID would help")
    handle = handles[chosen[index]]
    return _slice_of(nvml, handle, visible) if _is_cut(nvml, handle) else Card(handle, False)


def visible_cards(visible: str | None, uuids: list[str], *, in_pci_order: bool) -> list[int]:
    """Places in ``uuids`` of the cards that CUDA shows, in its order; empty where not certain.

    Follows the CUDA programming guide (environment variables): a list of numbers or of beginnings
    of UUIDs; the first entry that is none ends the list, and one named twice voids it.
    """
    if visible is None:
        return list(range(len(uuids))) if in_pci_order else []
    found: list[int] = []
    for entry in visible.split(","):
        place = _place(entry.strip(), uuids, in_pci_order=in_pci_order)
        if place is None:
            break
        if place in found:
            return []
        found.append(place)
    return found


def _place(entry: str, uuids: list[str], *, in_pci_order: bool) -> int | None:
    if entry.startswith("GPU-"):
        places = [place for place, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return places[0] if len(places) == 1 else None
    if entry.startswith("MIG-GPU-"):
        card = entry.removeprefix("MIG-").split("/")[0]
        return uuids.index(card) if card in uuids else None
    is_number = entry.isascii() and entry.isdigit() and in_pci_order
    return int(entry) if is_number and int(entry) < len(uuids) else None


def text_of(value: str | bytes) -> str:
    """Old bindings answer bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
