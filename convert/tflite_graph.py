"""A policy as a TFLite graph: raw observation in, action out, every number taken from policy/.

    observation ─ SUB mean ─ MUL 1/scale ─ MINIMUM high ─ MAXIMUM low ───┐            (float32, always)
      images:      RESHAPE ──────────────────────────────────────────────┤
      image and vector: SLICE both; the vector joins the flattened output of the last CONV_2D by CONCATENATION
      floats:      CONV_2D … FULLY_CONNECTED … ──────────────────────────┤
      int8 … int2: QUANTIZE ─ CONV_2D … FULLY_CONNECTED (int8 × int8 → int32) … ─ DEQUANTIZE
      recurrent: both linear layers of the gates as any other, behind them the gates' program in float, from ``state``
      to ``next_state``; between integers both are dequantized, and the hidden state has levels of its own
    discrete:   logits ─ ARG_MAX ─ action
    continuous: TANH or MINIMUM/MAXIMUM ─ MUL gain ─ ADD offset ─ action

What changes nothing is left out: an image's mean of 0, an infinite clip. A layer normalisation is float in every
precision; see ``convert.tflite_layers``.

Why the normaliser stays in float: observation fields differ in range by orders of magnitude, so that one int8 scale
over the raw vector would leave the small fields no levels.

Why FULLY_CONNECTED and not a 1×1 CONV_2D: both honour one weight scale per output channel in tflite-runtime 2.14 and
in LiteRT 2.3 (compared with ``policy.reference``, value by value), and FULLY_CONNECTED is the faster in both
(Policy III on x86: 134 against 173 µs in tflite-runtime, equal in LiteRT).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from quarl.convert import tflite_layers as layers
from quarl.convert.flatbuffer import GraphWriter
from quarl.convert.interface import ACTION, LOGITS, NEXT_STATE, OBSERVATION, STATE
from quarl.convert.programs import join_rows, tflite_program
from quarl.policy.reference import (
    IntegerNetwork,
    Weights,
    check_multipliers,
    head_constants,
    head_limits,
    layer_names,
    normaliser_bounds,
    normaliser_constants,
)
from quarl.policy.simulate import stored_kernel
from quarl.policy.spec import Activation, ContinuousHead, DiscreteHead, PolicySpec, Precision, Squash, observation_shape

Operator = schema.BuiltinOperator


class States:
    """The recurrent layers' states in a graph."""

    def __init__(self, graph: GraphWriter, spec: PolicySpec) -> None:
        self._graph, self._recurrences = graph, spec.network.states
        self._following: list[int] = []
        self._parts: dict[str, int] = {}
        self.tensor = graph.tensor(STATE, [1, spec.state_size], np.float32) if spec.state_size else None
        start = 0
        for name, recurrence in self._recurrences.items():
            assert self.tensor is not None
            self._parts[name] = self._part(self.tensor, start, recurrence.state_size, f"{name}/before")
            start += recurrence.state_size

    def _part(self, x: int, start: int, size: int, name: str) -> int:
        is_whole = self._graph.tensors[x].shape[1] == size
        return x if is_whole else layers.part(self._graph, x, start, size, name)

    def select_hidden(self, name: str) -> int:
        """Return the hidden state that a layer's linear part is fed."""
        return self._part(self._parts[name], 0, self._recurrences[name].units, f"{name}/hidden")

    def advance(self, name: str, fed: int, sums: int) -> int:
        """Return the next hidden state, given the sums of what is fed and of the hidden state."""
        recurrence = self._recurrences[name]
        y = tflite_program(self._graph, recurrence.program(), [fed, sums, self._parts[name]], f"{name}/gates")
        self._following.append(y)
        return self._part(y, 0, recurrence.units, f"{name}/output")

    def finish(self) -> dict[str, int]:
        """Return the next states under their name, if there are any."""
        if not self._following:
            return {}
        graph, next_state = self._graph, self._following[0]
        if len(self._following) > 1:
            next_state = join_rows(graph, self._following, NEXT_STATE)
        graph.tensors[next_state].name = NEXT_STATE.encode()
        return {NEXT_STATE: next_state}


Layers = Callable[[GraphWriter, int, int | None, States], int]
"""Adds the layers behind what the first of them takes; the vector behind an image, if there is one, comes after it."""


def float_graph(spec: PolicySpec, weights: Weights, precision: Precision = Precision.FP32) -> bytes:
    """Return the policy in float32; its weights stored in a precision that is no integer's.

    A DEQUANTIZE widens IEEE halves (weights and biases) or levels (kernels; of 4 bits in an int8 container) to float32
    when the interpreter prepares the graph, so that the arithmetic is that of float32 on rounded weights.
    """
    put = layers.half_constant if precision is Precision.FP16 else GraphWriter.constant

    def add(graph: GraphWriter, x: int, vector: int | None, states: States) -> int:
        for index, name in enumerate(layer_names(spec)):
            fed = x
            if name in spec.network.states:
                x = states.select_hidden(name)
            convolutions = spec.network.convolutions
            stride = convolutions[index].stride if index < len(convolutions) else 1
            normalised = f"{name}/gamma" in weights
            kernel, scales = stored_kernel(spec, weights, name, precision)
            bias = weights[f"{name}/bias"]
            is_relu = name != "head" and spec.network.activation_of(name) is Activation.RELU
            x = layers.float_layer(graph, x, name, kernel, scales, bias, stride, is_relu and not normalised, put)
            if normalised:
                x = layers.layer_norm(graph, x, name, weights[f"{name}/gamma"], weights[f"{name}/beta"], put, is_relu)
            if name in spec.network.states:
                x = states.advance(name, fed, x)
            elif name != "head" and not is_relu:
                x = layers.activation(graph, x, name, spec.network)
            if vector is not None and index == len(convolutions) - 1:
                x = layers.join(graph, x, vector, None, name)
        return x

    return _policy(spec, add)


