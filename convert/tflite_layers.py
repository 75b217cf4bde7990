"""The layers of a policy as TFLite operators, one function each; ``convert.tflite_graph`` puts them together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.convert.flatbuffer import GraphWriter, Scales
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.exact import LAYER_NORM_EPSILON
from quarl.policy.quantize import INT8_MIN, Affine, IntegerTable, to_fp16
from quarl.policy.reference import IntegerLayer
from quarl.policy.spec import Activation, NetworkSpec

Operator = schema.BuiltinOperator
# Lowest operator version that describes the use, from tensorflow/lite/tools/versioning/op_version.cc.
CONCATENATION_FLOAT, CONCATENATION_INT8 = 1, 2
FULLY_CONNECTED_FLOAT, FULLY_CONNECTED_INT8 = 1, 4
CONV_2D_FLOAT, CONV_2D_INT8 = 1, 3
GATHER_INT8 = 2
DEQUANTIZE_INT8, DEQUANTIZE_FLOAT16, DEQUANTIZE_CHANNELS = 2, 3, 5

Constant = Callable[[GraphWriter, str, np.ndarray], int]
"""Adds a float constant, in single or half precision; the result is the tensor's index."""


def float_layer(
    graph: GraphWriter,
    x: int,
    name: str,
    kernel: np.ndarray,
    scales: np.ndarray | None,
    bias: np.ndarray,
    stride: int,
    relu: bool,
    put: Constant,
) -> int:
    """Return a convolution, where the kernel is (height, width, in, out), or a dense layer, where it is (in, out), in
    float.

    Args:
        graph, x: the graph and its tensor that goes in.
        name: of the layer.
        kernel, bias, stride, relu: the layer.
        scales: of a kernel of levels, (out,).
        put: how its constants are stored.
    """
    w, b = _float_kernel(graph, f"{name}/kernel", _outputs_first(kernel), scales, put), put(graph, f"{name}/bias", bias)
    y = graph.tensor(f"{name}/output", _output_shape(graph, x, kernel, stride), np.float32)
    _multiply(graph, x, w, b, y, stride, relu, (FULLY_CONNECTED_FLOAT, CONV_2D_FLOAT)[kernel.ndim == 4])
    return y


def _float_kernel(graph: GraphWriter, name: str, values: np.ndarray, scales: np.ndarray | None, put: Constant) -> int:
    if scales is None:
        return put(graph, name, values)
    return dequantize(graph, graph.constant(f"{name}/levels", values, Scales(scales)), name, DEQUANTIZE_CHANNELS)


def integer_layer(graph: GraphWriter, x: int, layer: IntegerLayer, input_map: Affine) -> int:
    """Return a convolution or dense layer in integers, and its activation and layer normalisation, where it has
    them."""
    name, kernel = layer.name, layer.kernel
    w = graph.constant(f"{name}/kernel", _outputs_first(kernel), Scales(layer.kernel_scales))
    bias_scales = np.float32(input_map.scale) * layer.kernel_scales
    b = graph.constant(f"{name}/bias", layer.bias, Scales(bias_scales))
    y = graph.tensor(f"{name}/output", _output_shape(graph, x, kernel, layer.stride), np.int8, scales(layer.output))
    _multiply(graph, x, w, b, y, layer.stride, layer.relu, (FULLY_CONNECTED_INT8, CONV_2D_INT8)[kernel.ndim == 4])
    if layer.table is not None:
        return _table(graph, y, name, layer.table)
    if layer.norm is None:
        return y
    y = dequantize(graph, y, f"{name}/dequantized", DEQUANTIZE_INT8)
    is_relu = layer.norm.network.activation_of(name) is Activation.RELU
    y = layer_norm(graph, y, name, layer.norm.gamma, layer.norm.beta, GraphWriter.constant, is_relu)
    if not is_relu:
        y = activation(graph, y, name, layer.norm.network)
    return quantize(graph, y, f"{name}/levels", layer.norm.output)


def activation(graph: GraphWriter, x: int, name: str, network: NetworkSpec) -> int:
    """Return a layer's activation in float."""
    record, results, y = NONLINEARITIES[network.activation_of(name)], {"x": x}, x
    slope: dict[str, Any] = {"options": "LeakyRelu", "alpha": network.negative_slope} if record.takes_slope else {}
    for operator, part, *operands in record.tflite:
        first, *others = (results[operand] for operand in operands)
        if others:
            y = elementwise(graph, getattr(Operator, operator), first, others[0], f"{name}/{part}")
        else:
            y = unary(graph, getattr(Operator, operator), first, f"{name}/{part}", **slope)
        results[part] = y
    return y


