"""Files that are no sound trace end in one message that names the file and what to do."""

import gzip
import json

import pytest
from kineto import ALL_REDUCE, document, event, training, write

from scaledl.errors import UsageError
from scaledl.traces import collect, pieces
from scaledl.traces.summary import read_trace

SOUND = json.dumps(document(training())).encode()
DEEP = b'{"traceEvents":[{"ph":"X","args":' + b"[" * 200_000 + b"]" * 200_000 + b"}]}"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty (0 bytes)"),
        (b"   ", "is no JSON, it begins with ''"),
        (b"hello", "is no JSON, it begins with 'hello'"),
        (b"\x00\xff\x80", "is no JSON"),
        (b"{", "is truncated or no JSON"),
        (b"{}", "has no list traceEvents, its keys are: none"),
        (b'{"nodes": [], "schema": 1}', "its keys are: nodes, schema"),
        (b'{"traceEvents": 3}', "has no list traceEvents"),
        (b'{"x": {"traceEvents": [{}]}}', "has no list traceEvents, its keys are: x"),
        (b'{"traceEvents": []}', "has an empty traceEvents"),
        (b"[]", "has an empty traceEvents"),
        (SOUND[: len(SOUND) // 2], "is truncated after"),
        (SOUND[:-1], "is truncated or damaged after its events"),
        (SOUND + b"x", "is truncated or damaged after its events"),
        (SOUND.replace(b'"ph"', b'"ph', 1), "is damaged"),
        (b'{"traceEvents": [1, 2]}', "is damaged"),
        (b'[{"ph": "X"} {"ph": "X"}]', "is damaged"),
        (DEEP, "nests too deep"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, data, told):
    path = write(tmp_path / "bad.json", data)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert told in str(caught.value)
    assert "bad.json" in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("cat", "key", "value", "told"),
    [
        ("kernel", "ts", -1, "ts -1"),
        ("kernel", "ts", 1e300, "ts 1e+300"),
        ("kernel", "ts", 10**30, "ts "),
        ("kernel", "ts", None, "ts None"),
        ("kernel", "ts", "soon", "ts 'soon'"),
        ("kernel", "ts", [1], "ts [1]"),
        ("kernel", "dur", -5, "dur -5"),
        ("kernel", "dur", 1e18, "dur 1e+18"),
        ("Memcpy", "dur", {}, "dur {}"),
        ("kernel", "name", 7, "the name 7"),
        ("user_annotation", "name", None, "the name None"),
    ],
)
def test_an_event_with_an_impossible_value_is_named(tmp_path, cat, key, value, told):
    bad = event(cat, "some_kernel", 5, 5) | {key: value}
    path = write(tmp_path / "bad.json", document([*training(), bad]))
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert told in str(caught.value)


def test_stamps_that_are_not_a_number_are_named_and_elsewhere_do_no_harm(tmp_path):
    text = json.dumps(document(training()))
    harmless = text.replace('"args": {}', '"args": {"occupancy": nan, "warps": [-inf, 1]}')
    assert harmless != text
    assert read_trace(write(tmp_path / "a.json", harmless.encode())).num_kernels == 12
    for word in ("NaN", "-nan", "Infinity"):
        bad = document([*training(), event("kernel", "lost", 5, 5)])
        text = json.dumps(bad).replace('"ts": 5,', f'"ts": {word},')
        with pytest.raises(UsageError, match="'lost' has ts"):
            read_trace(write(tmp_path / "b.json", text.encode()))


@pytest.mark.parametrize(
    "args",
    [
        [], 3, None, "text", {"Collective name": 5, "In msg nelems": "many", "Group size": -1},
        {"External id": [], "correlation": {}, "dtype": 1},
        {"In msg nelems": -4, "dtype": "Float"}, {"correlation": 2**80},
        {"Input Dims": [[-1, "a"]], "Input type": ["float"]},
        {"Input Dims": {"a": 1}, "Input type": 7}, {"Input Dims": [3], "Input type": [[]]},
    ],
)  # fmt: skip
def test_P30_arguments_of_wrong_types_are_unknown(tmp_path, args):
    events = [event("kernel", ALL_REDUCE, 5, 5, args=args)]
    events += [event("user_annotation", "nccl:all_reduce", 1, 2, args=args)]
    events += [event("cuda_runtime", "cudaLaunchKernel", 1, 2, args=args)]
    (seen,) = read_trace(write(tmp_path / "t.json", document(events))).collectives
    assert (seen.op, seen.num_bytes, seen.group_size) == ("all_reduce", None, None)


@pytest.mark.parametrize("info", [[], 3, {"rank": "a", "world_size": -2}, {"rank": True}])
def test_heads_of_wrong_types_are_unknown(tmp_path, info):
    value = document(training()) | {"distributedInfo": info, "deviceProperties": info}
    trace = read_trace(write(tmp_path / "t.json", value))
    assert (trace.rank, trace.world_size, trace.gpu) == (None, None, None)


def test_a_head_with_a_number_out_of_range_is_unknown(tmp_path):
    text = json.dumps(document(training())).replace('"world_size": 2', '"world_size": 1e999')
    assert read_trace(write(tmp_path / "t.json", text.encode())).world_size is None


@pytest.mark.parametrize("name", [ALL_REDUCE, "nccl:x_all_reduce", "ProfilerStep#1", "sgemm"])
def test_a_flood_of_what_is_kept_one_by_one_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(collect, "MAX_KEPT", 50)
    cat = "kernel" if name in (ALL_REDUCE, "sgemm") else "user_annotation"
    path = write(tmp_path / "t.json", [event(cat, name, i, 1, pid=i) for i in range(200)])
    if name == "sgemm":
        assert read_trace(path).num_kernels == 200
        return
    with pytest.raises(UsageError, match=r"over 50 of its kind.*profile fewer steps"):
        read_trace(path)


def test_cut_or_broken_gzip_is_refused(tmp_path):
    packed = gzip.compress(SOUND)
    for data, told in (
        (packed[: len(packed) // 2], "ends within its gzip data"),
        (packed[:40] + b"\x00" * 40 + packed[80:], "gzip"),
        (packed[:1] + b"\x8b\x07" + packed[3:], "gzip"),
    ):
        (tmp_path / "t.json.gz").write_bytes(data)
        with pytest.raises(UsageError, match=told):
            read_trace(tmp_path / "t.json.gz")


def test_a_bomb_stops_at_the_limit(tmp_path):
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", 9) as stream:
        stream.write(b'{"traceEvents":[{"ph":"M"}')
        for _ in range(30):
            stream.write(b',{"ph":"M"}' * 50_000)
    with pytest.raises(UsageError, match=r"unpacks to more than 0\.005 GB.*--max-gb"):
        read_trace(path, 5e6)


def test_one_endless_event_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_EVENT_BYTES", 300_000)
    monkeypatch.setattr(pieces, "CHUNK_BYTES", 50_000)
    for head in (b'{"traceEvents":[{"ph":"', b'{"x":"', b'{"traceEvents":[{}],"x":"'):
        with pytest.raises(UsageError, match=r"That is no trace|truncated or no JSON"):
            read_trace(write(tmp_path / "t.json", head + b"a" * 2_000_000 + b'"}]}'))


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="is no file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(UsageError, match="is a folder"):
        read_trace(tmp_path)


def test_names_cannot_steer_the_terminal(tmp_path):
    bad = event("kernel", "\x1b[2Jevil\n", -1, 5)
    with pytest.raises(UsageError) as caught:
        read_trace(write(tmp_path / "t.json", document([bad])))
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
