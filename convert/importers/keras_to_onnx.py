"""Keras loads a stranger's file here and writes it as ONNX; keras.py starts this process, with limits and a folder.

Each layer and operation becomes ONNX operators of the same name or equation; one without is refused by its name. The
graph is then run by onnxruntime and compared with Keras, near zero and far, so that a wrong equation ends here.

    python -m quarl.convert.importers.keras_to_onnx FOLDER/policy.keras OUTPUT
"""

from __future__ import annotations

import inspect
import io
import json
import math
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.importers.chain import Floats, ForeignError
from quarl.convert.importers.onnx.original import ROUNDING, SCALES, TOLERANCE
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.zip_members import MOST_BYTES, NEXT_STEP, open_zip, read_untrusted

OPSET, IR_VERSION = 17, 8
ROWS = 256
"""Observations that Keras computes at once."""
CPU_S = 600
ADDRESS_SPACE_BYTES = 16 * 2**30
"""TensorFlow itself reserves some 4 GiB of addresses, which it never fills."""
MOST_OBJECTS = 20_000
OTHER_OUTPUT = "Build the policy of other layers, or type --output NAME with an output that does not need it."
Shaped = Any  # keras.KerasTensor, whose name is that of the ONNX tensor


def check(data: bytes, name: str) -> None:
    """Refuse a file that points out of itself, or is larger unpacked than it may be, before Keras sees it.

    Raises:
        ForeignError: damaged, too large, an HDF5 file with links or data elsewhere, or weights without their model.
    """
    if name.endswith(".keras"):
        members = open_zip(data, name)
        for member in members.names:
            if member.endswith((".h5", ".hdf5")):
                _check_hdf5(members.read(member), f"{name}'s {printable(member)}")
        return
    if not _check_hdf5(data, name):
        raise ForeignError(
            f"{name} holds weights alone, without the model's layers.",
            "Build the model in Python as it was, then: model.load_weights(FILE); model.save('policy.keras').",
        )


def _check_hdf5(data: bytes, what: str) -> bool:
    """Whether an HDF5 file holds a model's config."""
    import h5py

    size, seen = 0, set[int]()
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            waiting = [file]
            while waiting:
                group = waiting.pop()
                for name in group:
                    plain = isinstance(group.get(name, getlink=True), h5py.HardLink)
                    item = group[name] if plain else None
                    address = h5py.h5o.get_info(item.id).addr if item is not None else 0
                    is_tensor = isinstance(item, h5py.Dataset)
                    if not plain or address in seen or (is_tensor and (item.external or item.is_virtual)):
                        message = f"{what} has {printable(name)}, which lies elsewhere or in two places."
                        raise ForeignError(message, NEXT_STEP)
                    seen.add(address)
                    waiting += [] if is_tensor else [item]
                    chunk = math.prod(item.chunks or ()) if is_tensor else 0
                    size += max(item.size or 0, chunk) * item.dtype.itemsize if is_tensor else 0
                    if size > MOST_BYTES or len(seen) > MOST_OBJECTS:
                        message = f"{what} has more than {MOST_BYTES} bytes unpacked, or {MOST_OBJECTS} objects."
                        raise ForeignError(message, NEXT_STEP)
            return "model_config" in file.attrs
    except ForeignError:
        raise
    except Exception as error:  # h5py raises OSError, KeyError, RuntimeError, ValueError, TypeError …
        raise ForeignError(f"{what} cannot be read ({type(error).__name__}).", NEXT_STEP) from error


