"""Keras loads a stranger's file here and writes it as ONNX; keras.py starts this process in a folder of its own.

Each layer becomes the ONNX operators of its equation; one without is refused by its name. onnxruntime's outputs are
compared with Keras's, near zero and far: python -m quarl.convert.importers.keras_to_onnx FOLDER/policy.keras [OUTPUT]
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.importers.chain import Floats, ForeignError
from quarl.convert.importers.keras_file import check, confine, limit_process, modernise
from quarl.convert.importers.onnx.original import ROUNDING, SCALES, TOLERANCE
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.zip_members import read_untrusted

OPSET, IR_VERSION = 17, 8
COMPARED_ROWS = 13
MADE_UP = r"(input|input_layer|keras_tensor)(_\d+)?|.*_input"  # Keras's names of inputs without one


class Graph:
    """ONNX nodes as they are added, for the layer of that name, whose output has that shape (batch, …)."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.layer, self.shape = "", tuple[Any, ...]()

    def add(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Return the name of a new node's output, or several; inputs that are no names are constants."""
        names = []
        for value in inputs:
            if not isinstance(value, str):
                array = np.asarray(value, np.int64 if getattr(value, "dtype", None) == np.int64 else np.float32)
                self.constants.append(numpy_helper.from_array(array, f"{self.layer}/constant_{len(self.constants)}"))
            names.append(value if isinstance(value, str) else self.constants[-1].name)
        stem = f"{self.layer}/{operator}_{len(self.nodes)}"
        output_names = [f"{stem}:{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, names, output_names, name=stem, **attributes))
        return output_names if outputs > 1 else output_names[0]

    def refusal(self, reason: str) -> ForeignError:
        """Return the error of a layer that cannot be written."""
        return ForeignError(
            f"the layer {printable(self.layer)} {reason}, which cannot be written as ONNX.",
            "Build the policy from other layers, or type --output NAME with an output that does not need this one.",
        )


Emit = Callable[..., Any]  # (graph, layer, *names of its inputs): adds its nodes; its output's name, or several


def _whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _array(weight: Any) -> Floats:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(weight), np.float32)


def _node(operator: str, **attributes: tuple[str, float]) -> Emit:
    """Return one operator, whose attributes are the layer's of these names, or these numbers where it has none."""

    def emit(graph: Graph, op: Any, *xs: Any) -> Any:
        values = ((key, type(default)(getattr(op, name, default))) for key, (name, default) in attributes.items())
        return graph.add(operator, *xs, **dict[str, Any](values))

    return emit


def _make_gate_emitter(*keys: str) -> Emit:
    """x times what these functions make of x."""
    return lambda graph, op, x: graph.add("Mul", x, reduce(lambda y, key: EMITS[key](graph, op, y), keys, x))


def _make_merge_emitter(operator: str) -> Emit:
    return lambda graph, op, *xs: reduce(partial(graph.add, operator), xs)


def _make_reduction_emitter(operator: str) -> Emit:
    """Over the axes of an operation, or of a layer over all but the first and the last."""

    def emit(graph: Graph, op: Any, x: str) -> Any:
        axes = getattr(op, "axis", None) if not hasattr(op, "input_spec") else [*range(1, op.input_spec.ndim - 1)]
        if axes is None:
            raise graph.refusal("also reduces the batch")
        return graph.add(operator, x, axes=[axes] if isinstance(axes, int) else list(axes), keepdims=int(op.keepdims))

    return emit


def _relu(graph: Graph, op: Any, x: str) -> Any:
    if threshold := getattr(op, "threshold", 0):
        raise graph.refusal(f"has the threshold {threshold}")
    slope, most = getattr(op, "negative_slope", 0), getattr(op, "max_value", None)
    output = graph.add("LeakyRelu", x, alpha=float(slope)) if slope else graph.add("Relu", x)
    return output if most is None else graph.add("Min", output, most)


def _gelu(graph: Graph, op: Any, x: str) -> Any:
    if getattr(op, "approximate", False):
        raise graph.refusal("is an approximate GELU")
    inner = graph.add("Erf", graph.add("Mul", x, 1 / math.sqrt(2)))  # x/2 (1 + erf(x/√2))
    return graph.add("Mul", graph.add("Mul", x, 0.5), graph.add("Add", inner, 1.0))


def _emit_activation(graph: Graph, op: Any, x: str) -> Any:
    function = op.activation  # may be a layer
    return _emit(graph, *((function, op) if hasattr(function, "__name__") else (type(function), function)), x)


def _dense(graph: Graph, op: Any, x: str) -> Any:
    product = graph.add("MatMul", x, _array(op.kernel))
    return _emit_activation(graph, op, graph.add("Add", product, _array(op.bias)) if op.use_bias else product)


def _windows(graph: Graph, op: Any, operator: str, x: str, *others: Any, size: Any, **settings: Any) -> Any:
    """Return a convolution or pooling; ONNX has channels first."""
    sides = range(1, len(size) + 1)
    if op.padding == "causal" or op.data_format != "channels_last":
        raise graph.refusal("is causal or channels-first")
    settings["auto_pad"] = {"same": "SAME_UPPER", "valid": "VALID"}[op.padding]
    x = graph.add("Transpose", x, perm=[0, len(size) + 1, *sides])
    x = graph.add(operator, x, *others, kernel_shape=list(size), strides=list(op.strides), **settings)
    return graph.add("Transpose", x, perm=[0, *(side + 1 for side in sides), 1])


def _convolution(graph: Graph, op: Any, x: str) -> Any:
    sides = len(op.kernel_size)
    kernel = _array(op.kernel).transpose(sides + 1, sides, *range(sides))
    weights = [kernel, _array(op.bias)] if op.use_bias else [kernel]
    settings = {"size": op.kernel_size, "group": op.groups, "dilations": list(op.dilation_rate)}
    return _emit_activation(graph, op, _windows(graph, op, "Conv", x, *weights, **settings))


def _affine(graph: Graph, x: str, scale: Any, offset: Any) -> Any:
    return graph.add("Add", graph.add("Mul", x, scale), offset)


def _normalization(graph: Graph, op: Any, x: str) -> Any:
    mean, deviation = _array(op.mean), np.maximum(np.sqrt(_array(op.variance)), np.float32(1e-7))
    if op.invert:
        return _affine(graph, x, deviation, mean)
    return graph.add("Div", graph.add("Sub", x, mean), deviation)


def _batch_normalization(graph: Graph, op: Any, x: str) -> Any:
    scale = 1 / np.sqrt(_array(op.moving_variance).astype(np.float64) + op.epsilon)
    scale = scale * _array(op.gamma) if op.scale else scale
    return _affine(graph, x, scale, (_array(op.beta) if op.center else 0.0) - _array(op.moving_mean) * scale)


def _layer_normalization(graph: Graph, op: Any, x: str) -> Any:
    gamma = _array(op.gamma) if op.scale else np.ones(graph.shape[-1])
    beta = _array(op.beta) if op.center else np.zeros(graph.shape[-1])
    return graph.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=float(op.epsilon))


