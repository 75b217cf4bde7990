"""Keras itself as the measure: a model built again from settings that were checked, which loads the file's tensors.

Keras resolves whatever a config names, so that none of the file's own JSON reaches it: classes and modules are those of
:mod:`convert.importers.keras.graph`, settings are plain numbers and known words, and the tensors lie in a new file. How
layers are wired and which tensor is whose, Keras finds out by itself.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quarl.convert.importers.chain import Floats, ForeignError
from quarl.convert.importers.keras.graph import MODELS, OPERATIONS, Item, Model, Route, Tensor, numbers, own_settings
from quarl.convert.importers.keras.layers import FUNCTIONS, ORDER_ONLY, input_shape, square, whole
from quarl.policy.errors import PolicyError

ROWS = 256
"""Observations that Keras computes at once."""
MOST_FED = 2**24
"""Most elements of the observations that Keras computes at once, of all inputs together."""
MOST_WEIGHTS = 2**28
_KEPT = {
    *FUNCTIONS,
    *ORDER_ONLY,
    "softplus",
    "softsign",
    "gelu",
    "selu",
    "relu6",
    "hard_sigmoid",
    "exponential",
    "mish",
}
"""Keras's own functions, which other outputs of the model may have."""
_ACTIVATION_LAYERS = ("ReLU", "LeakyReLU", "ELU")


