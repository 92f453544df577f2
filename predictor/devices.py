"""The catalogue of GPUs and links (``devices.toml``): nominal numbers for what was not measured."""

import math
import re
import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from scaledl.errors import UsageError
from scaledl.records import GpuLinks, GpuSpec, LinkSpec

STATED_REL_SIGMA = 0.3
"""log-sd of a bandwidth a user wrote down: a line rate is reached to 60 to 95 % only."""
STATED_LATENCY_S = 15e-6
"""Latency of such a link: between InfiniBand (12 us) and sockets (30 us) of the catalogue."""


ACROSS_SOCKETS_REL_SIGMA = 0.8
"""log-sd of PCIe between sockets (assumed): on top of the catalogue's, the sockets' own link."""


class GpuEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as the catalogue states it; units as data sheets print them, SI in ``spec``."""

    name: str
    aliases: tuple[str, ...]
    memory_gib: float
    memory_gbytes_per_s: float
    tdp_w: float
    tflops: dict[str, float]
    intra: str
    source: str
    date: str

    @property
    def spec(self) -> GpuSpec:
        """The entry in SI units."""
        return GpuSpec(
            name=self.name,
            memory_bytes=self.memory_gib * 2**30,
            memory_bytes_per_s=self.memory_gbytes_per_s * 1e9,
            peak_flops={dtype: value * 1e12 for dtype, value in self.tflops.items()},
            tdp_w=self.tdp_w,
        )


class LinkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One link class as the catalogue states it.

    ``network_gbytes_per_s`` is what machines with such a link inside have between them, all cards
    of a machine together, where their networks are unlike those of other machines.
    """

    kind: str
    latency_s: float
    gbytes_per_s: float
    rel_sigma: float
    source: str
    date: str
    aliases: tuple[str, ...] = ()
    line_gbytes_per_s: float | None = None
    network_gbytes_per_s: float | None = None
    network_rel_sigma: float | None = None

    @property
    def spec(self) -> LinkSpec:
        """The entry in SI units."""
        return LinkSpec(
            kind=self.kind,
            latency_s=self.latency_s,
            bytes_per_s=self.gbytes_per_s * 1e9,
            rel_sigma=self.rel_sigma,
        )


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. ``neutral`` words say nothing about which card it is."""

    neutral: frozenset[str]
    gpu: tuple[GpuEntry, ...]
    link: tuple[LinkEntry, ...]


@cache
def catalogue() -> Catalogue:
    """The catalogue, read once."""
    text = files("scaledl.predictor").joinpath("devices.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Catalogue)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


@cache
def _gpus_by_words() -> dict[frozenset[str], GpuEntry]:
    known = catalogue()
    return {
        _words(text) - known.neutral: entry
        for entry in known.gpu
        for text in (entry.name, *entry.aliases)
    }


@cache
def _links_by_kind() -> dict[str, LinkSpec]:
    return {text: e.spec for e in catalogue().link for text in (e.kind, *e.aliases)}


def _find_entry(name: str) -> GpuEntry | None:
    return _gpus_by_words().get(_words(name) - catalogue().neutral)


def find_gpu(name: str) -> GpuSpec | None:
    """The catalogue's numbers for a device name as torch or a user writes it, else ``None``.

    Every word of the name must be explained: a laptop variant, a MIG slice or a newer model with a
    known number inside its name is unknown rather than wrong.

    >>> find_gpu("NVIDIA A100-SXM4-80GB").name, find_gpu("NVIDIA GeForce RTX 4090 Laptop GPU")
    ('A100-SXM4-80GB', None)
    """
    entry = _find_entry(name)
    return entry.spec if entry is not None else None


def find_link(kind: str) -> LinkSpec:
    """The link class called ``kind``; a kind that is not in the catalogue is ``unknown``."""
    known = _links_by_kind()
    return known.get(kind.strip().lower(), known["unknown"])


_BYTES_PER_UNIT = {"b": 1 / 8, "B": 1.0}
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(bit|b|B)(?:ps|/s)\s*")


def parse_link(text: str) -> LinkSpec:
    """A link from a rate (``200Gb/s`` bits, ``25GB/s`` bytes) or the name of a class.

    >>> parse_link("200Gb/s").bytes_per_s
    25000000000.0

    Raises:
        UsageError: the text is neither, or the rate is 0.
    """
    match = _RATE.fullmatch(text)
    if match is not None:
        rate = float(match[1]) * _PREFIX[match[2]] * _BYTES_PER_UNIT[match[3][0]]
        if rate > 0 and math.isfinite(rate):
            return LinkSpec(
                kind="stated",
                latency_s=STATED_LATENCY_S,
                bytes_per_s=rate,
                rel_sigma=STATED_REL_SIGMA,
            )
    known = _links_by_kind().get(text.strip().lower())
    if known is None:
        names = ", ".join(entry.kind for entry in catalogue().link)
        raise UsageError(
            f"not a link: {text!r}. Write a rate such as 200Gb/s (bits) or 25GB/s (bytes), or one "
            f"of {names}."
        )
    return known


def default_links(gpu: GpuSpec | None, is_cpu: bool) -> tuple[LinkSpec, LinkSpec]:
    """The links to assume inside a machine and between machines while nothing was measured.

    The network cannot be read off the GPU, so it is ``unknown`` with a wide doubt; but machines
    whose cards have NVLink are sold with faster networks than others. CPU jobs are given 10 Gbit/s
    Ethernet with the same doubt.
    """
    unknown = find_link("unknown")
    if is_cpu:
        inter = msgspec.structs.replace(find_link("eth-10"), rel_sigma=unknown.rel_sigma)
        return find_link("loopback"), inter
    entry = _find_entry(gpu.name) if gpu is not None else None
    if entry is None:
        return unknown, unknown
    return find_link(entry.intra), _network_beside(entry.intra, unknown)


def _network_beside(intra: str, unknown: LinkSpec) -> LinkSpec:
    """The network of machines with that link inside; still of the kind ``unknown``."""
    inside = next(entry for entry in catalogue().link if entry.kind == intra)
    if inside.network_gbytes_per_s is None or inside.network_rel_sigma is None:
        return unknown
    return msgspec.structs.replace(
        unknown,
        bytes_per_s=inside.network_gbytes_per_s * 1e9,
        rel_sigma=inside.network_rel_sigma,
    )


_X16 = 16


def wired(links: GpuLinks, default: LinkSpec) -> LinkSpec:
    """The link inside a machine by its wiring as told; ``default`` where too little is told.

    The class's rate is scaled by the share of the class's lines that are there. It stays nominal:
    the doubt is never below that of ``default``, since the wiring may be told wrongly and the job
    may use other cards.
    """
    by_kind = {entry.kind: entry for entry in catalogue().link}
    entry = by_kind.get(links.nvlink or "")
    if entry is not None and entry.line_gbytes_per_s and links.nvlink_bytes_per_s:
        line = links.num_nvlinks * links.nvlink_bytes_per_s
        share = min(1.0, line / (entry.line_gbytes_per_s * 1e9))
    elif links.num_nvlinks or default.kind.startswith("nvlink"):
        return default  # cables of unknown speed, or none told on a board that has them
    else:
        entry = by_kind.get(f"pcie{links.pcie_generation}")
        share = min(1.0, (links.pcie_width or _X16) / _X16)
    if entry is None or share < 1 / _X16:  # less than one lane is a reading gone wrong
        return default
    rel_sigma = max(entry.rel_sigma, default.rel_sigma)
    if links.nvlink is None and links.across_sockets:
        rel_sigma = max(rel_sigma, ACROSS_SOCKETS_REL_SIGMA)
    rate = entry.gbytes_per_s * 1e9 * share
    return msgspec.structs.replace(entry.spec, bytes_per_s=rate, rel_sigma=rel_sigma)
