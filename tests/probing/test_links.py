"""Links from timed all-reduces: what the fit reads back, where it is kept, what it changes."""

from pathlib import Path

import msgspec
import pytest
from samples import CLUSTER, INFINIBAND, INFO, NOW_S, NVLINK, write_run

from scaledl import linkbook
from scaledl.cli.checks import check_links
from scaledl.errors import UsageError
from scaledl.linkbook import LinkBook, read_book
from scaledl.past import open_run
from scaledl.predictor.collective_cost import all_reduce_terms
from scaledl.predictor.link_fit import fit_timings
from scaledl.probe_records import LinkMeasurement, LinkTiming, TimedLinks
from scaledl.probing.link_probe import fitted, nominal_cluster, what_changes
from scaledl.probing.links import (
    LEAST,
    LEAST_SIZES,
    MOST,
    SIZES_BYTES,
    TRIAL,
    WARM,
    _timings,
    ranks_per_node,
)
from scaledl.records import ClusterSpec, LinkSpec
from scaledl.report.probe_text import render_links
from scaledl.report.text import Style

TRUE_INTRA = LinkSpec(kind="a", latency_s=8e-6, bytes_per_s=150e9)
TRUE_INTER = LinkSpec(kind="b", latency_s=4e-5, bytes_per_s=9e9)


def timed(num_ranks: int, inside: int, *, device: str = "NVIDIA A100-SXM4-80GB") -> TimedLinks:
    """What a cluster with the true links would show."""
    groups = ([inside] if inside > 1 else []) + ([num_ranks] if num_ranks > inside else [])
    true = ClusterSpec(
        gpu=CLUSTER.gpu,
        num_gpus=num_ranks,
        gpus_per_node=inside,
        intra=TRUE_INTRA,
        inter=TRUE_INTER,
    )
    timings = [
        LinkTiming(
            group_size=size,
            num_bytes=num_bytes,
            duration_s=all_reduce_terms(
                num_bytes, size, msgspec.structs.replace(true, num_gpus=size)
            ).seconds(TRUE_INTRA, TRUE_INTER),
        )
        for size in groups
        for num_bytes in SIZES_BYTES
    ]
    return TimedLinks(
        device=device,
        is_host=device == "cpu",
        num_ranks=num_ranks,
        ranks_per_node=inside,
        timings=tuple(timings),
    )


def test_both_kinds_of_link_are_read_back_apart() -> None:
    found = timed(16, 8)
    links = fit_timings(found.timings, nominal_cluster(found), is_host=False)
    assert links.intra is not None
    assert links.inter is not None
    assert links.intra.bytes_per_s == pytest.approx(TRUE_INTRA.bytes_per_s, rel=0.15)
    assert links.intra.latency_s == pytest.approx(TRUE_INTRA.latency_s, rel=0.1)
    assert links.inter.bytes_per_s == pytest.approx(TRUE_INTER.bytes_per_s, rel=0.1)
    assert links.inter.latency_s == pytest.approx(TRUE_INTER.latency_s, rel=0.25)
    assert links.intra.measured
    assert links.inter.measured
    assert links.inter.rel_sigma < nominal_cluster(found).inter.rel_sigma / 3


@pytest.mark.parametrize(
    ("num_ranks", "inside", "intra", "inter"), [(8, 8, True, False), (4, 1, False, True)]
)
def test_a_kind_of_link_that_no_two_ranks_used_is_not_called_measured(
    num_ranks: int, inside: int, intra: bool, inter: bool
) -> None:
    found = fitted(timed(num_ranks, inside), NOW_S)
    assert (found.intra is not None, found.inter is not None) == (intra, inter)


def test_cpu_processes_leave_more_doubt_than_gpus() -> None:
    gpu, cpu = fitted(timed(8, 8), NOW_S), fitted(timed(8, 8, device="cpu"), NOW_S)
    assert gpu.intra is not None
    assert cpu.intra is not None
    assert cpu.intra.rel_sigma > gpu.intra.rel_sigma


def measured(
    at_s: float, intra: LinkSpec | None = None, inter: LinkSpec | None = None
) -> LinkMeasurement:
    return LinkMeasurement(
        at_s=at_s,
        device=CLUSTER.gpu.name,
        ranks_per_node=8,
        num_ranks=16,
        intra=intra,
        inter=inter,
    )


