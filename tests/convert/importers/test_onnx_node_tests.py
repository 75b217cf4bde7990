"""ONNX's own tests of its operators, each read as a policy: a chain computes what a test expects, an opaque program
what onnxruntime does, or it is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase as NodeTest
from onnx.backend.test.loader import load_model_tests

from quarl.convert.importers.chain import Continuous, Discrete, ForeignError, run
from quarl.convert.importers.fold import fold
from quarl.convert.importers.onnx.reader import read_onnx
from tests.convert.importers.onnx_graphs import read_as_chain


def policies(case: NodeTest) -> Iterator[tuple[onnx.ModelProto, np.ndarray, dict[str, np.ndarray]]]:
    """Models with one of the floating-point inputs as the observation (1, n), the others constants; what is observed;
    and what is expected of each output."""
    given, expected = case.data_sets[0]
    if not all(isinstance(each, np.ndarray) and each.dtype.kind in "fiub" for each in (*given, *expected)):
        return
    for index, value in enumerate(given):
        if value.dtype.kind != "f" or not value.size:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        graph, nodes, inputs = model.graph, list(model.graph.node), list(model.graph.input)
        del graph.node[:], graph.input[:]
        graph.initializer.extend(
            numpy_helper.from_array(other, inputs[at].name) for at, other in enumerate(given) if at != index
        )
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        graph.input.append(helper.make_tensor_value_info("seen", kind, [1, value.size]))
        graph.initializer.append(numpy_helper.from_array(np.array(value.shape, np.int64), "its shape"))
        graph.node.extend([helper.make_node("Reshape", ["seen", "its shape"], [inputs[index].name]), *nodes])
        outputs = {info.name: each for info, each in zip(graph.output, expected, strict=True) if info.name}
        yield model, value.reshape(1, -1).astype(np.float32), outputs


@pytest.mark.slow
def test_node_tests_are_computed_or_refused(tmp_path: Path) -> None:
    read, refused, path = set(), 0, tmp_path / "policy.onnx"
    for case in load_model_tests(kind="node"):
        for model, row, outputs in policies(case):
            path.write_bytes(model.SerializeToString())
            for name, expected in outputs.items():
                try:
                    policy = read_as_chain(path, name)
                except ForeignError:
                    refused += 1
                    continue
                read.add(case.name)
                made = run(policy, row)[0]
                if isinstance(policy.actions, Discrete):  # what the largest is taken of, behind which may be a Softmax
                    made, expected = np.array(np.argmax(made)), np.array(np.argmax(expected))
                np.testing.assert_allclose(made, expected.reshape(-1), case.rtol, 1e-5, err_msg=f"{case.name} {name}")
    assert len(read) > 120 and refused > 1000
    assert {"test_layer_normalization_2d_axis0", "test_dropout_default_mask", "test_clip_default_inbounds"} <= read


def test_opaque_graphs_compute_what_onnxruntime_does(tmp_path: Path) -> None:
    opaque, path = 0, tmp_path / "policy.onnx"
    for case in list(load_model_tests(kind="node"))[::40]:
        for model, row, outputs in list(policies(case))[:1]:
            path.write_bytes(model.SerializeToString())
            try:
                policy = read_onnx(path, next(iter(outputs)))
            except ForeignError:
                continue
            if not policy.is_opaque:
                continue
            opaque += 1
            folded = fold(replace(policy, actions=policy.actions or Continuous()), row)
            ours = onnxruntime.InferenceSession(folded.weights["program"].tobytes())
            made = ours.run(None, {"observation": row})[0]
            session = onnxruntime.InferenceSession(path)
            kind = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
            seen = {session.get_inputs()[0].name: row.astype(kind)}
            wanted = np.asarray(session.run([next(iter(outputs))], seen)[0], np.float32).reshape(1, -1)
            if isinstance(policy.actions, Discrete) and wanted.size == 1:
                made = made.argmax(axis=1, keepdims=True)
            np.testing.assert_allclose(made, wanted, 1e-3, 1e-5, err_msg=case.name)
    assert opaque > 5
