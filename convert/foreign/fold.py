"""From a chain of steps to the contract: normaliser, layers and head, with every affine map between them folded in.

Folding multiplies in float64 and rounds once, so that the bundle computes what the chain does to a few float32
roundings; ``convert.foreign.proof`` holds it to that. Whatever does not reduce to the contract is refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from convert.foreign.chain import (
    Activate,
    Affine,
    Clip,
    Continuous,
    Convolution,
    Dense,
    Discrete,
    Doubles,
    Features,
    ForeignError,
    ForeignPolicy,
    LayerNorm,
    Step,
    run,
)
from convert.foreign.prefix import Prefix, refuse_odd_images
from policy.contract.features import FloatStep, sizes_of
from policy.exact import LAYER_NORM_EPSILON
from policy.observing.features import exact_features
from policy.quantization import Floats
from policy.spec import Activation, ContinuousHead, DiscreteHead, NetworkSpec, Normaliser, ObservationField, Squash
from policy.spec import Convolution as ConvolutionSpec


@dataclass
class Layer:
    """One convolution or dense layer under construction, in float64.

    Attributes:
        kernel: (in, out), or (side, side, in, out) of a convolution.
        bias: (out,).
        stride: of a convolution.
        norm: (γ, β) of a layer normalisation behind it.
        activation: behind both; of the last layer, NONE.
    """

    kernel: Doubles
    bias: Doubles
    stride: int = 0
    norm: tuple[Doubles, Doubles] | None = None
    activation: Activate = field(default_factory=lambda: Activate(Activation.NONE))


@dataclass(frozen=True)
class Folded:
    """A chain in the contract's terms.

    Attributes:
        observation, features, normaliser, network, head: of the spec.
        weights: float32, by the bundle's names.
    """

    observation: tuple[ObservationField, ...]
    features: tuple[FloatStep, ...]
    normaliser: Normaliser
    network: NetworkSpec
    head: DiscreteHead | ContinuousHead
    weights: dict[str, Floats]


def fold(policy: ForeignPolicy, observations: np.ndarray) -> Folded:
    """The chain's normaliser, layers and head.

    Args:
        policy: its ``actions`` are known.
        observations: raw rows (n, size), of which the reach of unbounded actions is taken.

    Raises:
        ForeignError: a step that the contract has no place for, by its name.
    """
    fields = tuple(ObservationField(i.name, i.shape, i.unit, i.element_names, i.memory) for i in policy.inputs)
    steps = list(policy.steps)
    opening = steps.pop(0) if steps and isinstance(steps[0], Features) else None
    program = opening.steps if isinstance(opening, Features) else ()
    size = sizes_of(program, sum(each.size for each in fields))[-1]
    before: list[Affine | Clip] = []
    while steps and isinstance(steps[0], Affine | Clip):
        before.append(steps.pop(0))  # type: ignore[arg-type]
    prefix = Prefix.of(size, before)
    layers, after = _layers(steps)
    if not before and layers[0].kernel.ndim == 2:
        prefix = _from_observations(layers[0], exact_features(program, observations))
    _take_up(prefix, layers[0])
    head = _head(policy, layers[-1], after)
    network, weights = _network(layers)
    if isinstance(head, ContinuousHead) and head.squash is not Squash.TANH:
        head = _fitted(head, layers[-1], run(policy, observations))
        network, weights = _network(layers)
    return Folded(fields, program, prefix.normaliser(), network, head, weights)


def _layers(steps: list[Step]) -> tuple[list[Layer], list[Step]]:
    """The layers, with what stands between them folded in, and the steps behind the last one."""
    last = max((at for at, step in enumerate(steps) if isinstance(step, Dense)), default=None)
    if last is None:
        raise ForeignError("the policy has no dense layer, so that it has no outputs of a network.")
    layers: list[Layer] = []
    waiting: tuple[Doubles, Doubles] | None = None  # an affine map of the last activation, for the next layer
    for step in steps[: last + 1]:
        if isinstance(step, Dense | Convolution):
            layer = _fed(step, waiting)
            waiting = None
            if not _merged(layers, layer):
                layers.append(layer)
        elif not layers:
            raise ForeignError(f"{_named(step)} before the first layer is nothing that a normaliser can do.")
        elif isinstance(step, Affine):
            waiting = _behind(layers[-1], step, waiting)
        elif isinstance(step, LayerNorm):
            if layers[-1].norm is not None or layers[-1].activation.activation is not Activation.NONE or waiting:
                raise ForeignError("a layer normalisation behind an activation is not supported; only before it.")
            _check_norm(step, layers[-1])
            layers[-1].norm = step.gamma.astype(np.float64), step.beta.astype(np.float64)
        elif isinstance(step, Activate):
            if step.activation is Activation.NONE:
                continue
            if layers[-1].activation.activation is not Activation.NONE or waiting is not None:
                raise ForeignError(f"{_named(step)} behind another activation is not supported.")
            layers[-1].activation = step
        else:
            raise ForeignError("a clip between layers is not supported; only of the observation and of the actions.")
    return layers, steps[last + 1 :]


def _fed(step: Dense | Convolution, waiting: tuple[Doubles, Doubles] | None) -> Layer:
    """A layer that takes up the affine map of what it is fed: Σ (s x + o) W + b = Σ x (s W) + (o W + b)."""
    kernel, bias = step.kernel.astype(np.float64), step.bias.astype(np.float64)
    if waiting is not None:
        channels = kernel.shape[-2]
        scale, offset = (np.resize(each, channels) for each in waiting)  # repeated: images are flattened channels last
        rows = offset[:, None] * kernel
        bias = bias + rows.reshape(-1, kernel.shape[-1]).sum(axis=0)
        kernel = kernel * scale[:, None]
    return Layer(kernel, bias, step.stride if isinstance(step, Convolution) else 0)


def _merged(layers: list[Layer], layer: Layer) -> bool:
    """Whether the layer went into the one before it: two without an activation are one, if that is no larger."""
    if not layers:
        return False
    before = layers[-1]
    linear = before.norm is None and before.activation.activation is Activation.NONE
    if not linear or before.kernel.ndim != 2 or layer.kernel.ndim != 2:
        return False
    merged = before.kernel @ layer.kernel
    if merged.size > before.kernel.size + layer.kernel.size:
        return False
    layers[-1] = Layer(merged, before.bias @ layer.kernel + layer.bias)
    return True


def _behind(layer: Layer, step: Affine, waiting: tuple[Doubles, Doubles] | None) -> tuple[Doubles, Doubles] | None:
    """Fold an affine map into the layer before it, or keep it for the next one where an activation stands between."""
    scale, offset = (np.broadcast_to(each, layer.bias.shape) for each in (step.scale, step.offset))
    if layer.activation.activation is not Activation.NONE:
        s, o = waiting if waiting is not None else (np.ones_like(scale), np.zeros_like(offset))
        return s * scale, o * scale + offset
    if layer.norm is not None:
        layer.norm = layer.norm[0] * scale, layer.norm[1] * scale + offset
    else:
        layer.kernel, layer.bias = layer.kernel * scale, layer.bias * scale + offset
    return None


def _check_norm(step: LayerNorm, layer: Layer) -> None:
    if layer.kernel.ndim != 2:
        raise ForeignError("a layer normalisation behind a convolution is not supported; only behind dense layers.")
    if not math.isclose(step.epsilon, LAYER_NORM_EPSILON, rel_tol=1e-3):
        raise ForeignError(
            f"a layer normalisation has the epsilon {step.epsilon:g}; supported is {LAYER_NORM_EPSILON:g}.",
            "Train with the epsilon of PyTorch's LayerNorm, 1e-5.",
        )


def _from_observations(first: Layer, observations: np.ndarray) -> Prefix:
    """A normaliser for a policy that has none, and the first layer that undoes it: nothing changes but int8.

    All elements share one int8 scale: an angle beside a speed would have few levels. x W = ((x − m) / s) (s W) + m W.
    """
    rows = np.asarray(observations, np.float64)
    low, high = rows.min(axis=0), rows.max(axis=0)
    middle = np.float64(np.float32((high + low) / 2))
    reach = np.where(high > low, np.float64(np.float32((high - low) / 2)), 1.0)
    first.bias = first.bias + middle @ first.kernel
    first.kernel = first.kernel * reach[:, None]
    size = len(reach)
    return Prefix(1.0 / reach, -middle / reach, np.full(size, -np.inf), np.full(size, np.inf))


def _take_up(prefix: Prefix, first: Layer) -> None:
    """Let the first layer take up what no normaliser can say: signs and constants of the observation's elements."""
    if first.kernel.ndim != 2:
        refuse_odd_images(prefix)
        return
    if len(prefix.scale) != len(first.kernel):
        raise ForeignError(
            f"the observation has {len(prefix.scale)} elements, and the first layer takes {len(first.kernel)}."
        )
    constants = prefix.constants
    fixed = np.isfinite(constants)
    first.bias = first.bias + np.where(fixed, constants, 0.0) @ first.kernel
    first.kernel = np.where(fixed[:, None], 0.0, first.kernel) * prefix.signs[:, None]
    first.bias = first.bias + prefix.rounded @ first.kernel


