import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import BASE, INFO, NOW_S, RUN, run_lines, step_block, write_run

from scaledl import writer as writer_module
from scaledl.errors import StoreError
from scaledl.records import Measurement, Note, RunEnd
from scaledl.relatives import load_relatives
from scaledl.store import (
    MAX_LINE_BYTES,
    RunWriter,
    find_run,
    home_dir,
    list_runs,
    new_run_id,
    newest_folders,
    read_info,
    read_lines,
    read_tail,
)

TESTS = Path(__file__).parent


def writer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "scaledl-writer"]


def written(folder: Path, **options: int) -> tuple[RunWriter, list[str]]:
    told: list[str] = []
    return RunWriter(folder, 0, on_trouble=told.append, **options), told


# --- names and places --------------------------------------------------------------------------


def test_argument_goes_before_environment_before_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALEDL_HOME", str(tmp_path / "env"))
    assert home_dir(str(tmp_path / "arg")) == tmp_path / "arg"
    assert home_dir() == tmp_path / "env"
    monkeypatch.delenv("SCALEDL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_dir() == tmp_path / ".cache" / "scaledl"


def test_user_without_home_folder_gets_the_working_folder(monkeypatch, tmp_path):
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SCALEDL_HOME")
    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.chdir(tmp_path)
    assert home_dir() == tmp_path / ".scaledl"


@given(st.text(max_size=80), st.floats(0, 4e9))
@settings(max_examples=100, deadline=None)
def test_run_id_is_a_safe_folder_name(name, now_s):
    run_id = new_run_id(now_s, name)
    assert set(run_id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(run_id) <= 40


def test_run_id_tells_date_and_model():
    stamp = time.strftime("%m%d-%H%M", time.localtime(NOW_S))
    assert new_run_id(NOW_S, "GPT2LMHeadModel").startswith(f"{stamp}-gpt2lmheadmodel-")
    assert new_run_id(NOW_S, "../../etc").startswith(f"{stamp}-etc-")


# --- writing -----------------------------------------------------------------------------------


def test_what_is_written_is_read_back_in_order(tmp_path):
    folder = write_run(tmp_path)
    assert read_info(folder) == INFO
    assert tuple(read_lines(folder)) == run_lines()


def test_no_thread_before_the_first_record_and_none_after_close(tmp_path):
    writer, told = written(tmp_path / "run")
    writer.write_info(INFO)
    assert writer_threads() == []
    writer.append(step_block())
    assert len(writer_threads()) == 1
    writer.close(10.0)
    assert writer_threads() == []
    writer.append(step_block())
    assert writer_threads() == []
    assert writer.num_dropped == 1
    assert told == []


def test_X04_files_are_private(tmp_path):
    old = os.umask(0)
    try:
        folder = write_run(tmp_path / "home", ranks=(0, 1))
    finally:
        os.umask(old)
    for path in (tmp_path / "home", tmp_path / "home" / "runs", folder):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_U08_full_disk_at_the_third_write_turns_recording_off_once(tmp_path, monkeypatch):
    real, calls = writer_module._write_all, []

    def failing(fd: int, data: bytes) -> None:
        calls.append(data)
        if len(calls) >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, data)

    monkeypatch.setattr(writer_module, "_write_all", failing)
    monkeypatch.setattr(writer_module, "_FLUSH_S", 0.005)
    writer, told = written(tmp_path / "run")
    for index in range(200):
        writer.append(step_block(index * 100))
        time.sleep(0.002)
        if told:
            break
    for _ in range(5):
        writer.append(step_block())
    writer.close(10.0)
    assert len(told) == 1
    assert "No space left" in told[0]
    assert "training goes on" in told[0]
    assert len(calls) == 3
    assert writer.num_dropped >= 5
    assert tuple(read_lines(tmp_path / "run"))[:1] == (step_block(0),)


def test_U08_unwritable_folder_is_told_once_and_raises_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    writer, told = written(tmp_path / "file" / "run")
    writer.write_info(INFO)
    writer.append(step_block())
    writer.close(10.0)
    assert len(told) == 1
    assert "Not a directory" in told[0]
    assert "SCALEDL_HOME" in told[0]
    assert writer.num_dropped == 1


def test_U08_trouble_found_by_the_thread_is_told_once(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0.jsonl").mkdir()
    writer, told = written(tmp_path / "run")
    for _ in range(3):
        writer.append(step_block())
    writer.close(10.0)
    assert len(told) == 1
    assert writer_threads() == []


def test_U08_failing_listener_does_not_reach_the_training(tmp_path):
    def raising(message: str) -> None:
        raise RuntimeError(message)

    (tmp_path / "file").write_text("")
    writer = RunWriter(tmp_path / "file" / "run", 0, on_trouble=raising)
    writer.write_info(INFO)
    writer.append(step_block())
    writer.close(10.0)
    assert writer.num_dropped == 1


def test_U08_size_cap_stops_recording_but_keeps_the_end(tmp_path):
    end = RunEnd(at_s=NOW_S, step=9, outcome="finished")
    writer, told = written(tmp_path / "run", max_bytes=4000)
    for index in range(100):
        writer.append(step_block(index * 100))
    writer.append(end)
    writer.close(10.0)
    lines = tuple(read_lines(tmp_path / "run"))
    assert (tmp_path / "run" / "rank0.jsonl").stat().st_size < 4300
    assert lines[-1] == end
    assert lines[:-1] == tuple(step_block(i * 100) for i in range(len(lines) - 1))
    assert 1 < len(lines) < 100
    assert writer.num_dropped == 101 - len(lines)
    assert len(told) == 1
    assert "cap" in told[0]


def test_queue_is_bounded_while_the_disk_hangs(tmp_path, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(writer_module, "_MAX_QUEUE", 10)
    monkeypatch.setattr(writer_module, "_FLUSH_S", 0.001)
    monkeypatch.setattr(writer_module, "_write_all", lambda fd, data: hang.wait(30))
    writer, _ = written(tmp_path / "run")
    for index in range(500):
        writer.append(step_block(index))
    assert writer.num_dropped >= 500 - 10 - 10
    writer.close(0.05)  # gives up: a dead file system must not hold the training's end
    assert len(writer_threads()) == 1
    hang.set()
    writer.close(10.0)
    assert writer_threads() == []


def test_numbers_of_numpy_are_stored_as_numbers(tmp_path):
    import numpy as np

    block = msgspec.structs.replace(step_block(), mean_s=np.float32(0.25), num_steps=np.int64(7))
    writer, told = written(tmp_path / "run")
    writer.append(block)
    writer.close(10.0)
    (read,) = read_lines(tmp_path / "run")
    assert (read.mean_s, read.num_steps) == (0.25, 7)
    assert told == []


def test_record_that_cannot_be_encoded_is_dropped_alone(tmp_path):
    bad = msgspec.structs.replace(step_block(), mean_s=object())
    writer, told = written(tmp_path / "run")
    for line in (bad, step_block(1)):
        writer.append(line)
    writer.close(10.0)
    assert tuple(read_lines(tmp_path / "run")) == (step_block(1),)
    assert writer.num_dropped == 1
    assert told == []


def test_forked_child_writes_nothing(tmp_path):
    writer, told = written(tmp_path / "run")
    writer.append(step_block(1))
    child = os.fork()
    if child == 0:
        try:
            writer.write_info(INFO)
            writer.append(step_block(2))
            writer.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.append(step_block(3))
    writer.close(10.0)
    assert tuple(read_lines(tmp_path / "run")) == (step_block(1), step_block(3))
    assert not (tmp_path / "run" / "run.json").exists()
    assert told == []


WRITE_UNTIL_KILLED = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from samples import INFO, step_block
from scaledl.store import RunWriter
writer = RunWriter(Path({folder!r}), 0, on_trouble=print)
writer.write_info(INFO)
for index in range(10**9):
    writer.append(step_block(index))
    time.sleep(0.0005)
"""


def test_U11_kill_9_leaves_a_readable_run_and_nothing_that_stops_the_next(tmp_path):
    folder = tmp_path / "runs" / RUN
    script = WRITE_UNTIL_KILLED.format(tests=str(TESTS), folder=str(folder))
    child = subprocess.Popen([sys.executable, "-c", script])
    path = folder / "rank0.jsonl"
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > 2000) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
    first = tuple(read_lines(folder))
    assert first == tuple(step_block(index) for index in range(len(first)))
    assert len(first) > 1
    assert sorted(p.name for p in folder.iterdir()) == ["rank0.jsonl", "run.json"]

    with path.open("ab") as stream:  # as if the kill had come in the middle of a write
        stream.write(b'{"type":"StepBlock","first_st')
    writer, told = written(folder)
    writer.append(step_block(77))
    writer.close(10.0)
    assert tuple(read_lines(folder)) == (*first, step_block(77))
    assert told == []


def test_U11_four_ranks_write_beside_each_other(tmp_path):
    folder = write_run(tmp_path, lines=(step_block(),), ranks=(0, 1, 2, 3))
    assert len(tuple(read_lines(folder))) == 4
    assert tuple(read_lines(folder, 2)) == (step_block(),)
    assert not [path for path in folder.iterdir() if "lock" in path.name]


# --- reading -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("whole"))
    return (folder / "rank0.jsonl").read_bytes()


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_truncation_reads_as_a_prefix(whole_file, tmp_path_factory, data):
    cut = data.draw(st.integers(0, len(whole_file)))
    folder = tmp_path_factory.mktemp("cut")
    (folder / "rank0.jsonl").write_bytes(whole_file[:cut])
    lines = tuple(read_lines(folder))
    assert lines == run_lines()[: len(lines)]
    assert len(lines) >= whole_file[:cut].count(b"\n") - 1  # less the head


@given(junk=st.binary(max_size=200).map(lambda b: b.replace(b"\n", b"")))
@settings(max_examples=60, deadline=None)
def test_damaged_line_costs_only_itself(whole_file, tmp_path_factory, junk):
    folder = tmp_path_factory.mktemp("junk")
    head, first, rest = whole_file.split(b"\n", 2)
    (folder / "rank0.jsonl").write_bytes(b"\n".join([head, first, junk, rest]))
    assert tuple(read_lines(folder)) == run_lines()


def test_unknown_types_and_fields_are_skipped(tmp_path):
    note = b'{"type":"Note","at_s":1.0,"key":"a","text":"b","colour":"red"}\n'
    (tmp_path / "rank0.jsonl").write_bytes(b'{"type":"Dream","at_s":1.0}\n' + note)
    assert tuple(read_lines(tmp_path)) == (Note(at_s=1.0, key="a", text="b"),)


def test_newer_schema_is_refused_with_the_remedy(tmp_path):
    message = (
        r"run was written by schema 2, this scaledl reads up to 1\. "
        r"Upgrade: pip install -U scaledl"
    )
    (tmp_path / "rank0.jsonl").write_bytes(b'{"type":"FileHead","schema":2}\n')
    with pytest.raises(StoreError, match=message):
        list(read_lines(tmp_path))
    (tmp_path / "run.json").write_bytes(b'{"schema":2,"run":{"name":"other layout"}}')
    with pytest.raises(StoreError, match=message):
        read_info(tmp_path)


def test_huge_line_is_skipped(tmp_path):
    huge = b'{"type":"Note","at_s":1.0,"key":"a","text":"' + b"x" * (2 * MAX_LINE_BYTES) + b'"}\n'
    small = msgspec.json.encode(step_block()) + b"\n"
    (tmp_path / "rank0.jsonl").write_bytes(small + huge + small)
    assert tuple(read_lines(tmp_path)) == (step_block(), step_block())


def test_links_and_pipes_in_place_of_files_are_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(msgspec.json.encode(step_block()) + b"\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.jsonl").symlink_to(secret)
    with pytest.raises(StoreError):
        list(read_lines(run))
    os.mkfifo(run / "rank1.jsonl")
    with pytest.raises(StoreError, match="not a plain file"):
        list(read_lines(run, 1))
    writer, told = written(run)
    writer.append(step_block(9))
    writer.close(10.0)
    assert len(told) == 1
    assert secret.read_bytes().count(b"\n") == 1


def test_tail_is_what_stands_last(tmp_path):
    folder = write_run(tmp_path, lines=tuple(step_block(i) for i in range(300)))
    tail = read_tail(folder, 0, 3000)
    assert 1 < len(tail) < 20
    assert tail == tuple(step_block(i) for i in range(300))[-len(tail) :]
    assert read_tail(folder, 7) == ()


def test_listing_is_newest_first_and_counts_damaged_folders(tmp_path):
    for index, at_s in enumerate((5.0, 9.0, 7.0)):
        info = msgspec.structs.replace(INFO, run_id=f"run-{index}", started_at=at_s)
        write_run(tmp_path, info, lines=())
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "run.json").write_bytes(b'{"run_id":"a"')
    (tmp_path / "runs" / "loop").symlink_to("loop")
    found = list_runs(tmp_path)
    assert [entry.info.run_id for entry in found.runs] == ["run-1", "run-2", "run-0"]
    assert found.num_skipped == 2
    assert list_runs(tmp_path / "nowhere").runs == ()


def test_run_dir_is_listed_like_a_home(tmp_path):
    folder = write_run(tmp_path)
    (tmp_path / "runs" / "other-stuff").mkdir()
    found = list_runs(tmp_path / "runs")
    assert [entry.folder for entry in found.runs] == [folder]
    assert found.num_skipped == 0
    assert find_run(tmp_path / "runs", "1201") == folder


def test_newest_folders_are_bounded(tmp_path):
    for index in range(5):
        write_run(tmp_path, msgspec.structs.replace(INFO, run_id=f"run-{index}"), lines=())
        os.utime(tmp_path / "runs" / f"run-{index}", (100 + index, 100 + index))
    assert [p.name for p in newest_folders(tmp_path, 2)] == ["run-4", "run-3"]


def test_run_is_found_by_id_prefix_path_and_latest(tmp_path):
    for run_id, at_s in (("1201-a-1111", 1.0), ("1201-b-2222", 2.0), ("1201-b", 0.5)):
        info = msgspec.structs.replace(INFO, run_id=run_id, started_at=at_s)
        write_run(tmp_path, info, lines=())
    runs = tmp_path / "runs"
    assert find_run(tmp_path, "latest") == runs / "1201-b-2222"
    assert find_run(tmp_path, "1201-a") == runs / "1201-a-1111"
    assert find_run(tmp_path, "1201-b") == runs / "1201-b"  # exact before prefix
    assert find_run(tmp_path, str(runs / "1201-a-1111")) == runs / "1201-a-1111"
    with pytest.raises(StoreError, match=r"fits 3 runs.*1201-a-1111, 1201-b, 1201-b-2222"):
        find_run(tmp_path, "12")
    with pytest.raises(StoreError, match=r"no run 'zz'.*1201-a-1111"):
        find_run(tmp_path, "zz")
    with pytest.raises(StoreError, match="no run ''"):
        find_run(tmp_path, "")
    with pytest.raises(StoreError, match="no runs in"):
        find_run(tmp_path / "nowhere", "latest")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("num_gpus", 2**63 - 1),
        ("num_gpus", 0),
        ("num_gpus", -1),
        ("num_steps", -5),
        ("step_s", 0.0),
        ("step_s", -1.0),
        ("step_s", 1e300),
        ("at_s", 1e300),
        ("at_s", -1e18),
    ],
)
def test_a_number_that_cannot_be_makes_its_line_unreadable_and_no_more(
    tmp_path: Path, name: str, number: float
) -> None:
    folder = write_run(tmp_path, lines=(BASE,))
    path = folder / "rank0.jsonl"
    text = path.read_text()
    damaged = re.sub(rf'"{name}":[-0-9.e+]+', f'"{name}":{number}', text)
    assert damaged != text
    path.write_text(damaged)
    assert not any(isinstance(line, Measurement) for line in read_lines(folder))
    assert load_relatives(tmp_path, BASE.signature, "other").measurements == ()


def test_a_run_folder_that_was_removed_is_told_once(tmp_path: Path) -> None:
    writer, told = written(tmp_path / "run")
    for step in range(2):
        writer.append(step_block(first_step=100 * step))
        deadline_s = time.monotonic() + 10
        while not told and (writer._queue or writer._fd is None):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    writer.append(step_block(first_step=200))
    writer.close()
    (message,) = told
    assert message.startswith(f"cannot write {tmp_path / 'run'}: it was removed.")
    assert writer.num_dropped >= 1