def _table(graph: GraphWriter, x: int, name: str, table: IntegerTable) -> int:
    """Return an activation of levels: by TFLite's kernel where that gives the table's levels, else looked up."""
    y = graph.tensor(f"{name}/activated", graph.tensors[x].shape, np.int8, scales(table.output))
    if table.has_kernel:
        kernel = NONLINEARITIES[table.activation]
        graph.operator(getattr(Operator, kernel.tflite[0][0]), [x], [y], version=kernel.int8_version or 1)
        return y
    index = graph.tensor(f"{name}/level", graph.tensors[x].shape, np.int32)
    types = schema.TensorType
    graph.operator(Operator.CAST, [x], [index], "Cast", inDataType=types.INT8, outDataType=types.INT32)
    lowest = graph.constant(f"{name}/lowest_level", np.full(1, -INT8_MIN, np.int32))
    place = graph.tensor(f"{name}/place", graph.tensors[x].shape, np.int32)
    _combine(graph, Operator.ADD, index, lowest, place, relu=False)
    levels = graph.constant(f"{name}/table", table.levels, scales(table.output))
    graph.operator(Operator.GATHER, [levels, place], [y], "Gather", GATHER_INT8, axis=0, batchDims=0)
    return y


def layer_norm(
    graph: GraphWriter, x: int, name: str, gamma: np.ndarray, beta: np.ndarray, put: Constant, relu: bool
) -> int:
    """γ (x − mean x) / √(var x + ε) + β of a layer's float output (1, width), in the order of policy.network; with
    ``relu``, max(…, 0).

    tflite-runtime 2.14 has no operator for it, so that it is written out.
    """
    centred = elementwise(graph, Operator.SUB, x, _mean(graph, x, f"{name}/mean"), f"{name}/centred")
    squares = elementwise(graph, Operator.MUL, centred, centred, f"{name}/squares")
    epsilon = graph.constant(f"{name}/epsilon", np.full((1, 1), LAYER_NORM_EPSILON, np.float32))
    variance = _mean(graph, squares, f"{name}/variance")
    variance = elementwise(graph, Operator.ADD, variance, epsilon, f"{name}/variance_and_epsilon")
    inverse = unary(graph, Operator.RSQRT, variance, f"{name}/inverse_deviation")
    y = elementwise(graph, Operator.MUL, centred, inverse, f"{name}/normalised")
    y = elementwise(graph, Operator.MUL, y, put(graph, f"{name}/gamma", gamma[None]), f"{name}/scaled")
    return elementwise(
        graph,
        Operator.ADD,
        y,
        put(graph, f"{name}/beta", beta[None]),
        f"{name}/{'activated' if relu else 'shifted'}",
        relu,
    )


def _mean(graph: GraphWriter, x: int, name: str) -> int:
    axis = graph.constant(f"{name}/axis", np.array([1], np.int32))
    y = graph.tensor(name, [1, 1], np.float32)
    graph.operator(Operator.MEAN, [x, axis], [y], "Reducer", keepDims=True)
    return y


_OPTIONS = {
    Operator.SUB: "Sub",
    Operator.MUL: "Mul",
    Operator.ADD: "Add",
    Operator.MINIMUM: "MaximumMinimum",
    Operator.MAXIMUM: "MaximumMinimum",
}


def unary(graph: GraphWriter, operator: int, x: int, name: str, options: str = "", **members: Any) -> int:
    """Add (operator) x, float32, of the shape of x; returns its tensor."""
    y = graph.tensor(name, graph.tensors[x].shape, np.float32)
    graph.operator(operator, [x], [y], options, **members)
    return y


def elementwise(graph: GraphWriter, operator: int, x: int, other: int, name: str, relu: bool = False) -> int:
    """x (operator) other, float32, of the shape of x, to which ``other`` is broadcast."""
    y = graph.tensor(name, graph.tensors[x].shape, np.float32)
    _combine(graph, operator, x, other, y, relu)
    return y


def with_constant(graph: GraphWriter, operator: int, x: int, name: str, constant: np.ndarray) -> int:
    """Add x (operator) constant, float32, of the shape of x; returns its tensor."""
    y = graph.tensor(f"{name}/applied", graph.tensors[x].shape, np.float32)
    _combine(graph, operator, x, graph.constant(name, constant), y, relu=False)
    return y


def _combine(graph: GraphWriter, operator: int, x: int, other: int, y: int, relu: bool) -> None:
    activation = {"fusedActivationFunction": schema.ActivationFunctionType.RELU} if relu else {}
    graph.operator(operator, [x, other], [y], _OPTIONS[operator], **activation)