def _head(policy: ForeignPolicy, last: Layer, after: list[Step]) -> DiscreteHead | ContinuousHead:
    """The head, given what follows the last layer, which takes up the maps before the squashing."""
    outputs = len(last.bias)
    steps = [step for step in after if not (isinstance(step, Activate) and step.activation is Activation.NONE)]
    if last.norm is not None or last.activation.activation is not Activation.NONE:
        raise ForeignError("the last layer is no plain dense layer.")
    while steps and isinstance(steps[0], Affine):
        _behind(last, steps.pop(0), None)  # type: ignore[arg-type]
    if isinstance(policy.actions, Discrete):
        if steps:
            raise ForeignError(f"{_named(steps[0])} behind the outputs of a discrete policy is not supported.")
        names = policy.actions.names or tuple(map(str, range(outputs)))
        if len(names) != outputs:
            raise ForeignError(f"the policy has {outputs} outputs, and {len(names)} actions are named.")
        return DiscreteHead(names)
    if not isinstance(policy.actions, Continuous):
        raise ForeignError(
            "the file does not say what its outputs mean.",
            "Add --actions discrete, as-is, clip or scale (with --bounds LOW:HIGH).",
        )
    ones = np.ones(outputs)
    limit = math.inf
    if steps and isinstance(steps[0], Clip) and any(isinstance(step, Activate) for step in steps):
        limit = _limit(steps.pop(0))  # type: ignore[arg-type]
    if steps and isinstance(steps[0], Activate):
        if steps[0].activation is Activation.SIGMOID:
            limit /= 2  # as the outputs: see _squashed
        gain, offset = (each * ones for each in _squashed(steps.pop(0), last))  # type: ignore[arg-type]
        for step in steps:
            gain, offset = _through(step, gain, offset)
        signs = np.where(gain < 0, -1.0, 1.0)
        last.kernel, last.bias, gain = last.kernel * signs, last.bias * signs, np.abs(gain)
        if not gain.all():
            raise ForeignError("an action is multiplied by 0.")
        return _continuous(offset - gain, offset + gain, Squash.TANH, limit, policy.actions)
    clips = Prefix.of(outputs, [step for step in steps if isinstance(step, Affine | Clip)])
    if odd := [step for step in steps if not isinstance(step, Affine | Clip)]:
        raise ForeignError(f"{_named(odd[0])} behind the actions is not supported.")
    last.kernel, last.bias = last.kernel * clips.scale, last.bias * clips.scale + clips.offset
    bounded = np.isfinite(clips.low) & np.isfinite(clips.high)
    if not bounded.any() and not (np.isfinite(clips.low) | np.isfinite(clips.high)).any():
        return _continuous(-ones, ones, Squash.NONE, math.inf, policy.actions)
    if not bounded.all():
        raise ForeignError("some actions are clipped and others are not, or at one end only; that is not supported.")
    if (clips.low >= clips.high).any():
        raise ForeignError("an action is clipped to a single value.")
    gain, offset = (clips.high - clips.low) / 2, (clips.high + clips.low) / 2
    last.kernel, last.bias = last.kernel / gain, (last.bias - offset) / gain
    return _continuous(clips.low, clips.high, Squash.CLIP, math.inf, policy.actions)


