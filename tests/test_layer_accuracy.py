"""The benchmark of the layer model, on small made-up tables in the layout of the public sets."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from layer_accuracy import METHODS, groups_of, main, splits_of
from layer_data import read_examples

GPUS = ("V100", "P100", "Titan X (Pascal)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = ["gpu,op,precision,shape,fwd_ms,bwd_input_ms,bwd_weight_ms"]
    for gpu in GPUS:
        for i in range(1, 9):
            gemm = f"M={64 * i} N=128 K=256 tA=N tB=N"
            lines.append(f"{gpu},gemm,Float,{gemm},{0.01 * i},,")
            conv = f"W=28 H=28 C=16 N={i} K=32 S=3 R=3 pad_w=1 pad_h=1 stride_h=1 stride_v=1"
            lines.append(f"{gpu},conv,Float,{conv},{0.02 * i},{0.03 * i},{0.01 * i}")
    (tmp_path / "deepbench").mkdir()
    (tmp_path / "deepbench" / "train_ops.csv").write_text("\n".join(lines))
    return tmp_path


def test_shapes_of_deepbench_become_flops(folder: Path) -> None:
    examples = read_examples(folder)
    gemm = next(e for e in examples if e.work.kind == "linear")
    assert gemm.work.flops == 2 * 64 * 128 * 256
    forward = next(e for e in examples if e.work.kind == "convolution")
    assert forward.work.flops == 2 * (28 * 28) * (16 * 9) * 32
    backward = next(e for e in examples if e.work.direction == "backward")
    assert backward.work.flops == 2 * forward.work.flops
    assert backward.time_s == pytest.approx(4e-5)  # both gradients


def test_no_time_of_a_left_out_gpu_or_range_is_trained_on(folder: Path) -> None:
    for group in groups_of(read_examples(folder)):
        splits = list(splits_of(group, np.random.default_rng(0)))
        assert sorted(s.value for s in splits if s.what == "gpu") == sorted(GPUS)
        for split in splits:
            assert not set(split.train) & set(split.test)
            if split.what == "gpu":
                assert {group.examples[i].gpu.name for i in split.test} == {split.value}
                assert split.value not in {group.examples[i].gpu.name for i in split.train}
        tested = [i for s in splits if s.what == "size" for i in s.test]
        assert sorted(tested) == list(range(len(group.examples)))


def test_every_method_has_a_row_for_every_split_and_bars_follow_from_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("layer_accuracy.NUM_TREES", 2)
    monkeypatch.setattr(sys, "argv", ["layer_accuracy", "--data", str(folder), "--json"])
    main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["benchmark"] == "layer_accuracy"
    assert len(found["results"]) == 3 * (3 + 4) * len(METHODS)  # groups, GPUs and ranges
    for bar in found["bars"]:
        assert bar["holds"] == (bar["value"] <= bar["limit"])


def test_an_unknown_device_is_named(folder: Path) -> None:
    path = folder / "deepbench" / "train_ops.csv"
    path.write_text(path.read_text().replace("V100", "Q9000"))
    with pytest.raises(SystemExit, match="Q9000"):
        read_examples(folder)
