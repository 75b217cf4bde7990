"""Exact rewrites: the same policy in fp32, with weights and a normaliser that leave int8 more levels (host only).

Centred: action values of one state are close to each other and far from those of another, so that most of the head's
levels would be spent on what all actions have in common. No action depends on it:

    W'[i, a] = W[i, a] − mean over a of W[i, a],   b'[a] = b[a] − mean over a of b[a]

Logits of a policy gradient have next to nothing in common: the gradient's sum over the actions is 0. There it only
moves roundings about, and so it is done where what all actions have in common is most of the outputs' variance.

Normalised: all elements of the observation share one int8 map, in which an angle beside a speed would have few levels.
Where nothing normalises them, m and r are middle and half the range of each on the recorded observations, and the first
layer takes them back:

    x W + b = ((x − m) / s) (s W) + (b + m W),   s = min(2 r, the widest r)

The 2 is headroom that an element had while it shared the widest one's map: what goes beyond its range is cut later.

Both multiply in float64 and round once. A policy that was trained with quantizers keeps its weights: they lie on the
grid that it learned on. Who writes a bundle rewrites once; training goes on with the raw weights. Which policies gain
stands in docs/findings.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum

import numpy as np

from quarl.policy.activations import NONLINEARITIES
from quarl.policy.errors import QuantizationError, SpecError
from quarl.policy.exact import COARSE
from quarl.policy.quantize import Floats
from quarl.policy.reference import (
    Weights,
    as_batch,
    compute_activations,
    forward_float,
    layer_names,
    normaliser_bounds,
)
from quarl.policy.spec import DiscreteHead, Normaliser, PolicySpec, require

REWRITES = "rewrites"
"""Key of the provenance that lists the names of the applied rewrites."""
MOST = 0.5
"""Share of the outputs' variance that all actions have in common, above which a head is centred: of the committed
policies those of DQN have more than 0.8, all others less than 0.2."""
HEADROOM = 2.0
"""Times its reach that an element narrower than the widest may move before int8 cuts it."""
SMALLEST_SHARE = 1e-3
"""Least reach of an element, as a share of the widest one's: in half precision its weights stay normal numbers."""


class Rewrite(Enum):
    """One of the two; see the module's docstring."""

    CENTRED = "centred"
    NORMALISED = "normalised"


def possible(spec: PolicySpec) -> tuple[Rewrite, ...]:
    """Return the rewrites that a policy of this contract can have."""
    if spec.quantization is not None:
        return ()
    vector = not spec.network.convolutions and not spec.is_image
    can = {
        Rewrite.CENTRED: isinstance(spec.head, DiscreteHead),
        Rewrite.NORMALISED: vector and _is_identity(spec.normaliser),
    }
    return tuple(rewrite for rewrite, is_possible in can.items() if is_possible)