def _squashed(step: Activate, last: Layer) -> tuple[float, float]:
    """(gain, offset) of tanh: a sigmoid is (1 + tanh y/2) / 2."""
    if step.activation is Activation.TANH:
        return 1.0, 0.0
    if step.activation is Activation.SIGMOID:
        last.kernel, last.bias = last.kernel / 2, last.bias / 2
        return 0.5, 0.5
    raise ForeignError(f"{_named(step)} behind the last layer is not supported; only tanh and sigmoid.")


def _limit(step: Clip) -> float:
    """The one largest |y| that a clip before the squashing lets through."""
    limit = float(np.max(step.high))
    if (np.asarray(step.high) != limit).any() or (np.asarray(step.low) != -limit).any():
        raise ForeignError("the clip before the squashing has other bounds than −x … x, the same for all actions.")
    return limit


def _through(step: Step, gain: Doubles, offset: Doubles) -> tuple[Doubles, Doubles]:
    if isinstance(step, Affine):
        return gain * step.scale, offset * step.scale + step.offset
    if isinstance(step, Clip):
        reach = np.abs(gain) * (1 - 1e-6)
        if (offset - reach >= step.low).all() and (offset + reach <= step.high).all():
            return gain, offset  # it cuts nothing
        raise ForeignError("a clip behind the squashed actions cuts some of them; that is not supported.")
    raise ForeignError(f"{_named(step)} behind the squashed actions is not supported.")