def integer_graph(spec: PolicySpec, network: IntegerNetwork) -> bytes:
    """Return the policy with int8 weights and activations, exactly the integers and scales of ``network``.

    Raises:
        QuantizationError: LiteRT could not prepare a layer of it; named.
    """
    check_multipliers(network)

    def add(graph: GraphWriter, x: int, vector: int | None, states: States) -> int:
        q = layers.quantize(graph, x, "input_levels", network.input)
        for index, (layer, input_map) in enumerate(network.fed):
            fed, name = q, layer.name
            if layer.cell is not None:
                q = layers.quantize(graph, states.select_hidden(name), f"{name}/hidden_levels", layer.result)
            q = layers.integer_layer(graph, q, layer, input_map)
            if layer.cell is not None:
                both = (fed, f"{name}/fed"), (q, f"{name}/sums")
                floats = [layers.dequantize(graph, *pair, layers.DEQUANTIZE_INT8) for pair in both]
                q = layers.quantize(graph, states.advance(name, *floats), f"{name}/levels", layer.result)
            if vector is not None and index == len(spec.network.convolutions) - 1:
                levels = layers.quantize(graph, vector, "vector_levels", layer.result)
                q = layers.join(graph, q, levels, layer.result, layer.name)
        return layers.dequantize(graph, q, "head/raw", layers.DEQUANTIZE_INT8)

    return _policy(spec, add)


def _policy(spec: PolicySpec, add_layers: Layers) -> bytes:
    graph = GraphWriter()
    observation = graph.tensor(OBSERVATION, [1, spec.input_size], np.float32)
    states = States(graph, spec)
    x = _add_normaliser(graph, spec, observation)
    vector = None
    if spec.vector_size:
        start = spec.observation_size - spec.vector_size
        vector = layers.part(graph, x, start, spec.vector_size, "vector")
        x = layers.part(graph, x, 0, start, "image/elements")
    if spec.network.convolutions:
        x = layers.reshape(graph, x, (1, *observation_shape(spec)), "image")
    raw = add_layers(graph, x, vector, states)
    if isinstance(spec.head, ContinuousHead):
        action = _continuous_head(graph, spec.head, raw)
        graph.tensors[action].name = ACTION.encode()
        outputs = {ACTION: action}
    else:
        graph.tensors[raw].name = LOGITS.encode()
        outputs = {LOGITS: raw}
    if isinstance(spec.head, DiscreteHead):  # of several components, the executor chooses
        outputs[ACTION] = _argmax(graph, raw)
    inputs = {OBSERVATION: observation} | ({} if states.tensor is None else {STATE: states.tensor})
    return graph.serialise(spec.name, inputs, outputs | states.finish(), f"policy {spec.name}, raw observation in")


def _add_normaliser(graph: GraphWriter, spec: PolicySpec, x: int) -> int:
    # z = clip((x − mean) · (1 / scale), low, high): the operations of policy.reference.normalise, one by one
    mean, inverse_scale = normaliser_constants(spec.normaliser)
    if mean.any():
        x = layers.with_constant(graph, Operator.SUB, x, "normaliser/mean", mean[None])
    x = layers.with_constant(graph, Operator.MUL, x, "normaliser/inverse_scale", inverse_scale[None])
    return _clip(graph, x, "normaliser", *normaliser_bounds(spec.normaliser))


def _argmax(graph: GraphWriter, logits: int) -> int:
    # The first largest logit, as numpy's argmax; TFLite's kernel keeps the first of equals too.
    axis = graph.constant("action/axis", np.array([1], np.int32))
    action = graph.tensor(ACTION, [1], np.int32)
    graph.operator(Operator.ARG_MAX, [logits, axis], [action], "ArgMax", outputType=schema.TensorType.INT32)
    return action


def _continuous_head(graph: GraphWriter, head: ContinuousHead, raw: int) -> int:
    # a = squash(y) · gain + offset
    squashed = _clip(graph, raw, "head", *(np.full(1, limit, np.float32) for limit in head_limits(head)))
    if head.squash is Squash.TANH:
        squashed = layers.unary(graph, Operator.TANH, squashed, "head/tanh")
    gain, offset = head_constants(head)
    scaled = layers.with_constant(graph, Operator.MUL, squashed, "head/gain", gain[None])
    return layers.with_constant(graph, Operator.ADD, scaled, "head/offset", offset[None])


def _clip(graph: GraphWriter, x: int, name: str, low: np.ndarray, high: np.ndarray) -> int:
    if np.isfinite(high).any():
        x = layers.with_constant(graph, Operator.MINIMUM, x, f"{name}/clip_high", high)
    if np.isfinite(low).any():
        x = layers.with_constant(graph, Operator.MAXIMUM, x, f"{name}/clip_low", low)
    return x
