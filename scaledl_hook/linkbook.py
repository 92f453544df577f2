"""Links that ``scaledl probe --links`` measured, kept beside the runs and found again by device.

One file a measurement in ``links/``, written once: no locks. No host is named in it, so what tells
machines apart is the kind of device and which folder of runs is used.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from scaledl import store
from scaledl.errors import ScaledlError
from scaledl.probe_records import LinkMeasurement
from scaledl.records import SCHEMA, ClusterSpec, LinkSpec, Measurement

_MOST_FILES = 200
_MOST_BYTES = 2**20
STATED = "stated"
"""Kind of a link that the user wrote down: nothing measured replaces it."""


class LinkBook(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of links, the newest first."""

    entries: tuple[LinkMeasurement, ...] = ()

    def known(self, cluster: ClusterSpec, at_s: float | None = None) -> ClusterSpec:
        """The cluster with the newest measured links of its kind of device.

        Args:
            cluster: With nominal links, or with ones that were measured earlier.
            at_s: When ``cluster`` was recorded; a link measured before then is kept.
        """
        mine = [entry for entry in self.entries if entry.device == cluster.gpu.name]
        intra = next(((e.at_s, e.intra) for e in mine if e.intra is not None), None)
        inter = next(((e.at_s, e.inter) for e in mine if e.inter is not None), None)
        return msgspec.structs.replace(
            cluster,
            intra=_newer(cluster.intra, intra, at_s),
            inter=_newer(cluster.inter, inter, at_s),
        )

    def applied(self, measurement: Measurement) -> Measurement:
        """A recorded measurement with the links as known now."""
        if not self.entries:
            return measurement
        cluster = self.known(measurement.cluster, measurement.at_s)
        return msgspec.structs.replace(measurement, cluster=cluster)


def _newer(link: LinkSpec, found: tuple[float, LinkSpec] | None, at_s: float | None) -> LinkSpec:
    if found is None or link.kind == STATED:
        return link
    if link.measured and at_s is not None and found[0] <= at_s:
        return link
    # the kind stays: by it collectives of earlier runs are known to be of the same link
    return msgspec.structs.replace(found[1], kind=link.kind)


def read_book(runs: Path) -> LinkBook:
    """The measurements beside a folder of runs, else those of the user's own store.

    What cannot be read is left out: a run must not end over it.
    """
    for folder in (_beside(runs), store.home_dir() / "links"):
        found = sorted(_entries(folder), key=lambda entry: entry.at_s, reverse=True)
        if found:
            return LinkBook(entries=tuple(found))
    return LinkBook()


def save(home: Path, measured: LinkMeasurement) -> Path:
    """Keep a measurement under ``home``; returns its file.

    Raises:
        ScaledlError: the folder cannot be written.
    """
    folder = home / "links"
    path = folder / f"{int(measured.at_s)}-{secrets.token_hex(2)}.json"
    part = path.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(msgspec.json.encode(measured))
        os.replace(part, path)
    except OSError as error:
        raise ScaledlError(
            f"cannot write {folder}: {error.strerror}. Set SCALEDL_HOME or give --home."
        ) from error
    return path


def _beside(runs: Path) -> Path:
    return (runs.parent if runs.name == "runs" else runs) / "links"


def _entries(folder: Path) -> Iterator[LinkMeasurement]:
    try:
        newest = sorted((p for p in folder.iterdir() if p.suffix == ".json"), reverse=True)
    except OSError:
        return
    for path in newest[:_MOST_FILES]:
        try:
            if path.is_symlink() or path.stat().st_size > _MOST_BYTES:
                continue
            entry = msgspec.json.decode(path.read_bytes(), type=LinkMeasurement)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if entry.schema <= SCHEMA:
            yield entry
