"""The part of an ONNX graph that does not depend on the observation, computed: shapes, scales, transposed kernels.

The same evaluation moves numbered elements through Reshape, Transpose, Slice, Gather and Split, which tells where each
element of an observation goes. Before a node is evaluated, the size of its result is worked out from its operands: a
few bytes of graph can ask for terabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.onnx.file import EXPORT_AGAIN, array_of

LARGEST_CONSTANT = 1 << 25
"""Elements of one constant: 128 MiB of float32."""
MOST_WORK = 1 << 28
"""Elements of all constants together."""

Operands = Sequence[np.ndarray | None]


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    """Return a node's attributes as Python values, tensors as protobufs."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def label_node(node: onnx.NodeProto) -> str:
    """Return how messages call a node: operator and name, or its first output where it has no name."""
    return f"{node.op_type} (node {node.name or (node.output[0] if node.output else '?')!r})"


class Folder:
    """Evaluates nodes on arrays, one by one, until :data:`MOST_WORK` elements were made."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._left = MOST_WORK

    def evaluate(self, node: onnx.NodeProto, operands: Operands) -> list[np.ndarray]:
        """Return the node's outputs.

        Args:
            node: of an operator that :data:`RESULT_SIZES` lists.
            operands: one for each of its inputs; None where an optional one is left out.

        Raises:
            ForeignError: an operator not listed, too large a result, or operands that the operator does not take.
        """
        if node.op_type == "Constant":
            return [_constant(node)]
        if node.op_type not in RESULT_SIZES:
            raise ForeignError(f"{label_node(node)} of constants is not supported.", EXPORT_AGAIN)
        try:
            size = int(RESULT_SIZES[node.op_type](node, operands))
            if not 0 <= size <= min(LARGEST_CONSTANT, self._left):
                message = f"{label_node(node)} must make at most {LARGEST_CONSTANT} elements, got {size}."
                raise ForeignError(message, EXPORT_AGAIN)
            self._left -= size
            feeds = {name: value for name, value in zip(node.input, operands, strict=True) if value is not None}
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(self._alone(node)).run(None, feeds)
        except ForeignError:
            raise
        except Exception as error:  # the evaluator raises whatever it likes at operands that do not fit
            message = f"{label_node(node)} cannot be computed ({type(error).__name__}: {error})."
            raise ForeignError(message, "Export the policy again.") from error
        return [np.asarray(result) for result in results]

    def _alone(self, node: onnx.NodeProto) -> onnx.ModelProto:
        """Return the node as a model; a bare node would be evaluated by the newest opset's definition."""
        inputs, outputs = (
            [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name]
            for names in (node.input, node.output)
        )
        graph = helper.make_graph([node], "node", inputs, outputs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])


def _constant(node: onnx.NodeProto) -> np.ndarray:
    for name, value in attributes(node).items():
        if name == "value" and isinstance(value, onnx.TensorProto):
            return array_of(value)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    raise ForeignError(f"{label_node(node)} must hold numbers.", EXPORT_AGAIN)


def _of_first(node: onnx.NodeProto, operands: Operands) -> int:
    return 0 if operands[0] is None else operands[0].size


def _broadcast(node: onnx.NodeProto, operands: Operands) -> int:
    return math.prod(np.broadcast_shapes(*(value.shape for value in operands if value is not None)))


def _sum(node: onnx.NodeProto, operands: Operands) -> int:
    return sum(value.size for value in operands if value is not None)


def _count_filled(node: onnx.NodeProto, operands: Operands) -> int:
    return math.prod(_ints(operands[0]))


def _count_expanded(node: onnx.NodeProto, operands: Operands) -> int:
    assert operands[0] is not None
    shape = _ints(operands[1])
    return 0 if any(size < 0 for size in shape) else math.prod(np.broadcast_shapes(operands[0].shape, tuple(shape)))


def _count_tiled(node: onnx.NodeProto, operands: Operands) -> int:
    return _of_first(node, operands) * math.prod(_ints(operands[1]))


def _count_gathered(node: onnx.NodeProto, operands: Operands) -> int:
    data, indices = operands[0], operands[1]
    assert data is not None and indices is not None
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return indices.size * (data.size // max(data.shape[axis], 1))


def _product(node: onnx.NodeProto, operands: Operands) -> int:
    first, second = operands[0], operands[1]
    assert first is not None and second is not None
    if first.ndim != 2 or second.ndim > 2:
        raise ValueError("a product must have two dimensions")
    size = first.size * second.size  # its work, an upper bound of its size
    if size > MOST_WORK * 64:
        return size
    return first.shape[0] * (second.shape[-1] if second.ndim == 2 else 1)


def _count_range(node: onnx.NodeProto, operands: Operands) -> int:
    start, limit, delta = (np.asarray(value).reshape(()).item() for value in operands)
    return max(math.ceil((limit - start) / delta), 0)


def _ints(value: np.ndarray | None) -> list[int]:
    if value is None or value.ndim > 1 or value.size > 16 or value.dtype.kind not in "iu":
        raise ValueError("a shape must be a few integers")
    return [int(size) for size in value.reshape(-1)]


ResultSize = Callable[[onnx.NodeProto, Operands], int]

_SAME_SIZE = (
    "Abs BitShift Cast Ceil Clip DequantizeLinear Dropout Erf Exp Flatten Floor Identity IsNaN Log Neg Not Reciprocal "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round Shape Sigmoid Sign Size Slice Softplus "
    "Split Sqrt Squeeze Tanh Transpose Unsqueeze"
)
_BROADCAST = "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub Where"

RESULT_SIZES: dict[str, ResultSize] = {
    **dict.fromkeys(_SAME_SIZE.split(), _of_first),
    **dict.fromkeys(_BROADCAST.split(), _broadcast),
    "CastLike": _of_first,
    "Concat": _sum,
    "ConstantOfShape": _count_filled,
    "Expand": _count_expanded,
    "GatherND": _sum,
    "ScatterND": _of_first,
    "Gather": _count_gathered,
    "MatMul": _product,
    "Range": _count_range,
    "Tile": _count_tiled,
}
"""Operators that are computed, and how many elements the result has (at most, but for a Shape's few)."""