def _continuous(low: Doubles, high: Doubles, squash: Squash, limit: float, actions: Continuous) -> ContinuousHead:
    return ContinuousHead(tuple(low.tolist()), tuple(high.tolist()), squash, limit, actions.names, actions.unit)


def _fitted(head: ContinuousHead, last: Layer, reached: Doubles) -> ContinuousHead:
    """A head whose −1 … 1 is about what its actions reach, (n, outputs): so each has its share of the 8 bits.

    Bounds that no action comes near become a limit of the raw outputs, L: centre ± L · (half width / L).
    """
    low, high = reached.min(axis=0), reached.max(axis=0)
    if head.squash is Squash.CLIP:
        half, centre = (np.array(head.high) - np.array(head.low)) / 2, (np.array(head.high) + np.array(head.low)) / 2
        share = float((np.maximum(high - centre, centre - low) / half).max())
        if not 0.0 < share < 1.0 / FAR_BOUNDS:
            return head
        limit = 1.0 / share
        last.kernel, last.bias = last.kernel * limit, last.bias * limit
        ends = (tuple((centre + sign * half / limit).tolist()) for sign in (-1.0, 1.0))
        return replace(head, low=next(ends), high=next(ends), squash=Squash.NONE, limit=limit)
    wide = high - low > 1e-6 * np.maximum(1.0, np.abs(high))
    gain, offset = np.where(wide, (high - low) / 2, 1.0), np.where(wide, (high + low) / 2, 0.0)
    last.kernel, last.bias = last.kernel / gain, (last.bias - offset) / gain
    return replace(head, low=tuple((offset - gain).tolist()), high=tuple((offset + gain).tolist()))


def _network(layers: list[Layer]) -> tuple[NetworkSpec, dict[str, Floats]]:
    *hidden, head = layers
    convolutions = [layer for layer in hidden if layer.kernel.ndim == 4]
    dense = hidden[len(convolutions) :]
    if any(layer.kernel.ndim == 4 for layer in dense) or head.kernel.ndim == 4:
        raise ForeignError("a convolution behind a dense layer is not supported.")
    norms = [layer.norm is not None for layer in dense]
    if any(norms) and not all(norms):
        raise ForeignError("only some of the hidden layers are normalised; supported are all or none.")
    kinds = tuple(layer.activation.activation for layer in hidden)
    slopes = {layer.activation.negative_slope for layer in hidden if layer.activation.activation is LEAKY}
    if len(slopes) > 1:
        raise ForeignError(f"LeakyReLUs have different slopes, {sorted(slopes)}; supported is one for all of them.")
    network = NetworkSpec(
        hidden=tuple(len(layer.bias) for layer in dense),
        activation=kinds[0] if kinds else Activation.RELU,
        convolutions=tuple(ConvolutionSpec(len(c.bias), c.kernel.shape[0], c.stride) for c in convolutions),
        layer_norm=bool(norms) and all(norms),
        activations=kinds if len(set(kinds)) > 1 else (),
        negative_slope=float(next(iter(slopes), 0.01)),
    )
    weights: dict[str, Floats] = {}
    for name, layer in zip((*network.hidden_names, "head"), layers, strict=True):
        parts = {"kernel": layer.kernel, "bias": layer.bias}
        if layer.norm is not None:
            parts |= {"gamma": layer.norm[0], "beta": layer.norm[1]}
        weights |= {f"{name}/{part}": np.ascontiguousarray(value, np.float32) for part, value in parts.items()}
    return network, weights


LEAKY = Activation.LEAKY_RELU
FAR_BOUNDS = 2.0
"""Times as far from the centre as any action: bounds that clip nothing and would take the int8 levels."""


def _named(step: Step) -> str:
    """A step in words."""
    if isinstance(step, Activate):
        return f"the activation {step.activation.value}"
    return {
        Affine: "an affine map",
        Clip: "a clip",
        LayerNorm: "a layer normalisation",
        Dense: "a dense layer",
        Features: "a float operator",
        Convolution: "a convolution",
    }[type(step)]