def test_what_is_kept_is_found_beside_the_runs_newest_first_and_damage_is_passed_over(
    tmp_path: Path,
) -> None:
    new = measured(2.0, inter=TRUE_INTER)
    linkbook.save(tmp_path, measured(1.0, intra=TRUE_INTRA))
    linkbook.save(tmp_path, new)
    (tmp_path / "links" / "3-zzzz.json").write_text('{"at_s": 3')
    book = read_book(tmp_path / "runs")
    assert [entry.at_s for entry in book.entries] == [2.0, 1.0]
    known = book.known(CLUSTER)
    assert (known.intra.bytes_per_s, known.inter.bytes_per_s) == (150e9, 9e9)
    assert (known.intra.kind, known.inter.kind) == (NVLINK.kind, INFINIBAND.kind)
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "links").glob("[12]-*")} == {0o600}


def test_links_of_another_device_stated_ones_and_newer_ones_are_left_alone() -> None:
    book = LinkBook(entries=(measured(5.0, intra=TRUE_INTRA, inter=TRUE_INTER),))
    other = msgspec.structs.replace(
        CLUSTER, gpu=msgspec.structs.replace(CLUSTER.gpu, name="another")
    )
    assert book.known(other) == other
    stated = msgspec.structs.replace(INFINIBAND, kind="stated")
    assert book.known(msgspec.structs.replace(CLUSTER, inter=stated)).inter == stated
    seen = msgspec.structs.replace(NVLINK, measured=True)
    mine = msgspec.structs.replace(CLUSTER, intra=seen)
    assert book.known(mine, at_s=6.0).intra == seen
    assert book.known(mine, at_s=4.0).intra.bytes_per_s == 150e9


def test_measured_links_enter_the_next_what_if_of_a_recorded_run(tmp_path: Path) -> None:
    write_run(tmp_path)
    slow = LinkSpec(kind="b", latency_s=4e-5, bytes_per_s=5e8, measured=True, rel_sigma=0.2)
    found = measured(NOW_S, inter=slow)
    changes = what_changes(tmp_path, found)
    before = open_run("latest", tmp_path).what_if([16], gpus_per_node=8).rows[-1]
    linkbook.save(tmp_path, found)
    after = open_run("latest", tmp_path).what_if([16], gpus_per_node=8).rows[-1]
    assert "no-multi-node-data" in before.caveats
    assert "no-multi-node-data" not in after.caveats
    assert after.step_s.mean > before.step_s.mean  # 0.5 GB/s between nodes, not 25
    assert changes is not None
    run, narrowings = changes
    assert run == INFO.run_id
    told = {n.num_gpus: n for n in narrowings}[16]
    assert told.after.mean > told.before.mean
    text = render_links(
        found, (CLUSTER.intra, CLUSTER.inter), changes, Style(width=96), cpu_run=False
    )
    assert "inside a machine: not measured, no two ranks lie so" in text
    assert "between machines: 40 us a hop, 0.5 GB/s" in text


def test_doctor_tells_which_links_are_measured_and_how_to(tmp_path: Path) -> None:
    (check,) = check_links(str(tmp_path))
    assert (check.status, check.remedy) == ("off", "scaledl probe --links")
    linkbook.save(tmp_path, measured(NOW_S, intra=TRUE_INTRA))
    (check,) = check_links(str(tmp_path))
    assert check.status == "ok"
    assert "inside a machine 150 GB/s, measured 2026-" in check.seen


def test_machines_with_unlike_numbers_of_ranks_are_refused() -> None:
    assert ranks_per_node(8, {"LOCAL_WORLD_SIZE": "4"}) == 4
    assert ranks_per_node(8, {"SLURM_NTASKS_PER_NODE": "2"}) == 2
    assert ranks_per_node(8, {}) == 8
    with pytest.raises(UsageError, match="unlike numbers of ranks"):
        ranks_per_node(7, {"LOCAL_WORLD_SIZE": "4"})


@pytest.mark.parametrize(
    ("bytes_per_s", "num_sizes"), [(1e10, len(SIZES_BYTES)), (3e6, 7), (1e5, 5), (1.0, 2)]
)
def test_a_slow_link_is_timed_with_as_many_sizes_as_the_budget_holds(
    bytes_per_s: float, num_sizes: int
) -> None:
    calls: list[float] = []

    def duration_s(num_bytes: int, share_s: float) -> float:
        took_s = 1e-4 + num_bytes / bytes_per_s
        calls.append(took_s * (WARM + TRIAL + max(LEAST, min(MOST, share_s / took_s))))
        return took_s

    timings = _timings(4, SIZES_BYTES, 40.0, duration_s)
    assert [t.num_bytes for t in timings] == list(SIZES_BYTES[:num_sizes])
    assert sum(calls[LEAST_SIZES:]) <= 40.0
