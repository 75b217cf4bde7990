"""A policy with fake-quantized weights and activations of any width, computed in float: what a study evaluates.

No device runs this; a device runs the integers of :mod:`policy.reference`. At the widths that artifacts have, the
symmetric scheme agrees with those within one step of the output (tested); simulation covers other widths and schemes.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.errors import QuantizationError
from quarl.policy.exact import COARSE, FINE, Floats
from quarl.policy.quantize import (
    FLOAT_BITS,
    LARGEST_SIMULATED_BITS,
    Affine,
    IntegerTable,
    Scheme,
    activation_map,
    affine_from_range,
    build_hidden_map,
    check_bits,
    check_finite,
    dequantize_affine,
    dequantize_symmetric,
    dynamic_scales,
    fake_symmetric,
    linear_map,
    quantize_affine,
    quantize_symmetric,
    quantizer_of_zero_activation,
    quarl,
    quarl_from_range,
    quarl_levels,
    quarl_released,
    quarl_values,
    scales_of_zeros,
    to_fp16,
)
from quarl.policy.quantize import kernel_scales as scales_of_kernel
from quarl.policy.reference import (
    IntegerCell,
    IntegerLayer,
    IntegerNetwork,
    IntegerNorm,
    WeightBits,
    Weights,
    apply_head,
    as_batch,
    check_weights,
    compute_activations,
    forward_float,
    grey_levels,
    has_linear_part,
    is_normalised,
    layer_names,
    linear_part,
    normalise,
    winning_outputs,
)
from quarl.policy.spec import (
    INPUT,
    LARGEST_WEIGHT_BITS,
    STATE,
    Activation,
    NetworkSpec,
    PolicySpec,
    Precision,
    Ranges,
    TrainedQuantization,
    WeightRange,
)

# --- ranges ---------------------------------------------------------------------------------------------------------
# A policy's activations are quantized over ranges seen on recorded observations or monitored in training, one for each
# tensor by name: ``input`` (the normalised observation); every layer by its own name (its output after the activation;
# the head's is raw); ``<layer>/linear`` (the input of a layer normalisation or of an activation other than a ReLU). Of
# a recurrent layer, ``recurrent_<i>`` and ``state_<i>/linear`` are the sums of its two linear layers, and ``state_<i>``
# is its hidden state, old and new. Where vector fields follow an image, ``input`` is the image alone, and the last
# convolution's range covers the vector too.
#
# They are computed with the same bits on every processor (:mod:`policy.exact`): an artifact's scales, zero points and
# integers follow from them, so the same bundle gives the same artifact wherever it is converted.

Range = tuple[float, float]
# How far below the smallest winning output the range goes on, as a fraction of the winners' range.
WINNER_MARGIN = 0.25


def calibrate_ranges(
    spec: PolicySpec,
    weights: Weights,
    calibration: np.ndarray,
    trained: TrainedQuantization | None = None,
    whole_head: bool = False,
    ends: Ranges = Ranges.MINMAX,
) -> dict[str, Range]:
    """(low, high) of every activation tensor by name.

    Args:
        spec: the policy.
        weights: float32, as :func:`policy.spec.weight_shapes` names them.
        calibration: raw observations (n, observation_size) recorded from real rollouts.
        trained: quantizers that it was trained with, whose ranges take the place of those seen; images keep theirs.
        whole_head: the head's range is all that was seen; else it is :func:`output_range`.
        ends: how the ranges of the other activations are chosen.

    Raises:
        QuantizationError: no calibration rows, or non-finite values.
    """
    observations = as_batch(spec, calibration)
    if len(observations) == 0:
        raise QuantizationError("the calibration set must have observations from real rollouts, got none.")
    check_finite(observations, "calibration observations")
    ranges: dict[str, Range] = {}

    def record_range(name: str, values: Floats) -> Floats:
        low, high = ranges.get(name, (np.inf, -np.inf))  # a state is seen twice: as it was, and as it becomes
        least, most = _ends(values, ends)
        ranges[name] = min(low, least), max(high, most)
        return values

    raw = compute_activations(spec, weights, observations, record_range, exact=COARSE)[-1][:, : spec.output_size]
    if not whole_head:
        ranges["head"] = output_range(spec, raw)
    if trained is not None:
        ranges.update(trained.ranges)
    if spec.is_image and grey_levels(observations) is not None:
        # All of them, recorded or not, so that every grey level is a level: steps of 1 / scale.
        ranges[INPUT] = _ends(normalise(spec.normaliser, np.array([[0.0], [255.0]], np.float32)))
    return ranges


def output_range(spec: PolicySpec, raw: NDArray[np.float32]) -> Range:
    """Range that the head's 8 bits are spent on, given its raw outputs (n, output_size) on the calibration set.

    Of a discrete head only the largest output counts, so no levels go to outputs far below every winner. Measured on
    ten trained navigation policies, 11,520 observations each, against the whole range: the step is half to two thirds
    as wide, and a quarter to two fifths fewer actions differ from fp32's (2.8 instead of 4.1 %, for example), in every
    one of them. The margin leaves levels to a winner that is smaller than any seen before.
    """
    lowest, highest = _ends(raw)
    if spec.is_discrete:
        winner = float(winning_outputs(spec, raw).min())
        lowest = max(lowest, winner - WINNER_MARGIN * (highest - winner))
    return lowest, highest


MOST_SEARCHED, SHARES = 100_000, np.linspace(1.0, 0.2, 81)
"""Values that a search looks at, and the shares of their range that it tries."""


def _ends(values: NDArray[np.float32], ends: Ranges = Ranges.MINMAX) -> Range:
    low, high = float(values.min()), float(values.max())
    if ends is Ranges.PERCENTILE:
        low, high = (float(end) for end in np.percentile(values, (0.01, 99.99)))
    if ends is Ranges.MSE:
        some = values.ravel()[:: -(-values.size // MOST_SEARCHED)].astype(np.float64)

        def error(share: float) -> float:
            affine = affine_from_range(share * low, share * high)
            levels = np.clip(np.rint(some / affine.scale) + affine.zero_point, affine.low, affine.high)
            return float(np.square((levels - affine.zero_point) * affine.scale - some).sum())

        share = min(SHARES, key=error)
        low, high = share * low, share * high
    return low, high


# --- integers -------------------------------------------------------------------------------------------------------

INT32_MAX = 2**31 - 1
# agreeing_scales: more than the relative error of a float32 multiplier and its product (three roundings, 3 · 2⁻²⁴).
ABOVE_THE_HALF = 2.0**-21
# Moves the largest weight, 127 levels, by no more than two thirds of a level.
LARGEST_NUDGE = 0.005
SMALLEST_FRACTION = 0.515


def quantize_network(
    spec: PolicySpec,
    weights: Weights,
    calibration: np.ndarray,
    weight_bits: WeightBits = 8,
    ends: Ranges = Ranges.MINMAX,
) -> IntegerNetwork:
    """Quantize a policy with the activation ranges seen on recorded observations.

    Args:
        spec: the policy.
        weights: float32, as :func:`policy.spec.weight_shapes` names them.
        calibration: raw observations (n, observation_size) recorded from real rollouts.
        weight_bits: of the kernels.
        ends: how the activations' ranges are chosen.

    Raises:
        QuantizationError: bits of other layers than the policy has, no calibration rows, non-finite values, or an
            accumulator that could overflow int32.
    """
    bits = bits_by_layer(spec, weight_bits)
    trained = find_trained_quantizers(spec, weight_bits)
    ranges = calibrate_ranges(spec, weights, calibration, trained, ends=ends)
    network = spec.network
    maps = [affine_from_range(*ranges[INPUT])]
    maps += [activation_map(network, name, *ranges[name]) for name in layer_names(spec)]
    if trained is not None:
        maps[1:-1] = [build_hidden_map(trained, name) for name in spec.network.hidden_names]
    scales = {name: scales_of_layer(spec, name, weights[f"{name}/kernel"], bits[name]) for name in bits}
    for index in reversed(range(1, len(maps) - 1)):
        following = layer_names(spec)[index]
        if (
            maps[index].scale == 1.0
            and not any(ranges[layer_names(spec)[index - 1]])
            and following not in network.states
        ):
            output = _linear_output(network, following, ranges, maps[index + 1])
            maps[index] = quantizer_of_zero_activation(maps[index], scales[following], output)
    layers = []
    for index, name in enumerate(layer_names(spec)):
        normalised = is_normalised(network, name)
        fed = maps[index + 1 if name in network.states else index]
        output = _linear_output(network, name, ranges, maps[index + 1])
        relu = name != "head" and not normalised and network.activation_of(name) is Activation.RELU
        kernel_scales = scales[name]
        bias_floats = weights[f"{name}/bias"].astype(np.float64)
        kernel_scales = scales_of_zeros(weights[f"{name}/kernel"], bias_floats, kernel_scales, fed, output)
        if bits[name] == 8 and relu:
            kernel_scales = agreeing_scales(kernel_scales, fed.scale, output.scale)
        kernel = quantize_symmetric(weights[f"{name}/kernel"], kernel_scales, bits[name])
        # b_q = round(b / (s_in · s_c))
        bias_steps = np.float64(fed.scale) * kernel_scales.astype(np.float64)
        bias = np.rint(bias_floats / bias_steps)
        _check_accumulator(name, kernel, bias)
        stride, norm, table, cell = 1, None, None, None
        if index < len(spec.network.convolutions):
            stride = spec.network.convolutions[index].stride
        if normalised:
            norm = IntegerNorm(weights[f"{name}/gamma"], weights[f"{name}/beta"], network, maps[index + 1])
        elif name in network.states:
            cell = IntegerCell(network.states[name].program(), maps[index], maps[index + 1])
        elif has_linear_part(network, name):
            table = IntegerTable.build_lookup(network, name, output, maps[index + 1])
        bias_levels = bias.astype(np.int32)
        layers.append(IntegerLayer(name, kernel, bias_levels, kernel_scales, output, relu, stride, norm, table, cell))
    return IntegerNetwork(maps[0], tuple(layers), weight_bits)


def _linear_output(network: NetworkSpec, layer: str, ranges: Mapping[str, Range], result: Affine) -> Affine:
    """Map of the integers that a layer computes, given that of what the next one is fed."""
    if not has_linear_part(network, layer):
        return result
    if is_normalised(network, layer) or layer in network.states:
        return affine_from_range(*ranges[linear_part(layer)])
    return linear_map(network, layer, *ranges[linear_part(layer)], result)


def bits_by_layer(spec: PolicySpec, weight_bits: WeightBits) -> dict[str, int]:
    """Bits of every layer's kernel, by its name, in the order of the layers.

    Raises:
        QuantizationError: there are bits of other layers than the policy has.
    """
    names = layer_names(spec)
    if isinstance(weight_bits, int):
        return dict.fromkeys(names, weight_bits)
    if weight_bits.keys() != set(names):
        raise QuantizationError(f"weight_bits must be of the layers {sorted(names)}, got {sorted(weight_bits)}.")
    return {name: weight_bits[name] for name in names}


def find_trained_quantizers(spec: PolicySpec, weight_bits: WeightBits) -> TrainedQuantization | None:
    """Return the quantizers that the policy was trained with, if it was, and for this width of all layers."""
    trained = spec.quantization
    return trained if trained is not None and {trained.bits} == set(bits_by_layer(spec, weight_bits).values()) else None


def scales_of_layer(spec: PolicySpec, layer: str, kernel: Floats, bits: int) -> Floats:
    """Kernel scales (out,) of a layer of this many bits: those that it was trained with, if it was for this width."""
    trained = find_trained_quantizers(spec, bits)
    return scales_of_kernel(kernel, bits, WeightRange.LARGEST if trained is None else trained.weight_range)


def stored_kernel(
    spec: PolicySpec, weights: Weights, layer: str, precision: Precision
) -> tuple[NDArray[Any], Floats | None]:
    """Return a layer's kernel (…, out) for a float artifact: floats and None, or, of a precision of weights alone, int8
    levels and their scales (out,)."""
    kernel = weights[f"{layer}/kernel"]
    if not precision.is_weight_only:
        return kernel, None
    scales = scales_of_layer(spec, layer, kernel, precision.bits)
    return quantize_symmetric(kernel, scales, precision.bits), scales


def stored_weights(spec: PolicySpec, weights: Weights, precision: Precision) -> Weights:
    """Return the float32 weights that a float artifact's stored ones stand for."""
    if precision is Precision.FP32:
        return weights
    if precision is Precision.FP16:
        return {name: to_fp16(value).astype(np.float32) for name, value in weights.items()}
    levels = {name: stored_kernel(spec, weights, name, precision) for name in layer_names(spec)}
    kernels = {
        f"{name}/kernel": dequantize_symmetric(q, scales) for name, (q, scales) in levels.items() if scales is not None
    }
    return {**weights, **kernels}