class Graph:
    """ONNX nodes as they are added; constants are arrays among a node's inputs.

    Attributes:
        refused: why a tensor has no node, by its name; what depends on it has none either.
        before_softmax: the layer or operation whose softmax takes a tensor, by the tensor's name.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.refused: dict[str, ForeignError] = {}
        self.before_softmax: dict[str, Any] = {}
        self.layer = ""

    def add(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """The name of a new node's output, or a tuple of names."""
        names = [self._named(each) for each in inputs]
        stem = f"{self.layer}/{operator}_{len(self.nodes)}"
        made = tuple(f"{stem}:{number}" for number in range(outputs))
        self.nodes.append(helper.make_node(operator, names, made, name=stem, **attributes))
        return made if outputs > 1 else made[0]

    def _named(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        array = value if isinstance(value, np.ndarray) and value.dtype == np.int64 else np.asarray(value, np.float32)
        self.constants.append(numpy_helper.from_array(array, f"{self.layer}/constant_{len(self.constants)}"))
        return str(self.constants[-1].name)


def _whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _array(weight: Any) -> Floats:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(weight), np.float32)


def _plain(operator: str, **attributes: Any) -> Callable[[Graph, str], str]:
    return lambda graph, x: graph.add(operator, x, **attributes)


def _relu(graph: Graph, x: str, negative_slope: float = 0, max_value: float | None = None, threshold: float = 0) -> str:
    if threshold:
        raise _refusal(graph, f"has the threshold {threshold}")
    made = graph.add("LeakyRelu", x, alpha=float(negative_slope)) if negative_slope else graph.add("Relu", x)
    return str(made if max_value is None else graph.add("Min", made, max_value))


def _gelu(graph: Graph, x: str, approximate: bool = False) -> str:
    if approximate:  # x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))
        cubic = graph.add("Mul", graph.add("Pow", x, 3.0), 0.044715)
        inner = graph.add("Tanh", graph.add("Mul", graph.add("Add", x, cubic), math.sqrt(2 / math.pi)))
    else:  # x/2 (1 + erf(x/√2))
        inner = graph.add("Erf", graph.add("Mul", x, 1 / math.sqrt(2)))
    return str(graph.add("Mul", graph.add("Mul", x, 0.5), graph.add("Add", inner, 1.0)))


def _gated(gate: Callable[[Graph, str], str]) -> Callable[[Graph, str], str]:
    return lambda graph, x: graph.add("Mul", x, gate(graph, x))