def _recurrent(graph: Graph, op: Any, x: str, *states: str) -> Any:
    operator = type(op).__name__
    order = {"LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2)}[operator]  # the numbers of Keras's gates in ONNX's order
    names = [part.__name__ for part in (op.recurrent_activation, op.activation, op.activation)][: len(order) - 1]
    if op.stateful or op.go_backwards or not {"sigmoid", "tanh", "relu"} >= set(names):
        raise graph.refusal(f"is stateful or backwards, or has an activation of {', '.join(map(printable, names))}")

    def gates(values: Floats) -> Floats:
        return np.concatenate([np.split(values, len(order), axis=-1)[number] for number in order], axis=-1)

    bias = np.zeros((2, len(order) * op.units), np.float32)
    if op.use_bias:
        bias[: np.ndim(_array(op.cell.bias))] = gates(_array(op.cell.bias))
    weights = [gates(_array(part)).T[None] for part in (op.cell.kernel, op.cell.recurrent_kernel)]
    initial = ["", *(graph.add("Unsqueeze", state, _whole(0)) for state in states)] if states else []
    operands = [graph.add("Transpose", x, perm=[1, 0, 2]), *weights, bias.reshape(1, -1), *initial]
    settings = {"hidden_size": op.units, "activations": [name.capitalize() for name in names]}
    settings |= {"linear_before_reset": int(op.reset_after)} if operator == "GRU" else {}
    every, *last = graph.add(operator, *operands, outputs=len(order) - 1, **settings)
    last = [graph.add("Squeeze", state, _whole(0)) for state in last]
    rows = graph.add("Transpose", graph.add("Squeeze", every, _whole(1)), perm=[1, 0, 2])
    output = rows if op.return_sequences else last[0]
    return [output, *last] if op.return_state else output


def _emit_slice(graph: Graph, op: Any, x: str, *keys: Any) -> Any:
    """x[:, low:high]."""
    if not all(isinstance(key, slice) and key.step in (None, 1) for key in keys):
        raise graph.refusal("indexes by more than low:high")
    ends = [(key.start or 0, 2**31 if key.stop is None else key.stop) for key in keys]
    return graph.add("Slice", x, *(_whole(*bounds) for bounds in zip(*ends, strict=True)))


def _emit_reshape(graph: Graph, op: Any, x: str) -> Any:
    return graph.add("Reshape", x, _whole(0, *(side or -1 for side in graph.shape[1:])))


def _key(name: str) -> str:
    """Of a layer, an operation or an activation: Conv1D and Conv2D are conv, leaky_relu and LeakyReLU leakyrelu."""
    return re.sub(r"_|[12]D$", "", name).lower()


PLAIN = {
    each.lower(): each
    for each in ("Tanh", "Sigmoid", "Softplus", "Softsign", "Selu", "Exp", "Log", "Sqrt", "Sin", "Cos")
}
PLAIN |= {"exponential": "Exp", "absolute": "Abs", "negative": "Neg"}
MERGED = {"add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "truedivide": "Div", "power": "Pow"}
MERGED |= {"maximum": "Max", "minimum": "Min"}
NOTHING = "linear identity dropout spatialdropout gaussiannoise gaussiandropout alphadropout activityregularization"
EMITS: dict[str, Emit] = {  # of layers, operations and activations, by their keys
    **{name: _node(operator) for name, operator in PLAIN.items()},
    **{name: _make_merge_emitter(operator) for name, operator in MERGED.items()},
    **dict.fromkeys(NOTHING.split(), lambda graph, op, x: x),
    **dict.fromkeys(("flatten", "reshape", "squeeze", "expanddims"), _emit_reshape),
    "relu": _relu,
    "relu6": lambda graph, op, x: graph.add("Clip", x, 0.0, 6.0),
    "leakyrelu": _node("LeakyRelu", alpha=("negative_slope", 0.2)),
    "elu": _node("Elu", alpha=("alpha", 1.0)),
    "prelu": lambda graph, op, x: graph.add("PRelu", x, _array(op.alpha)),
    "gelu": _gelu,
    "silu": _make_gate_emitter("sigmoid"),
    "mish": _make_gate_emitter("softplus", "tanh"),
    "hardsigmoid": lambda graph, op, x: graph.add("HardSigmoid", x, alpha=1 / 6),  # Keras 3's slope, not ONNX's
    "hardsilu": _make_gate_emitter("hardsigmoid"),
    "softmax": _node("Softmax", axis=("axis", -1)),
    "logsoftmax": _node("LogSoftmax", axis=("axis", -1)),
    "square": lambda graph, op, x: graph.add("Mul", x, x),
    "clip": lambda graph, op, x: graph.add("Min", graph.add("Max", x, op.x_min), op.x_max),
    "mean": _make_reduction_emitter("ReduceMean"),
    "max": _make_reduction_emitter("ReduceMax"),
    "globalaveragepooling": _make_reduction_emitter("ReduceMean"),
    "globalmaxpooling": _make_reduction_emitter("ReduceMax"),
    "averagepooling": lambda graph, op, x: _windows(graph, op, "AveragePool", x, size=op.pool_size),
    "maxpooling": lambda graph, op, x: _windows(graph, op, "MaxPool", x, size=op.pool_size),
    "average": lambda graph, op, *xs: graph.add("Mul", _make_merge_emitter("Add")(graph, op, *xs), 1 / len(xs)),
    "concatenate": _node("Concat", axis=("axis", -1)),
    "permute": lambda graph, op, x: graph.add("Transpose", x, perm=[0, *op.dims]),
    "rescaling": lambda graph, op, x: _affine(graph, x, _array(op.scale), _array(op.offset)),
    "normalization": _normalization,
    "batchnormalization": _batch_normalization,
    "layernormalization": _layer_normalization,
    "getitem": _emit_slice,
    "activation": _emit_activation,
    "dense": _dense,
    "conv": _convolution,
    "lstm": _recurrent,
    "gru": _recurrent,
}


def _emit(graph: Graph, kind: Any, op: Any, *given: Any) -> Any:
    """Add a layer's class or an activation, with the settings of the layer; the names of its outputs."""
    if not kind.__module__.startswith("keras.src.") or _key(kind.__name__) not in EMITS:
        raise graph.refusal(f"uses {printable(kind.__name__)}")
    return EMITS[_key(kind.__name__)](graph, op, *given)


def walk(model: Any, names: list[str], graph: Graph) -> list[str]:
    """Add a Functional or Sequential model, its inputs by their names in the graph; the names of its outputs."""
    import keras

    model = getattr(model, "_functional", model)  # of a Sequential one
    if type(model).__name__ != "Functional":
        raise ForeignError(f"the model must be Functional, got {printable(type(model).__name__)}.", "Use keras.Model.")
    known = dict(zip(map(id, model.inputs), names, strict=True))
    for node in (node for _, nodes in sorted(model._nodes_by_depth.items(), reverse=True) for node in nodes):
        if not node.is_input:
            op, graph.layer, graph.shape = node.operation, node.operation.name, node.outputs[0].shape
            operands = [known[id(x)] if isinstance(x, keras.KerasTensor) else x
                     for x in keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
                     if x is not None and not isinstance(x, bool | str)]  # fmt: skip
            outputs = (
                walk(op, operands, graph) if isinstance(op, keras.Model) else _emit(graph, type(op), op, *operands)
            )
            known |= zip(map(id, node.outputs), [outputs] if isinstance(outputs, str) else outputs, strict=True)
    return [known[id(x)] for x in model.outputs]


def load(path: Path, output: str | None = None) -> tuple[Any, tuple[str, ...]]:
    """Return the model in a checked file, in float32, its outputs by name, or one alone; other types that layers have.

    An output's name is its key in a dictionary, else its layer's. Raise ForeignError for what is no such model.
    """
    import keras

    modernise(path)
    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ForeignError(f"{path.name} has no model with inputs.", "Start it with keras.Input(shape), and save it.")
    for x in model.inputs:
        if None in x.shape[1:] or not ("float" in x.dtype or x.dtype == "uint8"):
            message = f"the input {printable(x.name)} must be floats of fixed sizes, got {x.dtype}{list(x.shape)}."
            raise ForeignError(message, "Build it with keras.Input((…)) of one observation, load_weights, and save it.")
    if len(model.inputs) == 1 and re.fullmatch(MADE_UP, model.inputs[0].name):
        model.inputs[0].name = "observation"
    others = {layer.dtype_policy.name for layer in model._flatten_layers()} - {"float32"}
    for layer in model._flatten_layers():
        if layer.dtype_policy.name in others:
            layer.dtype_policy = "float32"
    structure, names = getattr(model, "_outputs_struct", None), [x._keras_history.operation.name for x in model.outputs]
    if isinstance(structure, dict) and len(structure) == len(names):
        names = sorted(structure)
    elif len(set(names)) < len(names):  # several of one layer
        names = [f"{name}_{number}" for number, name in enumerate(names)]
    outputs = dict(zip(names, model.outputs, strict=True))
    if output is not None and output not in outputs:
        step = f"Type one of {', '.join(map(printable, names))}."
        raise ForeignError(f"--output must be an output of the model, got {printable(output)}.", step)
    outputs = outputs if output is None else {output: outputs[output]}
    return keras.Model(model.inputs, outputs), tuple(sorted(others))


def convert(model: Any) -> onnx.ModelProto:
    """Return a model's ONNX graph. Raise ForeignError if a layer has none."""

    def declare_value(name: str, x: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [x.shape[0] or "batch", *x.shape[1:]])

    graph, outputs = Graph(), sorted(model._outputs_struct)
    for name, tensor in zip(outputs, walk(model, [x.name for x in model.inputs], graph), strict=True):
        graph.nodes.append(helper.make_node("Identity", [tensor], [name], name=name))
    fed = [declare_value(x.name, x) for x in model.inputs]
    results = [declare_value(name, x) for name, x in zip(outputs, model.outputs, strict=True)]
    order = [
        tensor_name for node in graph.nodes for tensor_name in node.input
    ]  # parts of an observation, as they are concatenated
    fed.sort(key=lambda value: order.index(value.name) if value.name in order else len(order))
    part = helper.make_graph(graph.nodes, "policy", fed, results, graph.constants)
    return helper.make_model(part, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def compare(model: Any, part: onnx.ModelProto) -> None:
    """Raise ForeignError if onnxruntime's outputs differ from Keras's, near zero or far, by more than roundings."""
    import onnxruntime

    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    for scale in SCALES:
        fed = {}
        for x in model.inputs:
            rows = random.normal(0.0, scale, (x.shape[0] or COMPARED_ROWS, *x.shape[1:]))
            fed[x.name] = (rows.clip(0, 255).round() if x.dtype == "uint8" else rows).astype(np.float32)
        wanted = model(list(fed.values()), training=False)
        for value in part.graph.output:
            onnx_output, keras_output = session.run([value.name], fed)[0], _array(wanted[value.name]).astype(np.float64)
            finite = keras_output[np.isfinite(keras_output)]
            allowed = TOLERANCE * np.ptp(finite) + ROUNDING * max(np.abs(finite).max(), 1e-3) if finite.size else 0.0
            if onnx_output.shape != keras_output.shape or not np.allclose(
                onnx_output, keras_output, rtol=0, atol=allowed, equal_nan=True
            ):
                message = f"The ONNX of the output {printable(value.name)} does not compute what Keras does at {scale}."
                raise ForeignError(message, "This is a bug in the importer: please report the file.")


def write_onnx(path: Path, output: str | None = None, *, confined: bool = False) -> dict[str, Any]:
    """Write policy.onnx beside a file, or raise ForeignError; Keras's version, and types of layers but float32."""
    try:
        check(read_untrusted(path), path.name)
        import keras

        if confined:
            confine(path.parent)
        model, others = load(path, output)
        part = convert(model)
        compare(model, part)
    except ForeignError:
        raise
    except Exception as error:  # Keras and TensorFlow raise whatever they like
        message = f"Keras cannot load the file ({type(error).__name__}: {printable(str(error))})."
        step = "Check that keras.saving.load_model(FILE) reads it. Custom code, classes and functions are never run."
        raise ForeignError(message, step) from error
    path.with_name("policy.onnx").write_bytes(part.SerializeToString())
    return {"keras": keras.__version__, "others": others}


def main() -> None:
    """Reply in JSON; what Keras prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    limit_process()
    try:
        reply = write_onnx(Path(sys.argv[1]), *sys.argv[2:], confined=True)
    except ForeignError as error:
        reply = {"error": [error.message, error.next_step]}
    with replies:
        json.dump(reply, replies)


if __name__ == "__main__":
    main()
