"""A policy as an ONNX graph: raw observation in, action out, every number taken from policy/.

    observation ─ Sub mean ─ Mul 1/scale ─ Clip ─┐                                    (float32, always)
      images:      Reshape ─ Transpose ──────────┤                                    (ONNX has the channels first)
      image and vector: Slice both; the vector joins the flattened output of the last Conv by Concat
      floats:      Conv ─ Relu … Gemm ─ Relu … ──┤
      int8 … int2: QuantizeLinear ─ (DequantizeLinear ─ Gemm ─ Relu ─ QuantizeLinear) … ─ DequantizeLinear ─ Clip
                   (another activation is float between levels: … ─ DequantizeLinear ─ Tanh ─ QuantizeLinear)
    recurrent:   both linear layers of the gates as any other, behind them the gates' program in float, from ``state``
                 to ``next_state``; between integers both are dequantized, and the hidden state has levels of its own
    discrete:   logits ─ ArgMax ─ action
    continuous: Tanh or Clip ─ Mul gain ─ Add offset ─ action

Between integers, that join is float: Relu and Concat of dequantized levels and the vector, then one QuantizeLinear for
both, which gives the levels back unchanged.

What changes nothing is left out: an image's mean of 0, an infinite clip. The rows of the first dense layer behind
convolutions are stored in the order of ONNX's flattened images, so that no activations are transposed for it. A layer
normalisation is LayerNormalization in float, in every precision.

The integer graph is written in standard QDQ form, which any ONNX runtime understands. onnxruntime replaces each
DequantizeLinear ─ Gemm ─ QuantizeLinear by one QGemm node (int8 × int8 → int32, one weight scale per output channel),
and likewise a Conv by QLinearConv: :func:`list_executed_operators` shows it, and a test demands it. Such details decide
whether that happens and how fast it is (onnxruntime 1.31, Policy III, x86): kernels stored as (out, in) with transB (60
µs; 84 µs as (in, out)); QDQ rather than QGemm nodes written out (2170 µs: on x86-64 only the QDQ form has its
activations moved to uint8, which has the fast kernel); and a Clip between the last DequantizeLinear and the logits
(else ArgMax shares the quantized head, whose Gemm is then left in float), and between the DequantizeLinear of a SiLU
and its two readers, likewise.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from quarl.convert.interface import ACTION, LOGITS, NEXT_STATE, OBSERVATION, STATE
from quarl.convert.onnx_builder import GraphBuilder
from quarl.convert.programs import onnx_part, onnx_program
from quarl.device.agent.graph_executors import onnx_session_options
from quarl.device.agent.runtimes import import_runtime
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.exact import LAYER_NORM_EPSILON
from quarl.policy.quantize import INT8_MIN, Affine, to_fp16
from quarl.policy.reference import (
    IntegerLayer,
    IntegerNetwork,
    Weights,
    head_constants,
    head_limits,
    layer_names,
    normaliser_bounds,
    normaliser_constants,
)
from quarl.policy.simulate import stored_kernel
from quarl.policy.spec import (
    ContinuousHead,
    DiscreteHead,
    NetworkSpec,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
    observation_shape,
)

# QuantizeLinear with one scale per channel needs 13; 17 is read by every onnxruntime since 1.12 (2022).
OPSET = 17
IR_VERSION = 8
ONNXRUNTIMES = "com.microsoft"
"""The domain of onnxruntime's own operators."""
NIBBLE_BLOCKS = 16, 32, 64, 128
"""Inputs of a block of MatMulNBits, with a scale for each output."""
NIBBLE_ZERO = 8


Constant = Callable[[GraphBuilder, str, np.ndarray], str]


