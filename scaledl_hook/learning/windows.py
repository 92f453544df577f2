"""From the lines of a run's file to examples for the learner; no torch."""

import msgspec

from scaledl.predictor.examples import Example, example_of
from scaledl.records import LayerGraph, Line, Measurement, ParallelPlan, RunInfo, StepBlock

LEAST_STEPS = 5
MOST_NODES = 2000
"""Of a graph; one update of a larger one takes seconds of a core."""


class Windows:
    """Makes an example of each block of ordinary steps, once the layers are known.

    Args:
        info: The head of the run.
    """

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._plan = info.plan
        self._graph: LayerGraph | None = None
        self._waiting: list[StepBlock] = []
        self.left_out = ""

    def add(self, line: Line) -> list[Example]:
        """The examples that one more line of the file completes."""
        if isinstance(line, LayerGraph):
            self._take_graph(line)
        elif isinstance(line, Measurement):
            self._plan = line.plan
        elif isinstance(line, StepBlock) and _is_ordinary(line):
            self._waiting.append(line)
        if self._graph is None:
            self._waiting = self._waiting[-1:]
            return []
        blocks, self._waiting = self._waiting, []
        return [self._example(self._graph, block) for block in blocks]

    def _take_graph(self, graph: LayerGraph) -> None:
        if len(graph.nodes) > MOST_NODES:
            self.left_out = f"the model has {len(graph.nodes)} layers, more than {MOST_NODES}"
        elif any(node.kind != "outside" for node in graph.nodes):
            self._graph = graph

    def _example(self, graph: LayerGraph, block: StepBlock) -> Example:
        return example_of(
            graph,
            self._info.cluster,
            self._plan_of(block),
            model=self._info.model,
            step_s=block.p50_s - block.input_wait_s,
        )

    def _plan_of(self, block: StepBlock) -> ParallelPlan:
        """The plan, with batch and accumulation as the block had them."""
        micro = block.num_micro_batches
        batch = self._plan.batch_per_gpu
        if block.num_samples and micro:
            batch = max(1, round(block.num_samples / micro))
        return msgspec.structs.replace(
            self._plan,
            batch_per_gpu=batch,
            grad_accum=max(1, round(micro / block.num_steps)) if micro else self._plan.grad_accum,
        )


def _is_ordinary(block: StepBlock) -> bool:
    """Not sampled, not the warm-up, long enough for a median that tells something."""
    return (
        not block.tags
        and block.num_steps >= LEAST_STEPS
        and (block.first_step > 0 or block.num_steps >= 4 * LEAST_STEPS)
        and block.p50_s > block.input_wait_s >= 0
    )
