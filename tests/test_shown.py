"""What people see in the end, with bars of their own: a real terminal and a real notebook."""

import contextlib
import os
import pty
import re
import select
import signal
import sys
import termios
import textwrap
import time
from pathlib import Path
from typing import Any

import pyte
import pytest

COLUMNS, ROWS = 100, 40

LOOP = """
import time
import torch
from tqdm.auto import tqdm
import scaledl, scaledl.engine, scaledl.report.pace

scaledl.engine.FLUSH_S = scaledl.report.pace.TTY_REDRAW_S = 0.0
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(80, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4)
with scaledl.track(model, epochs=3, {options}) as run:
    for epoch in tqdm(range(3), desc="epochs"):
        bar = tqdm(loader, desc="batches", leave=False, mininterval=0)
        for (x,) in bar:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.005)  # long enough that steps are not held back
            bar.set_postfix(loss=0.5)
print("after the loop")
"""


def screens(script: Path, home: Path) -> list[list[str]]:
    """What a terminal shows each time that a line is drawn anew, and at the end."""
    pid, fd = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (ROWS, COLUMNS))
        os.environ.update(TERM="xterm-256color", SCALEDL_HOME=str(home), SCALEDL_STRICT="1")
        os.execv(sys.executable, [sys.executable, str(script)])
    data, until = b"", time.monotonic() + 60
    with contextlib.suppress(OSError):  # EIO: the other end closed
        while time.monotonic() < until:
            if select.select([fd], [], [], 1.0)[0]:
                data += os.read(fd, 65536)
    os.close(fd)
    if time.monotonic() >= until:
        os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == 0, data.decode(errors="replace")
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    seen = []
    for piece in re.split(rb"(?=\r)", data):
        stream.feed(piece)
        seen.append([row.rstrip() for row in screen.display if row.strip()])
    return seen


@pytest.mark.slow
def test_U04_on_a_real_terminal_the_outer_bar_has_the_time_left_and_no_line_is_ours(
    tmp_path: Path,
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(textwrap.dedent(LOOP.format(options="total_steps=60")))
    seen = screens(script, tmp_path / "home")
    last = seen[-1]
    rows = [row for shown in seen for row in shown]
    outer = [row for row in rows if row.startswith("epochs: ") and " done " in row]
    assert outer
    assert all(row.endswith(")]") and " to " in row for row in outer), outer[-1]
    assert not any("done 1" in row or "done ~" in row for row in rows if "batches: " in row)
    assert not any(row.startswith("scaledl  ") and "/60" in row for row in rows)
    assert any("loss=0.5" in row for row in rows)
    assert any("scaledl  done: 60 steps" in row for row in last)
    assert last[-1] == "after the loop"
    standing = [row for row in last if row.startswith("epochs: ")]
    assert len(standing) == 1
    assert "3/3" in standing[0]


WITHOUT_BARS = """
import time
import torch, scaledl
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with scaledl.track(model, epochs=30, steps_per_epoch=1) as run:
    for step in range(30):
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step()
        time.sleep(0.005)
run.eta
"""


def texts(cell: Any) -> list[str]:
    """The plain text of each output of a cell, at the end of its run."""
    return [out["text"] if "text" in out else out["data"]["text/plain"] for out in cell.outputs]


@pytest.mark.slow
def test_U04_in_a_real_notebook_the_users_bar_or_one_output_in_place_has_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [LOOP.format(options="total_steps=60"), WITHOUT_BARS]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(book, timeout=60, kernel_name="python3")
    client.execute()
    with_bars, without = (texts(cell) for cell in book.cells)
    assert not any("/60" in text and "left_s=" in text for text in with_bars)
    assert not any(text.startswith("scaledl  ") and "/60" in text for text in with_bars)
    bars = [
        str(state.get("value", "")).replace("\u2007", " ") for state in client.widget_state.values()
    ]
    (outer,) = (text for text in bars if "done " in text)
    assert "3/3" in outer
    assert " to " in outer
    assert len([text for text in bars if "loss=0.5" in text]) == 3
    (line,) = (text for text in without if "step" in text and "/30" in text)
    assert line.startswith("scaledl  epoch 30/30, step 30/30")
    assert any("done: 30 steps" in text for text in without)
    assert without[-1].endswith(" left, measured")
