"""The float operators of :mod:`policy.spec` in both formats, one operator for each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.convert.flatbuffer import GraphWriter
from quarl.convert.onnx_builder import GraphBuilder
from quarl.convert.tflite_layers import part
from quarl.policy.spec import BINARY, FloatOperator, FloatStep

Operator, Tflite = FloatOperator, schema.BuiltinOperator
_ONNX = {
    Operator.ADD: "Add",
    Operator.SUBTRACT: "Sub",
    Operator.MULTIPLY: "Mul",
    Operator.DIVIDE: "Div",
    Operator.MINIMUM: "Min",
    Operator.MAXIMUM: "Max",
    Operator.SQUARE_ROOT: "Sqrt",
    Operator.SINE: "Sin",
    Operator.COSINE: "Cos",
    Operator.ABSOLUTE: "Abs",
    Operator.EXPONENTIAL: "Exp",
    Operator.TANH: "Tanh",
    Operator.SIGMOID: "Sigmoid",
}
_TFLITE = {
    Operator.ADD: (Tflite.ADD, "Add"),
    Operator.SUBTRACT: (Tflite.SUB, "Sub"),
    Operator.MULTIPLY: (Tflite.MUL, "Mul"),
    Operator.DIVIDE: (Tflite.DIV, "Div"),
    Operator.MINIMUM: (Tflite.MINIMUM, "MaximumMinimum"),
    Operator.MAXIMUM: (Tflite.MAXIMUM, "MaximumMinimum"),
    Operator.SQUARE_ROOT: (Tflite.SQRT, ""),
    Operator.SINE: (Tflite.SIN, ""),
    Operator.COSINE: (Tflite.COS, "Cos"),
    Operator.ABSOLUTE: (Tflite.ABS, "Abs"),
    Operator.EXPONENTIAL: (Tflite.EXP, "Exp"),
    Operator.TANH: (Tflite.TANH, ""),
    Operator.SIGMOID: (Tflite.LOGISTIC, ""),
}


def onnx_program(graph: GraphBuilder, steps: tuple[FloatStep, ...], given: Sequence[str], name: str) -> str:
    """Add a program's steps behind what it is given, (1, n) each; the last result's tensor, (1, m).

    Args:
        graph: to add to.
        steps: the program.
        given: the tensors of the first values.
        name: begins the names of all tensors.
    """
    values, called = list(given), name
    for number, step in enumerate(steps):
        name = f"{called}/{number}"
        operands = [values[place] for place in step.operands]
        if step.operator is Operator.TAKE and (run := run_of(step)):
            values.append(onnx_part(graph, operands[0], *run, name))
        elif step.operator is Operator.TAKE:
            places = graph.constant(f"{name}/places", np.array(step.places, np.int64))
            values.append(graph.node("Gather", [*operands, places], name, axis=1))
        elif step.operator is Operator.JOIN:
            values.append(graph.node("Concat", operands, name, axis=1))
        elif step.operator is Operator.SUM:
            axes = graph.constant(f"{name}/axes", np.array([1], np.int64))
            values.append(graph.node("ReduceSum", [*operands, axes], name, keepdims=1))
        else:
            if step.constants:
                operands.append(graph.constant(f"{name}/constants", _constants(step)))
            values.append(graph.node(_ONNX[step.operator], operands, name))
    return values[-1]


def run_of(step: FloatStep) -> tuple[int, int] | None:
    """First place and the one behind the last, where a TAKE takes a run of neighbours."""
    first, end = step.places[0], step.places[-1] + 1
    return (first, end) if step.places == tuple(range(first, end)) else None


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
    sizes = [graph.tensors[tensor].shape[1] for tensor in operands]
    if step.operator is Operator.TAKE and (run := run_of(step)):
        return part(graph, operands[0], run[0], run[1] - run[0], name)
    if step.operator is Operator.TAKE:
        y = graph.tensor(name, [1, len(step.places)], np.float32)
        places = graph.constant(f"{name}/places", np.array(step.places, np.int32))
        graph.operator(Tflite.GATHER, [*operands, places], [y], "Gather", axis=1, batchDims=0)
        return y
    if step.operator is Operator.JOIN:
        return join_rows(graph, operands, name)
    if step.operator is Operator.SUM:
        y = graph.tensor(name, [1, 1], np.float32)
        axis = graph.constant(f"{name}/axis", np.array([1], np.int32))
        graph.operator(Tflite.SUM, [*operands, axis], [y], "Reducer", keepDims=True)
        return y
    if step.constants:
        operands = [*operands, graph.constant(f"{name}/constants", _constants(step))]
        sizes.append(len(step.constants))
    assert len(operands) == 1 + (step.operator in BINARY)
    y = graph.tensor(name, [1, max(sizes)], np.float32)
    code, options = _TFLITE[step.operator]
    graph.operator(code, operands, [y], options)
    return y


def _constants(step: FloatStep) -> np.ndarray:
    return np.array(step.constants, np.float32)[None]
