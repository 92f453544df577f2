"""The names of README's table are those of the JSON and of the text."""

import re
from pathlib import Path

import msgspec
import pytest
from samples import GRAPH, NOW_S, epoch_summary, profile_window, scaling_report, scaling_rows

from scaledl.records import Eta, Interval, Progress
from scaledl.report.console import RunLine, render_comm, render_epoch, render_layers, render_runs
from scaledl.report.jsonable import report_to_dict
from scaledl.report.layers import comm_rows, layer_rows
from scaledl.report.live import render_log_line

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
TABLE = README.split("| printed | in JSON | what it is |")[1].split("\n\n")[0].splitlines()[2:]
WINDOWS = (profile_window(), profile_window(rank=1, wait_s=0.01))


def json_names() -> set[str]:
    """Every key of the report's JSON and of the tables of layers and collectives."""
    report = report_to_dict(scaling_report())
    row = report["rows"][3]
    names = {*report, *row, *row["step_s"], *row["parts_s"]}
    tables = (comm_rows(WINDOWS)[0], layer_rows(GRAPH, WINDOWS)[0])
    return names.union(*(table.__struct_fields__ for table in tables))


def printed() -> str:
    line = RunLine(
        run="r", started_at=NOW_S, model="m", num_gpus=2, gpu="cpu", state="finished", step_s=0.1
    )
    rows = list(scaling_rows())
    rows[1] = msgspec.structs.replace(rows[1], basis="interpolated", limited_by="compute")
    rows[6] = msgspec.structs.replace(rows[6], basis="prior")
    report = msgspec.structs.replace(
        scaling_report(), rows=tuple(r for r in rows if r.limited_by == "compute"), caveats=()
    )
    cpu = render_epoch(epoch_summary(cpu_run=True), report, width=120)
    far = msgspec.structs.replace(report, rows=tuple(rows))
    gpu = render_epoch(epoch_summary(), far, width=120)
    tables = (render_comm(WINDOWS), render_layers(GRAPH, WINDOWS), render_runs((line,)))
    return "\n".join((cpu, gpu, *tables))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.split("|")[1].strip())
def test_each_name_of_the_table_stands_in_the_json_and_in_the_text(row: str) -> None:
    text, in_json, _ = (cell.strip() for cell in row.strip("|").split("|"))
    known, seen = json_names(), printed()
    keys = re.findall(r"`([a-z_.]+)`", in_json)
    assert keys
    assert {part for key in keys for part in key.strip(".").split(".")} <= known
    for name in re.sub(r"\(.*\)", "", text).split(","):
        assert re.search(rf"\b{re.escape(name.strip())}", seen), name


def test_the_keys_of_a_log_line_are_in_the_readme() -> None:
    left = Interval(mean=5000.0, low=4000.0, high=6000.0)
    eta = Eta(at_s=NOW_S, step=9, basis="measured", remaining_s=left, finish_at=NOW_S + 5000)
    place = Progress(step=9, epoch=0, step_in_epoch=9, total_steps=99)
    keys = re.findall(r"([a-z_]+)=", render_log_line(eta, place, step_s=0.2, now_s=NOW_S))
    assert all(f"`{key}`" in README for key in keys if key.startswith(("eta", "left", "step_")))
