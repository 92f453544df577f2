"""What users pass: numbers of any kind, settings from three places, states from checkpoints."""

import copy
import inspect
import json
import logging
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from samples import CLUSTER, INFINIBAND, INFO, write_run
from training import make_loader, make_model, quietly, steps

import scaledl
from scaledl import limit
from scaledl.arguments import MOST_EPOCHS, MOST_STEPS, gpu_counts, seen_text
from scaledl.config import OPTIONS, SWITCHES, TrackConfig
from scaledl.errors import UsageError, is_strict
from scaledl.past import open_run
from scaledl.query import build_query
from scaledl.records import LinkSpec, Note
from scaledl.store import read_lines
from scaledl.units import MOST_COUNTS, MOST_GPUS


def notes_of(folder: Path) -> dict[str, str]:
    """Key and text of all that a run told."""
    return {line.key: line.text for line in read_lines(folder) if isinstance(line, Note)}


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["epochs", "steps_per_epoch", "total_steps", "total_samples", "total_tokens", "tokens"]
)
@pytest.mark.parametrize(
    "value",
    [10**400, 10**5000, 2**53, 3.0, np.float64(3), np.array([3]), Fraction(3), "3", b"3", True,
     np.bool_(True), torch.ones(2), [3], math.nan, Rude()],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_usual_whole_number_is_refused_by_name_in_one_line(
    name: str, value: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        scaledl.track(make_model(), **{name: value})
    said = str(caught.value)
    assert name in said
    assert len(said) < 200
    assert "\n" not in said


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array, torch.tensor])
def test_whole_numbers_of_other_libraries_are_taken_and_stored_as_int(kind: Any) -> None:
    config = TrackConfig(
        epochs=kind(3),
        total_steps=kind(7),
        initial_step=kind(0),
        gpus=(kind(8), kind(1), kind(8)),  # type: ignore[arg-type]
    )
    assert (config.epochs, config.total_steps, config.initial_step) == (3, 7, 0)
    assert config.gpus == (1, 8)
    stored = (config.epochs, config.total_steps, config.initial_step, *config.gpus)
    assert {type(value) for value in stored} == {int}


def test_the_largest_numbers_are_taken_and_the_next_are_not(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path, epochs=MOST_EPOCHS, total_steps=MOST_STEPS)(model) as run:
        steps(model, make_loader(), 3)
        assert run.eta is not None
        assert all(row.remaining_s.mean > 0 for row in run.what_if([1, 2]).rows)
    past = open_run(run.folder)
    assert (past.info.epochs, past.info.total_steps) == (MOST_EPOCHS, MOST_STEPS)
    for wrong in ({"epochs": MOST_EPOCHS + 1}, {"total_steps": MOST_STEPS + 1}):
        with pytest.raises(UsageError, match=r"must be at most 1,000,000,000"):
            TrackConfig(**wrong)


def test_prices_of_other_libraries_are_taken_and_stored_as_float() -> None:
    for value in (np.float32(2.5), np.float64(2.5), Fraction(5, 2)):
        config = TrackConfig(usd_per_gpu_hour=value)  # type: ignore[arg-type]
        assert (config.usd_per_gpu_hour, type(config.usd_per_gpu_hour)) == (2.5, float)
    assert math.copysign(1, TrackConfig(usd_per_gpu_hour=-0.0).usd_per_gpu_hour or 1) == 1
    for wrong in (10**400, 1e7, math.inf, "2.5", [2.5], True, 1j):
        with pytest.raises(UsageError, match="usd_per_gpu_hour must be"):
            TrackConfig(usd_per_gpu_hour=wrong)  # type: ignore[arg-type]


def test_a_value_is_shown_short_whatever_its_repr_does() -> None:
    assert seen_text(Rude()) == "some Rude"
    assert seen_text(10**5000) == "some int"
    assert len(seen_text("x" * 1000)) == 60
    assert seen_text("a\x1b[2J\n") == r"'a\x1b[2J\n'"


# --- counts of GPUs ------------------------------------------------------------------------------