HARD_SIGMOID = {"alpha": 1 / 6, "beta": 0.5}
FUNCTIONS: dict[str, Callable[..., str]] = {
    "linear": lambda graph, x: x,
    "relu": _relu,
    "relu6": lambda graph, x: graph.add("Clip", x, 0.0, 6.0),
    "leaky_relu": lambda graph, x, negative_slope=0.2: graph.add("LeakyRelu", x, alpha=float(negative_slope)),
    "elu": lambda graph, x, alpha=1.0: graph.add("Elu", x, alpha=float(alpha)),
    "celu": lambda graph, x, alpha=1.0: graph.add("Celu", x, alpha=float(alpha)),
    "selu": _plain("Selu", alpha=1.6732632423543772, gamma=1.0507009873554805),
    "gelu": _gelu,
    "silu": _gated(_plain("Sigmoid")),
    "mish": _gated(lambda graph, x: graph.add("Tanh", graph.add("Softplus", x))),
    "hard_sigmoid": _plain("HardSigmoid", **HARD_SIGMOID),
    "hard_silu": _gated(_plain("HardSigmoid", **HARD_SIGMOID)),
    "hard_tanh": lambda graph, x: graph.add("Clip", x, -1.0, 1.0),
    "tanh_shrink": lambda graph, x: graph.add("Sub", x, graph.add("Tanh", x)),
    "log_sigmoid": lambda graph, x: graph.add("Neg", graph.add("Softplus", graph.add("Neg", x))),
    "softmax": lambda graph, x, axis=-1: graph.add("Softmax", x, axis=axis),
    "log_softmax": lambda graph, x, axis=-1: graph.add("LogSoftmax", x, axis=axis),
    "square": lambda graph, x: graph.add("Mul", x, x),
    "clip": lambda graph, x, x_min, x_max: graph.add("Min", graph.add("Max", x, x_min), x_max),
    "transpose": lambda graph, x, axes: graph.add("Transpose", x, perm=axes),
    "expand_dims": lambda graph, x, axis: graph.add("Unsqueeze", x, _whole(axis)),
    "mean": lambda graph, x, axis, keepdims: _reduced(graph, "ReduceMean", x, axis, keepdims),
    "max": lambda graph, x, axis, keepdims: _reduced(graph, "ReduceMax", x, axis, keepdims),
    "min": lambda graph, x, axis, keepdims: _reduced(graph, "ReduceMin", x, axis, keepdims),
    **{name.lower(): _plain(name) for name in ("Tanh", "Sigmoid", "Softplus", "Softsign", "Exp", "Log", "Sqrt", "Sin")},
    **{"cos": _plain("Cos"), "sign": _plain("Sign"), "absolute": _plain("Abs"), "abs": _plain("Abs")},
    **{"negative": _plain("Neg"), "reciprocal": _plain("Reciprocal"), "exponential": _plain("Exp")},
}
"""ONNX operators by Keras's name of the function; parameters are attributes of the layer or operation."""
OPERATORS = {"Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "TrueDivide": "Div", "Power": "Pow"}
OPERATORS |= {"Maximum": "Max", "Minimum": "Min", "Matmul": "MatMul"}
NOTHING = {"Dropout", "SpatialDropout1D", "SpatialDropout2D", "GaussianNoise", "GaussianDropout", "AlphaDropout"}
NOTHING |= {"ActivityRegularization", "Identity", "InputLayer"}


def _reduced(graph: Graph, operator: str, x: str, axis: Any, keepdims: bool) -> str:
    if axis is None:
        raise _refusal(graph, "reduces the batch, too")
    return str(graph.add(operator, x, axes=[axis] if isinstance(axis, int) else list(axis), keepdims=int(keepdims)))


def _refusal(graph: Graph, reason: str) -> ForeignError:
    return ForeignError(f"the layer {printable(graph.layer)} {reason}, for which there is no ONNX.", OTHER_OUTPUT)


def _activated(graph: Graph, op: Any, x: str) -> str:
    """Behind the function or layer that a layer has as its activation."""
    import keras

    function = op.activation
    if isinstance(function, keras.layers.Layer):
        return str(_translated(graph, function, [x], None))
    name = getattr(function, "__name__", type(function).__name__)
    if name not in FUNCTIONS or getattr(keras.activations, name, None) is not function:
        raise _refusal(graph, f"has the activation {printable(name)}")
    if name == "softmax":
        graph.before_softmax[x] = op
    return FUNCTIONS[name](graph, x)


def _dense(graph: Graph, layer: Any, x: str) -> str:
    made = graph.add("MatMul", x, _array(layer.kernel))
    return _activated(graph, layer, graph.add("Add", made, _array(layer.bias)) if layer.use_bias else made)


def _windows(graph: Graph, layer: Any, operator: str, x: str, *others: Any, window: Any = None, **settings: Any) -> str:
    """A convolution or pooling; ONNX has channels first."""
    size, strides = (list(each) for each in (window or layer.kernel_size, layer.strides))
    sides, dilation = len(size), list(getattr(layer, "dilation_rate", ())) or [1] * len(size)
    padding: dict[str, Any] = {"auto_pad": {"same": "SAME_UPPER", "valid": "VALID"}.get(layer.padding, "NOTSET")}
    if layer.padding == "causal":
        padding["pads"] = [(size[0] - 1) * dilation[0], 0]
    settings |= {"dilations": dilation} if operator == "Conv" else {}
    last = layer.data_format == "channels_last"
    x = graph.add("Transpose", x, perm=[0, sides + 1, *range(1, sides + 1)]) if last else x
    x = graph.add(operator, x, *others, kernel_shape=size, strides=strides, **padding, **settings)
    return str(graph.add("Transpose", x, perm=[0, *range(2, sides + 2), 1]) if last else x)


def _convolution(graph: Graph, layer: Any, x: str) -> str:
    kernel = _array(layer.kernel)
    sides, groups = kernel.ndim - 2, getattr(layer, "groups", 1)
    if hasattr(layer, "depth_multiplier"):  # (side, side, in, multiplier): each channel by itself
        groups, kernel = kernel.shape[-2], kernel.reshape(*kernel.shape[:-2], 1, -1)
    weights = [kernel.transpose(sides + 1, sides, *range(sides)), *([_array(layer.bias)] if layer.use_bias else [])]
    return _activated(graph, layer, _windows(graph, layer, "Conv", x, *weights, group=groups))


def _pooling(operator: str) -> Callable[..., str]:
    return lambda graph, layer, x: _windows(graph, layer, operator, x, window=layer.pool_size)


def _global_pooling(operator: str) -> Callable[..., str]:
    def translated(graph: Graph, layer: Any, x: str) -> str:
        sides = layer.input_spec.ndim - 2
        first = 1 if layer.data_format == "channels_last" else 2
        return _reduced(graph, operator, x, tuple(range(first, first + sides)), layer.keepdims)

    return translated


def _normalization(graph: Graph, layer: Any, x: str) -> str:
    mean, deviation = _array(layer.mean), np.maximum(np.sqrt(_array(layer.variance)), np.float32(1e-7))
    if layer.invert:
        return str(graph.add("Add", graph.add("Mul", x, deviation), mean))
    return str(graph.add("Div", graph.add("Sub", x, mean), deviation))


def _batch_normalization(graph: Graph, layer: Any, x: str) -> str:
    if layer.axis not in (-1, layer.input_spec.ndim - 1):
        raise _refusal(graph, f"has the axis {layer.axis}")
    scale = 1 / np.sqrt(_array(layer.moving_variance).astype(np.float64) + layer.epsilon)
    scale = scale * _array(layer.gamma) if layer.scale else scale
    offset = -_array(layer.moving_mean) * scale + (_array(layer.beta) if layer.center else 0.0)
    return str(graph.add("Add", graph.add("Mul", x, scale), offset))


def _layer_normalization(graph: Graph, layer: Any, x: str, shape: tuple[int, ...]) -> str:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if axes not in ([-1], [len(shape) - 1]) or getattr(layer, "rms_scaling", False):
        raise _refusal(graph, f"has the axis {layer.axis}, or rms_scaling")
    gamma = _array(layer.gamma) if layer.scale else np.ones(shape[-1])
    beta = _array(layer.beta) if layer.center else np.zeros(shape[-1])
    return str(graph.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=float(layer.epsilon)))


