"""Networks and Adam as functions of plain arrays.

Weights are a dict of float32 arrays under the names of the bundle (``dense_0/kernel`` of shape (in, out),
``dense_0/bias`` (out,), …, ``head/kernel``, ``head/bias``). The functions below use only operators that numpy
arrays and TensorFlow tensors share: the actor calls them with numpy, the compiled update with tensors, and there
is one definition of both. Convolutions need tensors; :class:`Acting` takes arrays all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.network import LAYER_NORM_EPSILON, network_shapes
from policy.network import layer_norm as policy_layer_norm
from policy.quantization_aware import INPUT
from policy.spec import NetworkSpec
from train.quantization import mixed_precision
from train.quantization.fake import LEVELS, fake_hidden, fake_input
from train.quantization.mixed_precision import Compute

Weights = dict[str, NDArray[np.float32]]

IMAGE_SCALE = 255.0  # a grey level of an image becomes 0 … 1
ADAM_BETA_1 = 0.9  # Kingma & Ba 2015, table in section 2
ADAM_BETA_2 = 0.999  # likewise
ADAM_EPSILON = 1e-5  # 1e-8 in the paper; 1e-5 is what PPO and DQN implementations use (cleanrl, baselines)


def tf() -> ModuleType:
    """TensorFlow, imported when a tensor needs it: acting in numpy does without."""
    import tensorflow

    return tensorflow


def orthogonal(generator: np.random.Generator, shape: tuple[int, int], gain: float) -> NDArray[np.float32]:
    """A random (in, out) matrix with orthogonal rows or columns times ``gain`` (Saxe et al. 2014)."""
    rows, columns = shape
    gaussian = generator.standard_normal((max(shape), min(shape)))
    q, r = np.linalg.qr(gaussian)
    q *= np.sign(np.diag(r))  # makes the draw uniform over the orthogonal matrices
    return np.ascontiguousarray(gain * (q if rows >= columns else q.T), dtype=np.float32)


def initial_weights(
    generator: np.random.Generator,
    network: NetworkSpec,
    observation: tuple[int, ...],
    outputs: int,
    head_gain: float,
) -> Weights:
    """Fresh weights: orthogonal with gain √2 before a ReLU and ``head_gain`` in the head, biases zero, γ one.

    A small head gain (0.01) starts a policy near the uniform distribution, so that the first updates are not spent
    on unlearning the draw (Andrychowicz et al. 2021, "What matters in on-policy RL?").

    Args:
        generator: drawn from in the order of the layers.
        network: the layers.
        observation: (size,), or (height, width, channels) where the network has convolutions.
        outputs: of the head.
        head_gain: see above.
    """
    weights: Weights = {}
    for name, shape in network_shapes(network, observation, outputs).items():
        layer, part = name.split("/")
        if part == "kernel":
            gain = head_gain if layer == "head" else float(np.sqrt(2.0))
            weights[name] = orthogonal(generator, (math.prod(shape[:-1]), shape[-1]), gain).reshape(shape)
        else:
            weights[name] = (np.ones if part == "gamma" else np.zeros)(shape, np.float32)
    return weights


def hidden_layers(weights: Mapping[str, Any]) -> int:
    """Number of hidden fully connected layers of these weights."""
    return sum(name.startswith("dense_") and name.endswith("/kernel") for name in weights)


def relu(values: Any) -> Any:
    """max(0, x); in place for an array, which is a fresh matrix product anyway."""
    if isinstance(values, np.ndarray):
        return np.maximum(values, 0.0, out=values)
    return tf().nn.relu(values)


def features(network: NetworkSpec, weights: Mapping[str, Any], inputs: Any, seen: list[Any] | None = None) -> Any:
    """Output (batch, width) of the last hidden layer, for arrays (no convolutions) or tensors.

    Args:
        network: the layers.
        weights: by the bundle's names, as arrays or tensors; their float type is the one computed in.
        inputs: normalised observations (batch, size), or uint8 images (batch, height, width, channels), which are
            divided by 255 here.
        seen: gets the output of every hidden layer in order, where it is given.
    """
    values = inputs
    for index, layer in enumerate(network.convolutions):
        kernel, bias = weights[f"conv_{index}/kernel"], weights[f"conv_{index}/bias"]
        if index == 0:
            values, kernel = image_and_kernel(values, kernel)
        if is_half(kernel):
            values = mixed_precision.convolution(values, kernel, bias, layer.stride)
            continue
        values = tf().nn.conv2d(values, kernel, layer.stride, "VALID")
        values = rounded(weights, f"conv_{index}", tf().nn.relu(tf().nn.bias_add(values, bias)), seen)
    if network.convolutions:
        values = tf().reshape(values, (-1, math.prod(values.shape[1:])))
    return hidden_features(weights, values, seen)


def image_and_kernel(images: Any, kernel: Any) -> tuple[Any, Any]:
    """Grey levels / 255 in the kernel's type, and the first kernel; which of the two is divided makes no difference.

    bfloat16 holds 0 … 255 exactly and their 255ths not, so there the kernel is divided, which is also much smaller.
    """
    if kernel.dtype == tf().bfloat16:
        return tf().cast(images, kernel.dtype), tf().cast(tf().cast(kernel, "float32") / IMAGE_SCALE, kernel.dtype)
    return tf().cast(images, kernel.dtype) * tf().constant(1.0 / IMAGE_SCALE, kernel.dtype), kernel


def hidden_features(weights: Mapping[str, Any], values: Any, seen: list[Any] | None = None) -> Any:
    """The fully connected hidden layers: h ← relu(h W + b), or relu(γ (h W + b − mean) / √(var + ε) + β).

    ``seen``: see :func:`features`.
    """
    if (levels := weights.get(f"{INPUT}/{LEVELS}")) is not None:
        values = fake_input(values, levels)
    for index in range(hidden_layers(weights)):
        values = product(values, weights[f"dense_{index}/kernel"]) + weights[f"dense_{index}/bias"]
        if (gamma := weights.get(f"dense_{index}/gamma")) is not None:
            values = layer_norm(values, gamma, weights[f"dense_{index}/beta"])
        values = rounded(weights, f"dense_{index}", relu(values), seen)
    return values


def rounded(weights: Mapping[str, Any], layer: str, values: Any, seen: list[Any] | None = None) -> Any:
    """A hidden layer's output on the levels that the weights bring along for it, if they do.

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
        values = tf().cast(values, kernel.dtype)
    return values @ kernel


