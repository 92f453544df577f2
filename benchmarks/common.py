"""What every benchmark shares: the machine it ran on, a calibration loop, intervals, the output.

Each benchmark prints a table for people. With ``--json`` the last line of standard output is one
object: ``{"benchmark": ..., "results": [one flat object a row], "bars": [...], "machine": ...}``.
A bar that does not hold changes no exit status: the program reports, people judge.
"""

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict


class Bar(TypedDict):
    """A figure with the limit it should stay below."""

    name: str
    value: float | None
    limit: float
    holds: bool


def below(name: str, value: float | None, limit: float) -> Bar:
    """The bar ``value <= limit``; an unknown value does not hold."""
    return Bar(name=name, value=value, limit=limit, holds=value is not None and value <= limit)


def machine() -> dict[str, Any]:
    """Hardware and versions; packages that are not installed are ``None``."""
    versions: dict[str, Any] = {}
    for package in ("scaledl", "torch", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpu": _cpu_name(),
        "num_cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "calibration_ms": round(calibration_s() * 1e3, 2),
        **versions,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def calibration_s(repeats: int = 9) -> float:
    """Median time of a fixed piece of pure Python.

    It stands beside every absolute time: a machine that is slow today is slow here too.
    """
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        total = 0
        for i in range(200_000):
            total += i * i % 7
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def bootstrap(
    rows: Sequence[Any],
    statistic: Callable[[Sequence[Any]], float],
    level: float = 0.95,
    draws: int = 4000,
) -> tuple[float, float]:
    """Percentile interval of ``statistic`` when the rows are drawn again with replacement.

    References:
        Efron 1979, Bootstrap methods: another look at the jackknife, section 2.
    """
    rng = random.Random(0)
    values = sorted(statistic(rng.choices(rows, k=len(rows))) for _ in range(draws))
    tail = (1 - level) / 2
    return values[round(tail * (draws - 1))], values[round((1 - tail) * (draws - 1))]


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """The rows as aligned text; ``None`` is n/a, floats have four significant digits."""
    cells = [list(columns)] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return "n/a"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def finish(
    benchmark: str,
    results: Sequence[dict[str, Any]],
    bars: Sequence[Bar],
    about: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print the bars, and the JSON object if it is asked for."""
    for bar in bars:
        verdict = "holds" if bar["holds"] else "DOES NOT HOLD"
        print(f"bar: {bar['name']} = {_cell(bar['value'])}, limit {bar['limit']:g}: {verdict}")
    if as_json:
        found = {"benchmark": benchmark, "results": results, "bars": bars, "machine": about}
        print(json.dumps(found), flush=True)
