"""The float programs of recurrent layers (:mod:`policy.spec`) in both formats, one operator for each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.convert.flatbuffer import GraphWriter
from quarl.convert.onnx_builder import GraphBuilder
from quarl.convert.tflite_layers import elementwise, part, unary
from quarl.policy.spec import FloatOperator, FloatStep

Operator, Tflite = FloatOperator, schema.BuiltinOperator
_ONNX = {
    Operator.ADD: "Add",
    Operator.SUBTRACT: "Sub",
    Operator.MULTIPLY: "Mul",
    Operator.TANH: "Tanh",
    Operator.SIGMOID: "Sigmoid",
}
_TFLITE = {
    Operator.ADD: Tflite.ADD,
    Operator.SUBTRACT: Tflite.SUB,
    Operator.MULTIPLY: Tflite.MUL,
    Operator.TANH: Tflite.TANH,
    Operator.SIGMOID: Tflite.LOGISTIC,
}


def onnx_program(graph: GraphBuilder, steps: tuple[FloatStep, ...], given: Sequence[str], name: str) -> str:
    """Add a program's steps behind what it is given, (1, n) each; the last result's tensor, (1, m).

    Args:
        graph: to add to.
        steps: the program.
        given: the tensors of the first values.
        name: begins the names of all tensors.
    """
    values = list(given)
    for number, step in enumerate(steps):
        operands, output = [values[place] for place in step.operands], f"{name}/{number}"
        if step.operator is Operator.TAKE:
            values.append(onnx_part(graph, operands[0], step.places.start, step.places.stop, output))
        elif step.operator is Operator.JOIN:
            values.append(graph.node("Concat", operands, output, axis=1))
        else:
            values.append(graph.node(_ONNX[step.operator], operands, output))
    return values[-1]


def onnx_part(graph: GraphBuilder, x: str, start: int, end: int, output: str) -> str:
    """Elements ``start`` … ``end`` − 1 of (1, n) in an ONNX graph."""
    ends = zip(("start", "end", "axis"), (start, end, 1), strict=True)
    bounds = [graph.constant(f"{output}/{name}", np.array([value], np.int64)) for name, value in ends]
    return graph.node("Slice", [x, *bounds], output)


def tflite_program(graph: GraphWriter, steps: tuple[FloatStep, ...], given: Sequence[int], name: str) -> int:
    """Add a program to a TFLite graph; returns the tensor of its result."""
    values = list(given)
    for number, step in enumerate(steps):
        values.append(_tflite_step(graph, step, [values[place] for place in step.operands], f"{name}/{number}"))
    return values[-1]


def join_rows(graph: GraphWriter, rows: list[int], name: str) -> int:
    """Rows (1, n), one behind the other, in a TFLite graph."""
    y = graph.tensor(name, [1, sum(graph.tensors[tensor].shape[1] for tensor in rows)], np.float32)
    none = schema.ActivationFunctionType.NONE
    graph.operator(Tflite.CONCATENATION, rows, [y], "Concatenation", axis=1, fusedActivationFunction=none)
    return y


def _tflite_step(graph: GraphWriter, step: FloatStep, operands: list[int], name: str) -> int:
    if step.operator is Operator.TAKE:
        return part(graph, operands[0], step.places.start, len(step.places), name)
    if step.operator is Operator.JOIN:
        return join_rows(graph, operands, name)
    code, (x, *others) = _TFLITE[step.operator], operands
    return elementwise(graph, code, x, others[0], name) if others else unary(graph, code, x, name)
