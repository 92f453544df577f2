"""The step that runs: its times, summed until the clock closes it."""

from scaledl.records import StepRecord

_CALLS_KEPT = 64


class RunningStep:
    """Sums of one step, in seconds; ``micro`` counts its forwards with gradient."""

    __slots__ = (
        "_calls",
        "backward_s",
        "excluded_s",
        "exposed_s",
        "forward_s",
        "input_wait_s",
        "micro",
        "optimizer_s",
        "saw_backward",
    )

    def __init__(self) -> None:
        self._calls: list[tuple[float, float]] = []  # (start, optimizer time before it)
        self.clear()

    def clear(self) -> None:
        """A new step begins."""
        self.input_wait_s = self.forward_s = self.backward_s = 0.0
        self.exposed_s = self.optimizer_s = self.excluded_s = 0.0
        self.micro = 0
        self.saw_backward = False
        self._calls.clear()

    @property
    def has_work(self) -> bool:
        """Whether anything of a step came yet."""
        return bool(self.micro or self.saw_backward or self.forward_s or self.optimizer_s)

    def add_optimizer(self, start_s: float, end_s: float) -> None:
        """One call; calls inside it were told before it and are in its time."""
        before = self._calls
        total_s = self.optimizer_s
        while before and before[-1][0] >= start_s:
            total_s = before.pop()[1]
        if len(before) > _CALLS_KEPT:
            del before[: _CALLS_KEPT // 2]
        before.append((start_s, total_s))
        self.optimizer_s = total_s + end_s - start_s

    def record(
        self,
        span_s: float,
        count: int,
        *,
        step: int,
        epoch: int,
        samples: int,
        size: int = 0,
        sampled: bool,
        host_parts: bool,
        exposed_parts: bool,
    ) -> StepRecord:
        """One of ``count`` equal steps that took ``span_s`` together; parts add up to the wall.

        ``host_parts``: the host's times of forward and backward are the true ones (CPU).
        ``exposed_parts``: the wait after the backward is all exposed communication (DDP).
        """
        wall_s = max(0.0, span_s - self.excluded_s) / count
        forward = host_parts and self.micro > 0
        backward = host_parts and self.saw_backward
        left_s = wall_s
        parts_s = []
        for part_s in (
            self.input_wait_s,
            self.forward_s if forward else 0.0,
            self.backward_s if backward else 0.0,
            self.exposed_s if backward else 0.0,
            # last: a closure (LBFGS) runs forwards and backwards inside the optimizer's call
            self.optimizer_s,
        ):
            parts_s.append(min(part_s / count, left_s))
            left_s -= parts_s[-1]
        return StepRecord(
            step=step,
            epoch=epoch,
            wall_s=wall_s,
            input_wait_s=parts_s[0],
            forward_s=parts_s[1] if forward else None,
            backward_s=parts_s[2] if backward else None,
            comm_exposed_s=parts_s[3] if backward and exposed_parts else None,
            optimizer_s=parts_s[4],
            num_micro_batches=max(1, self.micro // count),
            num_samples=samples or None,
            num_elements=size or None,
            tags=("sampled",) if sampled else (),
        )
