"""Keras loads a stranger's file here and writes it as ONNX; keras.py starts this process in a folder of its own.

Each layer becomes ONNX operators of its equation; one without is refused by its name. onnxruntime's outputs are
compared with Keras's, near zero and far: python -m quarl.convert.importers.keras_to_onnx FOLDER/policy.keras [OUTPUT]
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
import zipfile
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
LIMITS = {resource.RLIMIT_CPU: 600, resource.RLIMIT_AS: 16 * 2**30, resource.RLIMIT_FSIZE: 2**31}
"""Seconds and bytes; TensorFlow alone reserves some 4 GiB of addresses, which it never fills."""
REFUSED_EVENTS = {"socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"}
REFUSED_EVENTS |= {"os.posix_spawn", "os.fork", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link"}
COMPARED_ROWS = 13
MOST_CONFIG_BYTES = 2**24
ANOTHER = "Build the policy of other layers, or type --output NAME with an output that does not need it."


def check(data: bytes, name: str) -> None:
    """Refuse a file before Keras sees it that points out of itself, is too large unpacked, holds weights alone, or
    holds a function that Keras 3 computes otherwise than Keras 2, which wrote it."""
    if name.endswith(".keras"):
        members = open_zip(data, name)
        if "config.json" not in members.names:
            raise ForeignError(f"{name} is a zip without config.json.", "If another program wrote it, use its ending.")
        for member in members.names:
            if member.endswith((".h5", ".hdf5")):
                _check_hdf5(members.read(member), f"{name}'s {printable(member)}")
        config = members.read("config.json", MOST_CONFIG_BYTES).decode()
        version = json.loads(members.read("metadata.json", MOST_CONFIG_BYTES))["keras_version"]
    else:
        config, version = _check_hdf5(data, name)
        if config is None:
            step = "Build the model in Python as it was, then: model.load_weights(FILE); model.save('policy.keras')."
            raise ForeignError(f"{name} holds weights alone, without the model's layers.", step)
    if not str(version).startswith("3") and '"hard_sigmoid"' in str(config):
        step = "Build it with sigmoid, or write it as ONNX with Keras 2 and tf2onnx."
        raise ForeignError(f"{name} has Keras 2's hard_sigmoid, of which Keras 3 computes another slope.", step)


def _check_hdf5(data: bytes, what: str) -> tuple[Any, Any]:
    """The config of the model that an HDF5 file holds, and Keras's version, if there is one."""
    import h5py

    size, seen = 0, set[int]()
    with h5py.File(io.BytesIO(data), "r") as file:
        waiting = [file]
        while waiting:
            group = waiting.pop()
            for name in group:
                is_inside = isinstance(group.get(name, getlink=True), h5py.HardLink)
                item: Any = group[name] if is_inside else None
                address = h5py.h5o.get_info(item.id).addr if is_inside else 0
                if isinstance(item, h5py.Dataset):
                    is_inside = not (item.external or item.is_virtual)
                    size += max(item.size or 0, math.prod(item.chunks or ())) * item.dtype.itemsize
                else:
                    waiting.append(item)
                if not is_inside or address in seen:
                    raise ForeignError(f"{what} has {printable(name)} in another file, or twice.", NEXT_STEP)
                seen.add(address)
                if size > MOST_BYTES:
                    raise ForeignError(f"{what} would have more than {MOST_BYTES} bytes unpacked.", NEXT_STEP)
        return file.attrs.get("model_config"), file.attrs.get("keras_version")