def test_an_endless_list_of_counts_is_refused_without_being_built() -> None:
    taken = []

    def endless() -> Any:
        count = 0
        while True:
            count += 1
            taken.append(count)
            yield count

    for many in (range(1, 10**12), endless(), np.arange(1, 10_000), ",".join(["1-8"] * 9)):
        if isinstance(many, str):
            assert gpu_counts(many) == (1, 2, 4, 8)
            continue
        with pytest.raises(UsageError, match=f"more than {MOST_COUNTS} counts"):
            gpu_counts(many)
    assert len(taken) == MOST_COUNTS + 1
    with pytest.raises(UsageError, match=f"more than {MOST_COUNTS} counts"):
        gpu_counts(",".join(map(str, range(1, MOST_COUNTS + 2))))
    assert len(gpu_counts(range(1, MOST_COUNTS + 1))) == MOST_COUNTS


@pytest.mark.parametrize(
    "wrong",
    [[MOST_GPUS + 1], [10**400], b"12", {"gpus": 1}, [[1, 2]], ["1"], [None], object(), 2.5,
     [math.nan], np.ones((2, 2), int), True, "1-", "1-100000000"],
    ids=seen_text,
)  # fmt: skip
def test_counts_that_cannot_be_are_refused_everywhere(wrong: Any) -> None:
    for ask in (gpu_counts, lambda gpus: build_query(gpus, 1), lambda gpus: TrackConfig(gpus=gpus)):
        with pytest.raises(UsageError, match=r"(?i)gpu"):
            ask(wrong)


def test_counts_are_taken_from_text_number_array_and_any_iterable() -> None:
    for right in ("1,8", [8, 1], (1, 8, 8), np.array([1, 8]), {1, 8}, iter([8, 1])):
        assert gpu_counts(right) == (1, 8)
    assert gpu_counts(np.int64(8)) == gpu_counts(8) == (8,)


# --- what_if -------------------------------------------------------------------------------------

WRONG_QUESTIONS: list[dict[str, Any]] = [
    {"gpus": object()},
    {"usd_per_gpu_hour": "cheap"},
    {"usd_per_gpu_hour": [2.5]},
    {"usd_per_gpu_hour": True},
    {"usd_per_gpu_hour": 10**400},
    {"batch_rule": 3},
    {"batch_rule": ["fixed-global"]},
    {"batch_rule": None},
    {"gpus_per_node": 2.5},
    {"gpus_per_node": "8"},
    {"gpus_per_node": True},
    {"gpus_per_node": 10**8},
    {"inter": 5},
    {"inter": b"200Gb/s"},
    {"inter": LinkSpec(kind="x", latency_s=1e-6, bytes_per_s=0.0)},
    {"inter": LinkSpec(kind="x", latency_s=-1.0, bytes_per_s=1e9)},
    {"inter": LinkSpec(kind="x", latency_s=math.nan, bytes_per_s=1e9)},
    {"inter": LinkSpec(kind="x", latency_s="soon", bytes_per_s=1e9)},  # type: ignore[arg-type]
]


@pytest.mark.parametrize("wrong", WRONG_QUESTIONS, ids=lambda w: seen_text(w))
def test_a_question_of_a_wrong_type_is_refused_by_name(wrong: Any, tmp_path: Path) -> None:
    write_run(tmp_path)
    past = open_run("latest", tmp_path)
    (name,) = wrong
    with pytest.raises(UsageError) as caught:
        past.what_if(**wrong)
    said = str(caught.value)
    assert name in said or (name == "batch_rule" and "batch rule" in said)
    assert len(said) < 300


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": "3"}, {"epochs": 10**400}, {"epochs": 2.5}, {"epochs": 0}, {"level": "high"},
     {"level": math.nan}, {"level": True}, {"now_s": "today"}, {"now_s": 1e300}],
    ids=seen_text,
)  # fmt: skip
def test_a_recorded_run_refuses_a_wrong_length_level_and_time(wrong: Any, tmp_path: Path) -> None:
    write_run(tmp_path)
    (name,) = wrong
    with pytest.raises(UsageError, match=name):
        open_run("latest", tmp_path).what_if(**wrong)


