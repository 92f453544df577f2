"""What every learner must keep, as one battery: ``check_learner`` takes a maker and examples."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from scaledl.predictor.examples import Example
from scaledl.predictor.online import OnlineLearner


def check_learner(
    make: Callable[[], OnlineLearner], examples: Sequence[Example], folder: Path
) -> None:
    """Predict, learn, save and load of a learner, on examples that it can learn from."""
    learner, twin = make(), make()
    for example in examples:
        before = msgspec.json.encode(example)
        told_s = learner.predict_s(example)
        lesson = learner.learn(example)
        assert lesson.told_s == told_s, "what was told is what stood before learning"
        assert msgspec.json.encode(example) == before, "learning never changes its input"
        twin.learn(example)
    told = [learner.predict_s(example) for example in examples]
    assert all(value is not None and 0 < value < math.inf for value in told)
    assert told == [learner.predict_s(example) for example in examples], "predicting learns nothing"
    assert told == [twin.predict_s(example) for example in examples], "equal windows, equal learner"
    blind = [msgspec.structs.replace(example, step_s=1e3) for example in examples]
    assert told == [learner.predict_s(example) for example in blind], "the truth is not looked at"
    learner.save(folder / "learner.msgpack")
    loaded = type(learner).load(folder / "learner.msgpack")
    assert loaded is not None
    assert told == [loaded.predict_s(example) for example in examples], "saved, loaded, identical"
    learner.learn(examples[0])
    loaded.learn(examples[0])
    assert learner.predict_s(examples[0]) == loaded.predict_s(examples[0]), "and goes on alike"