def forward_stored(
    spec: PolicySpec, weights: Weights, precision: Precision, exact: bool = False
) -> Callable[[NDArray[Any]], Floats]:
    """Return raw observations (batch, observation_size) to results (batch, result_size) of a float artifact.

    Args:
        spec, weights: the policy.
        precision: of the artifact.
        exact: with the same bits on every processor.
    """
    stored = stored_weights(spec, weights, precision)
    if precision is not Precision.DYNAMIC:
        return partial(forward_float, spec, stored, exact=exact)
    levels = {name: stored_kernel(spec, weights, name, precision) for name in layer_names(spec)}
    sums = {
        name: partial(dynamic_sums, q, scales, weights[f"{name}/bias"])
        for name, (q, scales) in levels.items()
        if scales is not None and q.ndim == 2
    }

    def forward(rows: NDArray[Any]) -> Floats:
        activations = compute_activations(spec, stored, rows, exact=FINE if exact else None, sums=sums)
        return apply_head(spec, activations[-1], exact)

    return forward


def dynamic_sums(levels: NDArray[np.int8], scales: Floats, bias: Floats, x: Floats) -> Floats:
    """Return x W + b (batch, out), x (batch, in) rounded to 256 levels between its least and its largest value.

        u = clip(rint(x / s) + z, 0, 255),   y = float(Σ (u − z) q) · (s · s_c) + b

    with an exact sum, and every other operation rounded to float32 once: the same bits everywhere.
    """
    scale, zero = dynamic_scales(x)
    u = np.clip(np.rint(x / scale) + zero, 0, 255) - zero
    sums = (u.astype(np.float64) @ levels.astype(np.float64)).astype(np.float32)
    return sums * (scale * scales) + bias