def float_graph(spec: PolicySpec, weights: Weights, precision: Precision = Precision.FP32) -> bytes:
    """Return the policy in float32; its weights stored in a precision that is no integer's.

    A Cast widens IEEE halves (weights and biases), a Cast and a Mul the levels of kernels; onnxruntime folds them when
    it loads the graph. Dense layers of 4 bits are its own MatMulNBits, which keeps them so in memory (the same of 8
    bits takes 13 times as long as Gemm there, onnxruntime 1.31 on x86).
    """
    graph = GraphBuilder()
    constant = _half_constant if precision is Precision.FP16 else GraphBuilder.constant
    x, vector = _add_normaliser(graph, spec)
    states = _States(graph, spec)
    for index, name in enumerate(layer_names(spec)):
        fed = x
        if name in spec.network.states:
            x = states.select_hidden(name)
        values, scales = stored_kernel(spec, weights, name, precision)
        bias = f"{name}/bias", weights[f"{name}/bias"]
        convolutions = spec.network.convolutions
        if index < len(convolutions):
            values = values.transpose(3, 2, 0, 1)  # (out, in, height, width)
            each = None if scales is None else scales[:, None, None, None]
            operands = [x, _kernel(graph, name, values, each, constant), constant(graph, *bias)]
            x = graph.node("Conv", operands, f"{name}/raw", strides=[convolutions[index].stride] * 2)
        else:
            if index == len(convolutions) > 0:
                values = _channels_first(spec, values)
                x = _flat(graph, x, vector)
            if scales is not None and precision is Precision.W4:
                product = _multiply_nibbles(graph, x, name, values, scales)
                x = graph.node("Add", [product, constant(graph, *bias)], f"{name}/raw")
            else:
                operands = [x, _kernel(graph, name, values, scales, constant), constant(graph, *bias)]
                x = graph.node("Gemm", operands, f"{name}/raw")
            if f"{name}/gamma" in weights:
                x = _layer_norm(graph, x, name, weights[f"{name}/gamma"], weights[f"{name}/beta"], constant)
        if name in spec.network.states:
            x = states.advance(name, fed, x)
        elif name != "head":
            x = _activation(graph, x, spec.network, name, f"{name}/output")
    return _policy(graph, spec, x, states)


def integer_graph(spec: PolicySpec, network: IntegerNetwork) -> bytes:
    """Return the policy with int8 weights and activations, exactly the integers and scales of ``network``."""
    graph = GraphBuilder()
    scales = _affine(graph, "input", network.input)
    x, vector = _add_normaliser(graph, spec)
    x = graph.node("QuantizeLinear", [x, *scales], "input/levels")
    states = _States(graph, spec)
    for index, (layer, input_map) in enumerate(network.fed):
        first_dense = index == len(spec.network.convolutions) > 0
        x = graph.node("DequantizeLinear", [x, *scales], f"{layer.name}/input")
        if first_dense:
            layer = replace(layer, kernel=_channels_first(spec, layer.kernel))
            if vector is not None and network.layers[index - 1].relu:
                x = graph.node("Relu", [x], f"{network.layers[index - 1].name}/relu")
            x = _flat(graph, x, vector)
            x = graph.node("QuantizeLinear", [x, *scales], f"{layer.name}/flat_levels")
            x = graph.node("DequantizeLinear", [x, *scales], f"{layer.name}/flat_input")
        if vector is not None and index == len(spec.network.convolutions) - 1:
            # Its ReLU comes behind its levels, among which zero is not the lowest: a cut there keeps a Conv in float.
            layer = replace(layer, relu=False)
        fed = x
        if layer.cell is not None:
            fed = _reach(graph, x, f"{layer.name}/fed", layer.cell.fed)
            scales = _affine(graph, f"{layer.name}/hidden", layer.result)
            x = graph.node("QuantizeLinear", [states.select_hidden(layer.name), *scales], f"{layer.name}/hidden_levels")
            x = graph.node("DequantizeLinear", [x, *scales], f"{layer.name}/hidden_input")
        x, scales = _integer_layer(graph, spec.network, layer, input_map, x)
        if layer.cell is not None:
            x = graph.node("DequantizeLinear", [x, *scales], f"{layer.name}/dequantized")
            x = states.advance(layer.name, fed, _reach(graph, x, f"{layer.name}/sums", layer.output))
            scales = _affine(graph, f"{layer.name}/next", layer.result)
            x = graph.node("QuantizeLinear", [x, *scales], f"{layer.name}/next_levels")
    x = graph.node("DequantizeLinear", [x, *scales], "head/dequantized")
    return _policy(graph, spec, _reach(graph, x, "head/reach", network.layers[-1].result), states)


def _kernel(graph: GraphBuilder, name: str, values: np.ndarray, scales: np.ndarray | None, constant: Constant) -> str:
    """Return a kernel, in float or of levels with the scales of its channels (in a shape that broadcasts)."""
    if scales is None:
        return constant(graph, f"{name}/kernel", values)
    levels = graph.node("Cast", [graph.constant(f"{name}/levels", values)], f"{name}/steps", to=TensorProto.FLOAT)
    return graph.node("Mul", [levels, graph.constant(f"{name}/scales", scales)], f"{name}/kernel")


