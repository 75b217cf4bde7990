"""A row's mean, deviation or Softmax sum inside a foreign graph: parts of a layer normalisation, or of an order.

    mean = ReduceMean x,  centred = x − mean,  variance = ReduceMean centred²,  centred / √(variance + ε)

is a layer normalisation as exporters wrote it before opset 17. x − ReduceLogSumExp x has its largest element where x
has it, which is all that an ArgMax asks. Any other use of a number that a whole row gives is refused.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quarl.convert.importers.onnx.call import Call, Result
from quarl.convert.importers.onnx.value import Statistic, Value, layer_norm

REDUCTIONS = ("ReduceMean", "ReduceLogSumExp")


def statistic_of(call: Call, values: list[Value]) -> Result:
    """Return the outputs of a node that makes a statistic of a row or takes one.

    Raises:
        ForeignError: this use of it is neither a part of a layer normalisation nor an order.
    """
    operator = call.node.op_type
    if operator in REDUCTIONS:
        return [_reduce_row(call)]
    if operator in ("Identity", "Cast"):
        return [call.value()]
    first = values[0]
    kind = first.statistic
    if len(values) == 2:
        result = _combine_statistics(call, values[0], values[1])
        if result is not None:
            return [result]
    elif operator == "Pow" and kind is Statistic.CENTRED and (call.constant(1) == 2).all():
        return [replace(first, statistic=Statistic.SQUARED)]
    elif operator == "Add" and kind is Statistic.VARIANCE:
        constant = call.constant(0 if isinstance(call.operands[1], Value) else 1)
        if constant.size == 1:
            return [replace(first, epsilon=first.epsilon + float(constant.reshape(-1)[0]))]
    elif operator == "Sqrt" and kind is Statistic.VARIANCE:
        return [replace(first, statistic=Statistic.DEVIATION)]
    raise call.build_error("computes with a number that a whole row gives, and is no part of a layer normalisation")


def _reduce_row(call: Call) -> Value:
    value = call.value()
    axes = call.constant(1).reshape(-1).tolist() if len(call.operands) > 1 else call.attribute("axes", None)
    axes = list(range(len(value.shape))) if not isinstance(axes, list) else axes
    if math.prod(value.shape[axis] for axis in axes) != value.size or not call.whole("keepdims", 1):
        raise call.build_error(f"is over the axes {axes} of {value.shape}; only whole rows are read, dimensions kept")
    if call.node.op_type == "ReduceLogSumExp" and value.statistic is None:
        kind = Statistic.LOG_SUM
    elif call.node.op_type == "ReduceMean" and value.statistic in (None, Statistic.SQUARED):
        kind = Statistic.MEAN if value.statistic is None else Statistic.VARIANCE
    else:
        raise call.build_error("computes with a number that a whole row gives")
    return replace(value, shape=(1,) * len(value.shape), statistic=kind)


def _combine_statistics(call: Call, first: Value, second: Value) -> Value | None:
    operator = call.node.op_type
    kinds = (first.statistic, second.statistic)
    if operator == "Sub" and kinds == (None, Statistic.LOG_SUM):
        return replace(first, order_only=True)
    if not _same_row(first, second):
        return None
    if operator == "Sub" and kinds == (None, Statistic.MEAN):
        return replace(first, statistic=Statistic.CENTRED)
    if operator == "Mul" and kinds == (Statistic.CENTRED, Statistic.CENTRED):
        return replace(first, statistic=Statistic.SQUARED)
    if operator == "Div" and kinds == (Statistic.CENTRED, Statistic.DEVIATION):
        ones = np.ones(first.size)
        return layer_norm(replace(first, statistic=None), ones, 0 * ones, second.epsilon, call.name)
    return None


def _same_row(first: Value, second: Value) -> bool:
    steps = zip(first.steps, second.steps, strict=False)
    same = len(first.steps) == len(second.steps) and all(one is other for one, other in steps)
    return same and np.array_equal(first.selection, second.selection)