@dataclass(frozen=True)
class Rebuilt:
    """A model's config of checked values only.

    Attributes:
        config: for ``keras.Model.from_config``, as JSON values.
        inputs: names and shapes, in the model's order.
        outputs: in its order.
    """

    config: dict[str, Any]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Original:
    """Raw observations (batch, n) to outputs (batch, m) by Keras.

    Attributes:
        rebuilt: the model.
        tensors: of the file.
        inputs: names, in the observation's order.
        output: the chosen one.
    """

    rebuilt: Rebuilt
    tensors: Any
    inputs: tuple[str, ...]
    output: Tensor
    _model: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, observations: Floats) -> Floats:
        """The model's output for each observation.

        Raises:
            ForeignError: Keras does not build or run it.
        """
        rows = np.asarray(observations, np.float32)
        size = sum(math.prod(shape) for _, shape in self.rebuilt.inputs)
        step = max(1, min(ROWS, MOST_FED // size))
        try:
            model = self._opened()
            return np.concatenate([self._run(model, rows[at : at + step]) for at in range(0, len(rows), step)])
        except PolicyError:
            raise
        except Exception as error:  # Keras and TensorFlow raise whatever they like
            message = f"Keras does not run the file ({type(error).__name__}: {str(error)[:300]})."
            raise ForeignError(message, "Does keras.saving.load_model read it? Save it again.") from error

    def _run(self, model: Any, rows: Floats) -> Floats:
        shapes = dict(self.rebuilt.inputs)
        ends = np.cumsum([int(np.prod(shapes[name])) for name in self.inputs])
        parts = dict(zip(self.inputs, np.split(rows, ends[:-1], axis=1), strict=True))
        zeros = {name: np.zeros((len(rows), *shape), np.float32) for name, shape in self.rebuilt.inputs}
        fed = [parts.get(name, zeros[name]).reshape(len(rows), *shape) for name, shape in self.rebuilt.inputs]
        outputs = model(fed, training=False)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        chosen = outputs[self.rebuilt.outputs.index(self.output)]
        return np.asarray(chosen, np.float32).reshape(len(rows), -1)

    def _opened(self) -> Any:
        if not self._model:
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
            import keras

            model = keras.Model.from_config(self.rebuilt.config)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "policy.weights.h5"
                self.tensors.write(path)
                model.load_weights(path)
            self._model.append(model)
        return self._model[0]


def rebuilt(model: Model, way: Route, softmax: str) -> Rebuilt | None:
    """A model's config of checked values.

    Args:
        model: of the file; its other outputs may have layers that are not read.
        way: to the output that is read.
        softmax: the layer whose softmax is left out.

    Returns:
        None if a layer anywhere in it is not known, or those off the way could be larger than MOST_WEIGHTS.
    """
    try:
        if _weights_off(model, way) > MOST_WEIGHTS:
            return None
        config = _config(model, softmax)
        inputs = tuple((name, input_shape(model.item(name))) for name in model.inputs)
    except (PolicyError, ValueError):
        return None
    return Rebuilt(config, inputs, tuple(tensor for _, tensor in model.outputs))


def _weights_off(model: Model, way: Route) -> int:
    """How many weights Keras may make, at most, for layers off the way, whose shapes nobody compared with the file."""
    items = list(_all_items(model))
    inputs = [input_shape(item) for item in items if item.kind == "InputLayer"]
    dense, convolutions = ([item for item in items if item.kind == kind] for kind in ("Dense", "Conv2D"))
    filters = [whole(item, "filters") for item in convolutions]
    pixels = max((math.prod(shape[:2]) for shape in inputs if len(shape) == 3), default=1)
    width = max([math.prod(shape) for shape in inputs] + [whole(item, "units") for item in dense])
    width = max(width, pixels * max(filters, default=1))
    off = [whole(item, "units") * width for item in dense if not way.has(item)]
    for item, made in zip(convolutions, filters, strict=True):
        if not way.has(item):
            off.append(square(item, "kernel_size") ** 2 * made * width)
    return sum(off)


def _all_items(model: Model) -> Iterator[Item]:
    for item in model.items:
        yield item
        if item.inner is not None:
            yield from _all_items(item.inner)


def _config(model: Model, softmax: str) -> dict[str, Any]:
    """A Functional config of either kind: a Sequential model is one with a call of each layer."""
    return {
        "name": "policy",
        "layers": [_layer(item, softmax, wired=True) for item in model.items],
        "input_layers": [[name, 0, 0] for name in model.inputs],
        "output_layers": [[tensor.layer, 0, tensor.output] for _, tensor in model.outputs],
    }


def _layer(item: Item, softmax: str, wired: bool) -> dict[str, Any]:
    if not item.known:
        raise ValueError(item.kind)
    kind = item.kind.rpartition(".")[2]
    module = OPERATIONS[kind] if item.is_operation else "keras.layers"
    settings: dict[str, Any]
    if item.inner is not None:
        settings = _config(item.inner, softmax) | {"name": item.name}
        module, kind = "keras", "Functional"
        if item.inner.kind == "Sequential":
            kind = "Sequential"
            layers = [_layer(inner, softmax, wired=False) for inner in item.inner.items]
            settings = {"name": item.name, "layers": layers}
    else:
        settings = {} if item.is_operation else _settings(item, softmax)
        settings["name"] = item.name
        if kind == "Softmax":
            kind, settings = "Activation", {"name": item.name, "activation": "linear"}
    made: dict[str, Any] = {
        "module": module,
        "class_name": kind,
        "config": settings,
        "registered_name": None,
        "name": item.name,
    }
    if item.is_operation or kind in MODELS:
        made["registered_name"] = kind
    if wired:
        made["inbound_nodes"] = [{"args": _arguments(call, item), "kwargs": {}} for call in item.calls]
    return made


def _arguments(call: tuple[Any, ...], item: Item) -> list[Any]:
    made = [_tensor(each) if isinstance(each, Tensor) else _constant(each) for each in call]
    return [made] if item.kind == "Concatenate" else made


def _tensor(tensor: Tensor) -> dict[str, Any]:
    history = [tensor.layer, 0, tensor.output]
    return {"class_name": "__keras_tensor__", "config": {"shape": [None], "dtype": "float32", "keras_history": history}}


def _constant(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return {"class_name": "__numpy__", "config": {"value": value, "dtype": "float32"}}


def _settings(item: Item, softmax: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in own_settings(item).items():
        if name == "batch_shape":
            found[name] = [None, *input_shape(item)]
        elif name == "activation":
            found[name] = _activation(value, item, softmax)
        elif value is None or isinstance(value, bool) or numbers(value) or _is_word(value, ("valid", "channels_last")):
            found[name] = value
        else:
            raise ValueError(name)
    return found


def _is_word(value: Any, known: Collection[str]) -> bool:
    return isinstance(value, str) and value in known


def _activation(value: Any, item: Item, softmax: str) -> Any:
    if item.name == softmax and _is_word(value, ORDER_ONLY):
        return "linear"
    if value is None or _is_word(value, _KEPT):
        return value
    if isinstance(value, dict) and value.get("module") == "keras.layers" and isinstance(value.get("config"), dict):
        kind = value.get("class_name")
        if kind in _ACTIVATION_LAYERS:
            own = {
                name: setting
                for name, setting in value["config"].items()
                if name in ("max_value", "negative_slope", "threshold", "alpha")
                and (setting is None or numbers(setting))
            }
            return {"module": "keras.layers", "class_name": kind, "config": own, "registered_name": None}
        if kind == "Softmax" and item.name == softmax:
            return "linear"
    raise ValueError("activation")
