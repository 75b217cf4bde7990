"""ONNX operators that no map of single elements is: products of two tensors, roots, sums over an axis.

They become float operators (:mod:`convert.importers.program`), before the first layer or behind the last one.
"""

from __future__ import annotations

import math

import numpy as np

from quarl.convert.importers.onnx.call import Call, Result
from quarl.convert.importers.onnx.joining import Common
from quarl.convert.importers.onnx.value import Value
from quarl.convert.importers.program import Program
from quarl.policy.spec import FloatOperator

PAIRS = {
    "Add": FloatOperator.ADD,
    "Sub": FloatOperator.SUBTRACT,
    "Mul": FloatOperator.MULTIPLY,
    "Div": FloatOperator.DIVIDE,
    "Min": FloatOperator.MINIMUM,
    "Max": FloatOperator.MAXIMUM,
}
FUNCTIONS = {
    "Sqrt": FloatOperator.SQUARE_ROOT,
    "Sin": FloatOperator.SINE,
    "Cos": FloatOperator.COSINE,
    "Abs": FloatOperator.ABSOLUTE,
    "Exp": FloatOperator.EXPONENTIAL,
}
MEAN = "ReduceMean"
SUMS = ("ReduceSum", "ReduceL2", "ReduceSumSquare")
MOST_SUMS = 64


def combined(call: Call, first: Value, second: Value) -> Result:
    """Two tensors that both depend on the observation, element by element."""
    one, other = np.broadcast_arrays(first.numbers(), second.numbers())
    common = Common(call, first, second)
    operands = [common.number(value.moved(np.array(n))) for value, n in ((first, one), (second, other))]
    return [common.value(common.program.add(PAIRS[call.node.op_type], *operands), one.shape)]


def divided_by(call: Call, value: Value, number: np.ndarray) -> Result:
    """c / x."""
    value = value.moved(np.array(np.broadcast_to(value.numbers(), np.broadcast_shapes(value.shape, number.shape))))
    common, program, x = _opened(call, value)
    nothing = program.add(FloatOperator.MULTIPLY, x, constants=np.zeros(1))
    numbers = program.add(FloatOperator.ADD, nothing, constants=np.broadcast_to(number, value.shape))
    return [common.value(program.add(FloatOperator.DIVIDE, numbers, x), value.shape)]


def function(call: Call) -> Result:
    """A root, a sine, an exponential, x · x or 1 / x of each element."""
    value, operator = call.value(), call.node.op_type
    if operator == "Reciprocal":
        return divided_by(call, value, np.ones(()))
    if operator == "Pow":
        exponent = call.constant(1)
        if exponent.size == 1 and exponent.reshape(-1)[0] == 0.5:
            return _applied(call, value, FloatOperator.SQUARE_ROOT)
        if exponent.size != 1 or exponent.reshape(-1)[0] not in (2, 3):
            raise call.refused(f"has the exponent {exponent.tolist()}; only 0.5, 2 and 3 are read")
        common, program, x = _opened(call, value)
        result = x
        for _ in range(int(exponent.reshape(-1)[0]) - 1):
            result = program.add(FloatOperator.MULTIPLY, result, x)
        return [common.value(result, value.shape)]
    return _applied(call, value, FUNCTIONS[operator])


def summed(call: Call) -> Result:
    """Sums over an axis: of elements, of squares, or a norm."""
    value, operator = call.value(), call.node.op_type
    axes = _axes(call, value)
    kept = [axis for axis in range(len(value.shape)) if axis not in axes]
    groups = value.numbers().transpose(*kept, *axes).reshape(-1, int(np.prod([value.shape[axis] for axis in axes])))
    if len(groups) > MOST_SUMS:
        raise call.refused(f"makes {len(groups)} sums; at most {MOST_SUMS} are carried")
    common, program, x = _opened(call, value)
    if operator not in ("ReduceSum", MEAN):
        x = program.add(FloatOperator.MULTIPLY, x, x)
    sums = [program.add(FloatOperator.SUM, program.take(x, group)) for group in groups]
    result = sums[0] if len(sums) == 1 else program.add(FloatOperator.JOIN, *sums)
    if operator == "ReduceL2":
        result = program.add(FloatOperator.SQUARE_ROOT, result)
    if operator == MEAN:
        result = program.add(FloatOperator.MULTIPLY, result, constants=np.full(1, 1.0 / groups.shape[1]))
    keep = call.whole("keepdims", 1)
    shape = tuple(1 if axis in axes else side for axis, side in enumerate(value.shape) if keep or axis not in axes)
    return [common.value(result, shape)]


def is_partial_mean(call: Call) -> bool:
    """Whether a node is a mean over a part of each row: of the whole row it may belong to a layer normalisation."""
    value = call.operands[0]
    if call.node.op_type != MEAN or not isinstance(value, Value) or value.statistic is not None:
        return False
    return math.prod(value.shape[axis] for axis in _axes(call, value)) != value.size


def _axes(call: Call, value: Value) -> list[int]:
    """Axes that are summed over, all of them where none are named."""
    axes = call.constant(1).reshape(-1).tolist() if len(call.operands) > 1 else call.attribute("axes", None)
    if not isinstance(axes, list) or not axes:
        return list(range(len(value.shape)))
    return sorted(axis % len(value.shape) for axis in axes)


def multiplied_matrices(call: Call, first: Value, second: Value) -> Result:
    """A matrix and a vector, or two small matrices, that both depend on the observation: R(q) v."""
    numbers = [first.numbers(), second.numbers()]
    if min(each.ndim for each in numbers) < 2:
        raise call.refused(f"multiplies {first.shape} and {second.shape}; only matrices are read")
    left, right = numbers
    if left.shape[-1] != right.shape[-2] or math.prod(left.shape[:-2]) != 1 or math.prod(right.shape[:-2]) != 1:
        raise call.refused(f"multiplies {first.shape} and {second.shape}, not two matrices")
    rows, columns = left.reshape(left.shape[-2:]), right.reshape(right.shape[-2:])
    if len(rows) * columns.shape[1] > MOST_SUMS:
        raise call.refused(f"makes {len(rows) * columns.shape[1]} sums; at most {MOST_SUMS} are carried")
    common = Common(call, first, second)
    program, x, y = common.program, common.number(first), common.number(second)
    sums = [
        program.add(
            FloatOperator.SUM, program.add(FloatOperator.MULTIPLY, program.take(x, row), program.take(y, column))
        )
        for row in rows
        for column in columns.T
    ]
    result = sums[0] if len(sums) == 1 else program.add(FloatOperator.JOIN, *sums)
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), len(rows), columns.shape[1])
    return [common.value(result, shape)]


def _applied(call: Call, value: Value, operator: FloatOperator) -> Result:
    common, program, x = _opened(call, value)
    return [common.value(program.add(operator, x), value.shape)]


def _opened(call: Call, value: Value) -> tuple[Common, Program, int]:
    """A program, and a tensor as its value."""
    common = Common(call, value)
    return common, common.program, common.number(value)
