"""A policy with fake-quantized weights and activations of any width, computed in float: what a study evaluates.

No device runs this; a device runs :mod:`policy.integer`, which the symmetric scheme agrees with at the widths that
artifacts have (within one step of the output, tested), and which simulation carries on to other widths and schemes.

What is the paper's (QuaRL) and what is ours:

* Weights. ``quarl``: the slides' affine quantizer, per tensor. ``quarl-released``: the released script's. The slides do
  not speak of biases: ours stay float there. ``symmetric`` rounds them to whole steps of input scale × kernel scale, as
  the int32 biases of devices are, wherever these have both (the steps are not always small: with few bits, and in
  CartPole's policies even with eight, float biases shift outputs by up to five levels). ``fp16`` takes every weight,
  biases too, to half precision, as the fp16 artifact does.
* Activations. The released script leaves them float, and so does ``quarl-released``. The slides quantize "weights and
  activations" in training, with the ranges that were monitored, and give no range for them after training: ours is what
  the bundle's calibration observations span. ``quarl`` takes the paper's quantizer over that range (floored); symmetric
  takes ``affine_from_range``, as devices do.
* What is quantized: the outputs of the hidden layers (after the ReLU), with ``activation_bits``. The slides do not say
  whether the observation and the network's output are: here both keep 8 bits or more, unless ``input_bits`` says
  otherwise for the observation (after the normaliser, which is float). They are the policy's interface, a handful of
  numbers, and all that few bits would save there is nothing. The input of a layer normalisation, of an activation other
  than a ReLU, or of a recurrent layer's gates keeps 8 bits or more too, as on devices; in ``quarl`` it stays float.
  Vector fields behind an image are the exception: they share the map of the last convolution's output, as on devices,
  and so its ``activation_bits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from quarl.policy import quantization
from quarl.policy.activations import activation_map, linear_map
from quarl.policy.contract.cells import STATE
from quarl.policy.contract.quantization import INPUT, LARGEST_WEIGHT_BITS
from quarl.policy.errors import QuantizationError
from quarl.policy.network import (
    Weights,
    apply_head,
    check_weights,
    hidden_activations,
    is_normalised,
    layer_names,
    linear_part,
)
from quarl.policy.quantization import FLOAT_BITS, LARGEST_SIMULATED_BITS, Affine, Floats, Scheme
from quarl.policy.quantizing.network import agreeing_scales, scales_of_layer, trained_with
from quarl.policy.ranges import Range, calibrated_ranges
from quarl.policy.spec import Activation, PolicySpec

HALF_BITS = 16
INTERFACE_BITS = 8  # of the observation and the head's outputs, at least
WEIGHTS_ONLY = (Scheme.QUARL_RELEASED, Scheme.FP16)


@dataclass(frozen=True)
class Widths:
    """How many bits everything has.

    Attributes:
        scheme: of the weights and activations.
        weight_bits: of the kernels, 2 … 32; 32 leaves them float. 16 in scheme fp16.
        activation_bits: of the hidden layers' outputs, 2 … 31; None leaves them and the head's outputs float.
        input_bits: of the normalised observation, 2 … 31; None is 8 or ``activation_bits``, whichever is more, and
            float where activations are.
        layer_bits: widths of single layers' kernels by layer name, in place of ``weight_bits``.
    """

    scheme: Scheme
    weight_bits: int = FLOAT_BITS
    activation_bits: int | None = None
    input_bits: int | None = None
    layer_bits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for bits in (self.weight_bits, *self.layer_bits.values()):
            quantization.check_bits(bits, highest=FLOAT_BITS)
            if self.scheme is Scheme.FP16 and bits not in (HALF_BITS, FLOAT_BITS):
                raise QuantizationError(f"scheme fp16 has {HALF_BITS} bits, not {bits}.")
        for given in (self.activation_bits, self.input_bits):
            if given is None:
                continue
            quantization.check_bits(given, highest=LARGEST_SIMULATED_BITS)
            if self.scheme in WEIGHTS_ONLY:
                raise QuantizationError(
                    f"scheme {self.scheme.value} quantizes weights only; activations of {given} bits were asked for.",
                    "Leave them float, or take the scheme quarl or symmetric.",
                )

    @property
    def observation_bits(self) -> int | None:
        """Bits of the normalised observation; None for float."""
        return self.input_bits if self.input_bits is not None else self.interface_bits

    @property
    def interface_bits(self) -> int | None:
        """Bits of the head's outputs and of what a layer normalisation is fed; None for float."""
        return None if self.activation_bits is None else max(INTERFACE_BITS, self.activation_bits)

    def bits_of(self, layer: str) -> int:
        """Bits of a layer's kernel."""
        return self.layer_bits.get(layer, self.weight_bits)


@dataclass(frozen=True)
class Simulated:
    """A policy as it reads after quantization. Make one with :func:`simulate`.

    Attributes:
        widths: what was asked for.
        weights: float32 numbers on their grids, by name, as the float policy's.
        maps: of the activation tensors that are quantized, by the names of :func:`policy.ranges.calibrated_ranges`.
    """

    widths: Widths
    weights: Weights
    maps: Mapping[str, Affine]

    def quantized(self, tensor: str, values: Floats) -> Floats:
        """An activation tensor on its grid, same shape; unchanged where it stays float."""
        affine = self.maps.get(tensor)
        if affine is None:
            return values
        if self.widths.scheme is Scheme.QUARL:
            return quantization.quarl_values(quantization.quarl_levels(values, affine), affine)
        return quantization.dequantize_affine(quantization.quantize_affine(values, affine), affine)


