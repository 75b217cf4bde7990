"""What a width of single layers costs, estimated without flying: from the calibration observations alone.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.study.flying import share_differing
from bench.study.measures.assignments import WIDTHS, Assignment
from policy.network import Floats, Weights, choose_actions, forward_float, layer_names
from policy.quantization import LARGEST_WEIGHT_BITS, Scheme
from policy.simulated import Simulated, Widths, forward_simulated, simulate
from policy.spec import ContinuousHead, PolicySpec

OBSERVATIONS = 1024  # evenly out of the calibration set
ACTIVATION_BITS = 8


@dataclass(frozen=True)
class Damage:
    """The cheap measures.

    Attributes:
        output_error: see the module.
        actions_differ: share, 0 … 1.
        regret: in standard deviations; None of a continuous head.
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