def test_a_live_run_refuses_the_same_questions_and_goes_on(tmp_path: Path) -> None:
    model = make_model()
    with quietly(run_dir=tmp_path, epochs=3)(model) as run:
        steps(model, make_loader(), 2)
        for wrong in WRONG_QUESTIONS:
            with pytest.raises(UsageError):
                run.what_if(**wrong)
        for right in (np.array([1, 2]), iter([1, 2]), (np.int64(1), np.int64(2)), "1,2"):
            assert [row.num_gpus for row in run.what_if(right).rows] == [1, 2]
        steps(model, make_loader())
    assert open_run(run.folder).state == "finished"


def test_a_price_of_nothing_is_a_price(tmp_path: Path) -> None:
    write_run(tmp_path)
    report = open_run("latest", tmp_path).what_if([8], usd_per_gpu_hour=0)
    assert [row.cost_usd for row in report.rows] == [0.0, 0.0]
    model = make_model()
    with quietly(run_dir=tmp_path / "runs", usd_per_gpu_hour=0)(model) as run:
        steps(model, make_loader(), 2)
        assert {row.cost_usd for row in run.what_if([1, 2]).rows} == {0.0}


def test_what_is_left_is_told_for_every_count_where_the_end_is_known(tmp_path: Path) -> None:
    for number, plan in enumerate(
        ({"epochs": 4}, {"total_steps": 40}, {"epochs": 9, "total_steps": 40}, {})
    ):
        model = make_model()
        with quietly(run_dir=tmp_path / str(number), **plan)(model) as run:
            steps(model, make_loader(), 2)
            rows = run.what_if([1, 2, 4]).rows
            steps(model, make_loader(), 3)
            beyond = run.what_if([1, 2, 4]).rows
        if plan:
            assert [r.remaining_s.mean / r.epoch_s.mean for r in rows] == pytest.approx([2] * 3)
            assert [r.remaining_s.mean for r in beyond] == [0.0] * 3
        else:
            assert {r.remaining_s for r in (*rows, *beyond)} == {None}


def test_the_length_of_a_recorded_run_may_be_told_in_steps(tmp_path: Path) -> None:
    in_steps = msgspec.structs.replace(INFO, epochs=None, total_steps=7_500)
    both = msgspec.structs.replace(INFO, run_id="both", epochs=2, total_steps=7_500)
    for info, epochs in ((in_steps, 3.0), (both, 2.0)):
        past = scaledl.PastRun(write_run(tmp_path, info))
        assert past.remaining_epochs() == epochs
        row = past.what_if([8]).rows[0]
        assert row.remaining_s.mean == pytest.approx(epochs * row.epoch_s.mean)


# --- off -----------------------------------------------------------------------------------------


def test_disabled_there_is_no_eta_and_what_if_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEDL_DISABLE", "1")
    with scaledl.track(make_model(), epochs=2) as run:
        assert run.eta is None
        with pytest.raises(UsageError, match=r"disabled \(enabled=False or SCALEDL_DISABLE\)"):
            run.what_if([1, 2])


def test_before_the_block_what_if_says_where_to_call_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inside the enabled"):
        quietly(run_dir=tmp_path)(make_model()).what_if([1])


def test_the_way_out_works_whatever_else_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.scaledl]\nepochs = 'x'\n")
    env = {"SCALEDL_DISABLE": "1", "SCALEDL_EPOCHS": "many", "SCALEDL_NOPE": "1"}
    config = TrackConfig.load({"enabled": True}, env=env, folder=tmp_path)
    assert (config.enabled, config.notices) == (False, ())


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("please", True), ("False", False), ("no", False)]
)
def test_a_switch_set_to_a_word_for_no_is_off(text: str, on: bool, tmp_path: Path) -> None:
    env = {"SCALEDL_DISABLE": text}
    assert TrackConfig.load({}, env=env, folder=tmp_path).enabled is not on
    env = {"SCALEDL_QUIET": text}
    assert TrackConfig.load({}, env=env, folder=tmp_path).report == ("none" if on else "print")


# --- settings ------------------------------------------------------------------------------------


