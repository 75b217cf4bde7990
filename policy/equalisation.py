"""Brings an image and the vector behind it to one size where they join, without changing what the policy computes.

In integers both share one map, and the kernel that reads them one scale a channel. Where one reaches ten times as far
as the other, the smaller has a tenth of the levels, and its larger weights take the levels of the other's. A ReLU lets
positive factors through, so the last convolution can be multiplied by k and the kernel's rows of its output divided by
k (cross-layer equalisation: Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias
Correction", section 4.1). With a power of two for k, every float stays the same to the bit.

Who writes a bundle calls it once, on the trained weights; all that reads the bundle then agrees.
"""

from __future__ import annotations

import numpy as np

from quarl.policy.activations import RELU_LIKE
from quarl.policy.errors import QuantizationError
from quarl.policy.exact import COARSE
from quarl.policy.network import Weights, hidden_activations, layer_names
from quarl.policy.quantization import Floats
from quarl.policy.spec import PolicySpec

# k is 2⁻⁶ … 2⁶, so that weights of usual size stay normal numbers in half precision, whose smallest is 2⁻¹⁴.
LARGEST_EXPONENT = 6


def equalise(spec: PolicySpec, weights: Weights, calibration: np.ndarray) -> dict[str, Floats]:
    """Weights of the same function whose last convolution reaches about as far as the vector that joins it.

    Args:
        spec: the policy.
        weights: float32, as :func:`policy.spec.weight_shapes` names them.
        calibration: raw observations (n, observation_size) recorded from real rollouts.

    Returns:
        All weights, changed or not: a policy without a vector behind an image keeps its own, and so does one whose
        convolution or vector is zero on all of these observations, or whose activation lets no factor through.

    Raises:
        QuantizationError: the calibration set is empty.
    """
    made = dict(weights)
    if not spec.vector_size:
        return made
    if len(calibration) == 0:
        raise QuantizationError("the calibration set is empty; it needs observations recorded from real rollouts.")
    convolutions = len(spec.network.convolutions)
    joined = np.abs(hidden_activations(spec, weights, calibration, exact=COARSE)[convolutions])
    image, vector = float(joined[:, : -spec.vector_size].max()), float(joined[:, -spec.vector_size :].max())
    passes = spec.network.activation_of(f"conv_{convolutions - 1}") in RELU_LIKE
    if image == 0.0 or vector == 0.0 or not passes:
        return made
    # k = 2^round(log₂(reach of the vector / reach of the image))
    exponent = int(np.clip(np.rint(np.log2(vector / image)), -LARGEST_EXPONENT, LARGEST_EXPONENT))
    factor = np.float32(2.0**exponent)
    last, reader = layer_names(spec)[convolutions - 1 : convolutions + 1]
    for part in ("kernel", "bias"):
        made[f"{last}/{part}"] = weights[f"{last}/{part}"] * factor
    kernel = weights[f"{reader}/kernel"].copy()
    kernel[: -spec.vector_size] /= factor
    made[f"{reader}/kernel"] = kernel
    return made