def _shaped(graph: Graph, op: Any, x: str, shape: tuple[int | None, ...]) -> str:
    return str(graph.add("Reshape", x, _whole(0, *(-1 if side is None else side for side in shape[1:]))))


GATES = {"LSTM": ("LSTM", (0, 3, 1, 2)), "GRU": ("GRU", (0, 1, 2)), "SimpleRNN": ("RNN", (0,))}
"""The operator, and the numbers of Keras's gates in ONNX's order."""
GATE_FUNCTIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "softsign": "Softsign"}


def _recurrent(graph: Graph, layer: Any, x: str, *states: str) -> Any:
    operator, order = GATES[type(layer).__name__]
    functions = [getattr(layer, "recurrent_activation", None), *[layer.activation] * (2 if operator == "LSTM" else 1)]
    names = [function.__name__ for function in functions if function is not None]
    if layer.stateful or layer.go_backwards or not GATE_FUNCTIONS.keys() >= set(names):
        raise _refusal(graph, f"is stateful, goes backwards or has the activations {', '.join(map(printable, names))}")

    def gates(values: np.ndarray) -> np.ndarray:
        parts = np.split(values, len(order), axis=-1)
        return np.concatenate([parts[number] for number in order], axis=-1)

    bias = np.zeros((2, len(order) * layer.units), np.float32)
    if layer.use_bias:
        given = _array(layer.cell.bias)
        bias[: given.ndim] = gates(given)
    weights = [gates(_array(each)).T[None] for each in (layer.cell.kernel, layer.cell.recurrent_kernel)]
    initial = [graph.add("Unsqueeze", state, _whole(0)) for state in states]
    every, *last = graph.add(
        operator,
        graph.add("Transpose", x, perm=[1, 0, 2]),
        *(*weights, bias.reshape(1, -1), *(["", *initial] if initial else [])),
        outputs=3 if operator == "LSTM" else 2,
        hidden_size=layer.units,
        activations=[GATE_FUNCTIONS[name] for name in names],
        **({"linear_before_reset": int(layer.reset_after)} if operator == "GRU" else {}),
    )
    following = [graph.add("Squeeze", state, _whole(0)) for state in last]
    rows = graph.add("Transpose", graph.add("Squeeze", every, _whole(1)), perm=[1, 0, 2])
    made = rows if layer.return_sequences else following[0]
    return (made, *following) if layer.return_state else made