class Graph:
    """ONNX nodes as they are added, for the layer of that name.

    ``refused`` says why a tensor has no node; ``softmax`` has the layer whose softmax takes a tensor.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.refused: dict[str, ForeignError] = {}
        self.softmax: dict[str, Any] = {}
        self.layer = ""

    def add(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """The name of a new node's output, or several; inputs that are no names are constants."""
        names = []
        for value in inputs:
            if not isinstance(value, str):
                array = np.asarray(value, np.int64 if getattr(value, "dtype", None) == np.int64 else np.float32)
                self.constants.append(numpy_helper.from_array(array, f"{self.layer}/constant_{len(self.constants)}"))
            names.append(value if isinstance(value, str) else self.constants[-1].name)
        stem = f"{self.layer}/{operator}_{len(self.nodes)}"
        made = [f"{stem}:{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, names, made, name=stem, **attributes))
        return made if outputs > 1 else made[0]

    def refusal(self, reason: str) -> ForeignError:
        """That the layer cannot be written."""
        return ForeignError(f"the layer {printable(self.layer)} {reason}, for which there is no ONNX.", ANOTHER)


def _whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _array(weight: Any) -> Floats:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(weight), np.float32)


def _relu(graph: Graph, x: str, negative_slope: float = 0, max_value: float | None = None, threshold: float = 0) -> Any:
    if threshold:
        raise graph.refusal(f"has the threshold {threshold}")
    made = graph.add("LeakyRelu", x, alpha=float(negative_slope)) if negative_slope else graph.add("Relu", x)
    return made if max_value is None else graph.add("Min", made, max_value)


def _gelu(graph: Graph, x: str, approximate: bool = False) -> Any:
    if approximate:
        raise graph.refusal("is an approximate GELU")
    inner = graph.add("Erf", graph.add("Mul", x, 1 / math.sqrt(2)))  # x/2 (1 + erf(x/√2))
    return graph.add("Mul", graph.add("Mul", x, 0.5), graph.add("Add", inner, 1.0))


def _reduced(operator: str) -> Callable[..., Any]:
    def reduced(graph: Graph, x: str, axis: Any, keepdims: bool) -> Any:
        if axis is None:
            raise graph.refusal("reduces the batch, too")
        return graph.add(operator, x, axes=[axis] if isinstance(axis, int) else list(axis), keepdims=int(keepdims))

    return reduced