def is_half(values: Any) -> bool:
    """Whether an array's or tensor's type has 16 bits."""
    return values.dtype.name in ("bfloat16", "float16")


def layer_norm(values: Any, gamma: Any, beta: Any) -> Any:
    """γ (x − mean x) / √(var x + ε) + β over the last axis, for arrays or tensors (Ba et al. 2016, equation 4).

    γ and β are float32, and so is the result: 16 bits would lose the mean and the variance.
    """
    width = int(values.shape[-1])
    if isinstance(values, np.ndarray):
        return policy_layer_norm(values, gamma, beta)
    if is_half(values):
        values = tf().cast(values, gamma.dtype)
    centred = values - tf().reduce_mean(values, axis=-1, keepdims=True)
    variance = tf().reduce_sum(centred * centred, axis=-1, keepdims=True) / width
    return centred * tf().math.rsqrt(variance + LAYER_NORM_EPSILON) * gamma + beta


def head(weights: Mapping[str, Any], hidden: Any) -> Any:
    """Outputs (batch, outputs), float32 whatever was computed in:  y = h W_head + b_head."""
    outputs = product(hidden, weights["head/kernel"]) + weights["head/bias"]
    return tf().cast(outputs, "float32") if is_half(outputs) else outputs


def forward(network: NetworkSpec, weights: Mapping[str, Any], inputs: Any) -> Any:
    """Outputs (batch, outputs) of the network; see :func:`features`.  y = h W_head + b_head."""
    return head(weights, features(network, weights, inputs))


