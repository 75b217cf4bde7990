"""Widths of single layers: which ones a budget allows, and what they cost, estimated without flying.

Three cheap measures of how far a quantized policy is from the float one on these observations:

* output error: √(Σ (y − f)² / Σ (f − mean f)²) over observations and outputs; 0 is the same, 1 as far off as a
  constant. Of a discrete head, outputs less their mean over the actions (a shift of all changes no action) and before
  their own 8 bits, which go to the winners only (policy.ranges.output_range); of a continuous head, actions in shares
  of their range.
* other action: the share of observations whose action is not fp32's; of a continuous one, any element by more than a
  hundredth of its range.
* regret, of discrete heads: how much lower the float policy's own output of the chosen action is than its best one, in
  standard deviations of its outputs. A change between equally good actions costs nothing here, as in the performance
  difference lemma (Kakade and Langford 2002), whose sum over advantages it is for action values.

A budget is a count of bits that a format would take which packs the kernels, Σ weights of the layer × its bits. Biases
and scales are left out, being the same in every assignment. No artifact of this project packs anything: in the int8
container every weight takes a byte whatever its width (bench/measuring/execution.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from bench import command_line
from bench.study.flying import share_differing
from policy.network import Floats, Weights, choose_actions, forward_float, layer_names, weight_shapes
from policy.quantization import LARGEST_WEIGHT_BITS, SMALLEST_WEIGHT_BITS, Scheme
from policy.simulated import Simulated, Widths, forward_simulated, simulate
from policy.spec import ContinuousHead, PolicySpec

OBSERVATIONS = 1024  # evenly out of the calibration set
ACTIVATION_BITS = 8
WIDTHS = tuple(range(SMALLEST_WEIGHT_BITS, LARGEST_WEIGHT_BITS + 1))
MOST_LAYERS = 6  # 7⁶ assignments are looked through in a blink, 7⁹ are not

Assignment = Mapping[str, int]
"""Bits of every layer's kernel, by its name, in the order of the layers."""


def kernel_sizes(spec: PolicySpec) -> dict[str, int]:
    """Weights of every layer's kernel, by its name, in the order of the layers."""
    shapes = weight_shapes(spec)
    return {name: prod(shapes[f"{name}/kernel"]) for name in layer_names(spec)}


def total_bits(sizes: Mapping[str, int], assignment: Assignment) -> int:
    """Bits of all kernels together: Σ weights × bits."""
    return sum(size * assignment[layer] for layer, size in sizes.items())


def fullest(sizes: Mapping[str, int], budget: int) -> list[dict[str, int]]:
    """Every assignment of at most ``budget`` bits in which no layer can get one more within the budget.

    What leaves bits unused that a layer could have is no candidate: if it looked better, then by the luck of rounding.

    Raises:
        BenchError: the layers are too many to look through all.
    """
    if len(sizes) > MOST_LAYERS:
        raise command_line.BenchError(
            f"the policy has {len(sizes)} layers; all assignments of up to {MOST_LAYERS} are looked through.",
            "take a smaller policy",
        )
    every = (dict(zip(sizes, bits, strict=True)) for bits in product(WIDTHS, repeat=len(sizes)))
    left = ((budget - total_bits(sizes, each), each) for each in every)
    return [
        each
        for spare, each in left
        if spare >= 0 and not any(n < LARGEST_WEIGHT_BITS and sizes[layer] <= spare for layer, n in each.items())
    ]


@dataclass(frozen=True)
class Damage:
    """The cheap measures, as the module describes them.

    Attributes:
        actions_differ: share, 0 … 1.
        regret: None of a continuous head.
    """

    output_error: float
    actions_differ: float
    regret: float | None


class Estimator:
    """Estimates for one policy; quantizes every layer to every width once.

    Args:
        spec: the policy.
        weights: float32.
        calibration: raw observations (n, observation_size).
    """

    def __init__(self, spec: PolicySpec, weights: Weights, calibration: np.ndarray) -> None:
        self.spec = spec
        chosen = np.linspace(0, len(calibration) - 1, min(OBSERVATIONS, len(calibration))).astype(int)
        self.observations = calibration[chosen]
        # A layer's integers depend on its own width alone, so that seven policies hold the layers of all assignments.
        self.uniform: Mapping[int, Simulated] = {
            bits: simulate(spec, weights, calibration, Widths(Scheme.SYMMETRIC, bits, ACTIVATION_BITS))
            for bits in WIDTHS
        }
        self.reference = forward_float(spec, weights, self.observations)
        self._cache: dict[tuple[int, ...], Damage] = {}

    def assembled(self, assignment: Assignment) -> Simulated:
        """The policy with these widths; the same as :func:`policy.simulated.simulate` makes, without its work."""
        widest = self.uniform[LARGEST_WEIGHT_BITS]
        weights = dict(widest.weights)
        for layer, bits in assignment.items():
            for part in ("kernel", "bias"):
                weights[f"{layer}/{part}"] = self.uniform[bits].weights[f"{layer}/{part}"]
        return Simulated(widths_of(assignment), weights, widest.maps)

    def damage(self, assignment: Assignment) -> Damage:
        """The cheap measures of these widths."""
        key = tuple(assignment[layer] for layer in layer_names(self.spec))
        if key not in self._cache:
            simulated = self.assembled(assignment)
            if not isinstance(self.spec.head, ContinuousHead):
                maps = {name: affine for name, affine in simulated.maps.items() if name != "head"}
                simulated = Simulated(simulated.widths, simulated.weights, maps)
            outputs = forward_simulated(self.spec, simulated, self.observations)
            self._cache[key] = damage_of(self.spec, outputs, self.reference)
        return self._cache[key]


def widths_of(assignment: Assignment) -> Widths:
    """Symmetric, activations and observation of 8 bits."""
    return Widths(Scheme.SYMMETRIC, LARGEST_WEIGHT_BITS, ACTIVATION_BITS, layer_bits=dict(assignment))


def damage_of(spec: PolicySpec, outputs: Floats, reference: Floats) -> Damage:
    """The cheap measures of outputs (n, output_size) against the float policy's on the same observations."""
    actions, wanted = (choose_actions(spec, each) for each in (outputs, reference))
    regret = None
    if not isinstance(spec.head, ContinuousHead):
        best = np.take_along_axis(reference, wanted.astype(int).reshape(-1, 1), axis=1)
        taken = np.take_along_axis(reference, actions.astype(int).reshape(-1, 1), axis=1)
        spread = float(reference.std(axis=1).mean())
        regret = float((best - taken).mean()) / spread if spread else 0.0
    y, f = (_comparable(spec, each) for each in (outputs, reference))
    power = float(((f - f.mean(axis=0)) ** 2).sum())
    error = float(np.sqrt(float(((y - f) ** 2).sum()) / power)) if power else float(np.any(y != f))
    return Damage(error, share_differing(spec, actions, wanted), regret)


def _comparable(spec: PolicySpec, outputs: Floats) -> np.ndarray:
    values = outputs.astype(np.float64)
    if isinstance(spec.head, ContinuousHead):
        return values / (np.asarray(spec.head.high) - np.asarray(spec.head.low))
    centred: np.ndarray = values - values.mean(axis=1, keepdims=True)
    return centred
