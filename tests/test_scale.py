"""Long runs and large worlds: memory over 10,000 steps, 64 ranks by torch's fake process group.

Each in a child process, which has a heap and a process group of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LONG = """
import gc, json, os
import psutil, torch
from torch import nn
import scaledl

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(2, 4)

def steps(count):
    for _ in range(count):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def held():
    gc.collect()
    return len(gc.get_objects()), psutil.Process().memory_info().rss

seen = []
with scaledl.track(model, epochs=1, steps_per_epoch=10_000, report="none") as run:
    for until in (100, 400, 1_500, 8_000):
        steps(until)
        seen.append(held())
print(json.dumps({"seen": seen, "step": run.status()["step"], "off": run.status()["off"]}))
"""

WIDE = """
import json
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
import scaledl, sys

def reduced(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future

dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
if sys.argv[1] == "fsdp":
    for layer in model:
        fully_shard(layer)
    model = fully_shard(model)
else:
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, reduced)  # DDP's own fails on the fake group, in torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8, 64)
with scaledl.track(model, epochs=2, steps_per_epoch=60, report="none") as run:
    for _ in range(120):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    report = run.what_if([32, 64, 128])
    off = run.status()["off"]
past = scaledl.open_run("latest")
print(json.dumps({
    "off": off,
    "world": past.info.cluster.num_gpus,
    "strategy": past.measurements[-1].plan.strategy,
    "shard": past.measurements[-1].plan.shard,
    "rows": [[r.num_gpus, r.basis, r.step_s.mean] for r in report.rows],
    "groups": sorted({e.group_size for w in past.windows for e in w.comm}),
}))
dist.destroy_process_group()
"""


def run(script: str, tmp_path: Path, *words: str) -> dict[str, Any]:
    env = {**os.environ, "SCALEDL_HOME": str(tmp_path), "SCALEDL_LEARNER": "inline"}
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True, text=True, timeout=240, env=env, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_ten_thousand_steps_hold_no_more_than_a_few_hundred(tmp_path: Path):
    found = run(LONG, tmp_path)
    assert found["step"] == 10_000
    assert found["off"] == {}
    objects = [count for count, _ in found["seen"]]
    memory = [size for _, size in found["seen"]]
    # From 500 steps on: the first ones load modules and fill buffers of a fixed size.
    assert objects[3] - objects[1] < 6_000, objects
    assert memory[3] - memory[1] < 24 * 2**20, memory


def test_sixty_four_ranks_of_ddp_are_seen_and_asked_about(tmp_path: Path):
    found = run(WIDE, tmp_path, "ddp")
    assert found["off"] == {}
    assert (found["world"], found["strategy"]) == (64, "ddp")
    assert [row[:2] for row in found["rows"]] == [
        [32, "extrapolated"], [64, "measured"], [128, "extrapolated"]
    ]  # fmt: skip
    assert all(step_s > 0 for _, _, step_s in found["rows"])


def test_sixty_four_ranks_of_fsdp2_are_seen_and_asked_about(tmp_path: Path):
    found = run(WIDE, tmp_path, "fsdp")
    assert found["off"] == {}
    assert (found["world"], found["strategy"], found["shard"]) == (64, "fsdp", 64)
    assert [row[1] for row in found["rows"]] == ["extrapolated", "measured", "extrapolated"]
