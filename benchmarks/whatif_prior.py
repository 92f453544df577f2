"""Fits the experience that ships with the package on measured tables.

    python benchmarks/whatif_prior.py --table CSV [CSV ...] --write predictor/experience.toml

Tables are those of whatif_accuracy.py. Few parameters leave them: how far the step model may leave
the step of the largest count, and how far off forecasts then are.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from common import finish, machine, table
from whatif_data import tasks_of
from whatif_experience import cases_of
from whatif_ours import tell
from whatif_tables import read_tables

from scaledl.predictor.experience import Experience, fit

HEADER = """\
# What public measurements say about forecasts for more GPUs than were seen; read by experience.py.
# Made by benchmarks/whatif_prior.py from the step times of Pollux (OSDI 2021, petuum/adaptdl,
# Apache-2.0): PyTorch DDP models on one cluster of four GPUs a node.
# cap: how far log(step) may leave the step of the largest seen count. scale: intercept and slopes
# of log |log error| over log(exposed communication) and doublings; residuals in its units.
"""


def as_toml(experience: Experience) -> str:
    """The experience as text, figures to four places."""

    def numbers(values: Sequence[float]) -> str:
        return "[" + ", ".join(f"{v:.4f}" for v in values) + "]"

    blocks = [
        f"""
[lessons."{name}"]
cap = {lesson.cap}
num_jobs = {lesson.num_jobs}
scale = {numbers(lesson.scale)}
doubt_low = {numbers(lesson.doubt_low)}
doubt_high = {numbers(lesson.doubt_high)}
residuals = [
{_wrapped(lesson.residuals)}
]
"""
        for name, lesson in experience.lessons.items()
    ]
    return HEADER + "".join(blocks)


def _wrapped(values: Sequence[float], each: int = 10) -> str:
    lines = [values[i : i + each] for i in range(0, len(values), each)]
    return "\n".join("    " + ", ".join(f"{v:.3f}" for v in line) + "," for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, nargs="+", required=True)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    tasks = [task for job in read_tables(args.table) for task in tasks_of(job)]
    cases = [
        case
        for task in tasks
        if task.group != "in-sample"
        for known in (False, True)
        for case in cases_of(tell(task, known), known)
    ]
    experience = fit(cases)
    rows = [
        {"group": name, "cap": lesson.cap, "num_jobs": lesson.num_jobs}
        for name, lesson in experience.lessons.items()
    ]
    print(table(rows, ("group", "cap", "num_jobs")))
    if args.write is not None:
        args.write.write_text(as_toml(experience), encoding="utf-8")
    finish("whatif_prior", rows, [], machine(), as_json=args.json)


if __name__ == "__main__":
    main()