def _multiply_nibbles(graph: GraphBuilder, x: str, name: str, levels: np.ndarray, scales: np.ndarray) -> str:
    """Return x times levels (in, out) of 4 bits, which lie output by output in blocks with a scale each."""
    rows, outputs = levels.shape
    size = next((size for size in NIBBLE_BLOCKS if size >= rows), NIBBLE_BLOCKS[-1])
    blocks = -(-rows // size)
    stored = np.full((outputs, blocks * size), NIBBLE_ZERO, np.uint8)
    stored[:, :rows] = (levels.T + NIBBLE_ZERO).astype(np.uint8)
    packed = (stored[:, ::2] | stored[:, 1::2] << 4).reshape(outputs, blocks, size // 2)
    operands = [
        x,
        graph.constant(f"{name}/nibbles", packed),
        graph.constant(f"{name}/scales", np.repeat(scales, blocks)),
    ]
    sizes = {"K": rows, "N": outputs, "bits": 4, "block_size": size}
    return graph.node("MatMulNBits", operands, f"{name}/product", domain=ONNXRUNTIMES, **sizes)


class _States:
    """The recurrent layers' states in a graph."""

    def __init__(self, graph: GraphBuilder, spec: PolicySpec) -> None:
        self._graph, self._recurrences = graph, spec.network.states
        self._following: list[str] = []
        self._parts: dict[str, str] = {}
        self.size, start = spec.state_size, 0
        for name, recurrence in self._recurrences.items():
            end = start + recurrence.state_size
            is_whole = recurrence.state_size == self.size
            self._parts[name] = STATE if is_whole else onnx_part(graph, STATE, start, end, f"{name}/before")
            start = end

    def select_hidden(self, name: str) -> str:
        """Return the hidden state that a layer's linear part is fed."""
        recurrence = self._recurrences[name]
        if recurrence.units == recurrence.state_size:
            return self._parts[name]
        return onnx_part(self._graph, self._parts[name], 0, recurrence.units, f"{name}/hidden")

    def advance(self, name: str, fed: str, sums: str) -> str:
        """Return the next hidden state, given the sums of what is fed and of the hidden state."""
        recurrence = self._recurrences[name]
        y = onnx_program(self._graph, recurrence.program(), [fed, sums, self._parts[name]], f"{name}/gates")
        self._following.append(y)
        if recurrence.units == recurrence.state_size:
            return y
        return onnx_part(self._graph, y, 0, recurrence.units, f"{name}/output")

    def finish(self) -> None:
        """Give the next states their name."""
        operator = "Concat" if len(self._following) > 1 else "Identity"
        attributes = {"axis": 1} if len(self._following) > 1 else {}
        self._graph.node(operator, self._following, NEXT_STATE, **attributes)


def list_executed_operators(data: bytes) -> list[str]:
    """Operators of the graph that onnxruntime really executes on this machine, after its own optimisations."""
    onnxruntime = import_runtime(RuntimeName.ONNXRUNTIME)  # here, because writing a graph does not need it
    with tempfile.TemporaryFile() as optimised:  # it has no name: nothing is left of it if this is killed
        options = onnx_session_options(onnxruntime)
        options.optimized_model_filepath = f"/dev/fd/{optimised.fileno()}"
        options.log_severity_level = 3  # it warns that the written graph is for this machine only: so it is meant
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load_from_string(optimised.read()).graph.node]


def _add_normaliser(graph: GraphBuilder, spec: PolicySpec) -> tuple[str, str | None]:
    """Return what the first layer takes, and the vector behind an image, if there is one."""
    # z = clip((x − mean) · (1 / scale), low, high): the operations of policy.reference.normalise, one by one
    mean, inverse_scale = normaliser_constants(spec.normaliser)
    x = OBSERVATION
    if mean.any():
        x = graph.node("Sub", [x, graph.constant("normaliser/mean", mean[None])], "normaliser/centred")
    x = graph.node("Mul", [x, graph.constant("normaliser/inverse_scale", inverse_scale[None])], "normaliser/scaled")
    low, high = normaliser_bounds(spec.normaliser)
    if spec.normaliser.low:
        x = graph.node("Max", [x, graph.constant("normaliser/low", low[None])], "normaliser/above")
        x = graph.node("Min", [x, graph.constant("normaliser/high", high[None])], "normaliser/clipped")
    elif np.isfinite(high).all():
        x = _clip(graph, x, "normaliser/clipped", low[0], high[0])
    vector = None
    if spec.vector_size:
        start = spec.observation_size - spec.vector_size
        vector = onnx_part(graph, x, start, spec.observation_size, "vector")
        x = onnx_part(graph, x, 0, start, "image/elements")
    if spec.network.convolutions:
        shape = graph.constant("image/shape", np.array([1, *observation_shape(spec)], np.int64))
        x = graph.node("Reshape", [x, shape], "image/rows")
        x = graph.node("Transpose", [x], "image", perm=[0, 3, 1, 2])
    return x, vector


def _flat(graph: GraphBuilder, x: str, vector: str | None) -> str:
    x = graph.node("Flatten", [x], "flat", axis=1)
    return x if vector is None else graph.node("Concat", [x, vector], "flat/joined", axis=1)


def _channels_first(spec: PolicySpec, kernel: np.ndarray) -> np.ndarray:
    """Return a dense kernel (H · W · C, out) behind an image with its rows in the order (C, H, W), the vector's rows
    last."""
    shape = spec.network.image_shapes(observation_shape(spec))[-1]
    image, vector = np.split(kernel, [math.prod(shape)])
    reordered = image.reshape(*shape, -1).transpose(2, 0, 1, 3).reshape(image.shape)
    return np.concatenate([reordered, vector])


def _layer_norm(graph: GraphBuilder, x: str, name: str, gamma: np.ndarray, beta: np.ndarray, constant: Constant) -> str:
    operands = [x, constant(graph, f"{name}/gamma", gamma), constant(graph, f"{name}/beta", beta)]
    return graph.node("LayerNormalization", operands, f"{name}/normalised", axis=-1, epsilon=LAYER_NORM_EPSILON)


def _activation(graph: GraphBuilder, x: str, network: NetworkSpec, name: str, output: str) -> str:
    """Return a layer's activation in float."""
    record, results, y = NONLINEARITIES[network.activation_of(name)], {"x": x}, x
    attributes = {"alpha": network.negative_slope} if record.takes_slope else {}
    for operator, part, *operands in record.onnx:
        output_name = output if part == "activated" else f"{name}/{part}"
        results[part] = y = graph.node(operator, [results[operand] for operand in operands], output_name, **attributes)
    return y


def _integer_layer(
    graph: GraphBuilder, network: NetworkSpec, layer: IntegerLayer, input_map: Affine, x: str
) -> tuple[str, tuple[str, str]]:
    name, channels = layer.name, len(layer.bias)
    # (out, in) or (out, in, height, width): the output channel is axis 0
    kernel = [
        graph.constant(f"{name}/kernel", layer.kernel.transpose((1, 0) if layer.kernel.ndim == 2 else (3, 2, 0, 1))),
        graph.constant(f"{name}/kernel_scales", layer.kernel_scales),
        graph.constant(f"{name}/kernel_zero_points", np.zeros(channels, np.int8)),
    ]
    bias_scales = np.float32(input_map.scale) * layer.kernel_scales
    bias = [
        graph.constant(f"{name}/bias", layer.bias),
        graph.constant(f"{name}/bias_scales", bias_scales),
        graph.constant(f"{name}/bias_zero_points", np.zeros(channels, np.int32)),
    ]
    w = graph.node("DequantizeLinear", kernel, f"{name}/kernel_dequantized", axis=0)
    b = graph.node("DequantizeLinear", bias, f"{name}/bias_dequantized", axis=0)
    if layer.kernel.ndim == 2:
        y = graph.node("Gemm", [x, w, b], f"{name}/raw", transB=1)
    else:
        y = graph.node("Conv", [x, w, b], f"{name}/raw", strides=[layer.stride] * 2)
    # A ReLU before the levels is fused into the integer kernel where zero is the lowest int8; where zero lies higher
    # (fewer bits), the levels are cut at it.
    few_levels = layer.relu and layer.output.zero_point > INT8_MIN
    if layer.relu and not few_levels:
        y = graph.node("Relu", [y], f"{name}/relu")
    scales = _affine(graph, f"{name}/output", layer.output)
    y = graph.node("QuantizeLinear", [y, *scales], f"{name}/levels")
    if few_levels:
        y = graph.node("Max", [y, scales[1]], f"{name}/cut")
    if layer.norm is None and layer.table is None:  # of a hidden state, the gates follow
        return y, scales
    y = graph.node("DequantizeLinear", [y, *scales], f"{name}/dequantized")
    if layer.norm is not None:
        y = _layer_norm(graph, y, name, layer.norm.gamma, layer.norm.beta, GraphBuilder.constant)
    elif NONLINEARITIES[network.activation_of(name)].readers > 1:
        y = _reach(graph, y, f"{name}/reach", layer.output)  # its readers would each get a DequantizeLinear
    y = _activation(graph, y, network, name, f"{name}/relu")
    scales = _affine(graph, f"{name}/normalised", layer.result)
    return graph.node("QuantizeLinear", [y, *scales], f"{name}/normalised_levels"), scales


def _policy(graph: GraphBuilder, spec: PolicySpec, raw: str, states: _States) -> bytes:
    if isinstance(spec.head, ContinuousHead):
        _continuous_head(graph, spec.head, raw)
        graph.nodes[-1].output[0] = graph.nodes[-1].name = ACTION
        outputs = [helper.make_tensor_value_info(ACTION, TensorProto.FLOAT, [1, spec.head.size])]
    else:
        graph.nodes[-1].output[0] = LOGITS
        outputs = [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, [1, spec.output_size])]
    if isinstance(spec.head, DiscreteHead):  # of several components, the executor chooses
        # The first largest logit, as numpy's argmax.
        graph.node("ArgMax", [LOGITS], ACTION, axis=1, keepdims=0, select_last_index=0)
        outputs.append(helper.make_tensor_value_info(ACTION, TensorProto.INT64, [1]))
    inputs = [helper.make_tensor_value_info(OBSERVATION, TensorProto.FLOAT, [1, spec.input_size])]
    if states.size:
        states.finish()
        inputs.append(helper.make_tensor_value_info(STATE, TensorProto.FLOAT, [1, states.size]))
        outputs.append(helper.make_tensor_value_info(NEXT_STATE, TensorProto.FLOAT, [1, states.size]))
    policy_graph = helper.make_graph(graph.nodes, f"policy {spec.name}", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    opsets += [helper.make_opsetid(ONNXRUNTIMES, 1)] if any(node.domain for node in graph.nodes) else []
    model = helper.make_model(policy_graph, opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _continuous_head(graph: GraphBuilder, head: ContinuousHead, raw: str) -> str:
    # a = squash(y) · gain + offset
    low, high = head_limits(head)
    squashed = _clip(graph, raw, "head/clipped", low, high) if np.isfinite(high) else raw
    if head.squash is Squash.TANH:
        squashed = graph.node("Tanh", [squashed], "head/tanh")
    gain, offset = head_constants(head)
    scaled = graph.node("Mul", [squashed, graph.constant("head/gain", gain[None])], "head/scaled")
    return graph.node("Add", [scaled, graph.constant("head/offset", offset[None])], "head/offset_added")


def _clip(graph: GraphBuilder, x: str, output: str, low: float, high: float) -> str:
    bounds = [graph.constant(f"{output}/low", np.float32(low)), graph.constant(f"{output}/high", np.float32(high))]
    return graph.node("Clip", [x, *bounds], output)


def _reach(graph: GraphBuilder, x: str, output: str, affine: Affine) -> str:
    """Return a Clip of dequantized levels that changes nothing, to the least and the largest value that they can stand
    for.

    See the module's docstring.
    """
    reach = np.float32(affine.scale) * np.array([affine.low, affine.high], np.float32)
    low, high = reach - np.float32(affine.scale) * np.float32(affine.zero_point)
    return _clip(graph, x, output, low, high)


def _half_constant(graph: GraphBuilder, name: str, values: np.ndarray) -> str:
    half = graph.constant(f"{name}/half", to_fp16(values))
    return graph.node("Cast", [half], name, to=TensorProto.FLOAT)


def _affine(graph: GraphBuilder, name: str, affine: Affine) -> tuple[str, str]:
    scale = graph.constant(f"{name}/scale", np.float32(affine.scale))
    return scale, graph.constant(f"{name}/zero_point", np.int8(affine.zero_point))