def mlp(weights: Mapping[str, Any], inputs: Any) -> Any:
    """Outputs (batch, outputs) of a multilayer perceptron for normalised inputs (batch, inputs), arrays or tensors.

    h₀ = x;  hₗ₊₁ = relu(hₗ Wₗ + bₗ);  y = h W_head + b_head
    """
    return head(weights, hidden_features(weights, inputs))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """log p = y − max y − log Σ exp(y − max y), row by row, (batch, actions)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def sample_actions(
    generator: np.random.Generator, logits: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw one action a row from softmax(logits): actions (batch,) and their log-probabilities (batch,).

    The inverse of the cumulated distribution at one uniform draw a row; always the same number of draws.
    """
    log_probabilities = log_softmax(logits)
    cumulated = np.exp(log_probabilities).cumsum(axis=1)
    draws = generator.random((len(logits), 1), dtype=np.float32) * cumulated[:, -1:]
    actions = np.minimum((cumulated <= draws).sum(axis=1), logits.shape[1] - 1)
    return actions, log_probabilities[np.arange(len(logits)), actions]


class Acting:
    """Outputs of a network for raw batches, fast enough to act with: numpy for an MLP, a compiled graph for images."""

    def __init__(self, network: NetworkSpec, compute: Compute = Compute.FLOAT32) -> None:
        """Args: the network, and the number type of a convolutional one; perceptrons act in float32."""
        self._network = network
        self._compute = compute
        self._weights: Mapping[str, Any] | None = None
        self._tensors: dict[str, Any] = {}
        if network.convolutions:
            graph = tf().function(lambda weights, inputs: forward(network, weights, inputs), autograph=False)
            self._graph = graph

    def __call__(self, weights: Mapping[str, NDArray[np.float32]], inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Outputs (batch, outputs) for inputs as :func:`features` takes them; weights are arrays."""
        if not self._network.convolutions:
            return mlp(weights, inputs)
        if weights is not self._weights:  # a fresh dict after every update: converted once
            tensors = {name: tf().constant(value) for name, value in weights.items()}
            self._weights, self._tensors = weights, mixed_precision.cast(tensors, self._compute)
        return self._graph(self._tensors, tf().constant(inputs)).numpy()


def zeros_like(weights: Weights) -> Weights:
    """Zeros of the same names and shapes: Adam's moments before the first step."""
    return {name: np.zeros_like(value) for name, value in weights.items()}


def adam_step(
    weights: dict[str, Any],
    gradients: dict[str, Any],
    first_moment: dict[str, Any],
    second_moment: dict[str, Any],
    count: Any,
    learning_rate: Any,
    epsilon: float = ADAM_EPSILON,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """One step of Adam (Kingma & Ba 2015, algorithm 1): new weights and moments.

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²
    θ ← θ − α · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)

    Args:
        weights: θ by name; likewise gradients g and both moments.
        count: t, the number of this step as float32, 1 for the first.
        learning_rate: α.
        epsilon: ε.
    """
    correction_1 = 1.0 - ADAM_BETA_1**count
    correction_2 = 1.0 - ADAM_BETA_2**count
    new_weights, new_first, new_second = {}, {}, {}
    for name, gradient in gradients.items():
        m = ADAM_BETA_1 * first_moment[name] + (1.0 - ADAM_BETA_1) * gradient
        v = ADAM_BETA_2 * second_moment[name] + (1.0 - ADAM_BETA_2) * gradient * gradient
        new_weights[name] = weights[name] - learning_rate * (m / correction_1) / ((v / correction_2) ** 0.5 + epsilon)
        new_first[name], new_second[name] = m, v
    return new_weights, new_first, new_second
