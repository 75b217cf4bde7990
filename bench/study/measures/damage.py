"""What widths of single layers cost, estimated without flying, and which ones a budget allows.

Beside the output error (``convert/mixed.py``), two cheap measures of how far a quantized policy is from the float one
on observations of its calibration:

* other action: the share of observations whose action is not fp32's; of a continuous one, any element by more than a
  hundredth of its range.
* regret, of discrete heads: how much lower the float policy's own output of the chosen action is than its best one, in
  standard deviations of its outputs. A change between equally good actions costs nothing here, as in the performance
  difference lemma (Kakade and Langford 2002), whose sum over advantages it is for action values.

A budget is a count of bits that a format would take which packs the kernels, Σ weights of the layer × its bits. The
native engine packs 8, 4 and 2 bits (``make convert BITS=mixed``); in the int8 container every weight takes a byte
whatever its width (bench/device_session/execution.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from bench import command_line
from bench.study.bundles import share_differing
from convert.mixed import Assignment, Layers, output_error, total_bits
from policy.contract.quantization import LARGEST_WEIGHT_BITS, SMALLEST_WEIGHT_BITS
from policy.network import Floats, Weights, choose_actions, layer_names
from policy.spec import ContinuousHead, PolicySpec

WIDTHS = tuple(range(SMALLEST_WEIGHT_BITS, LARGEST_WEIGHT_BITS + 1))
MOST_LAYERS = 6  # 7⁶ assignments are looked through in a blink, 7⁹ are not


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


class Estimator(Layers):
    """Estimates for one policy, of every width."""

    def __init__(self, spec: PolicySpec, weights: Weights, calibration: np.ndarray) -> None:
        super().__init__(spec, weights, calibration, WIDTHS)
        self._cache: dict[tuple[int, ...], Damage] = {}

    def damage(self, assignment: Assignment) -> Damage:
        """The cheap measures of these widths."""
        key = tuple(assignment[layer] for layer in layer_names(self.spec))
        if key not in self._cache:
            self._cache[key] = damage_of(self.spec, self.outputs(assignment), self.reference)
        return self._cache[key]


def damage_of(spec: PolicySpec, outputs: Floats, reference: Floats) -> Damage:
    """The cheap measures of outputs (n, output_size) against the float policy's on the same observations."""
    actions, wanted = (choose_actions(spec, each) for each in (outputs, reference))
    regret = None
    if not isinstance(spec.head, ContinuousHead):
        best = np.take_along_axis(reference, wanted.astype(int).reshape(-1, 1), axis=1)
        taken = np.take_along_axis(reference, actions.astype(int).reshape(-1, 1), axis=1)
        spread = float(reference.std(axis=1).mean())
        regret = float((best - taken).mean()) / spread if spread else 0.0
    return Damage(output_error(spec, outputs, reference), share_differing(spec, actions, wanted), regret)
