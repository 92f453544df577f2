"""What `import scaledl` costs: time over an empty Python, and the heavy modules it brings in.

python benchmarks/import_time.py --json
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from common import below, bootstrap, finish, machine, table

LIMIT_S = 0.3
WATCHED = ("torch", "torch_geometric", "pynvml", "matplotlib", "numpy", "scipy", "msgspec", "rich")
FORBIDDEN = ("torch", "torch_geometric", "pynvml", "matplotlib")


def process_s(code: str) -> float:
    """Wall time of one Python process that runs ``code``, far from the source folders."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tempfile.gettempdir())
    return time.perf_counter() - start


def loaded_modules(code: str) -> list[str]:
    """The watched modules that are in ``sys.modules`` after ``code``."""
    ask = f"{code}\nimport json, sys\nprint(json.dumps([m for m in {WATCHED} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", ask],
        check=True,
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def measure(code: str, repeats: int) -> dict[str, object]:
    """Extra time of ``code`` over ``pass``: median over processes that take turns."""
    process_s(code)  # fills the disk cache and writes the byte code
    pairs = []
    for index in range(repeats):
        if index % 2:
            extra_s, base_s = process_s(code), process_s("pass")
        else:
            base_s, extra_s = process_s("pass"), process_s(code)
        pairs.append((base_s, extra_s))

    def extra(rows: list[tuple[float, float]]) -> float:
        return statistics.median(code_s - base_s for base_s, code_s in rows)

    low, high = bootstrap(pairs, extra)
    return {
        "code": code,
        "pass_s": statistics.median(base_s for base_s, _ in pairs),
        "code_s": statistics.median(code_s for _, code_s in pairs),
        "extra_s": extra(pairs),
        "extra_low_s": low,
        "extra_high_s": high,
        "repeats": repeats,
        "loads": " ".join(loaded_modules(code)) or "none of those watched",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    about = machine()
    print(f"import time on {about['cpu']}, calibration loop {about['calibration_ms']} ms")
    results = [
        measure("import scaledl", args.repeats),
        measure("import scaledl.records", max(3, args.repeats // 3)),
    ]
    print(table(results, list(results[0])))
    heavy = [name for name in FORBIDDEN if name in str(results[0]["loads"]).split()]
    bars = [
        below("extra time of import scaledl, s", float(str(results[0]["extra_s"])), LIMIT_S),
        below("heavy modules loaded by import scaledl", float(len(heavy)), 0),
    ]
    finish("import_time", results, bars, about, as_json=args.json)


if __name__ == "__main__":
    main()