def test_variables_that_nothing_reads_are_told_with_the_closest_name_and_no_value(
    tmp_path: Path,
) -> None:
    env = {
        "SCALEDL_EPOCH": "hunter2",
        "SCALEDL_epochs": "3",
        "scaledl_gpus": "8",
        "SCALEDL_PRICE": "2",
        "SCALEDLE": "1",
        "SCALEDL_\x1b[2J": "1",
    }
    told = dict(TrackConfig.load({}, env=env, folder=tmp_path).notices)
    assert len(told) == 5
    assert "Did you mean SCALEDL_EPOCHS?" in told["variable:SCALEDL_EPOCH"]
    assert "Did you mean SCALEDL_EPOCHS?" in told["variable:SCALEDL_epochs"]
    assert "Did you mean SCALEDL_GPUS?" in told["variable:scaledl_gpus"]
    assert "SCALEDL_USD_PER_GPU_HOUR" in told["variable:SCALEDL_PRICE"]  # in the list of all
    assert not any("hunter2" in text or "\x1b" in text for text in told.values())


def test_every_variable_that_the_code_reads_is_known(tmp_path: Path) -> None:
    import re

    source = "\n".join(
        path.read_text()
        for path in Path(scaledl.__file__).parent.rglob("*.py")
        if path.name != "config.py"
    )
    read = set(re.findall(r'environ\.get\("SCALEDL_(\w+)"', source))
    read |= set(re.findall(r'"SCALEDL_(\w+)"', inspect.getsource(limit)))
    assert read == {"HOME", "STRICT", "ENDS_AT"}
    assert read <= set(SWITCHES)
    env = {f"SCALEDL_{name}": "1" for name in SWITCHES}
    env |= {f"SCALEDL_{name.upper()}": "1" for name in OPTIONS if name != "learner"}
    assert TrackConfig.load({}, env=env, folder=tmp_path).notices == ()
    del env["SCALEDL_DISABLE"], env["SCALEDL_REPORT"]
    assert TrackConfig.load({}, env=env, folder=tmp_path).notices == ()


def test_a_variable_without_effect_is_told_once_at_the_start_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCALEDL_EPOCH", "3")
    with scaledl.track(make_model(), run_dir=tmp_path) as run:
        said = capfd.readouterr().err
        assert said.count("the variable SCALEDL_EPOCH has no effect") == 1
        steps(run._model, make_loader(), 2)
    assert "SCALEDL_EPOCH " not in capfd.readouterr().err
    assert "variable:SCALEDL_EPOCH" in notes_of(run.folder)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[tool.scaledl\nepochs = 2", True),
        (b"[tool.scaledl]\nepochs = 2\n\xff", True),
        (b"[tool.scaledl]\nx = " + b"[" * 5000, True),
        (b"[tool.other\nepochs = 2", False),
        (b"tool = 3", False),
        (b"", False),
        (b"[[tool]]\nscaledl = 3", False),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_project_file_that_cannot_be_read_is_told_only_where_settings_are_lost(
    content: bytes, told: bool, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    config = TrackConfig.load({}, env={}, folder=tmp_path)
    assert config.epochs is None
    assert [key for key, _ in config.notices] == (["project-file"] if told else [])
    for _, text in config.notices:
        assert "pyproject.toml cannot be read (" in text


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('epochs = "3"', "epochs must be a whole number"),
        ("epochs = 3.0", "epochs must be a whole number"),
        ("gpus = [1.5]", "num_gpus must be a whole number"),
        ("usd_per_gpu_hour = '2'", "usd_per_gpu_hour must be 0 or more"),
        ('drop_last = "yes"', "drop_last must be True or False"),
        ("enabled = 1", "enabled must be True or False"),
        ("report = 3", "report must be a path"),
        ("run_dir = 1979-05-27", "run_dir must be a path"),
        ("learner = ['auto']", "learner must be one of"),
        ("epoch = 3", "Did you mean epochs?"),
    ],
)
def test_a_wrong_type_in_the_project_file_names_option_value_and_place(
    entry: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.scaledl]\n{entry}\n")
    with pytest.raises(UsageError) as caught:
        TrackConfig.load({}, env={}, folder=tmp_path)
    assert said in str(caught.value)
    assert "[tool.scaledl] of pyproject.toml" in str(caught.value)


@pytest.mark.parametrize("word", ["off", "No", "0", "true", "", "  "])
def test_a_word_that_switches_is_no_file_for_reports(word: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="report must be print, none or a file"):
        TrackConfig(report=word)
    assert TrackConfig(report="None").report == "none"
    assert TrackConfig(report="PRINT").report == "print"
    assert TrackConfig(report="reports").report == str(Path("reports").absolute())


