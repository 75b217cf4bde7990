"""ONNX operators on values that depend on the observation: each as steps of the chain, or refused by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from quarl.convert.importers.onnx.call import Call, Result
from quarl.convert.importers.onnx.elementwise import (
    ACTIVATIONS,
    add_constant,
    apply_activation,
    clip_to_bounds,
    divide_by_constant,
    extreme,
    multiply_or_gate,
    negate_value,
    subtract_constant,
)
from quarl.convert.importers.onnx.joining import join_values
from quarl.convert.importers.onnx.layers import batch_normalised, convolutional, gemm, layer_normalised, matrix_product
from quarl.convert.importers.onnx.statistics import REDUCTIONS, statistic_of
from quarl.convert.importers.onnx.value import Value

KEEP_ORDER = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
MOVES = (*KEEP_ORDER, "Transpose", "Slice", "Split", "Expand", "Tile", "Gather", "GatherND")


def apply(call: Call) -> Result:
    """Return the node's outputs; without those at the end that a chain cannot hold, e.g. a Dropout's mask.

    Raises:
        ForeignError: the operator, or its use here, is nothing that a chain can hold; names operator and node.
    """
    operator = call.node.op_type
    values = [operand for operand in call.operands if isinstance(operand, Value)]
    _check_flags(call, values)
    statistics = operator in REDUCTIONS or any(value.statistic is not None for value in values)
    if not statistics and operator not in HANDLERS:
        raise call.build_error("is no operator that a policy's chain holds")
    return statistic_of(call, values) if statistics else HANDLERS[operator](call)


def _check_flags(call: Call, values: list[Value]) -> None:
    """Behind a Softmax or an ArgMax only what keeps the order of the elements may follow."""
    operator = call.node.op_type
    if any(value.is_index for value in values) and operator not in (*KEEP_ORDER, "Cast", "Identity"):
        raise call.build_error("computes with the number of an action")
    allowed = (*KEEP_ORDER, "Cast", "Identity", "ArgMax", "Softmax", "LogSoftmax")
    if any(value.order_only for value in values) and operator not in allowed:
        raise call.build_error("computes with probabilities")


def _rearrange_elements(call: Call) -> Result:
    value = call.value()
    if value.is_index:
        return [value]
    operands = [call.constant(index) if index else value.numbers() for index in _list_operand_indices(call)]
    padded = [operands.pop(0) if operand is not None else None for operand in call.operands]
    results = call.folder.evaluate(call.node, padded)
    moved = [value.select_elements(numbers) for numbers in results]
    if value.order_only and not np.array_equal(moved[0].selection, value.selection):
        raise call.build_error("reorders probabilities")
    return list(moved)


def _list_operand_indices(call: Call) -> list[int]:
    return [index for index, operand in enumerate(call.operands) if operand is not None]


def _same(call: Call) -> Result:
    return [call.value()]


def _dropout(call: Call) -> Result:
    if call.constant(2, np.array(False)).any():
        raise call.build_error("is in training mode", "Call .eval() before the export.")
    return [call.value()]


def _cast(call: Call) -> Result:
    value, kind = call.value(), call.whole("to", TensorProto.FLOAT)
    if call.node.op_type == "CastLike":
        kind = TensorProto.FLOAT if call.constant(1).dtype.kind == "f" else TensorProto.INT64
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
    if kind not in floats and not value.is_index:
        raise call.build_error("rounds to whole numbers")
    return [value]


def _shape(call: Call) -> Result:
    shape = np.array(call.value().shape, np.int64)
    start, end = call.whole("start", 0), call.whole("end", len(shape))
    return [np.array(shape.prod()) if call.node.op_type == "Size" else shape[start:end]]


def _concat(call: Call) -> Result:
    parts = [part for part in call.operands if part is not None]
    ends = np.cumsum([part.size for part in parts])
    numbers = [np.arange(end - part.size, end).reshape(part.shape) for part, end in zip(parts, ends, strict=True)]
    (result,) = call.folder.evaluate(call.node, numbers)
    # A part without elements, e.g. a Slice beyond the end, joins nothing.
    values = [part for part in parts if isinstance(part, Value) and part.size]
    if any(part.size and not isinstance(part, Value) for part in parts):
        raise call.build_error("joins a constant to what depends on the observation")
    return [join_values(call, values, [part for part in numbers if part.size], result)]


def _softmax(call: Call) -> Result:
    value, axis = call.value(), call.whole("axis", 1 if call.opset < 13 else -1)
    over = math.prod(value.shape[axis:]) if call.opset < 13 else value.shape[axis]
    if over != value.size:
        raise call.build_error(f"is over axis {axis} of {value.shape}, not over one row of logits")
    return [replace(value, order_only=True)]


def _argmax(call: Call) -> Result:
    value, axis = call.value(), call.whole("axis", 0)
    if value.shape[axis] != value.size:
        raise call.build_error(f"is over axis {axis} of {value.shape}, not over one row")
    if call.whole("select_last_index", 0):
        raise call.build_error("takes the last of equal outputs; a policy here takes the first")
    return [replace(value, is_index=True)]


Handler = Callable[[Call], Result]

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(MOVES, _rearrange_elements),
    **dict.fromkeys(ACTIVATIONS, apply_activation),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("Min", "Max"), extreme),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Shape", "Size"), _shape),
    "Identity": _same,
    "Dropout": _dropout,
    "Gemm": gemm,
    "MatMul": matrix_product,
    "Conv": convolutional,
    "BatchNormalization": batch_normalised,
    "LayerNormalization": layer_normalised,
    "Add": add_constant,
    "Sub": subtract_constant,
    "Mul": multiply_or_gate,
    "Div": divide_by_constant,
    "Neg": negate_value,
    "Clip": clip_to_bounds,
    "Concat": _concat,
    "ArgMax": _argmax,
}