PLAIN = "relu6 tanh sigmoid softplus softsign exp log sqrt sin cos sign abs neg reciprocal"
HARD = {"alpha": 1 / 6, "beta": 0.5}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: partial(lambda graph, x, operator: graph.add(operator, x), operator=name.capitalize())
       for name in PLAIN.split()},
    "linear": lambda graph, x: x,
    "relu": _relu,
    "relu6": lambda graph, x: graph.add("Clip", x, 0.0, 6.0),
    "leaky_relu": lambda graph, x, negative_slope=0.2: graph.add("LeakyRelu", x, alpha=float(negative_slope)),
    "elu": lambda graph, x, alpha=1.0: graph.add("Elu", x, alpha=float(alpha)),
    "selu": lambda graph, x: graph.add("Selu", x),
    "gelu": _gelu,
    "silu": lambda graph, x: graph.add("Mul", x, graph.add("Sigmoid", x)),
    "mish": lambda graph, x: graph.add("Mul", x, graph.add("Tanh", graph.add("Softplus", x))),
    "hard_sigmoid": lambda graph, x: graph.add("HardSigmoid", x, **HARD),
    "hard_silu": lambda graph, x: graph.add("Mul", x, graph.add("HardSigmoid", x, **HARD)),
    "softmax": lambda graph, x, axis=-1: graph.add("Softmax", x, axis=axis),
    "log_softmax": lambda graph, x, axis=-1: graph.add("LogSoftmax", x, axis=axis),
    "square": lambda graph, x: graph.add("Mul", x, x),
    "clip": lambda graph, x, x_min, x_max: graph.add("Min", graph.add("Max", x, x_min), x_max),
    "mean": _reduced("ReduceMean"),
    "max": _reduced("ReduceMax"),
}  # fmt: skip
"""Of a tensor; parameters are attributes of Keras's layer or operation."""
ALIASES = {"ReLU": "relu", "LeakyReLU": "leaky_relu", "ELU": "elu", "absolute": "abs", "negative": "neg"}
ALIASES |= {"exponential": "exp"}
OPERATORS = {"Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "TrueDivide": "Div", "Power": "Pow"}
OPERATORS |= {"Maximum": "Max", "Minimum": "Min", "Average": "Add"}


def _activated(graph: Graph, op: Any, shape: Any, x: str) -> Any:
    import keras

    function = op.activation
    if isinstance(function, keras.layers.Layer):
        return _translated(graph, function, shape, [x])
    name = getattr(function, "__name__", type(function).__name__)
    if getattr(keras.activations, name, None) is not function:
        raise graph.refusal(f"has the activation {printable(name)}")
    return _applied(graph, op, name, x, {})


def _applied(graph: Graph, op: Any, name: str, x: str, settings: dict[str, Any]) -> Any:
    name = ALIASES.get(name, name)
    if name not in FUNCTIONS:
        raise graph.refusal(f"is or has {printable(name)}")
    if name == "softmax":
        graph.softmax[x] = op
    return FUNCTIONS[name](graph, x, **settings)


def _dense(graph: Graph, op: Any, shape: Any, x: str) -> Any:
    made = graph.add("MatMul", x, _array(op.kernel))
    return _activated(graph, op, shape, graph.add("Add", made, _array(op.bias)) if op.use_bias else made)


def _windows(graph: Graph, op: Any, operator: str, x: str, *others: Any, size: Any, **settings: Any) -> Any:
    """A convolution or pooling; ONNX has channels first."""
    sides = range(1, len(size) + 1)
    settings["auto_pad"] = {"same": "SAME_UPPER", "valid": "VALID"}.get(op.padding, "NOTSET")
    if op.padding == "causal":
        settings["pads"] = [(size[0] - 1) * op.dilation_rate[0], 0]
    if op.data_format != "channels_last":
        raise graph.refusal(f"has the data_format {op.data_format}")
    x = graph.add("Transpose", x, perm=[0, len(size) + 1, *sides])
    x = graph.add(operator, x, *others, kernel_shape=list(size), strides=list(op.strides), **settings)
    return graph.add("Transpose", x, perm=[0, *(side + 1 for side in sides), 1])


def _convolution(graph: Graph, op: Any, shape: Any, x: str) -> Any:
    kernel, sides, groups = _array(op.kernel), len(op.kernel_size), getattr(op, "groups", 1)
    if hasattr(op, "depth_multiplier"):  # (side, side, in, multiplier): each channel by itself
        groups, kernel = kernel.shape[-2], kernel.reshape(*kernel.shape[:-2], 1, -1)
    weights = [kernel.transpose(sides + 1, sides, *range(sides)), *([_array(op.bias)] if op.use_bias else [])]
    settings = {"size": op.kernel_size, "group": groups, "dilations": list(op.dilation_rate)}
    return _activated(graph, op, shape, _windows(graph, op, "Conv", x, *weights, **settings))


def _pooling(operator: str) -> Callable[..., Any]:
    return lambda graph, op, shape, x: _windows(graph, op, operator, x, size=op.pool_size)


def _global_pooling(operator: str) -> Callable[..., Any]:
    return lambda graph, op, shape, x: _reduced(operator)(graph, x, range(1, op.input_spec.ndim - 1), op.keepdims)


def _normalization(graph: Graph, op: Any, shape: Any, x: str) -> Any:
    mean, deviation = _array(op.mean), np.maximum(np.sqrt(_array(op.variance)), np.float32(1e-7))
    if op.invert:
        return graph.add("Add", graph.add("Mul", x, deviation), mean)
    return graph.add("Div", graph.add("Sub", x, mean), deviation)


def _batch_normalization(graph: Graph, op: Any, shape: Any, x: str) -> Any:
    scale = 1 / np.sqrt(_array(op.moving_variance).astype(np.float64) + op.epsilon)
    scale = scale * _array(op.gamma) if op.scale else scale
    offset = (_array(op.beta) if op.center else 0.0) - _array(op.moving_mean) * scale
    return graph.add("Add", graph.add("Mul", x, scale), offset)


def _layer_normalization(graph: Graph, op: Any, shape: Any, x: str) -> Any:
    gamma = _array(op.gamma) if op.scale else np.ones(shape[-1])
    beta = _array(op.beta) if op.center else np.zeros(shape[-1])
    return graph.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=float(op.epsilon))


