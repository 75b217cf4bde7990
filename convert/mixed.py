"""Bits by layer: which assignment a size allows, and how far it is from the float policy, estimated without flying.

An estimate is the output error √(Σ (y − f)² / Σ (f − mean f)²) over observations and outputs: 0 is the float policy, 1
as far off as a constant. Of a discrete head, outputs are taken less their mean over the actions (a shift of all changes
no action) and before their own 8 bits, which go to the winners only (policy.simulate.output_range); of a continuous
head, actions in shares of their range. docs/findings.md says how well the estimate predicts the return.

The ``mixed`` artifact: every layer begins with 8 bits; as long as the kernels take more than ``MOST_BITS`` a weight,
the layer whose fewer bits cost the least error for each bit saved gets 4, later 2. Where 4 bits everywhere are
estimated to be better than what comes out, they are taken. The head and the first layer have few weights, and most of
the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from quarl.policy.bundle import Bundle
from quarl.policy.quantize import Scheme
from quarl.policy.reference import Floats, IntegerNetwork, WeightBits, Weights, forward_float, layer_names
from quarl.policy.simulate import Simulated, Widths, forward_simulated, quantize_network, simulate
from quarl.policy.spec import LARGEST_WEIGHT_BITS, ContinuousHead, PolicySpec, Precision, Ranges, Recipe, weight_shapes

OBSERVATIONS = 1024  # evenly out of the calibration set
IMAGES = 64  # instead, where they are
ACTIVATION_BITS = 8
PACKED = (8, 4, 2)
"""Widths that the native engine packs."""
MOST_BITS = 4.5
"""Most bits of a weight on average: an eighth more than int4."""

Assignment = Mapping[str, int]
"""Bits of every layer's kernel, by its name, in the order of the layers."""


def recipe_of(bundle: Bundle, precision: Precision, ranges: Ranges | None = None) -> Recipe:
    """Return how a bundle's artifacts of an integer precision are made: as those it has, else newly chosen.

    Raises:
        QuantizationError: weights or calibration cannot be quantized.
    """
    recipe = bundle.manifest.recipe(precision)
    if recipe is None:
        recipe = Recipe(weight_bits(bundle.spec, bundle.weights(), bundle.calibration(), precision))
    return recipe if ranges is None else replace(recipe, ranges=ranges)


def integers(bundle: Bundle, precision: Precision, recipe: Recipe | None = None) -> IntegerNetwork:
    """Return a bundle's policy in integers, by this recipe or the precision's own; raises as :func:`recipe_of`."""
    recipe = recipe or recipe_of(bundle, precision)
    return quantize_network(bundle.spec, bundle.weights(), bundle.calibration(), recipe.bits, recipe.ranges)


def weight_bits(spec: PolicySpec, weights: Weights, calibration: np.ndarray, precision: Precision) -> WeightBits:
    """Bits of the weights of an integer precision, those of mixed ones as they are chosen again."""
    return assign_layer_bits(spec, weights, calibration) if precision is Precision.MIXED else precision.bits


def assign_layer_bits(spec: PolicySpec, weights: Weights, calibration: np.ndarray) -> dict[str, int]:
    """Return the mixed artifact's assignment, as the module describes it."""
    layers, sizes = Layers(spec, weights, calibration, PACKED), kernel_sizes(spec)
    errors: dict[tuple[int, ...], float] = {}

    def error(assignment: Assignment) -> float:
        key = tuple(assignment.values())
        if key not in errors:
            errors[key] = output_error(spec, layers.outputs(assignment), layers.reference)
        return errors[key]

    def cost(narrower: Assignment) -> float:
        return (error(narrower) - error(layer_bits)) / (total_bits(sizes, layer_bits) - total_bits(sizes, narrower))

    layer_bits = dict.fromkeys(sizes, max(PACKED))
    while total_bits(sizes, layer_bits) > MOST_BITS * sum(sizes.values()):
        fewer = [{**layer_bits, layer: bits // 2} for layer, bits in layer_bits.items() if bits > min(PACKED)]
        layer_bits = min(fewer, key=cost)
    return min((dict.fromkeys(sizes, Precision.INT4.bits), layer_bits), key=error)


def kernel_sizes(spec: PolicySpec) -> dict[str, int]:
    """Weights of every layer's kernel, by its name, in the order of the layers."""
    shapes = weight_shapes(spec)
    return {name: prod(shapes[f"{name}/kernel"]) for name in layer_names(spec)}


def total_bits(sizes: Mapping[str, int], assignment: Assignment) -> int:
    """Bits of all kernels together: Σ weights × bits. Biases and scales are the same in every assignment."""
    return sum(size * assignment[layer] for layer, size in sizes.items())


class Layers:
    """A policy's layers, each quantized to every width once: a layer's integers depend on its own width alone.

    Args:
        spec: the policy.
        weights: float32.
        calibration: raw observations (n, observation_size).
        widths: which.

    Attributes:
        observations: some of the calibration's.
        reference: the float policy's outputs on them.
    """

    def __init__(self, spec: PolicySpec, weights: Weights, calibration: np.ndarray, widths: Sequence[int]) -> None:
        self.spec = spec
        rows = min(IMAGES if spec.is_image else OBSERVATIONS, len(calibration))
        self.observations = calibration[np.linspace(0, len(calibration) - 1, rows).astype(int)]
        self.uniform: Mapping[int, Simulated] = {
            bits: simulate(spec, weights, calibration, Widths(Scheme.SYMMETRIC, bits, ACTIVATION_BITS))
            for bits in widths
        }
        self.reference = forward_float(spec, weights, self.observations)

    def assemble(self, assignment: Assignment) -> Simulated:
        """Return the policy with these widths; the same as :func:`policy.simulate.simulate` makes, without its work."""
        widest = self.uniform[LARGEST_WEIGHT_BITS]
        weights = dict(widest.weights)
        for layer, bits in assignment.items():
            for part in ("kernel", "bias"):
                weights[f"{layer}/{part}"] = self.uniform[bits].weights[f"{layer}/{part}"]
        return Simulated(widths_of(assignment), weights, widest.maps)

    def outputs(self, assignment: Assignment) -> Floats:
        """Return the outputs on the observations with these widths; of a discrete head before their own 8 bits."""
        simulated = self.assemble(assignment)
        if not isinstance(self.spec.head, ContinuousHead):
            maps = {name: affine for name, affine in simulated.maps.items() if name != "head"}
            simulated = Simulated(simulated.widths, simulated.weights, maps)
        return forward_simulated(self.spec, simulated, self.observations)


def widths_of(assignment: Assignment) -> Widths:
    """Symmetric, activations and observation of 8 bits."""
    return Widths(Scheme.SYMMETRIC, LARGEST_WEIGHT_BITS, ACTIVATION_BITS, layer_bits=dict(assignment))


def output_error(spec: PolicySpec, outputs: Floats, reference: Floats) -> float:
    """Return the module's estimate, of outputs (n, output_size) against the float policy's on the same observations."""
    y, f = (_comparable(spec, values) for values in (outputs, reference))
    power = float(((f - f.mean(axis=0)) ** 2).sum())
    return float(np.sqrt(float(((y - f) ** 2).sum()) / power)) if power else float(np.any(y != f))


def _comparable(spec: PolicySpec, outputs: Floats) -> np.ndarray:
    values = outputs.astype(np.float64)
    if isinstance(spec.head, ContinuousHead):
        return values / (np.asarray(spec.head.high) - np.asarray(spec.head.low))
    for part in spec.head.parts:
        values[:, part] -= values[:, part].mean(axis=1, keepdims=True)
    return values
