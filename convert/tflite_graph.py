"""A policy as a TFLite graph: raw observation in, action out, every number taken from policy/.

    observation ─ SUB mean ─ MUL 1/scale ─ MINIMUM clip ─ MAXIMUM −clip ─┐            (float32, always)
      fp32, fp16:  FULLY_CONNECTED … ────────────────────────────────────┤
      int8 … int2: QUANTIZE ─ FULLY_CONNECTED (int8 × int8 → int32) … ─ DEQUANTIZE
    discrete:   logits ─ ARG_MAX ─ action
    continuous: TANH or MINIMUM/MAXIMUM ─ MUL gain ─ ADD offset ─ action

Why the normaliser stays in float: observation fields differ in range by orders of magnitude, so that one int8 scale
over the raw vector would leave the small fields no levels.

Why FULLY_CONNECTED and not a 1×1 CONV_2D: both honour one weight scale per output channel in tflite-runtime 2.14 and
in LiteRT 2.3 (compared with ``policy.integer``, value by value), and FULLY_CONNECTED is the faster in both
(Policy III on x86: 134 against 173 µs in tflite-runtime, equal in LiteRT).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from convert.flatbuffer import GraphWriter, Operator, Scales
from convert.interface import ACTION, LOGITS, OBSERVATION
from policy.integer import IntegerLayer, IntegerNetwork
from policy.network import Weights, head_constants, layer_names, normaliser_constants
from policy.quantization import Affine, to_fp16
from policy.spec import ContinuousHead, PolicySpec, Squash

# Lowest operator version that describes the use, from tensorflow/lite/tools/versioning/op_version.cc.
FULLY_CONNECTED_FLOAT, FULLY_CONNECTED_INT8 = 1, 4
DEQUANTIZE_INT8, DEQUANTIZE_FLOAT16 = 2, 3

Layers = Callable[[GraphWriter, int], int]


def float_graph(spec: PolicySpec, weights: Weights, half: bool = False) -> bytes:
    """The policy in float32; with ``half`` its weights and biases are stored as IEEE half precision.

    A DEQUANTIZE widens the half weights to float32 when the interpreter prepares the graph, so that the arithmetic is
    that of float32 on weights rounded to half.
    """

    def layers(graph: GraphWriter, x: int) -> int:
        for name in layer_names(spec):
            # TFLite keeps kernels as (out, in).
            kernel, bias = weights[f"{name}/kernel"].T, weights[f"{name}/bias"]
            constant = _half_constant if half else GraphWriter.constant
            w, b = constant(graph, f"{name}/kernel", kernel), constant(graph, f"{name}/bias", bias)
            y = graph.tensor(f"{name}/output", [1, len(bias)], np.float32)
            _fully_connected(graph, x, w, b, y, relu=name != "head", version=FULLY_CONNECTED_FLOAT)
            x = y
        return x

    return _policy(spec, layers)


def integer_graph(spec: PolicySpec, network: IntegerNetwork) -> bytes:
    """The policy with int8 weights and activations, exactly the integers and scales of ``network``."""

    def layers(graph: GraphWriter, x: int) -> int:
        q = graph.tensor("input_levels", [1, spec.observation_size], np.int8, _scales(network.input))
        graph.operator(Operator.QUANTIZE, [x], [q], 1, schema.QuantizeOptionsT(), schema.BuiltinOptions.QuantizeOptions)
        input_map = network.input
        for layer in network.layers:
            q = _integer_layer(graph, layer, input_map, q)
            input_map = layer.output
        y = graph.tensor("head/raw", [1, spec.output_size], np.float32)
        _dequantize(graph, q, y, DEQUANTIZE_INT8)
        return y

    return _policy(spec, layers)


def _policy(spec: PolicySpec, layers: Layers) -> bytes:
    graph = GraphWriter()
    observation = graph.tensor(OBSERVATION, [1, spec.observation_size], np.float32)
    raw = layers(graph, _normalised(graph, spec, observation))
    outputs = _continuous_head(graph, spec.head, raw) if isinstance(spec.head, ContinuousHead) else _argmax(graph, raw)
    return graph.serialise(spec.name, {OBSERVATION: observation}, outputs, f"policy {spec.name}, raw observation in")


def _normalised(graph: GraphWriter, spec: PolicySpec, x: int) -> int:
    # z = clip((x − mean) · (1 / scale), −clip, clip): the operations of policy.network.normalise, one by one
    mean, inverse_scale = normaliser_constants(spec.normaliser)
    x = _elementwise(graph, Operator.SUB, x, "normaliser/mean", mean[None])
    x = _elementwise(graph, Operator.MUL, x, "normaliser/inverse_scale", inverse_scale[None])
    if np.isfinite(spec.normaliser.clip):
        x = _clip(graph, x, "normaliser", spec.normaliser.clip)
    return x


def _integer_layer(graph: GraphWriter, layer: IntegerLayer, input_map: Affine, x: int) -> int:
    # TFLite keeps kernels as (out, in): the output channel is axis 0.
    kernel = graph.constant(f"{layer.name}/kernel", layer.kernel.T, Scales(layer.kernel_scales))
    bias_scales = np.float32(input_map.scale) * layer.kernel_scales
    bias = graph.constant(f"{layer.name}/bias", layer.bias, Scales(bias_scales))
    y = graph.tensor(f"{layer.name}/output", [1, len(layer.bias)], np.int8, _scales(layer.output))
    _fully_connected(graph, x, kernel, bias, y, relu=layer.relu, version=FULLY_CONNECTED_INT8)
    return y


def _argmax(graph: GraphWriter, logits: int) -> dict[str, int]:
    # The first largest logit, as numpy's argmax; TFLite's kernel keeps the first of equals too.
    axis = graph.constant("action/axis", np.array([1], np.int32))
    action = graph.tensor(ACTION, [1], np.int32)
    options = schema.ArgMaxOptionsT()
    options.outputType = schema.TensorType.INT32
    graph.operator(Operator.ARG_MAX, [logits, axis], [action], 1, options, schema.BuiltinOptions.ArgMaxOptions)
    graph.tensors[logits].name = LOGITS.encode()
    return {LOGITS: logits, ACTION: action}


def _continuous_head(graph: GraphWriter, head: ContinuousHead, raw: int) -> dict[str, int]:
    # a = squash(y) · gain + offset
    if head.squash is Squash.TANH:
        squashed = graph.tensor("head/tanh", [1, head.size], np.float32)
        graph.operator(Operator.TANH, [raw], [squashed])
    else:
        squashed = _clip(graph, raw, "head", 1.0)
    gain, offset = head_constants(head)
    scaled = _elementwise(graph, Operator.MUL, squashed, "head/gain", gain[None])
    action = _elementwise(graph, Operator.ADD, scaled, "head/offset", offset[None])
    graph.tensors[action].name = ACTION.encode()
    return {ACTION: action}


def _clip(graph: GraphWriter, x: int, name: str, limit: float) -> int:
    x = _elementwise(graph, Operator.MINIMUM, x, f"{name}/clip_high", np.full(1, limit, np.float32))
    return _elementwise(graph, Operator.MAXIMUM, x, f"{name}/clip_low", np.full(1, -limit, np.float32))


_OPTIONS: dict[Operator, tuple[Any, int]] = {
    Operator.SUB: (schema.SubOptionsT, schema.BuiltinOptions.SubOptions),
    Operator.MUL: (schema.MulOptionsT, schema.BuiltinOptions.MulOptions),
    Operator.ADD: (schema.AddOptionsT, schema.BuiltinOptions.AddOptions),
    Operator.MINIMUM: (schema.MaximumMinimumOptionsT, schema.BuiltinOptions.MaximumMinimumOptions),
    Operator.MAXIMUM: (schema.MaximumMinimumOptionsT, schema.BuiltinOptions.MaximumMinimumOptions),
}


def _elementwise(graph: GraphWriter, operator: Operator, x: int, name: str, constant: np.ndarray) -> int:
    """x (operator) constant, float32, of the shape of x."""
    y = graph.tensor(f"{name}/applied", graph.tensors[x].shape, np.float32)
    options, options_type = _OPTIONS[operator]
    graph.operator(operator, [x, graph.constant(name, constant)], [y], 1, options(), options_type)
    return y


def _fully_connected(graph: GraphWriter, x: int, w: int, b: int, y: int, relu: bool, version: int) -> None:
    options = schema.FullyConnectedOptionsT()
    kinds = schema.ActivationFunctionType
    options.fusedActivationFunction = kinds.RELU if relu else kinds.NONE
    operator, options_type = Operator.FULLY_CONNECTED, schema.BuiltinOptions.FullyConnectedOptions
    graph.operator(operator, [x, w, b], [y], version, options, options_type)


def _half_constant(graph: GraphWriter, name: str, values: np.ndarray) -> int:
    half = graph.constant(f"{name}/half", to_fp16(values))
    wide = graph.tensor(name, values.shape, np.float32)
    _dequantize(graph, half, wide, DEQUANTIZE_FLOAT16)
    return wide


def _dequantize(graph: GraphWriter, x: int, y: int, version: int) -> None:
    options_type = schema.BuiltinOptions.DequantizeOptions
    graph.operator(Operator.DEQUANTIZE, [x], [y], version, schema.DequantizeOptionsT(), options_type)


def _scales(affine: Affine) -> Scales:
    return Scales(np.float32(affine.scale), affine.zero_point)
