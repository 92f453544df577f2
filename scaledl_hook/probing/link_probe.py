"""The probe of the links from the side of the command: start it, fit, keep, compare. No torch."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from scaledl import store
from scaledl.errors import ScaledlError, StoreError
from scaledl.linkbook import LinkBook
from scaledl.past import PastRun
from scaledl.predictor.devices import default_links, find_gpu
from scaledl.predictor.link_fit import fit_timings
from scaledl.probe_records import LinkMeasurement, Narrowing, TimedLinks
from scaledl.probing.launch import run_command
from scaledl.probing.plan import Wish, narrowed
from scaledl.records import ClusterSpec, GpuSpec

LIMIT_S = 300.0
_RUNS_LOOKED_AT = 20


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether torchrun or another launcher started this process as one of several."""
    return "RANK" in environ and "WORLD_SIZE" in environ


def time_here(num_ranks: int, environ: Mapping[str, str]) -> TimedLinks:
    """Start so many ranks on this machine and wait for what they found.

    Raises:
        ScaledlError: they failed; their last words are in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "timed.json"
        ranks = ["--standalone", "--nproc-per-node", str(num_ranks)]
        module = ["-m", "scaledl.probing.links", str(out)]
        words = [sys.executable, "-m", "torch.distributed.run", *ranks, *module]
        ended = run_command(words, {"OMP_NUM_THREADS": "1", **environ}, limit_s=LIMIT_S)
        if ended.code != 0 or not out.exists():
            raise ScaledlError(
                f"the {num_ranks} ranks that time the links failed: "
                f"{' / '.join(ended.tail[-3:]) or 'no word'}. Try fewer --ranks."
            )
        return msgspec.json.decode(out.read_bytes(), type=TimedLinks)


def nominal_cluster(timed: TimedLinks) -> ClusterSpec:
    """The job that timed the links, with the catalogue's."""
    known = find_gpu(timed.device)
    intra, inter = default_links(known, timed.is_host)
    return ClusterSpec(
        gpu=known or GpuSpec(name=timed.device),
        num_gpus=timed.num_ranks,
        gpus_per_node=timed.ranks_per_node,
        intra=intra,
        inter=inter,
    )


def fitted(timed: TimedLinks, at_s: float) -> LinkMeasurement:
    """The links as they are kept."""
    cluster = nominal_cluster(timed)
    links = fit_timings(timed.timings, cluster, is_host=timed.is_host)
    return LinkMeasurement(
        at_s=at_s,
        device=cluster.gpu.name,
        ranks_per_node=timed.ranks_per_node,
        num_ranks=timed.num_ranks,
        intra=links.intra,
        inter=links.inter,
        timings=timed.timings,
    )


def what_changes(home: Path, measured: LinkMeasurement) -> tuple[str, tuple[Narrowing, ...]] | None:
    """The newest run on this kind of device, and its what-if before and with these links.

    To be asked before they are kept.
    """
    for entry in store.list_runs(home).runs[:_RUNS_LOOKED_AT]:
        if entry.info.cluster.gpu.name != measured.device:
            continue
        run = PastRun(entry.folder, entry.info)
        try:
            after = run.learned(LinkBook(entries=(measured,)))
            return entry.info.run_id, narrowed(run.learned(), after, Wish())
        except (StoreError, ArithmeticError, ValueError):
            continue  # no steady step in it
    return None
