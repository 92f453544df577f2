"""``scaledl probe --links``: links timed by ranks of its own, or by those a launcher started."""

import os
import time
from typing import Any

import msgspec

from scaledl import linkbook
from scaledl.cli.stream import look_of_stdout, write_json, write_out
from scaledl.errors import UsageError
from scaledl.probe_records import TimedLinks
from scaledl.probing import link_probe
from scaledl.probing.batch_text import TEXTS, links_job
from scaledl.probing.machine import num_cores_here, num_gpus_here
from scaledl.report.probe_text import render_links
from scaledl.report.text import Style
from scaledl.store import home_dir

MOST_CPU_RANKS = 4  # by themselves: more of them take turns on the cores and tell of that


def probe_links(
    ranks: int | None, home: str | None, gpus_per_node: int | None, where: str | None, *, json: bool
) -> None:
    """Time, fit, show and keep; with ``where`` only print the job that would."""
    folder = home_dir(home)
    if where is not None:
        if ranks is None or gpus_per_node is None:
            raise UsageError("--links --for needs --ranks and --gpus-per-node. Give both.")
        write_out(TEXTS[where](links_job(ranks, gpus_per_node, folder)))
        return
    timed = _timed(ranks)
    if timed is None:
        return
    measured = link_probe.fitted(timed, time.time())
    changes = link_probe.what_changes(folder, measured)
    linkbook.save(folder, measured)
    if json:
        shown: dict[str, Any] = {"measured": measured, "changes": changes}
        write_json({"schema": "scaledl.links/1"} | msgspec.to_builtins(shown))
        return
    nominal = link_probe.nominal_cluster(timed)
    look = look_of_stdout()
    style = Style(width=look.width, unicode=look.unicode, color=look.color)
    both = (nominal.intra, nominal.inter)
    write_out(render_links(measured, both, changes, style, cpu_run=timed.is_host))


def _timed(ranks: int | None) -> TimedLinks | None:
    """What all ranks found; ``None`` on those that do not write."""
    if link_probe.is_rank(os.environ):
        from scaledl.probing.links import time_links  # loads torch

        found = time_links()
        return found if os.environ["RANK"] == "0" else None
    here = num_gpus_here()
    num_ranks = ranks or here or min(MOST_CPU_RANKS, num_cores_here())
    if num_ranks < 2:
        raise UsageError(
            "1 rank has no link to time. Start the command under torchrun on several machines, or "
            "give --ranks."
        )
    if here and num_ranks > here:
        raise UsageError(f"--ranks {num_ranks} are more than the {here} GPUs of this machine.")
    return link_probe.time_here(num_ranks, os.environ)
