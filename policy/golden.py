"""Golden vectors: which units they excite, how far roundings may move them, whether a bundle's are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarl.policy.activations import NONLINEARITIES
from quarl.policy.errors import BundleError
from quarl.policy.exact import COARSE, LAYER_NORM_EPSILON, Doubles, Floats
from quarl.policy.exact import product as exact_product
from quarl.policy.opaque import tolerance as opaque_tolerance
from quarl.policy.quantize import dynamic_scales, exactly
from quarl.policy.reference import (
    UNIT_ROUNDOFF,
    Weights,
    as_batch,
    compute_activations,
    convolve,
    exact_program,
    forward_float,
    head_constants,
    join,
    layer_names,
    normalise_observations,
    program_variance,
    split,
    states_of,
)
from quarl.policy.spec import Activation, ContinuousHead, NetworkSpec, PolicySpec, Precision

# --- coverage -------------------------------------------------------------------------------------------------------
# A unit that no golden vector excites is not checked by any.


def find_active_units(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> NDArray[np.bool_]:
    """Return whether each hidden unit or filter is above zero, (n, units), layer after layer; a filter: anywhere."""
    return units_above_zero(spec, compute_activations(spec, weights, observations, exact=COARSE))


def units_above_zero(spec: PolicySpec, activations: list[Floats]) -> NDArray[np.bool_]:
    """:func:`find_active_units`, given :func:`policy.reference.compute_activations`."""
    _, *hidden, _ = activations
    vector = spec.vector_size
    masks = []
    for index, values in enumerate(hidden):
        if vector and index == len(spec.network.convolutions) - 1:
            # flattened, and behind it the vector that joins there, which is no unit
            values = values[:, :-vector].reshape(len(values), -1, spec.network.convolutions[index].filters)
        if spec.network.activation_of(spec.network.hidden_names[index]) is not Activation.RELU:
            values = np.ones_like(values)  # all but a ReLU pass on what lies below zero, too
        positions = tuple(range(1, values.ndim - 1))
        masks.append((values > 0).any(axis=positions) if positions else values > 0)
    return np.concatenate([np.zeros((len(activations[0]), 0), bool), *masks], axis=1)  # a linear policy has none


def covering(spec: PolicySpec, weights: Weights, golden: np.ndarray, calibration: np.ndarray) -> np.ndarray:
    """Return the golden observations, and behind them those of the calibration's that excite units which none of them
    does.

    Chosen greedily: always the row that excites most of what is left.
    """
    if spec.network.opaque:  # nobody sees its units
        return golden
    left = ~find_active_units(spec, weights, golden).any(axis=0)
    candidates = find_active_units(spec, weights, calibration) if len(calibration) else np.zeros((0, len(left)), bool)
    chosen: list[int] = []
    while left.any() and len(candidates) and (gain := (candidates & left).sum(axis=1)).max() > 0:
        chosen.append(int(gain.argmax()))
        left &= ~candidates[chosen[-1]]
    return golden if not chosen else np.concatenate([golden, calibration[chosen]])


# --- roundings ------------------------------------------------------------------------------------------------------
# The reference adds in one of many orders: these are bounds on how far another order may move a policy's outputs.

# Standard deviations that independent rounding errors are granted, those of numpy and of the runtime together.
DEVIATIONS = 4.0
# A tanh of another library differs by a few units in the last place (XNNPACK states 5), and two roundings follow.
HEAD_ROUNDINGS = 8
# Of another program: in tolerances of one, and as shares of the outputs' span: a smaller difference than FOREIGN always
# passes, a larger one than MOST_FOREIGN never. The span counts as LEAST_SPAN of the largest |output| at least.
FOREIGN_ROUNDINGS, FOREIGN, MOST_FOREIGN, LEAST_SPAN = 4.0, 1e-5, 0.01, 0.01

product = partial(exact_product, parts=COARSE)


FEW = 64
"""One in so many inputs of a layer is assumed to lie on the border of two levels; in a smaller layer, one input."""


def _is_exact(network: NetworkSpec) -> bool:
    """Return whether all floats between exact sums are the same bits everywhere."""
    single = Activation.RELU, Activation.LEAKY_RELU, Activation.NONE
    kinds = {network.activation_of(name) for name in network.hidden_names}
    return kinds <= set(single) and not (network.layer_norm or network.recurrences or network.convolutions)


def float_tolerance(
    spec: PolicySpec, weights: Weights, observations: np.ndarray, precision: Precision = Precision.FP32
) -> Doubles:
    """Largest |difference| of each result on these observations, (result_size,), in the outputs' units.

    Four standard deviations, of the observation where the output's is largest.

    A sum of n products has an error of standard deviation at most √n · u · Σ|x w| (u: unit roundoff; independent
    roundings: Higham & Mary, "A new approach to probabilistic rounding error analysis", 2019). The variance is carried
    through the network, layer by layer and observation by observation:

        convolution, dense layer:  var' = var @ W² + (√n · u · (|x| @ |W| + |b|))²
        layer normalisation:       see :func:`_through_layer_norm`
        ReLU:                      passes on what lies above zero; none of a unit four deviations or more below it
        other activations:         var' = (largest slope)² · var + (8 u · (1 + |f(x)|))², for libraries' own errors
        vector behind an image:    joins with the variance 0
        recurrent layer:           its program's (:func:`program_variance`), the state it is given being exact

    Of an opaque program it is a share of the largest |result|. Where activations get levels in each decision, of floats
    that are not the same bits everywhere, some of them may be the next level: one of ``FEW`` inputs of a layer.
    """
    if spec.network.opaque:
        return opaque_tolerance(forward_float(spec, weights, observations))
    raw = as_batch(spec, observations)
    x, vector = split(spec, normalise_observations(spec, observations).astype(np.float64))
    variance = np.zeros_like(x)
    states, following = states_of(spec, raw.astype(np.float64), spec.input_size), [np.zeros((len(raw), 0))]
    flips = precision is Precision.DYNAMIC and not _is_exact(spec.network)
    for index, name in enumerate(layer_names(spec)):
        kernel, bias = (weights[f"{name}/{part}"].astype(np.float64) for part in ("kernel", "bias"))
        if name in states:
            fed, spread, state = x, variance, states[name]
            x, variance = state[:, : len(kernel)], np.zeros((len(raw), len(kernel)))
        if index < len(spec.network.convolutions):
            x, variance = _through_convolution(x, variance, kernel, bias, spec.network.convolutions[index].stride)
        else:
            flat, variance = x.reshape(len(x), -1), variance.reshape(len(x), -1)
            if flips and index:  # the first layer is fed by the normaliser, which is the same bits everywhere
                variance = variance + dynamic_scales(flat)[0] ** 2 / min(len(kernel), FEW)
            rounding = np.sqrt(len(kernel) + 1) * UNIT_ROUNDOFF * (product(np.abs(flat), np.abs(kernel)) + np.abs(bias))
            x, variance = product(flat, kernel) + bias, product(variance, kernel**2) + rounding**2
        if f"{name}/gamma" in weights:
            gamma, beta = (weights[f"{name}/{part}"].astype(np.float64) for part in ("gamma", "beta"))
            x, variance = _through_layer_norm(x, variance, gamma, beta)
        if name in states:
            program, operands = spec.network.states[name].program(), (fed, x, state)
            variance = program_variance(program, operands, (spread, variance, np.zeros_like(state)))
            x = exact_program(program, *operands)
            following.append(variance)
            x, variance = x[:, : len(kernel)], variance[:, : len(kernel)]
        elif name != "head":
            x, variance = _through_activation(spec.network, name, x, variance)
        x, variance = join(spec, name, x, vector), join(spec, name, variance, np.zeros_like(vector))
    # |d squash| ≤ 1, then the gain
    gain = (np.array(spec.head.high) - np.array(spec.head.low)) / 2 if isinstance(spec.head, ContinuousHead) else 1.0
    tolerance = DEVIATIONS * np.sqrt(variance.max(axis=0)) * gain + head_rounding(spec)
    return np.concatenate([tolerance, DEVIATIONS * np.sqrt(np.concatenate(following, axis=1).max(axis=0))])


def foreign_tolerance(spec: PolicySpec, weights: Weights, observations: np.ndarray, outputs: np.ndarray) -> Doubles:
    """Largest |difference| of each result, (result_size,), from those of another program, (n, result_size).

    That program rounds, too, and reading its weights may have multiplied and rounded them. No more than MOST_FOREIGN.
    """
    both, results = float_tolerance(spec, weights, observations), outputs
    outputs, following = results[:, : spec.output_size], results[:, spec.output_size :]
    rounding = both[: spec.output_size]
    if isinstance(spec.head, ContinuousHead):
        rounding = rounding - head_rounding(spec)
        # Bounds may be far wider than what the actions reach: the head rounds what it gives, not what it could.
        _, offset = head_constants(spec.head)
        reach = 2.0 * np.abs(outputs - offset).max(axis=0) + np.abs(offset)
        rounding, span = rounding + HEAD_ROUNDINGS * UNIT_ROUNDOFF * reach, np.ptp(outputs, axis=0)
    else:
        span = np.full(spec.output_size, np.ptp(outputs))
    rounding = np.concatenate([rounding, both[spec.output_size :]])
    span = np.concatenate([span, np.ptp(following, axis=0)])
    most = MOST_FOREIGN * np.maximum(span, LEAST_SPAN * np.abs(results).max(axis=0))
    tolerance: Doubles = np.minimum(np.maximum(FOREIGN_ROUNDINGS * rounding, FOREIGN * span), most)
    return tolerance


def head_rounding(spec: PolicySpec) -> Doubles:
    """Return what rounding a continuous head's squashing, product and sum may do to each output, (output_size,)."""
    if not isinstance(spec.head, ContinuousHead):
        return np.zeros(spec.output_size)
    low, high = np.array(spec.head.low), np.array(spec.head.high)
    return HEAD_ROUNDINGS * UNIT_ROUNDOFF * (high - low + np.maximum(np.abs(low), np.abs(high)))


