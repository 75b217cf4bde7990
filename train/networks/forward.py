"""The networks' forward passes, as functions of plain arrays.

Weights are a dict of float32 arrays under the names of the bundle; see ``weights.py``. The functions below use only
operators that numpy arrays and TensorFlow tensors share: the actor calls them with numpy, the compiled update with
tensors, and there is one definition of both. Convolutions need tensors; :class:`Acting` takes arrays all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.exact import LAYER_NORM_EPSILON
from quarl.policy.reference import layer_norm as policy_layer_norm
from quarl.policy.spec import INPUT, NetworkSpec
from quarl.train.lazily import tf
from quarl.train.networks.weights import count_hidden_layers
from quarl.train.quantization import mixed_precision
from quarl.train.quantization.fake import LEVELS, fake_hidden, fake_input
from quarl.train.quantization.mixed_precision import Compute

IMAGE_SCALE = 255.0  # a grey level of an image becomes 0 … 1


def relu(values: Any) -> Any:
    """max(0, x); in place for an array, which is a fresh matrix product anyway."""
    if isinstance(values, np.ndarray):
        return np.maximum(values, 0.0, out=values)
    return tf.nn.relu(values)


def features(network: NetworkSpec, weights: Mapping[str, Any], inputs: Any, seen: list[Any] | None = None) -> Any:
    """Output (batch, width) of the last hidden layer, for arrays (no convolutions) or tensors.

    Args:
        network, weights: the layers, and theirs by the bundle's names; their float type is the one computed in.
        inputs: normalised observations (batch, size); or grey levels (batch, height, width, channels), which are
            divided by 255 here; or a pair of images and the normalised vectors (batch, vector) behind them: the images
            are normalised floats, or those times 255 in uint8.
        seen: gets the output of every hidden layer in order, where it is given.
    """
    values, vector = inputs if isinstance(inputs, tuple) else (inputs, None)
    is_scaled = vector is not None and values.dtype.name != "uint8"
    for index, layer in enumerate(network.convolutions):
        kernel, bias = weights[f"conv_{index}/kernel"], weights[f"conv_{index}/bias"]
        if index == 0 and is_scaled:
            values = tf.cast(values, kernel.dtype)
        elif index == 0:
            values, kernel = image_and_kernel(values, kernel)
        if is_half(kernel):
            values = mixed_precision.convolution(values, kernel, bias, layer.stride)
            continue
        values = tf.nn.conv2d(values, kernel, layer.stride, "VALID")
        values = fake_quantize_output(weights, f"conv_{index}", tf.nn.relu(tf.nn.bias_add(values, bias)), seen)
    if network.convolutions:
        values = tf.reshape(values, (-1, math.prod(values.shape[1:])))
    if vector is not None:
        values = tf.concat([values, tf.cast(vector, values.dtype)], axis=1)
    return apply_hidden_layers(weights, values, seen)


def image_and_kernel(images: Any, kernel: Any) -> tuple[Any, Any]:
    """Grey levels / 255 in the kernel's type, and the first kernel; which of the two is divided makes no difference.

    bfloat16 holds 0 … 255 exactly and their 255ths not, so there the kernel is divided, which is also much smaller.
    """
    if kernel.dtype == tf.bfloat16:
        return tf.cast(images, kernel.dtype), tf.cast(tf.cast(kernel, "float32") / IMAGE_SCALE, kernel.dtype)
    return tf.cast(images, kernel.dtype) * tf.constant(1.0 / IMAGE_SCALE, kernel.dtype), kernel


def apply_hidden_layers(weights: Mapping[str, Any], values: Any, seen: list[Any] | None = None) -> Any:
    """Return the fully connected hidden layers: h ← relu(h W + b), or relu(γ (h W + b − mean) / √(var + ε) + β).

    ``seen``: see :func:`features`.
    """
    if (levels := weights.get(f"{INPUT}/{LEVELS}")) is not None:
        values = fake_input(values, levels)
    for index in range(count_hidden_layers(weights)):
        values = product(values, weights[f"dense_{index}/kernel"]) + weights[f"dense_{index}/bias"]
        if (gamma := weights.get(f"dense_{index}/gamma")) is not None:
            values = layer_norm(values, gamma, weights[f"dense_{index}/beta"])
        values = fake_quantize_output(weights, f"dense_{index}", relu(values), seen)
    return values


def fake_quantize_output(weights: Mapping[str, Any], layer: str, values: Any, seen: list[Any] | None = None) -> Any:
    """Return a hidden layer's output on the levels that the weights bring along for it, if they do.

    ``seen``, where it is given, gets the output as it was.
    """
    if seen is not None:
        seen.append(values)
    levels = weights.get(f"{layer}/{LEVELS}")
    return values if levels is None else fake_hidden(values, levels)


def activations(network: NetworkSpec, weights: Mapping[str, Any], inputs: NDArray[Any]) -> list[NDArray[np.float32]]:
    """Output of every hidden layer, convolutions first, as arrays, before any rounding; inputs as :func:`features`."""
    seen: list[Any] = []
    features(network, weights, inputs, seen)
    return [np.asarray(values) for values in seen]


def product(values: Any, kernel: Any) -> Any:
    """values @ kernel, in the type of the kernel."""
    if is_half(kernel) and not is_half(values):
        values = tf.cast(values, kernel.dtype)
    return values @ kernel


def is_half(values: Any) -> bool:
    """Return whether an array's or tensor's type has 16 bits."""
    return values.dtype.name in ("bfloat16", "float16")


def layer_norm(values: Any, gamma: Any, beta: Any) -> Any:
    """γ (x − mean x) / √(var x + ε) + β over the last axis, for arrays or tensors (Ba et al. 2016, equation 4).

    γ and β are float32, and so is the result: 16 bits would lose the mean and the variance.
    """
    width = int(values.shape[-1])
    if isinstance(values, np.ndarray):
        return policy_layer_norm(values, gamma, beta)
    if is_half(values):
        values = tf.cast(values, gamma.dtype)
    centred = values - tf.reduce_mean(values, axis=-1, keepdims=True)
    variance = tf.reduce_sum(centred * centred, axis=-1, keepdims=True) / width
    return centred * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) * gamma + beta


def head(weights: Mapping[str, Any], hidden: Any) -> Any:
    """Return the outputs (batch, outputs), float32 whatever was computed in:  y = h W_head + b_head."""
    outputs = product(hidden, weights["head/kernel"]) + weights["head/bias"]
    return tf.cast(outputs, "float32") if is_half(outputs) else outputs


def forward(network: NetworkSpec, weights: Mapping[str, Any], inputs: Any) -> Any:
    """Return the outputs (batch, outputs) of the network; see :func:`features`.  y = h W_head + b_head."""
    return head(weights, features(network, weights, inputs))


def mlp(weights: Mapping[str, Any], inputs: Any) -> Any:
    """Return the outputs (batch, outputs) of a multilayer perceptron for normalised inputs (batch, inputs), arrays or
    tensors.

    h₀ = x;  hₗ₊₁ = relu(hₗ Wₗ + bₗ);  y = h W_head + b_head
    """
    return head(weights, apply_hidden_layers(weights, inputs))


class Acting:
    """Outputs of a network for raw batches, fast enough to act with: numpy for an MLP, a compiled graph for images."""

    def __init__(self, network: NetworkSpec, compute: Compute = Compute.FLOAT32) -> None:
        """Args: the network, and the number type of a convolutional one; perceptrons act in float32."""
        self._network, self._compute = network, compute
        self._weights: Mapping[str, Any] | None = None
        self._tensors: dict[str, Any] = {}
        if network.convolutions:
            self._graph = tf.function(lambda weights, inputs: forward(network, weights, inputs), autograph=False)

    def __call__(
        self, weights: Mapping[str, NDArray[np.float32]], inputs: NDArray[Any] | tuple[NDArray[Any], ...]
    ) -> NDArray[np.float32]:
        """Return the outputs (batch, outputs) for inputs as :func:`features` takes them; weights are arrays."""
        if not self._network.convolutions:
            return mlp(weights, inputs)
        if weights is not self._weights:  # a fresh dict after every update: converted once
            tensors = {name: tf.constant(value) for name, value in weights.items()}
            self._weights, self._tensors = weights, mixed_precision.cast(tensors, self._compute)
        input_tensors = tuple(map(tf.constant, inputs)) if isinstance(inputs, tuple) else tf.constant(inputs)
        return self._graph(self._tensors, input_tensors).numpy()