def test_a_cluster_with_numbers_that_cannot_be_is_refused() -> None:
    for changes in (
        {"usd_per_gpu_hour": math.nan},
        {"usd_per_gpu_hour": -1.0},
        {"gpus_per_node": 2.5},
        {"inter": msgspec.structs.replace(INFINIBAND, bytes_per_s=0.0)},
        {"gpu": None},
    ):
        cluster = msgspec.structs.replace(CLUSTER, **changes)
        with pytest.raises(UsageError, match="cluster has a value that cannot be"):
            scaledl.track(make_model(), cluster=cluster)
    numpyish = msgspec.structs.replace(
        CLUSTER, num_gpus=np.int64(4), usd_per_gpu_hour=np.float64(2)
    )
    stored = TrackConfig(cluster=numpyish).cluster
    assert (stored.num_gpus, type(stored.num_gpus)) == (4, int)


@pytest.mark.parametrize("wrong", [5, object(), "train", b"x", 2.5], ids=repr)
def test_a_loader_that_gives_no_batches_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="loader must be the DataLoader"):
        scaledl.track(make_model(), loader=wrong)


def test_a_loader_that_is_not_seen_by_itself_is_told_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, batches = make_model(), list(make_loader())
    with caplog.at_level(logging.WARNING), quietly(run_dir=tmp_path, loader=batches)(model) as run:
        steps(model, batches)
    assert "run.loader(...)" in notes_of(run.folder)["loader-kind"]
    with quietly(run_dir=tmp_path, loader=make_loader())(model) as run:
        steps(model, make_loader())
    assert "loader-kind" not in notes_of(run.folder)


# --- states --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The state of a run of 60 steps, as a checkpoint gives it back."""
    model = make_model()
    with quietly(run_dir=tmp_path_factory.mktemp("state"), epochs=9)(model) as run:
        steps(model, make_loader(), 6)
    return json.loads(json.dumps(run.state_dict()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "state",
    [[], [1, 2], "state", 5, ("version", 1), {"version": True, "eta": {}}, {"version": 1.5},
     {"version": 1, "eta": []}, {"version": 1, "eta": "x"}, {1: 2}, np.ones(3)],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_a_state_that_is_none_is_refused(state: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"start without it"):
        quietly(run_dir=tmp_path)(make_model()).load_state_dict(state)


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, each in items:
        if isinstance(each, dict | list):
            found += numbers_in(each, (*path, key))
        elif isinstance(each, int | float) and key != "version":
            found.append((*path, key))
    return found


def changed(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    state = copy.deepcopy(state)
    *way, last = path
    inner = state
    for key in way:
        inner = inner[key]
    inner[last] = value
    return state


@pytest.mark.parametrize("value", [math.nan, -math.inf, 10**400, "x", {}, Rude()], ids=seen_text)
def test_a_state_with_one_wrong_value_is_refused_and_changes_nothing(
    value: Any, learned: dict[str, Any], tmp_path: Path
) -> None:
    paths = numbers_in({"eta": learned["eta"]})
    assert len(paths) > 100
    with quietly(run_dir=tmp_path, epochs=3)(make_model()) as run:
        steps(run._model, make_loader())
        before = run.state_dict()
        for path in paths[::7]:
            with pytest.raises(UsageError):
                run.load_state_dict(changed(learned, path, value))
        assert run.state_dict() == before
        run.load_state_dict(learned)
        assert run.state_dict() != before


def test_a_state_is_copied_and_none_is_no_state(learned: dict[str, Any], tmp_path: Path) -> None:
    mine = copy.deepcopy(learned)
    run = quietly(run_dir=tmp_path, epochs=9)(make_model())
    for nothing in (None, {}):
        run.load_state_dict(nothing)
    run.load_state_dict(mine)
    mine["eta"].clear()
    with run:
        steps(run._model, make_loader(4))
        assert run.state_dict()["eta"]["steps"]["num_steps"] >= 60


def test_strict_is_switched_off_by_any_word_for_no(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("", "0", "false", "No", " off "):
        monkeypatch.setenv("SCALEDL_STRICT", word)
        assert not is_strict(), word
    for word in ("1", "true", "yes"):
        monkeypatch.setenv("SCALEDL_STRICT", word)
        assert is_strict(), word
