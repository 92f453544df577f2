"""How a run ended."""

import sys

from scaledl.records import Outcome


def outcome_of(step: int, planned_steps: int | None, *, failed: bool) -> Outcome:
    """How the run ended. The block is left inside the handler of what ended it.

    Args:
        step: The last step.
        planned_steps: Where the run was meant to end.
        failed: An exception leaves the block.
    """
    error = sys.exception() if failed else None
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    # A generator that its user closed and sys.exit(0) leave by an exception that is no error.
    wanted = isinstance(error, GeneratorExit) or (
        isinstance(error, SystemExit) and error.code in (None, 0)
    )
    if failed and not wanted:
        return "exception"
    return "stopped-early" if planned_steps is not None and step < planned_steps else "finished"