def _through_activation(network: NetworkSpec, layer: str, x: Doubles, variance: Doubles) -> tuple[Doubles, Doubles]:
    kind = network.activation_of(layer)
    y = exactly(kind, x, network.negative_slope)
    if kind is Activation.RELU:
        return y, np.where(x < -DEVIATIONS * np.sqrt(variance), 0.0, variance)
    rounding = 0.0 if kind is Activation.NONE else HEAD_ROUNDINGS * UNIT_ROUNDOFF * (1.0 + np.abs(y))
    return y, NONLINEARITIES[kind].slope ** 2 * variance + rounding**2


def _through_convolution(
    x: Doubles, variance: Doubles, kernel: Doubles, bias: Doubles, stride: int
) -> tuple[Doubles, Doubles]:
    summands = kernel[..., 0].size + 1
    convolved = partial(product, multiply=partial(convolve, stride=stride))
    rounding = np.sqrt(summands) * UNIT_ROUNDOFF * (convolved(np.abs(x), np.abs(kernel)) + np.abs(bias))
    return convolved(x, kernel) + bias, convolved(variance, kernel**2) + rounding**2


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


# --- comparison -----------------------------------------------------------------------------------------------------
# Hashes show that a file is the one that was listed. Whether weights, normaliser, calibration and golden vectors belong
# together only the forward pass can show.