def part(graph: GraphWriter, x: int, start: int, size: int, name: str) -> int:
    """Elements ``start`` … ``start + size`` of a float vector (1, n), (1, size)."""
    y = graph.tensor(name, [1, size], np.float32)
    begin = graph.constant(f"{name}/begin", np.array([0, start], np.int32))
    wanted = graph.constant(f"{name}/size", np.array([1, size], np.int32))
    graph.operator(Operator.SLICE, [x, begin, wanted], [y], "Slice")
    return y


def join(graph: GraphWriter, x: int, vector: int, affine: Affine | None, name: str) -> int:
    """x, flattened, with a vector (1, n) behind it: both float, or both levels of one map."""
    (_, *sides), (_, size) = graph.tensors[x].shape, graph.tensors[vector].shape
    width = math.prod(sides)
    flat = reshape(graph, x, (1, width), f"{name}/flat", affine)
    y = _like(graph, f"{name}/joined", (1, width + size), affine)
    version = CONCATENATION_FLOAT if affine is None else CONCATENATION_INT8
    none = schema.ActivationFunctionType.NONE
    graph.operator(
        Operator.CONCATENATION, [flat, vector], [y], "Concatenation", version, axis=1, fusedActivationFunction=none
    )
    return y


def reshape(graph: GraphWriter, x: int, shape: tuple[int, ...], name: str, affine: Affine | None = None) -> int:
    """Return a float tensor, or levels of a map, in another shape."""
    y = _like(graph, name, shape, affine)
    wanted = graph.constant(f"{name}/shape", np.array(shape, np.int32))
    graph.operator(Operator.RESHAPE, [x, wanted], [y], "Reshape", newShape=list(shape))
    return y


def _like(graph: GraphWriter, name: str, shape: tuple[int, ...], affine: Affine | None) -> int:
    if affine is None:
        return graph.tensor(name, shape, np.float32)
    return graph.tensor(name, shape, np.int8, scales(affine))


def quantize(graph: GraphWriter, x: int, name: str, affine: Affine) -> int:
    """Return a float tensor as int8 levels."""
    q = graph.tensor(name, graph.tensors[x].shape, np.int8, scales(affine))
    graph.operator(Operator.QUANTIZE, [x], [q], "Quantize")
    return q


def dequantize(graph: GraphWriter, x: int, name: str, version: int) -> int:
    """int8 levels or half floats as float32."""
    y = graph.tensor(name, graph.tensors[x].shape, np.float32)
    graph.operator(Operator.DEQUANTIZE, [x], [y], "Dequantize", version)
    return y


def half_constant(graph: GraphWriter, name: str, values: np.ndarray) -> int:
    """Return a constant stored in half precision, widened to float32 when the interpreter prepares the graph."""
    return dequantize(graph, graph.constant(f"{name}/half", to_fp16(values)), name, DEQUANTIZE_FLOAT16)


def scales(affine: Affine) -> Scales:
    """Return the one scale and zero point of a whole tensor."""
    return Scales(np.float32(affine.scale), affine.zero_point)


def _outputs_first(kernel: np.ndarray) -> np.ndarray:
    # TFLite keeps kernels as (out, in) and (out, height, width, in): the output channel is axis 0.
    return kernel.T if kernel.ndim == 2 else kernel.transpose(3, 0, 1, 2)


def _output_shape(graph: GraphWriter, x: int, kernel: np.ndarray, stride: int) -> list[int]:
    if kernel.ndim == 2:
        return [1, kernel.shape[1]]
    _, height, width, _ = graph.tensors[x].shape
    return [1, (height - kernel.shape[0]) // stride + 1, (width - kernel.shape[1]) // stride + 1, kernel.shape[3]]


def _multiply(graph: GraphWriter, x: int, w: int, b: int, y: int, stride: int, relu: bool, version: int) -> None:
    kinds = schema.ActivationFunctionType
    members: dict[str, Any] = {"fusedActivationFunction": kinds.RELU if relu else kinds.NONE}
    if len(graph.tensors[w].shape) == 2:
        # Reads an image (1, H, W, C) as the vector of its elements in C order.
        operator, options = Operator.FULLY_CONNECTED, "FullyConnected"
    else:
        operator, options = Operator.CONV_2D, "Conv2D"
        members |= {"padding": schema.Padding.VALID, "strideH": stride, "strideW": stride}
        members |= {"dilationHFactor": 1, "dilationWFactor": 1}
    graph.operator(operator, [x, w, b], [y], options, version, **members)
