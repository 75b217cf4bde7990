"""What an artifact has to compute, and how far from it may be right: the whole analysis of errors.

* fp32 and fp16: the numpy reference on the same weights (for fp16 rounded to half), within the error that float32
  additions in another order can make (:func:`float_tolerance`).
* int8 … int2: one of the two exact integer references, float multiplier or fixed point (``convert.rounding``), to the
  level. Measured: policies I, II and III, int8 … int2, all golden vectors, the three runtimes on x86-64: zero steps;
  convolutions likewise. With a layer normalisation in float between the integers: within one step of them, for a float
  that lies on the border of two levels may get either (``NORM_STEPS``).

What a device then compares with (``ArtifactEntry.tolerance``) is wider: by what separates the two integer references on
the golden observations, for the device may round the other way, and by one step, for kernels that were not tried here
(``DEVICE_STEPS``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from convert.rounding import forward_fixed_point
from policy.integer import IntegerNetwork, forward_integer
from policy.network import (
    LAYER_NORM_EPSILON,
    Weights,
    as_batch,
    convolve,
    forward_float,
    join,
    layer_names,
    normalise,
    split,
)
from policy.quantization import Floats
from policy.spec import ContinuousHead, PolicySpec

# Half the distance between 1 and the next float32.
UNIT_ROUNDOFF = float(np.finfo(np.float32).eps) / 2
# Standard deviations that independent rounding errors are granted, those of numpy and of the runtime together.
DEVIATIONS = 4.0
# A tanh of another library differs by a few units in the last place (XNNPACK states 5), and two roundings follow.
HEAD_ROUNDINGS = 8
# Levels are whole: an output within half a step of the reference's has the reference's level. The half is for what
# follows the last level, the float rounding of scale · level and of a continuous head's squashing.
OWN_STEPS = 0.5
# One unit's level that came out one step off moves the outputs by a fraction of a step, so that they are rounded to the
# next level at most.
NORM_STEPS = 1.0
# A device may have kernels that were not tried where the artifact was made: of another instruction set, of another
# version. Where one divides by the input's scale and another multiplies by its inverse, an input within a rounding
# error of a half is read one level off. That moves an output by a fraction of a step, so that it is rounded to the next
# level at most, as a rule.
DEVICE_STEPS = 1.0
# Steps come back as floats: scale · levels is rounded.
STEP_SLACK = 1e-3

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """What an artifact has to compute on the golden observations.

    Attributes:
        observations: float32 (n, observation_size), raw.
        outputs: float32 (n, output_size), by the numpy reference of the artifact's precision.
        own: references of which one has to be met within ``own_tolerance``; ``outputs`` is the first.
        own_tolerance: in the unit of the outputs.
        tolerance: largest allowed |output − outputs| on any device.
        step: one step of the output's scale; None for a float artifact.
    """

    observations: Floats
    outputs: Floats
    own: tuple[Floats, ...]
    own_tolerance: float
    tolerance: float
    step: float | None

    def describe(self, error: float) -> str:
        """An error in words: in steps where there are steps."""
        return f"{error:.3g}" if self.step is None else f"{error / self.step:.2f} steps ({error:.3g})"


def float_reference(spec: PolicySpec, weights: Weights, observations: Floats) -> Reference:
    """The reference of an fp32 artifact; of an fp16 one when ``weights`` are those that its half weights stand for."""
    outputs = forward_float(spec, weights, observations)
    tolerance = float_tolerance(spec, weights, observations)
    return Reference(observations, outputs, (outputs,), tolerance, tolerance, None)


def integer_reference(spec: PolicySpec, network: IntegerNetwork, observations: Floats) -> Reference:
    """The reference of an int8 … int2 artifact, with the tolerance that the two ways of rounding make necessary."""
    step = action_step(spec, network)
    own = forward_integer(spec, network, observations), forward_fixed_point(spec, network, observations)
    apart = float(np.abs(own[0] - own[1]).max())
    slack = STEP_SLACK * step
    normalised = any(layer.norm is not None for layer in network.layers)
    own_steps = OWN_STEPS + NORM_STEPS if normalised else OWN_STEPS
    return Reference(observations, own[0], own, own_steps * step, apart + DEVICE_STEPS * step + slack, step)


def float_tolerance(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> float:
    """Largest |difference| on these observations, in output units: four standard deviations of the worst output.

    A sum of n products has an error of standard deviation at most √n · u · Σ|x w| (u: unit roundoff; independent
    roundings: Higham & Mary, "A new approach to probabilistic rounding error analysis", 2019). The variance is carried
    through the network, layer by layer and observation by observation:

        convolution, dense layer:  var' = var @ W² + (√n · u · (|x| @ |W| + |b|))²
        layer normalisation:       see :func:`_through_layer_norm`
        ReLU:                      cuts, never adds
        vector behind an image:    joins with the variance 0
    """
    x, vector = split(spec, normalise(spec.normaliser, as_batch(spec, observations)).astype(np.float64))
    variance = np.zeros_like(x)
    for index, name in enumerate(layer_names(spec)):
        kernel, bias = (weights[f"{name}/{part}"].astype(np.float64) for part in ("kernel", "bias"))
        if index < len(spec.network.convolutions):
            x, variance = _through_convolution(x, variance, kernel, bias, spec.network.convolutions[index].stride)
        else:
            flat, variance = x.reshape(len(x), -1), variance.reshape(len(x), -1)
            rounding = np.sqrt(len(kernel) + 1) * UNIT_ROUNDOFF * (np.abs(flat) @ np.abs(kernel) + np.abs(bias))
            x, variance = flat @ kernel + bias, variance @ kernel**2 + rounding**2
        if f"{name}/gamma" in weights:
            gamma, beta = (weights[f"{name}/{part}"].astype(np.float64) for part in ("gamma", "beta"))
            x, variance = _through_layer_norm(x, variance, gamma, beta)
        if name != "head":
            x = np.maximum(x, 0.0)
        x, variance = join(spec, name, x, vector), join(spec, name, variance, np.zeros_like(vector))
    tolerance = DEVIATIONS * float(np.sqrt(variance.max()))
    if isinstance(spec.head, ContinuousHead):
        widest = _widest(spec.head)
        largest = max(abs(bound) for bound in (*spec.head.low, *spec.head.high))
        # |d squash| ≤ 1, then the gain; the squashing, the product and the sum are rounded too
        tolerance = tolerance * widest / 2 + HEAD_ROUNDINGS * UNIT_ROUNDOFF * (widest + largest)
    return tolerance


def _through_convolution(
    x: Doubles, variance: Doubles, kernel: Doubles, bias: Doubles, stride: int
) -> tuple[Doubles, Doubles]:
    summands = kernel[..., 0].size + 1
    rounding = np.sqrt(summands) * UNIT_ROUNDOFF * (convolve(np.abs(x), np.abs(kernel), stride) + np.abs(bias))
    return convolve(x, kernel, stride) + bias, convolve(variance, kernel**2, stride) + rounding**2


def _through_layer_norm(x: Doubles, variance: Doubles, gamma: Doubles, beta: Doubles) -> tuple[Doubles, Doubles]:
    """y = γ z + β, z = (x − μ) / σ, σ² = var x + ε, over n elements.

    An error dx moves z by (dx − mean dx − z · mean(z dx)) / σ (Ba et al. 2016, by differentiation), so that

        var' = γ² / σ² · (var + (mean var + 2 z mean(z var) + z² mean(z² var)) / n)   at most.

    Its own roundings: those of μ and σ are sums of n, and σ² may be computed as mean x² − μ² (onnxruntime does), which
    loses the digits that μ² / σ² stands for; the rest are single operations.
    """
    width = x.shape[1]
    mean = x.mean(axis=1, keepdims=True)
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + LAYER_NORM_EPSILON)
    z = (x - mean) / deviation
    moments = [(z**power * variance).mean(axis=1, keepdims=True) for power in range(3)]
    carried = (variance + (moments[0] + 2 * z * moments[1] + z**2 * moments[2]) / width) / deviation**2
    size = np.sqrt((x * x).mean(axis=1, keepdims=True)) / deviation
    rounding = np.sqrt(width) * UNIT_ROUNDOFF * (size + np.abs(z) * size**2)
    y = gamma * z + beta
    return y, gamma**2 * (carried + rounding**2) + (4 * UNIT_ROUNDOFF) ** 2 * (np.abs(gamma * z) + np.abs(beta)) ** 2


def action_step(spec: PolicySpec, network: IntegerNetwork) -> float:
    """One step of the head's levels, in the unit of the outputs: the largest that squashing and gain can make of it."""
    if not isinstance(spec.head, ContinuousHead):
        return network.output_step
    # |d tanh| and |d clip| are at most 1
    return network.output_step * _widest(spec.head) / 2


def _widest(head: ContinuousHead) -> float:
    return max(high - low for low, high in zip(head.low, head.high, strict=True))