def simulate(spec: PolicySpec, weights: Weights, calibration: np.ndarray, widths: Widths) -> Simulated:
    """Quantize a policy for simulation.

    A policy that was trained with quantizers gets them at its own width in the symmetric scheme, as its artifact does.

    Args:
        spec: the policy.
        weights: float32, as :func:`policy.spec.weight_shapes` names them.
        calibration: raw observations (n, observation_size) recorded from real rollouts; not looked at where activations
            and input stay float.
        widths: the bits.

    Raises:
        QuantizationError: a layer that the network does not have, no calibration rows, or non-finite values.
    """
    check_weights(spec, weights)
    names = layer_names(spec)
    if unknown := sorted(widths.layer_bits.keys() - set(names)):
        raise QuantizationError(f"the policy has no layers {unknown}; it has {', '.join(names)}.")
    if widths.scheme is Scheme.FP16:
        half = {
            name: quantization.to_fp16(value).astype(np.float32) if _bits(widths, name) == HALF_BITS else value
            for name, value in weights.items()
        }
        return Simulated(widths, half, {})
    maps = activation_maps(spec, weights, calibration, widths)
    changed: dict[str, Floats] = {}
    for name in names:
        changed |= _layer(spec, name, weights, widths, maps)
    return Simulated(widths, {**weights, **changed}, maps)


def activation_maps(spec: PolicySpec, weights: Weights, calibration: np.ndarray, widths: Widths) -> dict[str, Affine]:
    """The map of every activation tensor that is quantized, by name."""
    if widths.activation_bits is None and widths.observation_bits is None:
        return {}
    is_quarl = widths.scheme is Scheme.QUARL
    trained = None if is_quarl else trained_with(spec, widths.weight_bits)
    if trained is not None and widths.activation_bits != trained.bits:
        trained = None
    ranges = calibrated_ranges(spec, weights, calibration, trained, whole_head=is_quarl)
    maps: dict[str, Affine] = {}
    for name, ends in sorted(ranges.items(), key=lambda item: "/" in item[0]):  # activations before what they are fed
        bits = widths.interface_bits
        if name == INPUT:
            bits = widths.observation_bits
        elif name in spec.network.hidden_names and not _are_gates(name):
            bits = widths.activation_bits
        elif name != "head" and is_quarl:
            bits = None  # what a layer normalisation, an activation or a recurrent layer's gates are fed
        if bits is not None:
            maps[name] = quantization.quarl_from_range(*ends, bits) if is_quarl else _map(spec, name, ends, bits, maps)
    return maps


def _map(spec: PolicySpec, tensor: str, ends: Range, bits: int, maps: Mapping[str, Affine]) -> Affine:
    """The map of a tensor with these ends and bits; with 8 bits the map that the artifact has."""
    layer = tensor.removesuffix("/linear")
    is_linear = tensor == INPUT or is_normalised(spec.network, layer) or _are_gates(tensor)
    if bits != LARGEST_WEIGHT_BITS or is_linear:
        return quantization.affine_from_range(*ends, bits)
    if tensor != layer:
        return linear_map(spec.network, layer, *ends, maps[layer])
    return activation_map(spec.network, layer, *ends)


def _are_gates(tensor: str) -> bool:
    """Whether a tensor is the sums of a recurrent layer's gates."""
    return tensor.startswith("recurrent_") or (tensor.startswith(STATE) and tensor.endswith("/linear"))


def _bits(widths: Widths, weight: str) -> int:
    return widths.bits_of(weight.rpartition("/")[0])


def _layer(
    spec: PolicySpec, layer: str, weights: Weights, widths: Widths, maps: Mapping[str, Affine]
) -> dict[str, Floats]:
    """A layer's weights on their grids, as far as they change, by name."""
    kernel, bias, bits = weights[f"{layer}/kernel"], weights[f"{layer}/bias"], widths.bits_of(layer)
    quantizers = {
        Scheme.QUARL: quantization.quarl,
        Scheme.QUARL_RELEASED: quantization.quarl_released,
        Scheme.SYMMETRIC: quantization.fake_symmetric,
    }
    if bits == FLOAT_BITS:
        return {}
    if widths.scheme is not Scheme.SYMMETRIC or bits > LARGEST_WEIGHT_BITS:
        return {f"{layer}/kernel": quantizers[widths.scheme](kernel, bits)}
    scales = scales_of_layer(spec, layer, kernel, bits)
    names = (INPUT, *layer_names(spec))
    fed = maps.get(layer if layer in spec.network.states else names[names.index(layer) - 1])
    eight = bits == widths.activation_bits == LARGEST_WEIGHT_BITS
    fused = layer != "head" and spec.network.activation_of(layer) is Activation.RELU
    if eight and fed is not None and fused and linear_part(layer) not in maps:
        # As policy.integer does for the artifact, whose kernels have to round alike in every runtime.
        scales = agreeing_scales(scales, fed.scale, maps[layer].scale)
    if fed is not None:
        # b̂ = s_in · s_c · round(b / (s_in · s_c))
        steps = np.float64(fed.scale) * scales.astype(np.float64)
        bias = (np.rint(bias.astype(np.float64) / steps) * steps).astype(np.float32)
    return {f"{layer}/kernel": quantization.fake_symmetric(kernel, bits, scales), f"{layer}/bias": bias}


def forward_simulated(spec: PolicySpec, simulated: Simulated, observations: np.ndarray) -> Floats:
    """Raw observations (batch, observation_size) to results (batch, result_size), float32, through the quantizers."""
    activations = hidden_activations(spec, simulated.weights, observations, simulated.quantized)
    return apply_head(spec, activations[-1], observations)
