"""Recurrent layers: gated cells whose state is what a policy remembers from one decision to the next.

A recurrent layer is two linear layers, ``recurrent_<i>`` of what is fed to it and ``state_<i>`` of its hidden state,
with a float program (:mod:`policy.contract.features`) behind both that makes the next state of their sums:

    a = x W + b,   c = h U + d
    GRU (Cho et al. 2014; the reset behind the product, as in cuDNN and PyTorch), gates r, z, n:
        r = σ(a_r + c_r),   z = σ(a_z + c_z),   n = tanh(a_n + r c_n),   h' = n + z (h − n)
    LSTM (Hochreiter & Schmidhuber 1997, with Gers's forget gate), gates i, f, g, o; its state is h with s behind it:
        s' = σ(a_f + c_f) s + σ(a_i + c_i) tanh(a_g + c_g),   h' = σ(a_o + c_o) tanh(s')
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quarl.policy.contract.checks import require, require_member
from quarl.policy.contract.features import FloatOperator, FloatStep
from quarl.policy.json_values import shortened

MOST_UNITS = 1024
"""Of a recurrent layer: its gates together are a value of a float program."""
STATE = "state_"
"""Begins the name of the linear layer of a hidden state."""


class Cell(Enum):
    """The kind of a recurrent layer."""

    GRU = "gru"
    LSTM = "lstm"


_GATES = {Cell.GRU: 3, Cell.LSTM: 4}
_VECTORS = {Cell.GRU: 1, Cell.LSTM: 2}


@dataclass(frozen=True)
class Recurrence:
    """One recurrent layer.

    Attributes:
        cell: its kind.
        units: elements of its hidden state, which is what the next layer is fed.
        behind: so many fully connected hidden layers stand before it.
    """

    cell: Cell
    units: int
    behind: int = 0

    def __post_init__(self) -> None:
        require_member(Cell, self.cell, "network.recurrences.cell")
        require(
            0 < self.units <= MOST_UNITS,
            f"network.recurrences has {shortened(self.units)} units; allowed are 1 … {MOST_UNITS}.",
        )

    @property
    def gate_size(self) -> int:
        """Outputs of each of its two linear layers: those of all gates, one gate behind the other."""
        return _GATES[self.cell] * self.units

    @property
    def state_size(self) -> int:
        """Floats that it remembers; the first ``units`` are the hidden state."""
        return _VECTORS[self.cell] * self.units

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the three values that its program is given: both linear layers' sums, and the state."""
        return self.gate_size, self.gate_size, self.state_size

    def program(self) -> tuple[FloatStep, ...]:
        """From the sums of what is fed (gate_size,), of the hidden state (likewise) and the state to the next state."""
        return _gru(self.units) if self.cell is Cell.GRU else _lstm(self.units)


def _take(value: int, first: int, count: int) -> FloatStep:
    return FloatStep(FloatOperator.TAKE, (value,), places=tuple(range(first, first + count)))


def _gru(n: int) -> tuple[FloatStep, ...]:
    add, multiply = FloatOperator.ADD, FloatOperator.MULTIPLY
    return (
        _take(0, 0, 2 * n),  # 3: a_r, a_z
        _take(1, 0, 2 * n),  # 4: c_r, c_z
        FloatStep(add, (3, 4)),
        FloatStep(FloatOperator.SIGMOID, (5,)),
        _take(6, 0, n),  # 7: r
        _take(6, n, n),  # 8: z
        _take(0, 2 * n, n),  # 9: a_n
        _take(1, 2 * n, n),  # 10: c_n
        FloatStep(multiply, (7, 10)),
        FloatStep(add, (9, 11)),
        FloatStep(FloatOperator.TANH, (12,)),  # 13: n
        FloatStep(FloatOperator.SUBTRACT, (2, 13)),
        FloatStep(multiply, (8, 14)),
        FloatStep(add, (13, 15)),
    )


def _lstm(n: int) -> tuple[FloatStep, ...]:
    add, multiply, sigmoid, tanh = (
        FloatOperator.ADD,
        FloatOperator.MULTIPLY,
        FloatOperator.SIGMOID,
        FloatOperator.TANH,
    )
    return (
        FloatStep(add, (0, 1)),  # 3
        _take(3, 0, 2 * n),
        FloatStep(sigmoid, (4,)),  # 5: i, f
        _take(3, 2 * n, n),
        FloatStep(tanh, (6,)),  # 7: g
        _take(3, 3 * n, n),
        FloatStep(sigmoid, (8,)),  # 9: o
        _take(5, 0, n),
        _take(5, n, n),
        _take(2, n, n),  # 12: s
        FloatStep(multiply, (11, 12)),
        FloatStep(multiply, (10, 7)),
        FloatStep(add, (13, 14)),  # 15: s'
        FloatStep(tanh, (15,)),
        FloatStep(multiply, (9, 16)),  # 17: h'
        FloatStep(FloatOperator.JOIN, (17, 15)),
    )
