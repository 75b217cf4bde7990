"""Float operators around the network: a rotation by a quaternion before it, a target relative to a joint behind it.

A program is a list of steps. The first values are what it is given, as a rule one, the later ones the steps' results,
a vector each; the last is its result. ``PolicySpec.features`` is given the raw observation, and the normaliser takes
its result; ``PolicySpec.targets`` is given the head's outputs with the raw observation behind them, and its result is
the action; a recurrent layer's is given three values (:mod:`policy.contract.cells`). Everything is float32, in every
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from quarl.policy.contract.checks import LARGEST_FLOAT32, require, require_member
from quarl.policy.json_values import OMITTED, shortened

MOST_STEPS, MOST_ELEMENTS, MOST_TOGETHER = 256, 4096, 65_536
"""Most steps of a program, elements of a value, and of all values: float operators stay small beside the network."""


class FloatOperator(Enum):
    """What a step does, element by element where nothing else is stated."""

    TAKE = "take"
    """The elements at ``places``."""
    JOIN = "join"
    """All operands, one behind the other."""
    SUM = "sum"
    """The sum of all elements: one number."""
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    DIVIDE = "divide"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    SQUARE_ROOT = "square_root"
    SINE = "sine"
    COSINE = "cosine"
    ABSOLUTE = "absolute"
    EXPONENTIAL = "exponential"
    TANH = "tanh"
    SIGMOID = "sigmoid"


BINARY = (
    FloatOperator.ADD,
    FloatOperator.SUBTRACT,
    FloatOperator.MULTIPLY,
    FloatOperator.DIVIDE,
    FloatOperator.MINIMUM,
    FloatOperator.MAXIMUM,
)


@dataclass(frozen=True)
class FloatStep:
    """One operator on earlier values.

    Attributes:
        operator: see :class:`FloatOperator`.
        operands: numbers of values. A binary operator has two, of the same size or one of size 1; or one and
            ``constants``.
        constants: the second operand of a binary operator, one number or one for each element.
        places: of TAKE.
    """

    operator: FloatOperator
    operands: tuple[int, ...]
    constants: tuple[float, ...] = field(default=(), metadata=OMITTED)
    places: tuple[int, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require_member(FloatOperator, self.operator, "the operator of a float step")
        name = f"the float operator {self.operator.value!r}"
        wanted = 2 - bool(self.constants) if self.operator in BINARY else 1
        count = len(self.operands)
        fits = count >= 1 if self.operator is FloatOperator.JOIN else count == wanted
        require(fits, f"{name} has {count} operands; it takes {wanted}.")
        require(not self.constants or self.operator in BINARY, f"{name} takes no constants.")
        require(bool(self.places) == (self.operator is FloatOperator.TAKE), f"{name} has {len(self.places)} places.")
        require(
            all(abs(value) <= LARGEST_FLOAT32 for value in self.constants),
            f"{name} has constants {shortened(self.constants)}; allowed are finite float32 numbers.",
        )
        require(
            self.operator is not FloatOperator.DIVIDE or 0.0 not in self.constants, f"{name} divides by the constant 0."
        )


def size_of(step: FloatStep, sizes: Sequence[int]) -> int:
    """Elements of a step's result, given those of the values before it."""
    taken = [sizes[place] for place in step.operands]
    if step.operator is FloatOperator.TAKE:
        return len(step.places)
    if step.operator is FloatOperator.JOIN:
        return sum(taken)
    return 1 if step.operator is FloatOperator.SUM else max([*taken, len(step.constants)])


def sizes_of(steps: tuple[FloatStep, ...], given: Sequence[int], called: str = "features") -> tuple[int, ...]:
    """Elements of every value: of what the program is given, then of each step's result; ``called`` names it in errors.

    Raises:
        SpecError: a step names a value that is not there yet, places that are none, or sizes that do not fit.
    """
    require(len(steps) <= MOST_STEPS, f"{called} has {len(steps)} steps; allowed are {MOST_STEPS}.")
    sizes = list(given)
    for number, step in enumerate(steps):
        what = f"{called}[{number}] ({step.operator.value})"
        require(all(0 <= place < len(sizes) for place in step.operands), f"{what} names a value that is not there yet.")
        taken = [sizes[place] for place in step.operands] + ([len(step.constants)] if step.constants else [])
        if step.operator in BINARY:
            require(set(taken) <= {1, max(taken)}, f"{what} combines {taken} elements.")
        elif step.operator is FloatOperator.TAKE:
            require(all(0 <= place < taken[0] for place in step.places), f"{what} takes a place beyond {taken[0]}.")
        size = size_of(step, sizes)
        require(size <= MOST_ELEMENTS, f"{what} has {size} elements; allowed are {MOST_ELEMENTS}.")
        sizes.append(size)
    total = sum(sizes[len(given) :])
    require(total <= MOST_TOGETHER, f"{called} has {total} elements in all steps; allowed are {MOST_TOGETHER}.")
    return tuple(sizes)