GATES = {"LSTM": ("LSTM", (0, 3, 1, 2)), "GRU": ("GRU", (0, 1, 2)), "SimpleRNN": ("RNN", (0,))}
"""The operator, and the numbers of Keras's gates in ONNX's order."""


def _recurrent(graph: Graph, op: Any, shape: Any, x: str, *states: str) -> Any:
    operator, order = GATES[type(op).__name__]
    functions = [getattr(op, "recurrent_activation", op.activation), op.activation, op.activation]
    names = [function.__name__ for function in functions[: 1 if operator == "RNN" else len(order) - 1]]
    if op.stateful or op.go_backwards or not {"sigmoid", "tanh", "relu"} >= set(names):
        raise graph.refusal(
            f"is stateful, goes backwards or has an activation among {', '.join(map(printable, names))}"
        )

    def gates(values: np.ndarray) -> np.ndarray:
        return np.concatenate([np.split(values, len(order), axis=-1)[number] for number in order], axis=-1)

    bias = np.zeros((2, len(order) * op.units), np.float32)
    if op.use_bias:
        bias[: np.ndim(_array(op.cell.bias))] = gates(_array(op.cell.bias))
    weights = [gates(_array(each)).T[None] for each in (op.cell.kernel, op.cell.recurrent_kernel)]
    initial = [graph.add("Unsqueeze", state, _whole(0)) for state in states]
    given = [
        graph.add("Transpose", x, perm=[1, 0, 2]),
        *weights,
        bias.reshape(1, -1),
        *(["", *initial] * bool(initial)),
    ]
    settings = {"hidden_size": op.units, "activations": [name.capitalize() for name in names]}
    settings |= {"linear_before_reset": int(op.reset_after)} if operator == "GRU" else {}
    every, *last = graph.add(operator, *given, outputs=3 if operator == "LSTM" else 2, **settings)
    last = [graph.add("Squeeze", state, _whole(0)) for state in last]
    rows = graph.add("Transpose", graph.add("Squeeze", every, _whole(1)), perm=[1, 0, 2])
    made = rows if op.return_sequences else last[0]
    return [made, *last] if op.return_state else made


def _selected(graph: Graph, op: Any, shape: Any, x: str, *keys: Any) -> Any:
    """x[keys], of slices of a step of 1 and whole numbers."""
    dropped = []
    for axis, key in enumerate(keys):
        if isinstance(key, int):
            dropped.append(axis)
            key = slice(key, key + 1 or None)
        if not isinstance(key, slice) or key.step not in (None, 1):
            raise graph.refusal(f"selects by {printable(str(key))}")
        if key != slice(None):
            ends = key.start or 0, 2**31 if key.stop is None else key.stop
            x = graph.add("Slice", x, *map(_whole, (*ends, axis)))
    return graph.add("Squeeze", x, _whole(*dropped)) if dropped else x


def _shaped(graph: Graph, op: Any, shape: Any, x: str) -> Any:
    return graph.add("Reshape", x, _whole(0, *(side or -1 for side in shape[1:])))


NOTHING = ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "GaussianNoise", "GaussianDropout", "AlphaDropout")
LAYERS: dict[str, Callable[..., Any]] = {
    "Dense": _dense,
    "Activation": _activated,
    **dict.fromkeys((*NOTHING, "ActivityRegularization", "Identity"), lambda graph, op, shape, x: x),
    **dict.fromkeys(("Conv1D", "Conv2D", "DepthwiseConv1D", "DepthwiseConv2D"), _convolution),
    **dict.fromkeys(("MaxPooling1D", "MaxPooling2D"), _pooling("MaxPool")),
    **dict.fromkeys(("AveragePooling1D", "AveragePooling2D"), _pooling("AveragePool")),
    **dict.fromkeys(("GlobalMaxPooling1D", "GlobalMaxPooling2D"), _global_pooling("ReduceMax")),
    **dict.fromkeys(("GlobalAveragePooling1D", "GlobalAveragePooling2D"), _global_pooling("ReduceMean")),
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _recurrent),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "ExpandDims"), _shaped),
    "Normalization": _normalization,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Rescaling": lambda graph, op, _, x: graph.add("Add", graph.add("Mul", x, _array(op.scale)), _array(op.offset)),
    "PReLU": lambda graph, op, shape, x: graph.add("PRelu", x, _array(op.alpha)),
    "Permute": lambda graph, op, shape, x: graph.add("Transpose", x, perm=[0, *op.dims]),
    "Concatenate": lambda graph, op, shape, *xs: graph.add("Concat", *xs, axis=op.axis),
    "GetItem": _selected,
}


