"""An ONNX file in float16 is held to what float16 rounds, and no further."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quarl.convert.importers.__main__ import main

HALF, SIZES = onnx.TensorProto.FLOAT16, (6, 32, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """policy.onnx, a perceptron in float16, and rows.npz of 600 observations."""
    generator = np.random.default_rng(0)
    tensors: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    before = "observation"
    for index, (given, made) in enumerate(pairwise(SIZES)):
        kernel: NDArray[np.float16] = (generator.normal(size=(given, made)) / np.sqrt(given)).astype(np.float16)
        tensors += [
            numpy_helper.from_array(kernel, f"w{index}"),
            numpy_helper.from_array(np.zeros(made, np.float16), f"b{index}"),
        ]
        nodes += [
            helper.make_node("Gemm", [before, f"w{index}", f"b{index}"], [f"sum{index}"]),
            helper.make_node("Tanh", [f"sum{index}"], ["action" if made == SIZES[-1] else f"out{index}"]),
        ]
        before = f"out{index}"
    ends = [
        helper.make_tensor_value_info(name, HALF, ["n", size]) for name, size in (("observation", 6), ("action", 3))
    ]
    graph = helper.make_graph(nodes, "policy", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "policy.onnx")
    np.savez(tmp_path / "rows.npz", observations=generator.normal(size=(600, 6)).astype(np.float32))
    return tmp_path


def imported(folder: Path, *more: str) -> int:
    words = ["--observations", str(folder / "rows.npz"), "--actions", "as-is", "--period", "0.02", "--name", "half"]
    return main([str(folder / "policy.onnx"), *words, "--output-path", str(folder / "made"), *more])


def test_a_float16_file_is_imported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imported(folder) == 0
    assert (folder / "made" / "manifest.json").exists() and "by its own runtime" in capsys.readouterr().out


def test_outputs_beyond_float16s_roundings_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.load(folder / "rows.npz")["observations"][:50]
    np.savez(folder / "pairs.npz", observations=rows, outputs=np.full((50, 3), 0.3, np.float32))
    assert imported(folder, "--golden", str(folder / "pairs.npz")) == 1
    assert "(on the given pairs)" in capsys.readouterr().err
    assert not (folder / "made").exists()
