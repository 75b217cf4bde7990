"""Widths of single layers: how large an assignment is, which ones a budget allows, and which of them is estimated best.

Size is a count of bits that a format would take which packs the kernels, Σ weights of the layer × its bits. Biases and
scales are left out, being the same in every assignment. No artifact of this project packs anything: in the int8
container every weight takes a byte whatever its width (bench/measuring/execution.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from bench import command_line
from policy.network import layer_names, weight_shapes
from policy.quantization import LARGEST_WEIGHT_BITS, SMALLEST_WEIGHT_BITS
from policy.spec import PolicySpec

WIDTHS = tuple(range(SMALLEST_WEIGHT_BITS, LARGEST_WEIGHT_BITS + 1))
MOST_LAYERS = 6  # 7⁶ assignments are looked through in a blink, 7⁹ are not

Assignment = Mapping[str, int]
"""Bits of every layer's kernel, by its name, in the order of the layers."""


@dataclass(frozen=True)
class Choice:
    """An assignment with what it is estimated to cost."""

    bits: Assignment
    damage: float


def kernel_sizes(spec: PolicySpec) -> dict[str, int]:
    """Weights of every layer's kernel, by its name, in the order of the layers."""
    shapes = weight_shapes(spec)
    return {name: prod(shapes[f"{name}/kernel"]) for name in layer_names(spec)}


def uniform(sizes: Mapping[str, int], bits: int) -> dict[str, int]:
    """The same width everywhere."""
    return dict.fromkeys(sizes, bits)


def total_bits(sizes: Mapping[str, int], assignment: Assignment) -> int:
    """Bits of all kernels together: Σ weights × bits.

    Raises:
        ValueError: the layers are not the same.
    """
    if sizes.keys() != assignment.keys():
        raise ValueError(f"widths of the layers {sorted(assignment)} do not fit the layers {sorted(sizes)}.")
    return sum(size * assignment[layer] for layer, size in sizes.items())


def allowed(sizes: Mapping[str, int], budget: int, widths: Sequence[int] = WIDTHS) -> list[dict[str, int]]:
    """Every assignment of at most ``budget`` bits.

    Raises:
        BenchError: the layers are too many to look through all.
    """
    if len(sizes) > MOST_LAYERS:
        raise command_line.BenchError(
            f"the policy has {len(sizes)} layers; all assignments of up to {MOST_LAYERS} are looked through.",
            "take a smaller policy",
        )
    every = (dict(zip(sizes, bits, strict=True)) for bits in product(widths, repeat=len(sizes)))
    return [assignment for assignment in every if total_bits(sizes, assignment) <= budget]


def fullest(sizes: Mapping[str, int], budget: int, widths: Sequence[int] = WIDTHS) -> list[dict[str, int]]:
    """Those of :func:`allowed` in which no layer can get its next larger width within the budget.

    What leaves bits unused that a layer could have is no candidate: if it looked better, then by the luck of rounding.

    Raises:
        BenchError: see :func:`allowed`.
    """
    wider = dict(pairwise(widths))

    def is_full(assignment: Assignment) -> bool:
        used = total_bits(sizes, assignment)
        return not any(
            bits in wider and used + sizes[layer] * (wider[bits] - bits) <= budget for layer, bits in assignment.items()
        )

    return [assignment for assignment in allowed(sizes, budget, widths) if is_full(assignment)]


def ranked(candidates: Iterable[Assignment], damage: Callable[[Assignment], float]) -> list[Choice]:
    """Candidates from the least estimated damage to the largest; equal ones in the given order."""
    return sorted((Choice(each, damage(each)) for each in candidates), key=lambda choice: choice.damage)