def _selected(graph: Graph, x: str, key: Any, rank: int) -> str:
    """x[key], of whole numbers, slices and an ellipsis."""
    keys = list(key) if isinstance(key, tuple | list) else [key]
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (rank - len(keys) + 1)
    dropped = []
    for axis, each in enumerate(keys):
        if isinstance(each, int):
            dropped.append(axis)
            each = slice(each, each + 1 or None)
        if not isinstance(each, slice) or (each.step or 1) < 1:
            raise _refusal(graph, f"selects by {printable(str(each))}")
        if each != slice(None):
            ends = _whole(each.start or 0), _whole(2**31 if each.stop is None else each.stop)
            x = graph.add("Slice", x, *ends, _whole(axis), _whole(each.step or 1))
    return str(graph.add("Squeeze", x, _whole(*dropped)) if dropped else x)


LAYERS: dict[str, Callable[..., Any]] = {
    "Dense": _dense,
    "Activation": _activated,
    **dict.fromkeys(("Conv1D", "Conv2D", "DepthwiseConv1D", "DepthwiseConv2D"), _convolution),
    **dict.fromkeys(("MaxPooling1D", "MaxPooling2D"), _pooling("MaxPool")),
    **dict.fromkeys(("AveragePooling1D", "AveragePooling2D"), _pooling("AveragePool")),
    **dict.fromkeys(("GlobalMaxPooling1D", "GlobalMaxPooling2D"), _global_pooling("ReduceMax")),
    **dict.fromkeys(("GlobalAveragePooling1D", "GlobalAveragePooling2D"), _global_pooling("ReduceMean")),
    **dict.fromkeys(GATES, _recurrent),
    "Normalization": _normalization,
    "BatchNormalization": _batch_normalization,
    "Rescaling": lambda graph, op, x: graph.add("Add", graph.add("Mul", x, _array(op.scale)), _array(op.offset)),
    "PReLU": lambda graph, op, x: graph.add("PRelu", x, _array(op.alpha)),
    "Permute": lambda graph, op, x: graph.add("Transpose", x, perm=[0, *op.dims]),
}
CLASSES = {"ReLU": "relu", "LeakyReLU": "leaky_relu", "ELU": "elu"}


def _translated(graph: Graph, op: Any, given: list[Any], shape: Any) -> Any:
    """The names of the ONNX tensors of a call of a layer or operation."""
    import keras

    kind, is_layer = type(op).__name__, isinstance(op, keras.layers.Layer)
    name = CLASSES.get(kind) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    if not type(op).__module__.startswith("keras.src."):
        raise _refusal(graph, f"is a {printable(kind)}, which is not Keras's own")
    if is_layer and kind in NOTHING:
        return given[0]
    if is_layer and kind in LAYERS:
        return LAYERS[kind](graph, op, *given)
    if kind in OPERATORS or (kind == "Average" and is_layer):
        made = given[0]
        for each in given[1:]:
            made = graph.add(OPERATORS.get(kind, "Add"), made, each)
        return graph.add("Mul", made, 1 / len(given)) if kind == "Average" else made
    if kind == "Concatenate":
        return graph.add("Concat", *given, axis=op.axis)
    if kind == "LayerNormalization":
        return _layer_normalization(graph, op, given[0], shape)
    if kind in ("Flatten", "Reshape", "Squeeze"):
        return _shaped(graph, op, given[0], shape)
    if name not in FUNCTIONS:
        raise _refusal(graph, f"is a {printable(kind)}")
    if name == "softmax":
        graph.before_softmax[given[0]] = op
    settings = list(inspect.signature(FUNCTIONS[name]).parameters)[2:]
    return FUNCTIONS[name](graph, *given[:1], **{each: getattr(op, each) for each in settings if hasattr(op, each)})


