"""Collecting: what is chosen, what is measured, and that a kill loses one configuration at most."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scaledl.cli import main
from scaledl.collecting import files
from scaledl.collecting.families import build, loss_of
from scaledl.collecting.measure import measure
from scaledl.collecting.plan import PICTURES, Ranges, candidates, flops, ordered, rows, tasks
from scaledl.collecting.records import Configuration, Machine, Task
from scaledl.errors import StoreError, UsageError

FAMILIES = ("bert", "gpt2", "t5", "vit", "deit", "mlp", "cnn")
SMALL = Configuration(family="mlp", batch=2, length=16, width=32, depth=2)
MACHINE = Machine(cpu="a", num_cores=2, torch="2", transformers=None, threads=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_and_draws_nothing_from_the_users_generator(family: str) -> None:
    before = torch.get_rng_state()
    job = build(Configuration(family=family, batch=2, length=16, width=32, depth=1))
    assert torch.equal(before, torch.get_rng_state())
    loss_of(job.model, job.batch).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in job.model.parameters() if p.requires_grad)


def test_candidates_keep_within_the_limits_of_work_and_pictures_are_square() -> None:
    ranges = Ranges(work=(1e8, 1e9))
    for family in FAMILIES:
        found = candidates(family, ranges, 1000)
        assert found
        assert len(set(found)) == len(found)
        assert all(1e8 <= flops(c) <= 1e9 for c in found)
        if family in PICTURES:
            assert {c.length for c in found} <= {16, 25, 36, 49, 64, 100, 144}


def test_ranges_that_hold_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="no configuration of bert"):
        candidates("bert", Ranges(work=(1.0, 2.0)), 10)


def test_what_is_tested_on_is_never_trained_on_and_the_design_beats_chance() -> None:
    pool = candidates("bert", Ranges(), 200)
    found = tasks(pool, design=30, random=20, test=40)
    by_role = {
        role: [t.configuration for t in found if t.role == role]
        for role in ("test", "design", "random")
    }
    assert [len(by_role[r]) for r in ("test", "design", "random")] == [40, 30, 20]
    every = [c for group in by_role.values() for c in group]
    assert len(set(every)) == 90

    def log_det(configurations: list[Configuration]) -> float:
        table = rows(configurations)
        return float(np.linalg.slogdet(table.T @ table)[1])

    rest = [c for c in pool if c not in by_role["test"]]
    generator = np.random.default_rng(1)
    chance = [log_det([rest[i] for i in generator.permutation(len(rest))[:30]]) for _ in range(20)]
    assert log_det(by_role["design"]) > max(chance)


def test_too_small_a_pool_is_refused() -> None:
    with pytest.raises(UsageError, match="10 candidates are too few"):
        tasks(candidates("bert", Ranges(), 10), design=8, random=0, test=5)


def test_families_come_in_turn_and_a_repeat_comes_after_its_first() -> None:
    groups = [
        tasks(candidates(f, Ranges(), 100), design=30, random=10, test=20) for f in ("bert", "t5")
    ]
    line = ordered(groups)
    firsts = [t for t in line if t.role != "repeat"]
    assert sorted(map(str, firsts)) == sorted(str(t) for g in groups for t in g)
    families = [t.configuration.family for t in firsts]
    assert all(a != b for a, b in zip(families[::2], families[1::2], strict=True))
    place = {t.configuration: i for i, t in enumerate(line) if t.role != "repeat"}
    repeats = [(i, t) for i, t in enumerate(line) if t.role == "repeat"]
    assert repeats
    assert all(place[t.configuration] < i for i, t in repeats)


def test_a_measurement_holds_steps_layers_and_the_graph() -> None:
    found = measure(Task(configuration=SMALL, role="test"))
    assert min(found.steps_s) <= found.step_s <= max(found.steps_s)
    layers = {node.fqn for node in found.graph.nodes if node.fqn.startswith("body.")}
    assert layers
    assert layers <= {t.fqn for t in found.layers if t.forward_s > 0}
    assert found.num_params == sum(p.numel() for p in build(SMALL).model.parameters())
    assert found.comm_s is None
    assert all(s > 0 for s in found.calibration_s)


def test_what_is_written_is_read_again_packed_too_and_a_torn_line_is_mended(
    tmp_path: Path,
) -> None:
    out = tmp_path / "a.jsonl"
    first = measure(Task(configuration=SMALL, role="test"))
    with files.open_for_append(out, MACHINE) as stream:
        files.write_line(stream, first)
    out.write_bytes(out.read_bytes() + b'{"type":"Coll')  # killed in the middle of a line
    assert files.read(out) == (MACHINE, [first])
    assert files.done(out) == {first.task}
    with files.open_for_append(out, MACHINE) as stream:
        files.write_line(stream, first)
    assert files.read(out) == (MACHINE, [first, first])
    files.pack(out, tmp_path / "a.jsonl.xz")
    assert files.read(tmp_path / "a.jsonl.xz") == (MACHINE, [first, first])


def test_a_file_that_holds_something_else_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("hello\n\n")
    with pytest.raises(StoreError, match=r"line 1 of .*a\.jsonl is no measurement"):
        files.read(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl.xz").write_text("hello")
    with pytest.raises(StoreError, match="cannot read measurements"):
        files.read(tmp_path / "b.jsonl.xz")


def test_the_command_goes_on_where_it_was_and_refuses_other_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cli(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["scaledl", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    out = tmp_path / "steps.jsonl"
    words = ["collect", str(out), "--families", "mlp", "--design", "2", "--test", "1"]
    words += ["--candidates", "20"]
    code, said, _ = cli(*words)
    assert code == 0
    before = out.read_bytes()
    assert re.match(r"(\d) of \1 configurations", said)
    out.write_bytes(before[: before.rstrip().rfind(b"\n") + 10])  # the last one was cut
    code, again, _ = cli(*words)
    assert (code, again) == (0, said)
    assert len(files.read(out)[1]) == len(before.splitlines()) - 1
    code, _, error = cli(*words, "--seed", "3")
    assert code == 2
    assert "begun with other options" in error
    assert cli("collect", str(tmp_path / "b.jsonl"), "--families", "lstm")[0] == 2
    assert cli("collect", str(tmp_path / "b.jsonl.xz"))[0] == 2