def fitting(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> tuple[Rewrite, ...]:
    """Return the rewrites that are worth it for a policy, given recorded observations; a rewritten one has none
    left."""
    can = possible(spec)
    if (
        Rewrite.CENTRED in can
        and common_share(forward_float(spec, weights, observations)[:, : spec.output_size]) <= MOST
    ):
        can = tuple(rewrite for rewrite in can if rewrite is not Rewrite.CENTRED)
    return can


def common_share(outputs: np.ndarray) -> float:
    """Return how much of the outputs' (n, actions) variance over the observations is that of their mean over the
    actions.

    var(mean) / (var(mean) + mean over the actions of var(output − mean)); 0 where no output ever changes.
    """
    exact = np.asarray(outputs, np.float64)
    mean = exact.mean(axis=1)
    common, own = mean.var(), (exact - mean[:, None]).var(axis=0).mean()
    return float(common / (common + own)) if common + own > 0 else 0.0


def rewritten(
    spec: PolicySpec, weights: Weights, observations: np.ndarray, which: tuple[Rewrite, ...] | None = None
) -> tuple[PolicySpec, dict[str, Floats]]:
    """Return a policy with all rewrites that fit; the provenance says which.

    Args:
        spec, weights: the policy.
        observations: raw, (n, observation_size), recorded from real rollouts: the calibration set.
        which: in place of those that fit.

    Returns:
        The policy as it is where none fits.

    Raises:
        SpecError: there are no observations, or one is not finite.
    """
    fit, new_weights = fitting(spec, weights, observations) if which is None else which, dict(weights)
    if Rewrite.CENTRED in fit:
        spec, new_weights = subtract_output_mean(spec, new_weights)
    if Rewrite.NORMALISED in fit:
        spec, new_weights = add_normaliser(spec, new_weights, observations)
    if not fit:
        return spec, new_weights
    names = dict.fromkeys([*spec.provenance.get(REWRITES, ()), *(rewrite.value for rewrite in fit)])
    return replace(spec, provenance={**spec.provenance, REWRITES: list(names)}), new_weights


def subtract_output_mean(spec: PolicySpec, weights: Weights) -> tuple[PolicySpec, dict[str, Floats]]:
    """Return a discrete policy whose outputs have the mean over the actions subtracted.

    Args:
        spec, weights: the policy; ``head/kernel`` is (in, actions), ``head/bias`` (actions,).

    Raises:
        SpecError: its head is not discrete, or it was trained with quantizers.
    """
    _refuse_trained(spec)
    require(
        isinstance(spec.head, DiscreteHead),
        f"the head of policy {spec.name!r} must be discrete, with one choice, so that its outputs can be centred, got "
        f"{spec.head.KIND}.",
    )
    new_weights = dict(weights)
    for name in ("head/kernel", "head/bias"):
        exact = weights[name].astype(np.float64)
        new_weights[name] = (exact - exact.mean(axis=-1, keepdims=True)).astype(np.float32)
    return spec, new_weights


def add_normaliser(
    spec: PolicySpec, weights: Weights, observations: np.ndarray
) -> tuple[PolicySpec, dict[str, Floats]]:
    """Return a policy whose normaliser brings each element of these observations into −1 … 1, and whose first layer
    undoes it.

    Bounds of the observation stay where they were. An element that never moves is centred, and may move as far as the
    widest one.

    Args:
        spec, weights: the policy, whose normaliser has means of 0 and scales of 1.
        observations: raw, (n, observation_size).

    Raises:
        SpecError: it sees an image, has a normaliser, or was trained with quantizers; or there are no observations, or
            one is not finite.
    """
    _refuse_trained(spec)
    require(
        _is_identity(spec.normaliser) and not spec.network.convolutions and not spec.is_image,
        f"policy {spec.name!r} must take a vector without a normaliser, got an image or a normalised vector.",
    )
    raw = as_batch(spec, observations)[:, : spec.input_size]
    require(len(raw) > 0, "a normaliser needs observations from real rollouts, got none.")
    low, high = (end.astype(np.float64) for end in normaliser_bounds(spec.normaliser))
    rows = np.clip(raw.astype(np.float64), low, high)
    require(bool(np.isfinite(rows).all()), "the observations must be finite, got NaN or infinity.")
    least, most = rows.min(axis=0), rows.max(axis=0)
    middle, reach = ((most + least) / 2).astype(np.float32), (most - least) / 2
    widest = float(reach.max()) or 1.0
    scale = np.clip(np.where(reach > 0, HEADROOM * reach, widest), SMALLEST_SHARE * widest, widest).astype(np.float32)
    m, s = middle.astype(np.float64), scale.astype(np.float64)
    first = layer_names(spec)[0]
    kernel, bias = (weights[f"{first}/{part}"].astype(np.float64) for part in ("kernel", "bias"))
    new_weights = dict(weights)
    new_weights[f"{first}/kernel"] = (s[:, None] * kernel).astype(np.float32)
    new_weights[f"{first}/bias"] = (bias + m @ kernel).astype(np.float32)
    ends: tuple[tuple[float, ...], ...] = ((), ())
    if np.isfinite(low).all():
        ends = tuple(tuple(((end - m) / s).astype(np.float32).tolist()) for end in (low, high))
    normaliser = Normaliser(tuple(middle.tolist()), tuple(scale.tolist()), math.inf, *ends)
    return replace(spec, normaliser=normaliser), new_weights


def _refuse_trained(spec: PolicySpec) -> None:
    if spec.quantization is not None:
        raise SpecError(
            f"policy {spec.name!r} was trained with quantizers; a rewrite would move its weights off their grid.",
            code="trained_with_quantizers",
        )


def _is_identity(normaliser: Normaliser) -> bool:
    return not any(normaliser.mean) and set(normaliser.scale) == {1.0}


# --- equalisation ---------------------------------------------------------------------------------------------------
# In integers, an image's last convolution and the vector behind it share one map, and the kernel that reads them has
# one scale per channel. Where one reaches ten times as far as the other, the smaller has a tenth of the levels, and its
# larger weights take levels from the other's. A ReLU lets positive factors through, so the last convolution can be
# multiplied by k and the rows of the kernel that read it divided by k (cross-layer equalisation: Nagel et al. 2019,
# "Data-Free Quantization Through Weight Equalization and Bias Correction", section 4.1). With k a power of two every
# float keeps its bits.

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
    new_weights = dict(weights)
    if not spec.vector_size:
        return new_weights
    if len(calibration) == 0:
        raise QuantizationError("the calibration set must have observations from real rollouts, got none.")
    convolutions = len(spec.network.convolutions)
    joined = np.abs(compute_activations(spec, weights, calibration, exact=COARSE)[convolutions])
    image, vector = float(joined[:, : -spec.vector_size].max()), float(joined[:, -spec.vector_size :].max())
    passes = NONLINEARITIES[spec.network.activation_of(f"conv_{convolutions - 1}")].is_homogeneous
    if image == 0.0 or vector == 0.0 or not passes:
        return new_weights
    # k = 2^round(log₂(reach of the vector / reach of the image))
    exponent = int(np.clip(np.rint(np.log2(vector / image)), -LARGEST_EXPONENT, LARGEST_EXPONENT))
    factor = np.float32(2.0**exponent)
    last, reader = layer_names(spec)[convolutions - 1 : convolutions + 1]
    for part in ("kernel", "bias"):
        new_weights[f"{last}/{part}"] = weights[f"{last}/{part}"] * factor
    kernel = weights[f"{reader}/kernel"].copy()
    kernel[: -spec.vector_size] /= factor
    new_weights[f"{reader}/kernel"] = kernel
    return new_weights
