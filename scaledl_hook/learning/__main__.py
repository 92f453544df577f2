"""``python -m scaledl.learning RUN STATE PARENT [--seldom]``: learns from a run as it goes on.

Started by rank 0, below everything else: lowest priority, one thread, no GPU, and the first that
the kernel ends where memory is short. It ends with the run, or soon after the process that trains.
"""

import argparse
import contextlib
import os
import time
from pathlib import Path

POLL_S = 2.0
SAVE_S = 300.0
SHARE = 0.01
"""Of one core that learning takes, over a run."""


def lower_ourselves() -> None:
    """Give way to everything else on the machine."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError, ValueError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def follow(folder: Path, state: Path, parent: int, *, seldom: bool) -> None:
    """Until the run ends or its process is gone.

    Args:
        folder: Of the run.
        state: File of what was learned so far.
        parent: Process that trains.
        seldom: No core is free: learn at epochs' ends alone.
    """
    import torch

    from scaledl.learning.study import Study

    torch.set_num_threads(1)
    study = Study(folder, state)
    next_s, saved_s, num_epochs = 0.0, time.monotonic(), 0
    while True:
        study.read()
        if study.ended or os.getppid() != parent:
            break
        begin_s = time.monotonic()
        is_due = study.num_epochs > num_epochs if seldom else begin_s >= next_s
        if is_due and study.has_window:
            num_epochs = study.num_epochs
            study.learn()
            now_s = time.monotonic()
            next_s = now_s + (now_s - begin_s) / SHARE
            if now_s - saved_s > SAVE_S:
                study.learner.save(state)
                saved_s = now_s
        time.sleep(POLL_S)
    study.finish()


def main() -> None:
    """Read the arguments, give way, follow; what goes wrong is left in the run's folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("parent", type=int)
    parser.add_argument("--seldom", action="store_true")
    args = parser.parse_args()
    lower_ourselves()
    try:
        follow(args.folder, args.state, args.parent, seldom=args.seldom)
    except Exception as error:
        from scaledl.learned import Learned, write_learned

        why = f"{type(error).__name__}: {error}"
        failed = Learned(at_s=time.time(), state="failed", left_out=why)
        with contextlib.suppress(OSError):
            write_learned(args.folder, failed)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