def agreeing_scales(kernel_scales: NDArray[np.float32], input_scale: float, output_scale: float) -> NDArray[np.float32]:
    """Kernel scales (out,), moved by at most LARGEST_NUDGE, on which all integer kernels round alike after a ReLU.

    Kernels bring an accumulator back to int8 by m = s_in · s_c / s_out, rounding acc · m once (XNNPACK, onnxruntime)
    or twice, in fixed point (TFLite's built-in kernels, all that tflite-runtime 2.14 has). The second way lifts what
    lies less than about half an accumulator step under n + ½. With 1/m just under an even integer 2t there is nothing
    to lift: the accumulator (2n + 1) · t lies just above the half, where both round up, and the next one a whole m
    lower. Hidden layers have n ≥ 0 only, thanks to the ReLU.

    Between tflite-runtime and LiteRT, this takes four fifths to nine tenths of the differences away, at the same
    distance from fp32: of 1,000 actions of a random network of Policy III's size none differs instead of 21, of a
    trained Policy I's none to one instead of two to four. Channels that would have to move further keep their scale; so
    do those of fewer bits, which keep the plain n-bit grid.
    """
    m = input_scale * kernel_scales.astype(np.float64) / output_scale
    # 1 / m' = 2t / (1 + ρ),   t = round(1 / 2m)
    t = np.maximum(np.rint(0.5 / m), 1.0)
    wanted = 0.5 / t * (1.0 + ABOVE_THE_HALF)
    # As a binary fraction near ½, a fixed-point multiplier lifts what lies a whole m under the half.
    fraction, _ = np.frexp(wanted)
    moved = (np.abs(wanted / m - 1.0) <= LARGEST_NUDGE) & (fraction > SMALLEST_FRACTION)
    return np.where(moved, wanted * output_scale / input_scale, kernel_scales).astype(np.float32)


