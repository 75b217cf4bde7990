"""The actor of a Stable-Baselines3 policy: its tensors by name, as layers of a chain, and what the others are for."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Convolution,
    Dense,
    Floats,
    ForeignError,
    Recurrent,
    Step,
    rows_channels_last,
)
from quarl.convert.importers.pickles.arrays import refusal
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.sb3.settings import Settings
from quarl.policy.spec import Activation, Cell

NATURE_STRIDES = (4, 2, 1)  # torch_layers.py, NatureCNN
_SEQUENTIALS = {"td3": "actor.mu", "dqn": "q_net.q_net", "qrdqn": "quantile_net.quantile_net", "ars": "action_net"}
NORM_EVERY = 3  # CrossQ's layers: normalisation, Linear, activation

# What each family has beside its actor: the beginning of a tensor's name, and what it is.
_OTHERS = {
    "actor-critic": (
        ("mlp_extractor.value_net.", "value network"),
        ("value_net.", "value network"),
        ("vf_features_extractor.", "value network"),
        ("log_std", "exploration noise"),
    ),
    "sac": (
        ("critic.", "critic"),
        ("critic_target.", "target critic"),
        ("actor.log_std", "exploration noise"),
        ("log_ent_coef", "entropy coefficient"),
    ),
    "td3": (("critic.", "critic"), ("critic_target.", "target critic"), ("actor_target.", "target actor")),
    "dqn": (("q_net_target.", "target network"),),
    "qrdqn": (("quantile_net_target.", "target network"),),
    "ars": (),
}
_OTHERS["recurrent"] = (*_OTHERS["actor-critic"], ("lstm_critic.", "value network"), ("critic.", "value network"))


@dataclass
class Tensors:
    """The tensors of policy.pth, and which of them were used."""

    found: dict[str, np.ndarray]
    what: str
    used: set[str] = field(default_factory=set)

    def take(self, name: str, dimensions: int) -> Floats:
        """Return a tensor of numbers, float32, which counts as used from now on."""
        if name not in self.found:
            raise refusal(self.what, f"has no tensor {printable(name)}")
        values = self.found[name]
        self.used.add(name)
        if values.ndim != dimensions or values.dtype.kind != "f" or not values.size:
            raise refusal(
                self.what,
                f"must have a tensor {printable(name)} of floats in {dimensions} dimensions, "
                f"got {values.dtype}{list(values.shape)}",
            )
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        if not np.isfinite(single).all():
            raise refusal(self.what, f"has the tensor {printable(name)} with NaN, infinity or values beyond float32")
        return single

    def dense(self, name: str, has_bias: bool = True) -> Dense:
        """Return a Linear layer: weight (out, in) and bias (out,), if it has one, as kernel (in, out) and bias."""
        weight = self.take(f"{name}.weight", 2)
        bias = self.take(f"{name}.bias", 1) if has_bias else np.zeros(len(weight), np.float32)
        if len(bias) != len(weight):
            raise refusal(self.what, f"must have {len(weight)} biases in the layer {name}, got {len(bias)}")
        return Dense(np.ascontiguousarray(weight.T), bias)

    def recurrent(self, name: str, layer: int) -> Recurrent:
        """Return a layer of PyTorch's LSTM, whose gates i, f, g, o lie one behind the other as the contract's do."""
        kernels = [self.take(f"{name}.weight_{part}_l{layer}", 2) for part in ("ih", "hh")]
        biases = [self.take(f"{name}.bias_{part}_l{layer}", 1) for part in ("ih", "hh")]
        gates, units = kernels[1].shape
        if gates != 4 * units or {len(tensor) for tensor in (*kernels, *biases)} != {gates}:
            shapes = [tensor.shape for tensor in (*kernels, *biases)]
            raise refusal(self.what, f"must have an LSTM as layer {layer} of {name}, got the shapes {shapes}")
        fed, hidden = (np.ascontiguousarray(kernel.T) for kernel in kernels)
        return Recurrent(Cell.LSTM, fed, biases[0], hidden, biases[1])

    def layers(self, name: str, first: int = 0, every: int = 2, has_bias: bool = True) -> list[Dense]:
        """Return the Linear layers of a Sequential, between which activations stand: 0, 2, 4 … unless others are
        requested."""
        pattern = re.compile(re.escape(name) + r"\.([0-9]{1,4})\.weight")
        numbers = sorted({int(match[1]) for key in self.found if (match := pattern.fullmatch(key))})
        if numbers != list(range(first, first + every * len(numbers), every)):
            raise ForeignError(
                f"the Linear layers of {name} in {self.what} must be {first}, {first + every} …, got {numbers}.",
                "Export the actor to ONNX: layers between the Linear ones, such as normalisations, are not supported.",
            )
        return [self.dense(f"{name}.{number}", has_bias) for number in numbers]

    def batch_norm(self, name: str, size: int, epsilon: float) -> Affine:
        """Return a BatchRenorm layer as it is in evaluation (sb3_contrib/common/torch_layers.py), by running
        statistics."""
        parts = [self.take(f"{name}.{part}", 1).astype(np.float64) for part in ("ra_mean", "ra_var", "scale", "bias")]
        self.used.add(f"{name}.steps")
        mean, variance, gamma, beta = parts
        if {len(part) for part in parts} != {size} or (variance + epsilon <= 0).any():
            raise refusal(self.what, f"must have {size} values, and positive variances, in the normalisation {name}")
        # y = γ (x − mean) / √(var + ε) + β
        scale = gamma / np.sqrt(variance + epsilon)
        return Affine(scale, beta - mean * scale)

    def describe_unused(self, settings: Settings) -> tuple[str, ...]:
        """Purposes of the tensors that were not used, a phrase each.

        Raises:
            ForeignError: one is none that this algorithm's policy has.
        """
        family = "recurrent" if settings.lstm else settings.family
        counts: Counter[str] = Counter()
        for name in sorted(set(self.found) - self.used):
            meaning = next((meaning for start, meaning in _OTHERS[family] if name.startswith(start)), None)
            if meaning is None:
                raise ForeignError(
                    f"{self.what} has a tensor {printable(name)} that a policy of this kind does not have.",
                    "Export the actor to ONNX: custom layers are not supported.",
                )
            counts[meaning] += 1
        return tuple(f"{meaning}: {count} tensor{'s' * (count > 1)}" for meaning, count in counts.items())


def actor(
    settings: Settings, tensors: Tensors, size: int, image: tuple[int, int, int] | None, outputs: int
) -> list[Step]:
    """Features extractor, LSTM, hidden layers and the last layer, with activations, before squashing and bounds.

    Args:
        settings: of the policy.
        tensors: of policy.pth; those of the actor are used up.
        size: elements of the observation.
        image: (height, width, channels) if it is one.
        outputs: how many there have to be.

    Raises:
        ForeignError: a tensor is missing, or its shape fits neither its neighbours nor ``net_arch``.
    """
    steps: list[Step] = []
    if settings.extractor == "NatureCNN":
        if image is None:
            raise refusal("the observation space", "must be an image")
        steps, size = _nature(tensors, _extractor_name(settings, tensors), image)
        image = None
    for layer_number, units in enumerate(settings.lstm):
        cell = tensors.recurrent("lstm_actor", layer_number)
        if cell.recurrence.units != units or len(cell.kernel) != size:
            its = f"{len(cell.kernel)} inputs and {cell.recurrence.units} units"
            raise refusal(tensors.what, f"must have an LSTM layer of {size} inputs and {units} units, got {its}")
        steps.append(cell)
        size = units
    hidden, last = _mlp(settings, tensors)
    widths, arch = [len(layer.bias) for layer in hidden], settings.widths
    if arch is not None and widths != list(arch):
        raise refusal(tensors.what, f"must have hidden layers of {list(arch)} units as in net_arch, got {widths}")
    for number, layer in enumerate([*hidden, last]):
        if settings.norm_epsilon is not None and hidden:  # a normalisation in front of each Linear layer
            if image is not None:
                raise refusal("the observation space", "must not be an image before a batch normalisation")
            steps.append(tensors.batch_norm(f"actor.latent_pi.{NORM_EVERY * number}", size, settings.norm_epsilon))
        if len(layer.kernel) != size:
            raise refusal(tensors.what, f"must have a layer of {size} inputs, got {len(layer.kernel)}")
        steps.append(layer if image is None else Dense(rows_channels_last(layer.kernel, image), layer.bias))
        image = None
        if layer is not last:
            steps.append(settings.activation)
        size = len(layer.bias)
    if size != outputs:
        raise refusal(tensors.what, f"must have {outputs} outputs for the action space, got {size}")
    return steps


def _mlp(settings: Settings, tensors: Tensors) -> tuple[list[Dense], Dense]:
    if settings.family == "actor-critic":
        shared = tensors.layers("mlp_extractor.shared_net")  # of actor and critic, before version 1.8
        return [*shared, *tensors.layers("mlp_extractor.policy_net")], tensors.dense("action_net")
    if settings.family == "sac":
        # With gSDE the last layer is followed by a Hardtanh, in a Sequential.
        name = "actor.mu.0" if settings.uses_gsde and settings.clip_mean > 0 else "actor.mu"
        first, every = (0, 2) if settings.norm_epsilon is None else (1, NORM_EVERY)
        return tensors.layers("actor.latent_pi", first, every), tensors.dense(name)
    if settings.policy == "LinearPolicy" and "action_net.weight" in tensors.found:  # version 1.3
        return [], tensors.dense("action_net", settings.has_bias)
    layers = tensors.layers(_SEQUENTIALS[settings.family], has_bias=settings.has_bias)
    if not layers:
        raise refusal(tensors.what, "has no actor layers")
    return layers[:-1], _mean_of_quantiles(layers[-1], settings.quantiles, tensors.what)


def _mean_of_quantiles(last: Dense, quantiles: int, what: str) -> Dense:
    """Return the layer whose output is the mean over outputs (quantiles, actions), which has the largest mean action
    taken."""
    if quantiles < 1 or len(last.bias) % quantiles:
        raise refusal(what, f"must have a multiple of n_quantiles, {quantiles}, as outputs, got {len(last.bias)}")
    kernel, bias = (
        part.astype(np.float64).reshape(*part.shape[:-1], quantiles, -1).mean(axis=-2).astype(np.float32)
        for part in (last.kernel, last.bias)
    )
    return Dense(kernel, bias)


def _extractor_name(settings: Settings, tensors: Tensors) -> str:
    if settings.family != "actor-critic":
        return {"dqn": "q_net", "qrdqn": "quantile_net"}.get(settings.family, "actor") + ".features_extractor"
    plain, own = "features_extractor.", "pi_features_extractor."
    names = [name for name in tensors.found if name.startswith(own)]
    if not names:
        return plain[:-1]
    for name in names:  # one module under two names
        other = plain + name.removeprefix(own)
        if other in tensors.found:
            if not np.array_equal(tensors.found[other], tensors.found[name]):
                raise refusal(tensors.what, f"must have equal tensors {printable(name)} and {printable(other)}")
            tensors.used.add(other)
    return own[:-1]


def _nature(tensors: Tensors, name: str, image: tuple[int, int, int]) -> tuple[list[Step], int]:
    """NatureCNN: three convolutions, a Linear layer behind the flattened image, a ReLU behind each."""
    relu = Activate(Activation.RELU)
    height, width, channels = image
    steps: list[Step] = []
    for number, stride in zip((0, 2, 4), NATURE_STRIDES, strict=True):
        weight, bias = tensors.take(f"{name}.cnn.{number}.weight", 4), tensors.take(f"{name}.cnn.{number}.bias", 1)
        out_channels, in_channels, side, other = weight.shape
        if side != other or in_channels != channels or len(bias) != out_channels or min(height, width) < side:
            raise refusal(tensors.what, f"has a convolution {weight.shape}, not for {(height, width, channels)}")
        # (out, in, h, w) to (h, w, in, out)
        steps += [Convolution(np.ascontiguousarray(weight.transpose(2, 3, 1, 0)), bias, stride), relu]
        height, width, channels = (height - side) // stride + 1, (width - side) // stride + 1, out_channels
    linear = tensors.dense(f"{name}.linear.0")
    if len(linear.kernel) != height * width * channels:
        raise refusal(tensors.what, f"must take the image {(height, width, channels)}, got {len(linear.kernel)} inputs")
    kernel = rows_channels_last(linear.kernel, (height, width, channels))
    return [*steps, Dense(kernel, linear.bias), relu], len(linear.bias)
