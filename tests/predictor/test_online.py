import errno
import os
import pickle
import statistics
from pathlib import Path

import msgspec
import numpy as np
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
    path = tmp_path / "learner.msgpack"
    learner = OnlineLearner()
    learner.learn(example(0.1))
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(learner.state()))
    bias = state["network"]["head.0.bias"]
    match name:
        case "newer":
            state = {"version": 99, "of": "another make"}
        case "no mapping":
            state = [1, 2]
        case "no numbers":
            bias["data"] = np.full(32, np.nan, "<f4").tobytes()
        case "no memory":
            del state["memory"]
        case "no pace":
            state["scales"] = {"cpu": float("inf")}
        case "other shapes":
            state["network"]["head.0.bias"] = {"shape": [3], "data": bytes(12)}
        case "other layers":
            del state["network"]["head.0.bias"]
        case "bytes are missing":
            bias["data"] = bytes(12)
        case "a shape below 0":
            bias |= {"shape": [-1, -32]}
    data = msgspec.msgpack.encode(state)
    match name:
        case "a folder":
            path.mkdir()
            return path
        case "text":
            data = b"hello"
        case "empty":
            data = b""
        case "cut off":
            data = data[:-100]
        case "a pickle":
            data = pickle.dumps({"version": 1, "scales": os.system})
    path.write_bytes(data)
    return path


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    loaded = OnlineLearner.load(_broken(tmp_path, "in nothing"))
    assert loaded is not None
    assert loaded.num_updates == 1


@pytest.mark.parametrize(
    "name",
    ["text", "empty", "cut off", "newer", "no mapping", "no numbers", "no memory", "no pace",
     "a folder", "other shapes", "other layers", "bytes are missing", "a shape below 0",
     "a pickle"],
)  # fmt: skip
def test_a_broken_state_is_refused_with_what_happens_next(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="learned anew"):
        OnlineLearner.load(_broken(tmp_path, name))


def test_a_state_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OnlineLearner().save(tmp_path / "learner.msgpack")
    monkeypatch.setattr(online, "MOST_STATE_BYTES", 10)
    with pytest.raises(StoreError, match="too many"):
        OnlineLearner.load(tmp_path / "learner.msgpack")


def test_without_a_file_there_is_no_learner(tmp_path: Path) -> None:
    assert OnlineLearner.load(tmp_path / "none.msgpack") is None


def test_a_full_disk_keeps_the_older_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "learner.msgpack"
    OnlineLearner().save(path)
    kept = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        OnlineLearner().save(path)
    assert path.read_bytes() == kept
    assert [each.name for each in path.parent.iterdir()] == ["learner.msgpack"]