def _check_accumulator(name: str, kernel: NDArray[np.int8], bias: NDArray[np.float64]) -> None:
    # |acc| ≤ |b_q| + 255 · Σ|w_q| has to stay below 2³¹ on the device.
    worst = np.abs(bias) + 255.0 * np.abs(kernel.astype(np.int64)).reshape(-1, len(bias)).sum(axis=0)
    if worst.max() > INT32_MAX:
        channel = int(worst.argmax())
        raise QuantizationError(
            f"layer {name!r}, channel {channel}: the accumulator could reach {worst.max():.3g}, beyond {INT32_MAX}; "
            "its bias is too large for the scale of its weights.",
            "Train with weight decay on the biases, or type --bits 16 (make: BITS=16).",
        )


# --- simulation -----------------------------------------------------------------------------------------------------

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
            check_bits(bits, highest=FLOAT_BITS)
            if self.scheme is Scheme.FP16 and bits not in (HALF_BITS, FLOAT_BITS):
                raise QuantizationError(f"scheme fp16 must have {HALF_BITS} bits, got {bits}.")
        for width in (self.activation_bits, self.input_bits):
            if width is None:
                continue
            check_bits(width, highest=LARGEST_SIMULATED_BITS)
            if self.scheme in WEIGHTS_ONLY:
                raise QuantizationError(
                    f"scheme {self.scheme.value} quantizes only weights; activation bits must be None, got {width}.",
                    "Leave them out, or use the scheme quarl or symmetric.",
                    code="weights_only_scheme",
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
        maps: of the activation tensors that are quantized, by the names of :func:`policy.simulate.calibrate_ranges`.
    """

    widths: Widths
    weights: Weights
    maps: Mapping[str, Affine]

    def fake_quantize(self, tensor: str, values: Floats) -> Floats:
        """Return an activation tensor on its grid, same shape; unchanged where it stays float."""
        affine = self.maps.get(tensor)
        if affine is None:
            return values
        if self.widths.scheme is Scheme.QUARL:
            return quarl_values(quarl_levels(values, affine), affine)
        return dequantize_affine(quantize_affine(values, affine), affine)


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
            name: to_fp16(value).astype(np.float32) if _bits(widths, name) == HALF_BITS else value
            for name, value in weights.items()
        }
        return Simulated(widths, half, {})
    maps = activation_maps(spec, weights, calibration, widths)
    changed: dict[str, Floats] = {}
    for name in names:
        changed |= _layer(spec, name, weights, widths, maps)
    return Simulated(widths, {**weights, **changed}, maps)


def activation_maps(spec: PolicySpec, weights: Weights, calibration: np.ndarray, widths: Widths) -> dict[str, Affine]:
    """Return the map of every activation tensor that is quantized, by name."""
    if widths.activation_bits is None and widths.observation_bits is None:
        return {}
    is_quarl = widths.scheme is Scheme.QUARL
    trained = None if is_quarl else find_trained_quantizers(spec, widths.weight_bits)
    if trained is not None and widths.activation_bits != trained.bits:
        trained = None
    ranges = calibrate_ranges(spec, weights, calibration, trained, whole_head=is_quarl)
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
            maps[name] = quarl_from_range(*ends, bits) if is_quarl else _map(spec, name, ends, bits, maps)
    return maps


def _map(spec: PolicySpec, tensor: str, ends: Range, bits: int, maps: Mapping[str, Affine]) -> Affine:
    """Return the map of a tensor with these ends and bits; with 8 bits the map that the artifact has."""
    layer = tensor.removesuffix("/linear")
    is_linear = tensor == INPUT or is_normalised(spec.network, layer) or _are_gates(tensor)
    if bits != LARGEST_WEIGHT_BITS or is_linear:
        return affine_from_range(*ends, bits)
    if tensor != layer:
        return linear_map(spec.network, layer, *ends, maps[layer])
    return activation_map(spec.network, layer, *ends)


def _are_gates(tensor: str) -> bool:
    """Return whether a tensor is the sums of a recurrent layer's gates."""
    return tensor.startswith("recurrent_") or (tensor.startswith(STATE) and tensor.endswith("/linear"))


def _bits(widths: Widths, weight: str) -> int:
    return widths.bits_of(weight.rpartition("/")[0])


def _layer(
    spec: PolicySpec, layer: str, weights: Weights, widths: Widths, maps: Mapping[str, Affine]
) -> dict[str, Floats]:
    """Return a layer's weights on their grids, as far as they change, by name."""
    kernel, bias, bits = weights[f"{layer}/kernel"], weights[f"{layer}/bias"], widths.bits_of(layer)
    quantizers = {
        Scheme.QUARL: quarl,
        Scheme.QUARL_RELEASED: quarl_released,
        Scheme.SYMMETRIC: fake_symmetric,
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
    return {f"{layer}/kernel": fake_symmetric(kernel, bits, scales), f"{layer}/bias": bias}


def forward_simulated(spec: PolicySpec, simulated: Simulated, observations: np.ndarray) -> Floats:
    """Raw observations (batch, observation_size) to results (batch, result_size), float32, through the quantizers."""
    activations = compute_activations(spec, simulated.weights, observations, simulated.fake_quantize)
    return apply_head(spec, activations[-1])