def _translated(graph: Graph, op: Any, shape: Any, given: list[Any]) -> Any:
    """The names of the ONNX tensors of a call of a layer or operation."""
    kind = type(op).__name__
    if not type(op).__module__.startswith("keras.src."):
        raise graph.refusal(f"is a {printable(kind)}, which is not Keras's own")
    if kind in LAYERS:
        return LAYERS[kind](graph, op, shape, *given)
    if kind in OPERATORS:
        made = given[0]
        for each in given[1:]:
            made = graph.add(OPERATORS[kind], made, each)
        return graph.add("Mul", made, 1 / len(given)) if kind == "Average" else made
    name = ALIASES.get(kind) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    wanted = list(inspect.signature(FUNCTIONS.get(ALIASES.get(name, name), _relu)).parameters)[2:]
    return _applied(graph, op, name, given[0], {each: getattr(op, each) for each in wanted if hasattr(op, each)})


def _emit(graph: Graph, op: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call makes, as Keras's symbolic tensors that have the names of the ONNX tensors."""
    import keras

    if isinstance(op, keras.Model):
        return walk(op, args[0], graph)
    spec = op.compute_output_spec(*args, **kwargs)
    shapes = [made.shape for made in keras.tree.flatten(spec)]
    given = [x for x in keras.tree.flatten((args, kwargs)) if x is not None and not isinstance(x, bool | str)]
    names = [x.name if isinstance(x, keras.KerasTensor) else x for x in given]
    graph.layer = op.name
    try:
        if failed := [graph.refused[name] for name in names if isinstance(name, str) and name in graph.refused]:
            raise failed[0]
        made = _translated(graph, op, shapes[0], names)
    except ForeignError as error:
        made = [f"{op.name}/{len(graph.refused)}:{number}" for number in range(len(shapes))]
        graph.refused |= dict.fromkeys(made, error)
    found = [made] if isinstance(made, str) else made
    tensors = [keras.KerasTensor(shape, name=name) for name, shape in zip(found, shapes, strict=True)]
    return keras.tree.pack_sequence_as(spec, tensors)


def walk(model: Any, inputs: Any, graph: Graph) -> Any:
    """Add a model's layers and operations to a graph, in their order; models inside it, too."""
    import keras

    if isinstance(model, keras.Sequential):
        for layer in model.layers:
            inputs = _emit(graph, layer, inputs)
        return inputs
    if type(model).__name__ != "Functional":
        raise ForeignError(f"the model is a {printable(type(model).__name__)}.", "Build it of keras.Model and layers.")
    return model._run_through_graph(inputs, operation_fn=lambda op: partial(_emit, graph, op))


def _modernise(path: Path) -> None:
    """Change what Keras 2 wrote and Keras 3 does not load."""
    import h5py

    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:  # 2.1: a Sequential model's layers without its name
            config = json.loads(file.attrs["model_config"])
            if isinstance(layers := config["config"], list):
                file.attrs["model_config"] = json.dumps({**config, "config": {"name": "policy", "layers": layers}})
        return
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    held = io.BytesIO(parts["model.weights.h5"])
    with h5py.File(held, "r+") as file:  # 2.15 on Windows: a backslash between a folder's name and a layer's
        for name in [name for name in file if "\\" in name]:
            file.move(name, name.replace("\\", "/"))
    # The input's shape in the first layer, too, where Keras 3 has it in the InputLayer alone, which has "sparse".
    config = json.loads(
        parts["config.json"],
        object_hook=lambda found: {k: v for k, v in found.items() if k != "batch_input_shape" or "sparse" in found},
    )
    parts |= {"model.weights.h5": held.getvalue(), "config.json": json.dumps(config).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def load(path: Path) -> tuple[Any, tuple[str, ...]]:
    """The model in a file that was checked, in float32; and the other types that its layers have."""
    import keras

    _modernise(path)
    model, others = keras.saving.load_model(path, compile=False, safe_mode=True), set()
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ForeignError(f"{path.name} holds no model with inputs.", "Begin it with keras.Input(shape), and save it.")
    for layer in model._flatten_layers():
        if layer.dtype_policy.name not in ("float32", "uint8"):
            others.add(layer.dtype_policy.name)
            layer.dtype_policy = "float32"
    return model, tuple(sorted(others))


def names_of(model: Any) -> tuple[list[str], list[str]]:
    """Inputs' and outputs' names: a dictionary's keys, else layers'; "observation" for one that Keras made up."""
    inputs, made = [tensor.name for tensor in model.inputs], getattr(model, "_outputs_struct", None)
    if len(inputs) == 1 and re.fullmatch(r"(input|input_layer|keras_tensor)(_\d+)?|.*_input", inputs[0]):
        inputs = ["observation"]
    layers = [tensor._keras_history.operation.name for tensor in model.outputs]
    return inputs, sorted(made) if isinstance(made, dict) and len(made) == len(layers) else layers


def convert(model: Any, output: str | None = None) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model's ONNX graph, and the layer whose softmax takes a tensor, by the tensor's name.

    Raises:
        ForeignError: ``output`` is none of the model's, or a layer that it (None: any output) needs has no ONNX.
    """
    import keras

    def declared(name: str, tensor: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        sides = [side or ("batch" if axis == 0 else f"{name}_{axis}") for axis, side in enumerate(tensor.shape)]
        return helper.make_tensor_value_info(name, kind, sides)

    graph, (inputs, outputs) = Graph(), names_of(model)
    if output is not None and output not in outputs:
        known = ", ".join(map(printable, outputs))
        raise ForeignError(f"--output {printable(output)}: the model has {known}.", "Give one of them.")
    fed, values, results = [], [], []
    for name, tensor in zip(inputs, model.inputs, strict=True):
        is_image, graph.layer = str(tensor.dtype) == "uint8", name
        values.append(keras.KerasTensor(tensor.shape, name=graph.add("Cast", name, to=1) if is_image else name))
        fed.append(declared(name, tensor, TensorProto.UINT8 if is_image else TensorProto.FLOAT))
    made = keras.tree.flatten(walk(model, values if len(values) > 1 else values[0], graph))
    for name, tensor in zip(outputs, made, strict=True):
        if tensor.name not in graph.refused:
            graph.nodes.append(helper.make_node("Identity", [tensor.name], [name], name=name))
            results.append(declared(name, tensor))
        elif output in (None, name):
            raise graph.refused[tensor.name]
    order = [each for node in graph.nodes for each in node.input]  # parts of an observation, as they are concatenated
    fed.sort(key=lambda value: order.index(value.name) if value.name in order else len(order))
    part = helper.make_graph(graph.nodes, "policy", fed, results, graph.constants)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(part, opset_imports=[opset], ir_version=IR_VERSION), graph.softmax


def answer(model: Any, fed: dict[str, np.ndarray]) -> dict[str, Floats]:
    """Keras's outputs (batch, …) for inputs of rows (batch, …), both by name; zeros where an input is left out."""
    import keras

    (inputs, outputs), rows = names_of(model), len(next(iter(fed.values())))
    values = []
    for name, tensor in zip(inputs, model.inputs, strict=True):
        shape = (rows, *(side or -1 for side in tensor.shape[1:])) if name in fed else (rows, *tensor.shape[1:])
        values.append(keras.ops.cast(fed[name].reshape(shape) if name in fed else np.zeros(shape), tensor.dtype))
    made = model(values if len(values) > 1 else values[0], training=False)
    return dict(zip(outputs, map(_array, keras.tree.flatten(made)), strict=True))


def compare(model: Any, part: onnx.ModelProto) -> None:
    """Raise ForeignError if onnxruntime's outputs differ from Keras's, near zero or far, by more than roundings."""
    import onnxruntime

    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    random, names = np.random.default_rng(0), [value.name for value in part.graph.output]
    for scale in SCALES:
        fed: dict[str, np.ndarray] = {}
        for value in part.graph.input:
            kind = value.type.tensor_type
            first, *sides = [side.dim_value for side in kind.shape.dim]
            shape = (first or COMPARED_ROWS, *(side or 4 for side in sides))
            is_image = kind.elem_type == TensorProto.UINT8
            fed[value.name] = random.integers(0, 256, shape) if is_image else random.normal(0.0, scale, shape)
            fed[value.name] = fed[value.name].astype(np.uint8 if is_image else np.float32)
        wanted = answer(model, fed)
        for name, ours in zip(names, session.run(names, fed), strict=True):
            theirs = wanted[name].astype(np.float64)
            finite = theirs[np.isfinite(theirs)]
            allowed = TOLERANCE * np.ptp(finite) + ROUNDING * max(np.abs(finite).max(), 1e-3) if finite.size else 0.0
            if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0, atol=allowed, equal_nan=True):
                message = f"The ONNX of the output {printable(name)} does not compute what Keras does at {scale}."
                raise ForeignError(message, "This is a mistake of the reader: please report the file.")


def _serve(path: Path, output: str | None) -> Iterator[dict[str, Any]]:
    """A reply on the file, whose ONNX then lies beside it, and one for each line of standard input: the name of an
    output, or of what its softmax takes, of which outputs.npy then has Keras's numbers for rows.npz."""
    for limit, most in LIMITS.items():
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    check(read_untrusted(path), path.name)
    import keras

    sys.addaudithook(partial(_audit, path.parent))
    model, others = load(path)
    part, softmax = convert(model, output)
    compare(model, part)
    path.with_name("policy.onnx").write_bytes(part.SerializeToString())
    outputs = [value.name for value in part.graph.output]
    yield {"keras": keras.__version__, "others": others, "outputs": [*outputs, *softmax]}
    for line in sys.stdin:
        name = json.loads(line)
        if name in softmax:  # what it takes is then the output
            op, name = softmax[name], output or outputs[0]
            if hasattr(op, "activation"):
                op.activation = keras.activations.linear
            else:
                op.call = lambda x, *_, **__: x
        with np.load(path.with_name("rows.npz"), allow_pickle=False) as rows:
            np.save(
                path.with_name("outputs.npy"),
                answer(model, {part.removeprefix("in "): rows[part] for part in rows})[name],
            )
        yield {}


def _audit(folder: Path, event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook (PEP 578): no network, no other program, no file that is written elsewhere."""
    writes = event == "open" and isinstance(arguments[0], str) and int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if event in REFUSED_EVENTS or (writes and not Path(arguments[0]).is_relative_to(folder)):
        raise PermissionError(f"{event} {str(arguments[:1])[:100]}, which no model needs")


def main() -> None:
    """Reply in JSON lines; what Keras prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        for reply in _serve(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None):
            print(json.dumps(reply), file=replies)
    except ForeignError as error:
        print(json.dumps({"error": [error.message, error.next_step]}), file=replies)
    except Exception as error:  # Keras and TensorFlow raise whatever they like
        message = f"Keras does not load the file ({type(error).__name__}: {printable(str(error))})."
        step = "Does keras.saving.load_model(FILE) read it? Code, classes and functions of one's own are never run."
        print(json.dumps({"error": [message, step]}), file=replies)


if __name__ == "__main__":
    main()
