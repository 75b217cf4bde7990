"""What each layer of Keras computes in inference, as steps of a chain; shapes are followed, and settings checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Convolution,
    Dense,
    Doubles,
    ForeignError,
    LayerNorm,
    Step,
)
from quarl.convert.importers.keras.graph import Item, Tensor, numbers, own_settings
from quarl.convert.importers.keras.tensors import Tensors, damaged
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.json_values import shortened
from quarl.policy.spec import Activation

Shape = tuple[int, ...]
LARGEST_SIDE = 10**7
NORMALIZATION_EPSILON = 1e-7
"""Keras divides by no smaller deviation."""
FUNCTIONS = {
    name: Activate(kind, 0.2) if each.takes_slope else Activate(kind)  # a LeakyReLU's slope by that name
    for kind, each in NONLINEARITIES.items()
    for name in each.keras_names
}
ORDER_ONLY = ("softmax", "log_softmax")
NAMES = ", ".join((*FUNCTIONS, *ORDER_ONLY))
FLOATING = ("float32", "float64", "float16", "mixed_float16", "mixed_bfloat16")
_AS_THEY_ARE = ("Dropout", "GaussianNoise")


class Layers:
    """Turns layers into steps, one after the other.

    Attributes:
        shape: of what the steps so far give, without the batch.
        steps: so far.
        softmax: the layer whose softmax was left out, behind which nothing may stand; empty if none.
        halved: dtype policies other than float32, by name.
    """

    def __init__(self, tensors: Tensors, shape: Shape) -> None:
        self.tensors, self.shape = tensors, shape
        self.steps: list[Step] = []
        self.softmax = ""
        self.halved: set[str] = set()

    def add(self, item: Item) -> None:
        """The steps of one more layer.

        Raises:
            ForeignError: it has a setting that no step says, or weights that do not fit, by its name.
        """
        if self.softmax:
            raise ForeignError(f"{item.name} ({item.kind}) stands behind the softmax of {self.softmax}.")
        if item.is_operation:
            self._operation(item)
            return
        self._check_precision(item)
        settings = own_settings(item)
        if item.kind not in _AS_THEY_ARE:
            getattr(self, f"_{item.kind.lower()}")(item, settings)

    def _check_precision(self, item: Item) -> None:
        setting = item.settings.get("dtype", "float32")
        if (
            isinstance(setting, dict)
            and setting.get("class_name") == "DTypePolicy"
            and isinstance(setting.get("config"), dict)
        ):
            setting = setting["config"].get("name")
        if setting not in FLOATING:
            raise refused(item, "dtype", setting, ", ".join(FLOATING))
        if setting != "float32":
            self.halved.add(setting)

    def _operation(self, item: Item) -> None:
        kind = item.kind.rpartition(".")[2]
        arguments = item.calls[0]
        if kind in ("Tanh", "Sigmoid"):
            self.steps.append(FUNCTIONS[kind.lower()])
            return
        if len(arguments) != 2:
            raise damaged(f"{item.name} ({item.kind}) has {len(arguments)} arguments")
        first = isinstance(arguments[0], Tensor)
        value = self._numbers(item, "its number", arguments[1] if first else arguments[0])
        one, zero = np.ones(1), np.zeros(1)
        if kind == "Multiply":
            self._affine(value, zero)
        elif kind == "Add":
            self._affine(one, value)
        elif first:
            self._affine(one, -value)
        else:
            self._affine(-one, value)

    def _affine(self, scale: Doubles, offset: Doubles) -> None:
        """x · scale + offset; of rows with two sides, which a chain has flattened, in each of them."""
        times = self.shape[0] if len(self.shape) == 2 else 1
        self.steps.append(Affine(*(np.tile(each, times) if each.size > 1 else each for each in (scale, offset))))

    def _numbers(self, item: Item, name: str, value: Any) -> Doubles:
        """(1,), or (n,) for each element or channel; float64."""
        array = np.atleast_1d(_array(item, name, value))
        if array.size == 1:
            return array.reshape(1)
        if array.size != self.shape[-1] or array.shape[-1] != self.shape[-1]:
            raise refused(item, name, value, f"one number, or {self.shape[-1]}")
        return array.reshape(-1)

    def _dense(self, item: Item, settings: dict[str, Any]) -> None:
        if len(self.shape) != 1:
            raise ForeignError(
                f"the layer {item.name} (Dense) acts on {self.shape}, along the last side alone.", "Put Flatten before."
            )
        kernel, bias = self._kernel(item, settings, (*self.shape, whole(item, "units")))
        self.steps.append(Dense(kernel, bias))
        self.shape = (len(bias),)
        self._activation(item, settings)

    def _conv2d(self, item: Item, settings: dict[str, Any]) -> None:
        _only(item, settings, "padding", "valid")
        _only(item, settings, "data_format", "channels_last")
        _only(item, settings, "groups", 1)
        _only(item, settings, "dilation_rate", [1, 1], 1)
        if len(self.shape) != 3:
            raise ForeignError(f"the layer {item.name} (Conv2D) sees {self.shape}, which is no image.")
        side, stride = square(item, "kernel_size"), square(item, "strides")
        height, width, channels = self.shape
        if min(height, width) < side:
            raise damaged(f"the layer {item.name} (Conv2D) has a kernel larger than its image {self.shape}")
        filters = whole(item, "filters")
        kernel, bias = self._kernel(item, settings, (side, side, channels, filters))
        self.steps.append(Convolution(kernel, bias, stride))
        self.shape = ((height - side) // stride + 1, (width - side) // stride + 1, filters)
        self._activation(item, settings)

    def _kernel(self, item: Item, settings: dict[str, Any], shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        has_bias = _flag(item, settings, "use_bias")
        arrays = self._weights(item, shape, *([shape[-1:]] if has_bias else []))
        bias = arrays[1] if has_bias else np.zeros(shape[-1])
        return arrays[0].astype(np.float32), bias.astype(np.float32)

    def _weights(self, item: Item, *shapes: Shape) -> list[Doubles]:
        arrays = self.tensors.of(item.place, item.name, len(shapes))
        for array, shape in zip(arrays, shapes, strict=True):
            if array.shape != shape:
                raise damaged(f"the layer {item.name} ({item.kind}) has weights {array.shape} where {shape} belong")
        return arrays

    def _activation(self, item: Item, settings: dict[str, Any]) -> None:
        setting = settings.get("activation")
        if isinstance(setting, dict):
            kind, module, own = (setting.get(key) for key in ("class_name", "module", "config"))
            if kind not in ("ReLU", "LeakyReLU", "ELU", "Softmax") or module != "keras.layers" or type(own) is not dict:
                raise refused(item, "activation", setting.get("registered_name") or kind or setting, NAMES)
            getattr(self, f"_{kind.lower()}")(item, own)
        elif setting in ORDER_ONLY:
            self.softmax = item.name
        elif setting is not None:
            if not isinstance(setting, str) or setting not in FUNCTIONS:
                raise refused(item, "activation", setting, NAMES)
            self.steps.append(FUNCTIONS[setting])

    def _relu(self, item: Item, settings: dict[str, Any]) -> None:
        _only(item, settings, "max_value", None)
        _only(item, settings, "threshold", 0, None)
        slope = _number(item, settings, "negative_slope", 0.0)
        self.steps.append(Activate(Activation.LEAKY_RELU, slope) if slope else Activate(Activation.RELU))

    def _leakyrelu(self, item: Item, settings: dict[str, Any]) -> None:
        self.steps.append(Activate(Activation.LEAKY_RELU, _number(item, settings, "negative_slope", 0.3)))

    def _elu(self, item: Item, settings: dict[str, Any]) -> None:
        _only(item, settings, "alpha", 1)
        self.steps.append(FUNCTIONS["elu"])

    def _softmax(self, item: Item, settings: dict[str, Any]) -> None:
        _only(item, settings, "axis", -1, len(self.shape))
        self.softmax = item.name

    def _normalization(self, item: Item, settings: dict[str, Any]) -> None:
        axes = settings.get("axis", -1)
        axes = axes if isinstance(axes, list) else [] if axes is None else [axes]
        if axes not in ([], [-1], [len(self.shape)]):
            raise refused(item, "axis", axes, "the last axis, or none")
        kept = self.shape[-1:] if axes else ()
        if settings.get("mean") is None:
            mean, variance = self._weights(item, kept, kept)
        else:
            mean, variance = (self._numbers(item, name, settings.get(name)) for name in ("mean", "variance"))
        if (variance < 0).any():
            raise damaged(f"the layer {item.name} (Normalization) has a negative variance")
        mean, deviation = np.atleast_1d(mean), np.atleast_1d(np.maximum(np.sqrt(variance), NORMALIZATION_EPSILON))
        if _flag(item, settings, "invert", False):
            self._affine(deviation, mean)
        else:
            self._affine(1.0 / deviation, -mean / deviation)

    def _rescaling(self, item: Item, settings: dict[str, Any]) -> None:
        scale = self._numbers(item, "scale", settings.get("scale", 1.0))
        self._affine(scale, self._numbers(item, "offset", settings.get("offset", 0.0)))

    def _batchnormalization(self, item: Item, settings: dict[str, Any]) -> None:
        _only(item, settings, "axis", -1, [-1], len(self.shape), [len(self.shape)])
        scaled, shifted = (_flag(item, settings, name) for name in ("scale", "center"))
        arrays = self._weights(item, *[self.shape[-1:]] * (2 + scaled + shifted))
        mean, variance = arrays[-2:]
        if (variance < 0).any():
            raise damaged(f"the layer {item.name} (BatchNormalization) has a negative variance")
        gamma = arrays[0] if scaled else np.ones_like(mean)
        beta = arrays[int(scaled)] if shifted else np.zeros_like(mean)
        scale = gamma / np.sqrt(variance + _number(item, settings, "epsilon", 1e-3))
        self._affine(scale, beta - mean * scale)

    def _layernormalization(self, item: Item, settings: dict[str, Any]) -> None:
        _only(item, settings, "axis", -1, [-1], len(self.shape), [len(self.shape)])
        if len(self.shape) != 1:
            raise ForeignError(f"the layer {item.name} (LayerNormalization) acts on {self.shape}, not on a vector.")
        scaled, shifted = (_flag(item, settings, name) for name in ("scale", "center"))
        arrays = self._weights(item, *[self.shape] * (scaled + shifted))
        gamma = arrays[0] if scaled else np.ones(self.shape)
        beta = arrays[-1] if shifted else np.zeros(self.shape)
        epsilon = _number(item, settings, "epsilon", 1e-3)
        self.steps.append(LayerNorm(gamma.astype(np.float32), beta.astype(np.float32), epsilon))

    def _flatten(self, item: Item, settings: dict[str, Any]) -> None:
        if len(self.shape) == 3:
            _only(item, settings, "data_format", "channels_last", None)
        self.shape = (math.prod(self.shape),)

    def _reshape(self, item: Item, settings: dict[str, Any]) -> None:
        wanted = settings.get("target_shape")
        size = math.prod(self.shape)
        if wanted in ([size], [-1]):
            self.shape = (size,)
        elif wanted != list(self.shape):
            raise refused(item, "target_shape", wanted, f"{list(self.shape)} or [{size}]")


def input_shape(item: Item) -> Shape:
    """The shape of an input layer, without the batch.

    Raises:
        ForeignError: it is open, empty or huge.
    """
    shape = own_settings(item).get("batch_shape")
    if not isinstance(shape, list) or len(shape) not in (2, 3, 4):
        raise refused(item, "batch_shape", shape, "[null, n] or [null, height, width, channels]")
    if any(type(side) is not int or side < 1 for side in shape[1:]) or math.prod(shape[1:]) > LARGEST_SIDE:
        raise refused(item, "batch_shape", shape, "known sides, without the batch")
    return tuple(shape[1:])


def refused(item: Item, name: str, value: object, allowed: str) -> ForeignError:
    """An error about a layer's setting."""
    setting = value if isinstance(value, str) and value.isprintable() and len(value) < 80 else shortened(value)
    return ForeignError(f"the layer {item.name} ({item.kind}) has {name} = {setting}; allowed is {allowed}.")


