"""Small ONNX graphs by hand, for the tests of the reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.importers.chain import ForeignPolicy, run
from quarl.convert.importers.onnx.file import load
from quarl.convert.importers.onnx.inputs import find_states
from quarl.convert.importers.onnx.reader import choose_output, read_chain

GENERATOR = np.random.default_rng(7)
Shape = Sequence[int | str]


def numbers(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


class Graph:
    """Nodes in the order in which they are added; each call returns its first output's name."""

    def __init__(self, opset: int = 17, **inputs: Shape) -> None:
        self.opset = opset
        self.inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in inputs.items()
        ]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def c(self, values: object) -> str:
        """A constant; Python numbers become float32 and lists of whole numbers int64."""
        array = np.asarray(values)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def w(self, *shape: int) -> str:
        """Random weights."""
        return self.c(numbers(*shape))

    def n(self, operator: str, *operands: str, outputs: Sequence[str] | None = None, **attributes: Any) -> str:
        names = list(outputs or [f"{operator.lower()}_{len(self.nodes)}"])
        self.nodes.append(helper.make_node(operator, list(operands), names, name=f"node_{names[0]}", **attributes))
        return names[0]

    def dense(self, x: str, inputs: int, outputs: int, **attributes: Any) -> str:
        return self.n("Gemm", x, self.w(inputs, outputs), self.w(outputs), **attributes)

    def model(self, *outputs: str, **metadata: str) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "graph", self.inputs, [], self.constants)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        version = 8 if self.opset < 19 else 10
        shaped = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=version)
        del shaped.graph.output[:]
        # The checker wants typed outputs; their shapes are left to inference.
        inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=shaped.opset_import))
        types = {value.name: value for value in (*inferred.graph.value_info, *inferred.graph.output)}
        for name in outputs:
            types[name].type.tensor_type.shape.SetInParent()
            shaped.graph.output.append(types[name])
        if metadata:
            helper.set_model_props(shaped, metadata)
        return shaped

    def read(self, folder: Path, *outputs: str, output: str | None = None, **metadata: str) -> ForeignPolicy:
        """The chain read from the graph's file, compared with onnxruntime here once more."""
        path = folder / "policy.onnx"
        path.write_bytes(self.model(*outputs, **metadata).SerializeToString())
        policy = read_as_chain(path, output)
        agrees(policy)
        return policy


def read_as_chain(path: Path, output: str | None = None) -> ForeignPolicy:
    """The policy as a chain; what there is no chain for is refused, where read_onnx takes it as an opaque program."""
    file = load(path)
    return read_chain(file, choose_output(file.model.graph, output), find_states(file))


def agrees(policy: ForeignPolicy) -> None:
    size = sum(int(np.prod(part.shape)) for part in policy.inputs)
    rows = np.random.default_rng(1).normal(0, 2, (50, size)).astype(np.float32)
    if len(policy.inputs[0].shape) == 3:
        rows = np.minimum(np.abs(50 * rows).round(), 255)  # whole numbers, as images of bytes have them
    assert policy.original is not None
    expected = policy.original(rows)
    # float32 in another order of sums
    np.testing.assert_allclose(run(policy, rows), expected, rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))
