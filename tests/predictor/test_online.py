import os
import statistics
from pathlib import Path

import pytest
import torch
from checks import check_learner
from jobs import example

from scaledl.errors import StoreError
from scaledl.predictor import online
from scaledl.predictor.online import OnlineLearner

NOISE = (1.0, 1.02, 0.98, 1.01, 0.99)


def errors(learner: OnlineLearner, step_s: float, count: int, **job: object) -> list[float]:
    """Errors before each update of ``count`` windows."""
    lessons = [
        learner.learn(example(step_s * NOISE[i % len(NOISE)], **job))  # type: ignore[arg-type]
        for i in range(count)
    ]
    return [lesson.error for lesson in lessons if lesson.error is not None]


def test_the_learner_keeps_the_contract_of_learners(tmp_path: Path) -> None:
    stream = [
        example(0.1 * n, model=name, batch=b) for name, b in (("a", 8), ("b", 2)) for n in NOISE
    ]
    check_learner(OnlineLearner, stream, tmp_path)


def test_of_a_device_never_seen_nothing_is_told() -> None:
    learner = OnlineLearner()
    assert learner.predict_s(example(0.1)) is None
    assert learner.learn(example(0.1)).error is None
    assert learner.predict_s(example(9.0)) == pytest.approx(0.1, rel=0.05)
    assert learner.predict_s(example(0.1, gpu="A100")) is None


def test_a_second_job_is_learned_and_the_first_is_not_forgotten() -> None:
    learner = OnlineLearner()
    errors(learner, 0.1, 8, model="a", batch=8)
    told = errors(learner, 0.2, 8, model="b", batch=2, num_layers=6)
    assert statistics.fmean(told[-4:]) < told[0] / 3
    assert learner.predict_s(example(0.1, model="a", batch=8)) == pytest.approx(0.1, rel=0.1)


def test_an_update_that_makes_others_worse_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = OnlineLearner()
    errors(learner, 0.1, 8, model="a")
    monkeypatch.setattr(OnlineLearner, "_train", _spoil)
    before = {k: v.clone() for k, v in learner.network.state_dict().items()}
    assert not learner.learn(example(0.2, model="b")).kept
    assert all(torch.equal(v, before[k]) for k, v in learner.network.state_dict().items())


def _spoil(self: OnlineLearner, *_: object) -> None:
    with torch.no_grad():
        self.network.head[-1].bias.fill_(2.0)  # type: ignore[union-attr]


def test_one_odd_window_moves_the_answer_little() -> None:
    learner = OnlineLearner()
    errors(learner, 0.1, 8)
    assert learner.learn(example(1.0)).verdict == "odd"
    assert learner.predict_s(example(0.1)) == pytest.approx(0.1, rel=0.1)


def test_a_lasting_change_is_followed() -> None:
    learner = OnlineLearner()
    errors(learner, 0.1, 8)
    told = errors(learner, 0.2, 6)
    assert told[0] > 0.4
    assert told[-1] < 0.1


def test_learning_leaves_torchs_random_state_alone() -> None:
    state = torch.get_rng_state()
    OnlineLearner().learn(example(0.1))
    assert torch.equal(torch.get_rng_state(), state)


def _broken(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "learner.pt"
    state = OnlineLearner().state_dict()
    match name:
        case "no file of torch":
            path.write_bytes(b"hello")
        case "empty":
            path.write_bytes(b"")
        case "newer":
            torch.save({**state, "version": 99}, path)
        case "no mapping":
            torch.save([1, 2], path)
        case "no numbers":
            state["network"]["head.0.bias"].fill_(float("nan"))
            torch.save(state, path)
        case "no memory":
            torch.save({**state, "memory": "{"}, path)
        case "a folder":
            path.mkdir()
        case "other shapes":
            state["network"]["head.0.bias"] = torch.zeros(3)
            torch.save(state, path)
        case "code":
            torch.save({**state, "scales": os.system}, path)
    return path


@pytest.mark.parametrize(
    "name",
    ["no file of torch", "empty", "newer", "no mapping", "no numbers", "no memory", "a folder",
     "other shapes", "code"],
)  # fmt: skip
def test_a_broken_state_is_refused_with_what_happens_next(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="learned anew"):
        OnlineLearner.load(_broken(tmp_path, name))


def test_a_state_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OnlineLearner().save(tmp_path / "learner.pt")
    monkeypatch.setattr(online, "MOST_STATE_BYTES", 10)
    with pytest.raises(StoreError, match="too many"):
        OnlineLearner.load(tmp_path / "learner.pt")


def test_without_a_file_there_is_no_learner(tmp_path: Path) -> None:
    assert OnlineLearner.load(tmp_path / "none.pt") is None


def test_a_full_disk_keeps_the_older_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "learner.pt"
    OnlineLearner().save(path)
    kept = path.read_bytes()

    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="cannot write"):
        OnlineLearner().save(path)
    assert path.read_bytes() == kept
    assert [each.name for each in path.parent.iterdir()] == ["learner.pt"]