def _emit(graph: Graph, op: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call makes, as Keras's symbolic tensors that have the names of the ONNX tensors."""
    import keras

    spec = op.compute_output_spec(*args, **kwargs)
    shapes = [made.shape for made in keras.tree.flatten(spec)]
    given = [x for x in keras.tree.flatten((args, kwargs)) if x is not None and not isinstance(x, bool | str)]
    names = [x.name if isinstance(x, keras.KerasTensor) else x for x in given]
    graph.layer = op.name
    failed = [graph.refused[name] for name in names if isinstance(name, str) and name in graph.refused]
    made: Any
    try:
        if failed:
            raise failed[0]
        if type(op).__name__ == "GetItem":
            made = _selected(graph, names[0], args[1], len(args[0].shape))
        else:
            made = _translated(graph, op, names, shapes[0])
    except ForeignError as error:
        made = tuple(f"{op.name}/{len(graph.refused)}:{number}" for number in range(len(shapes)))
        graph.refused |= dict.fromkeys(made, error)
    found = [made] if isinstance(made, str) else made
    tensors = [keras.KerasTensor(shape, name=name) for name, shape in zip(found, shapes, strict=True)]
    return keras.tree.pack_sequence_as(spec, tensors)


def walk(model: Any, inputs: Any, call: Callable[..., Any]) -> Any:
    """A model's outputs, each layer and operation in it called by ``call``; models inside it are walked, too."""
    import keras

    def called(op: Any, *args: Any, **kwargs: Any) -> Any:
        return walk(op, args[0], call) if isinstance(op, keras.Model) else call(op, *args, **kwargs)

    if isinstance(model, keras.Sequential):
        for layer in model.layers:
            inputs = called(layer, inputs)
        return inputs
    if type(model).__name__ != "Functional":
        raise ForeignError(f"the model is a {printable(type(model).__name__)}.", "Build it of keras.Model and layers.")
    return model._run_through_graph(inputs, operation_fn=lambda op: partial(called, op))


def load(path: Path) -> tuple[Any, tuple[str, ...]]:
    """The model in a file that was checked, computing in float32; and the other types that its layers named."""
    import keras

    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ForeignError(f"{path.name} holds no model with inputs.", "Begin it with keras.Input(shape), and save it.")
    others = set()
    for layer in model._flatten_layers():
        if layer.dtype_policy.name not in ("float32", "uint8"):
            others.add(layer.dtype_policy.name)
            layer.dtype_policy = "float32"
    return model, tuple(sorted(others))


def names_of(model: Any) -> tuple[list[str], list[str]]:
    """The inputs' names and the outputs': a dictionary's keys, else the layers'; the only input's if Keras made it up."""
    inputs = [tensor.name for tensor in model.inputs]
    if len(inputs) == 1 and re.fullmatch(r"(input|input_layer|keras_tensor)(_\d+)?|.*_input", inputs[0]):
        inputs = ["observation"]
    made = getattr(model, "_outputs_struct", None)
    layers = [tensor._keras_history.operation.name for tensor in model.outputs]
    outputs = sorted(made) if isinstance(made, dict) and len(made) == len(layers) else layers
    return inputs, [name if outputs.count(name) == 1 else f"{name}_{at}" for at, name in enumerate(outputs)]


def convert(model: Any, output: str | None = None) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model's ONNX graph, and the layers or operations whose softmax takes a tensor, by its name.

    Args:
        model: Sequential or Functional.
        output: the one that has to be in it; None: all of them.

    Raises:
        ForeignError: there is no such output, or no ONNX operator for a layer that it needs; names the layer.
    """
    import keras

    graph = Graph()
    inputs, outputs = names_of(model)
    if output is not None and output not in outputs:
        message = f"--output {printable(output)}: the model has the outputs {', '.join(map(printable, outputs))}."
        raise ForeignError(message, "Give one of them.")
    fed, values = [], []
    for name, tensor in zip(inputs, model.inputs, strict=True):
        is_image = str(tensor.dtype) == "uint8"
        graph.layer = name
        values.append(keras.KerasTensor(tensor.shape, name=graph.add("Cast", name, to=1) if is_image else name))
        kind = TensorProto.UINT8 if is_image else TensorProto.FLOAT
        fed.append(helper.make_tensor_value_info(name, kind, _sides(name, tensor)))
    structure = values if len(values) > 1 else values[0]
    made = keras.tree.flatten(walk(model, structure, partial(_emit, graph)))
    results = []
    for name, tensor in zip(outputs, made, strict=True):
        if tensor.name in graph.refused:
            if output in (None, name):
                raise graph.refused[tensor.name]
            continue
        graph.nodes.append(helper.make_node("Identity", [tensor.name], [name], name=name))
        results.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, _sides(name, tensor)))
    order = [each for node in graph.nodes for each in node.input]
    fed.sort(key=lambda value: order.index(value.name) if value.name in order else len(order))
    part = helper.make_graph(graph.nodes, "policy", fed, results, graph.constants)
    part = helper.make_model(part, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return part, graph.before_softmax


def _sides(name: str, tensor: Shaped) -> list[int | str]:
    """A tensor's shape, with names for the sides that are left open."""
    return [side or ("batch" if axis == 0 else f"{name}_{axis}") for axis, side in enumerate(tensor.shape)]


def answer(model: Any, fed: dict[str, np.ndarray], before: Any = None) -> list[Floats]:
    """Keras's outputs for inputs (batch, …); alone what a softmax takes, if its layer or operation is given."""
    import keras

    found: list[Any] = []

    def call(op: Any, *args: Any, **kwargs: Any) -> Any:
        if op is not before:
            return op(*args, **kwargs)
        if not hasattr(op, "activation"):
            found.append(args[0])
            return args[0]
        kept, op.activation = op.activation, keras.activations.linear
        found.append(op(*args, **kwargs))
        op.activation = kept
        return found[-1]

    values = [
        keras.ops.convert_to_tensor(fed[name], dtype=tensor.dtype)
        for name, tensor in zip(names_of(model)[0], model.inputs, strict=True)
    ]
    structure = values if len(values) > 1 else values[0]
    made = model(structure, training=False) if before is None else walk(model, structure, call)
    return [_array(each) for each in found or keras.tree.flatten(made)]


def compare(model: Any, part: onnx.ModelProto) -> float:
    """The largest difference of onnxruntime's outputs from Keras's, near zero and far, as a share of their span.

    Raises:
        ForeignError: they differ by more than the roundings of float32.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs, random, worst = names_of(model)[1], np.random.default_rng(0), 0.0
    for scale in SCALES:
        fed = {}
        for value in part.graph.input:
            tensor = value.type.tensor_type
            shape = [1 if each.dim_value == 1 else each.dim_value or 4 for each in tensor.shape.dim]
            rows = random.normal(0.0, scale, shape).astype(np.float32)
            is_image = tensor.elem_type == TensorProto.UINT8
            fed[value.name] = random.integers(0, 256, shape).astype(np.uint8) if is_image else rows
        wanted = dict(zip(outputs, answer(model, fed), strict=True))
        names = [value.name for value in part.graph.output]
        for name, ours in zip(names, session.run(names, fed), strict=True):
            theirs = wanted[name]
            if ours.shape != theirs.shape or not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
                raise _differs(name, f"the shapes {ours.shape} and {theirs.shape}, or what is not finite")
            finite = theirs[np.isfinite(theirs)].astype(np.float64)
            if not finite.size:
                continue
            largest = np.abs(finite).max()
            apart = np.abs(ours[np.isfinite(ours)] - finite).max()
            if apart > TOLERANCE * np.ptp(finite) + ROUNDING * max(largest, 1e-3):
                raise _differs(name, f"{apart:.2g}, where the largest output is {largest:.2g}")
            worst = max(worst, float(apart / (np.ptp(finite) or largest or 1.0)))
    return worst


def _differs(name: str, how: str) -> ForeignError:
    message = f"The ONNX of the output {printable(name)} does not compute what Keras computes ({how})."
    return ForeignError(message, "This is a mistake of the reader: please report the file.")


def _serve(path: Path, output: str | None) -> Iterator[dict[str, Any]]:
    """A reply on the file, whose ONNX then lies beside it; then one for each request, a line on standard input.

    A request says which inputs are the columns of rows.npy, in order, and which output or softmax's operand
    outputs.npy shall hold.
    """
    for limit, most in ((resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_AS, ADDRESS_SPACE_BYTES)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    check(read_untrusted(path), path.name)
    import keras

    sys.addaudithook(_only_in(path.parent))
    model, halved = load(path)
    part, before = convert(model, output)
    compare(model, part)
    path.with_name("policy.onnx").write_bytes(part.SerializeToString())
    names, outputs = names_of(model)
    sizes = {name: tensor.shape[1:] for name, tensor in zip(names, model.inputs, strict=True)}
    yield {"keras": keras.__version__, "halved": halved, "inputs": names, "outputs": [*outputs, *before]}
    for line in sys.stdin:
        request = json.loads(line)
        rows = np.load(path.with_name("rows.npy"), allow_pickle=False)
        ends = np.cumsum([math.prod(sizes[name]) for name in request["inputs"]])
        made = []
        for start in range(0, len(rows), ROWS):
            some = rows[start : start + ROWS]
            parts = dict(zip(request["inputs"], np.split(some, ends[:-1], axis=1), strict=True))
            fed = {name: parts.get(name, np.zeros((len(some), math.prod(shape)))) for name, shape in sizes.items()}
            fed = {name: values.reshape(len(some), *sizes[name]) for name, values in fed.items()}
            tensor = request["output"]
            number = outputs.index(tensor) if tensor in outputs else 0
            found = answer(model, fed, None if tensor in outputs else before[tensor])
            made.append(found[number].reshape(len(some), -1))
        np.save(path.with_name("outputs.npy"), np.concatenate(made))
        yield {}


def _only_in(folder: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook (PEP 578) that leaves a file no network, no other program, and no file to write elsewhere."""

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[0], str) and int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        inside = writes and (Path(arguments[0]).is_relative_to(folder) or arguments[0] == os.devnull)
        if event in REFUSED_EVENTS or (writes and not inside):
            raise PermissionError(f"{event} {str(arguments[:1])[:100]}, which loading a model does not need")

    return heard


REFUSED_EVENTS = {"socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen", "os.system", "os.exec"}
REFUSED_EVENTS |= {"os.posix_spawn", "os.fork", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link"}


def main() -> None:
    """Reply in JSON lines; what Keras prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    path = Path(sys.argv[1])
    try:
        for reply in _serve(path, sys.argv[2] if len(sys.argv) > 2 else None):
            print(json.dumps(reply), file=replies)
    except ForeignError as error:
        print(json.dumps({"error": [error.message, error.next_step]}), file=replies)
    except Exception as error:  # Keras and TensorFlow raise whatever they like
        message = f"Keras does not load {path.name} ({type(error).__name__}: {printable(str(error))})."
        step = "Does keras.saving.load_model(FILE) read it? A class or function of one's own is never run."
        print(json.dumps({"error": [message, step]}), file=replies)


if __name__ == "__main__":
    main()