def _only(item: Item, settings: dict[str, Any], name: str, *allowed: Any) -> None:
    value = settings.get(name, allowed[0])
    if isinstance(value, bool) or value not in allowed:
        raise refused(item, name, value, " or ".join(map(str, allowed)))


def _flag(item: Item, settings: dict[str, Any], name: str, default: bool = True) -> bool:
    value = settings.get(name, default)
    if type(value) is not bool:
        raise refused(item, name, value, "true or false")
    return value


def _number(item: Item, settings: dict[str, Any], name: str, default: float) -> float:
    value = settings.get(name, default)
    if isinstance(value, list) or not numbers(value) or value < 0:
        raise refused(item, name, value, "a number, 0 or more")
    return float(value)


def whole(item: Item, name: str) -> int:
    """A setting that is a whole number above 0."""
    value = item.settings.get(name)
    if type(value) is not int or not 0 < value <= LARGEST_SIDE:
        raise refused(item, name, value, "a whole number above 0")
    return value


def square(item: Item, name: str) -> int:
    """A setting that is two equal whole numbers, or one for both."""
    value = item.settings.get(name, 1)
    sides = value if isinstance(value, list) else [value]
    if any(type(side) is not int or not 0 < side <= LARGEST_SIDE for side in sides) or len(set(sides)) != 1:
        raise refused(item, name, value, "two equal whole numbers")
    return int(sides[0])


def _array(item: Item, name: str, value: Any) -> Doubles:
    try:
        if not numbers(value):
            raise ValueError
        return np.asarray(value, np.float64)
    except ValueError:  # lists of unlike lengths
        raise refused(item, name, value, "a number, or a list of numbers") from None
