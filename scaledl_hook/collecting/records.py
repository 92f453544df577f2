"""What is measured, and what came of it; no torch."""

from typing import Literal

import msgspec

from scaledl.records import LayerGraph, LayerTiming

Role = Literal["design", "random", "test", "repeat"]
SCHEMA = 1


class Configuration(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One training: ``length`` is in tokens, for pictures in patches."""

    family: str
    batch: int
    length: int
    width: int
    depth: int
    processes: int = 1


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to measure. ``repeat`` counts measurements of the same one."""

    configuration: Configuration
    role: Role
    repeat: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First line of a file of measurements: where they were taken."""

    cpu: str
    num_cores: int
    torch: str
    transformers: str | None
    threads: int
    schema: int = SCHEMA


class Collected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One measured configuration; all times in seconds.

    ``steps_s`` are plain training steps (forward, backward, AdamW), ``layers`` those of one more
    step with hooks on every layer. ``comm_s`` is what the all-reduces of the gradients take alone.
    ``calibration_s`` is the time of a fixed matrix product just before and just after.
    """

    task: Task
    steps_s: tuple[float, ...]
    graph: LayerGraph
    layers: tuple[LayerTiming, ...]
    num_params: int
    num_tensors: int
    comm_s: float | None = None
    calibration_s: tuple[float, float]
    at_s: float

    @property
    def step_s(self) -> float:
        """The median step."""
        ordered = sorted(self.steps_s)
        middle = len(ordered) // 2
        return (ordered[middle] + ordered[~middle]) / 2