ROWS_AT_ONCE = 512
"""Golden vectors that are computed together, as many as training writes: the activations of all could be large."""
FEW_ROUNDINGS = 8.0
"""Roundings of the largest output: two sums of the same products that are so little apart need no analysis. The fast
forward pass is computed again, in float32; what is stored was exact, or float32 of another processor."""
REMEMBERED = 1000

# Hashes of what was computed and agrees: they say all that the answer depends on.
_agreeing: set[tuple[str, ...]] = set()


def check_golden_outputs(
    spec: PolicySpec, weights: Weights, observations: Floats, stored: Floats, where: Path, hashes: tuple[str, ...]
) -> None:
    """Compute the golden outputs again from weights and normaliser; once in a process for the same files.

    Args:
        spec, weights: the policy.
        observations: raw, (n, observation_size).
        stored: the golden outputs, (n, result_size).
        where: the file that they are from.
        hashes: of the files that all of this is from, which were compared with them.

    Raises:
        BundleError: the golden outputs are not those of the weights.
    """
    if hashes in _agreeing:
        return
    _compare_floats(
        spec, weights, observations, stored, where, "these weights", "Train, import or download the bundle again."
    )
    if len(_agreeing) < REMEMBERED:
        _agreeing.add(hashes)


def _compare_floats(
    spec: PolicySpec, weights: Weights, observations: Floats, stored: Floats, where: Path, whose: str, next_step: str
) -> None:
    computed, few = _recompute(lambda part: forward_float(spec, weights, part), observations, stored)
    apart = np.abs(computed.astype(np.float64) - stored)
    if (apart <= few).all():
        return
    with np.errstate(all="ignore"):  # slow: computed only where it decides
        parts = [float_tolerance(spec, weights, observations[rows]) for rows in _blocks(len(observations))]
    refuse_wrong_outputs(~(apart <= np.maximum(np.max(parts, axis=0), few)), computed, stored, where, whose, next_step)


def _recompute(
    forward: Callable[[Floats], Floats], observations: Floats, stored: Floats
) -> tuple[Floats, NDArray[np.float64]]:
    """Return the outputs computed again, and what a few roundings of each output, (result_size,), are."""
    with np.errstate(all="ignore"):  # what becomes infinite differs from what is stored
        computed = np.concatenate([forward(observations[rows]) for rows in _blocks(len(observations))])
    return computed, FEW_ROUNDINGS * UNIT_ROUNDOFF * np.abs(stored).max(axis=0).astype(np.float64)


def refuse_wrong_outputs(
    wrong: NDArray[np.bool_], computed: Floats, stored: Floats, where: Path, whose: str, next_step: str
) -> None:
    """Raise BundleError of the first golden output that is wrong, if any is: ``whose`` policy computes another."""
    if wrong.any():
        row, output = (int(place) for place in np.argwhere(wrong)[0])
        raise BundleError(
            f"{where}: the golden outputs do not come from {whose}: output {output} of vector {row} is "
            f"{stored[row, output]:g}, recomputed as {computed[row, output]:g}; "
            f"{int(wrong.any(axis=1).sum())} of {len(wrong)} vectors differ.",
            next_step,
            code="golden_mismatch",
        )


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + ROWS_AT_ONCE) for start in range(0, rows, ROWS_AT_ONCE))
