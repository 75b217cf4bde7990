"""Attacks: whatever bytes are called a policy, the reader answers ForeignError and fills no memory."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quarl.convert.importers.chain import ForeignError, run
from quarl.convert.importers.onnx import file as onnx_file
from quarl.convert.importers.onnx.reader import read_onnx
from tests.convert.importers.onnx_graphs import Graph, numbers
from tests.refusals import refused

MUTATIONS = 200
FILES = Path(__file__).resolve().parent / "files" / "onnx"


def dense_model() -> onnx.ModelProto:
    graph = Graph(13, obs=["batch", 5])
    x = graph.n("Relu", graph.n("Gemm", "obs", graph.w(5, 4), graph.w(4)))
    shape = graph.n("Concat", graph.n("Slice", graph.n("Shape", x), graph.c([0]), graph.c([1])), graph.c([-1]), axis=0)
    return graph.model(graph.dense(graph.n("Reshape", x, shape), 4, 2))


def save(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def outside(tensor: onnx.TensorProto, **entries: str) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=value))


def with_external(folder: Path, **entries: str) -> Path:
    """The model with its first kernel (80 bytes) in another file."""
    folder.mkdir(exist_ok=True)
    model = dense_model()
    outside(model.graph.initializer[0], **entries)
    return save(folder, model)


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    kernel = numbers(5, 4)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.bin").write_bytes(b"\0" * 16 + kernel.tobytes())
    policy = read_onnx(with_external(tmp_path, location="data/weights.bin", offset="16", length="80"))
    np.testing.assert_array_equal(policy.steps[0].kernel, kernel)  # type: ignore[union-attr]
    assert policy.provenance is not None
    assert set(policy.provenance["sha256"]) == {"policy.onnx", "data/weights.bin"}


OUTSIDE: dict[str, dict[str, str]] = {
    "above": {"location": "../secret.bin"},
    "above, within": {"location": "data/../../secret.bin"},
    "absolute": {"location": "{folder}/secret.bin"},
    "device": {"location": "/dev/zero"},
    "empty": {"location": ""},
    "backslash": {"location": "..\\secret.bin"},
    "nothing there": {"location": "missing.bin"},
    "a folder": {"location": "data"},
    "a link": {"location": "link.bin"},
    "a linked folder": {"location": "linked/secret.bin"},
    "a pipe": {"location": "pipe"},
    "shorter": {"length": "79"},
    "longer": {"length": "81"},
    "cut off": {"offset": "1"},
    "before the file": {"offset": "-16", "length": "80"},
    "far behind it": {"offset": "99999999999999999999"},
    "no whole number": {"length": "8e1"},
}


@pytest.mark.parametrize("place", OUTSIDE)
def test_external_data_elsewhere_or_of_another_size_is_refused(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    for each in (tmp_path / "secret.bin", folder / "weights.bin"):
        each.write_bytes(bytes(80))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    entries = {name: value.format(folder=tmp_path) for name, value in OUTSIDE[place].items()}
    with pytest.raises(ForeignError):
        read_onnx(with_external(folder, **{"location": "weights.bin", **entries}))


def test_many_tensors_of_one_data_file_do_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST_MODEL", 20_000)
    (tmp_path / "weights.bin").write_bytes(bytes(8_000))
    model = dense_model()
    for index in range(20):
        tensor = model.graph.initializer.add(name=f"more_{index}", data_type=TensorProto.FLOAT, dims=[2000])
        outside(tensor, location="weights.bin")
    with refused(ForeignError, "foreign", shows=["20000"]):
        read_onnx(save(tmp_path, model))


@pytest.mark.parametrize("content", [b"", b"\0", b"not a protobuf", b"\x08\x08", b"\x1f\x8b\x08" + bytes(50)])
def test_other_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(content)
    with pytest.raises(ForeignError, match=r"policy\.onnx"):
        read_onnx(path)


def test_no_file_a_folder_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "missing.onnx", tmp_path):
        with pytest.raises(ForeignError):
            read_onnx(path)
    path = save(tmp_path, dense_model())
    monkeypatch.setattr(onnx_file, "LARGEST_MODEL", path.stat().st_size)
    read_onnx(path)
    monkeypatch.setattr(onnx_file, "LARGEST_MODEL", path.stat().st_size - 1)
    with pytest.raises(ForeignError):
        read_onnx(path)


BOMBS: dict[str, Callable[[Graph], str]] = {
    "ConstantOfShape": lambda g: g.n("ConstantOfShape", g.c([1 << 20, 1 << 20])),
    "ConstantOfShape, overflowing": lambda g: g.n("ConstantOfShape", g.c([1 << 32, 1 << 32, 1 << 62])),
    "Expand": lambda g: g.n("Expand", g.c(1.0), g.c([1 << 40])),
    "Tile": lambda g: g.n("Tile", g.w(4), g.c([1 << 38])),
    "Range": lambda g: g.n("Range", g.c(np.int64(0)), g.c(np.int64(1 << 50)), g.c(np.int64(1))),
    "outer sum": lambda g: g.n("Add", g.w(1 << 14, 1), g.w(1, 1 << 14)),
    "outer product": lambda g: g.n("MatMul", g.w(1 << 14, 1), g.w(1, 1 << 14)),
    "Gather": lambda g: g.n("Gather", g.w(2, 1 << 14), g.c(np.zeros(1 << 12, np.int64))),
    "Pad": lambda g: g.n("Pad", g.w(4), g.c([0, 1 << 40])),
}


def doubled(g: Graph) -> str:
    x = g.w(4)
    for _ in range(60):
        x = g.n("Concat", x, x, axis=0)
    return x


BOMBS["Concat with itself"] = doubled


@pytest.mark.parametrize("bomb", BOMBS)
def test_constants_of_terabytes_are_refused_unmade(bomb: str, tmp_path: Path) -> None:
    graph = Graph(13, obs=["batch", 4])
    huge = BOMBS[bomb](graph)
    model = graph.model(graph.n("Relu", "obs"))  # inference of shapes is not asked about the bomb
    model.graph.node.append(helper.make_node("Add", [model.graph.output[0].name, huge], ["sum"]))
    model.graph.output[0].name = "sum"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ForeignError):
        read_onnx(save(tmp_path, model))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10  # KiB


def test_a_bomb_that_leads_nowhere_is_never_run(tmp_path: Path) -> None:
    model = dense_model()
    shape = onnx.numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "huge_shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node("ConstantOfShape", ["huge_shape"], ["huge"]))
    model.graph.output.append(helper.make_tensor_value_info("huge", TensorProto.FLOAT, ["a", "b"]))
    policy = read_onnx(save(tmp_path, model), model.graph.output[0].name)
    assert policy.ignored == ("output 'huge': 1 nodes, 2 parameters of its own",)


@pytest.mark.parametrize("dims", [[1 << 40], [1 << 32, 1 << 32], [-1, 4], [5, 5], [0, 1 << 62]])
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_whose_shape_lies(dims: list[int], raw: bool, tmp_path: Path) -> None:
    model = dense_model()
    tensor = model.graph.initializer[0]
    if not raw:
        values = onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        tensor.ClearField("raw_data")
        tensor.float_data.extend(values)
    del tensor.dims[:]
    tensor.dims.extend(dims)
    with pytest.raises(ForeignError):
        read_onnx(save(tmp_path, model))


def test_truncated_files(tmp_path: Path) -> None:
    data = dense_model().SerializeToString()
    path = tmp_path / "policy.onnx"
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(ForeignError):
            read_onnx(path)


@pytest.mark.parametrize("name", ["by hand", "sb3_discrete_script", "swish_split_dynamo", "images_script"])
def test_mutated_files_are_read_right_or_refused(name: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    whole = dense_model().SerializeToString() if name == "by hand" else (FILES / f"{name}.onnx").read_bytes()
    for beside in FILES.glob("*.data"):
        shutil.copy(beside, tmp_path)
    data = np.frombuffer(whole, np.uint8)
    path = tmp_path / "policy.onnx"
    answers = {"read": 0, "refused": 0}
    for _ in range(MUTATIONS):
        mutated = data.copy()
        places = generator.integers(0, len(data), generator.integers(1, 4))
        mutated[places] = generator.integers(0, 256, len(places))
        path.write_bytes(mutated.tobytes())
        try:
            policy = read_onnx(path)
        except ForeignError:
            answers["refused"] += 1
            continue
        run(policy, np.zeros((2, sum(int(np.prod(part.shape)) for part in policy.inputs))))
        answers["read"] += 1
    assert min(answers.values()) > MUTATIONS // 20, answers
