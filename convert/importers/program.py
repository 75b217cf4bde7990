"""Steps of a chain around its layers as float operators, where they are no longer one map of each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quarl.convert.importers.chain import Activate, Affine, Clip, Dense, Doubles, Features, ForeignError, Step, Targets
from quarl.policy.spec import (
    LARGEST_FLOAT32,
    MOST_ELEMENTS,
    MOST_STEPS,
    MOST_TOGETHER,
    Activation,
    FloatOperator,
    FloatStep,
    size_of,
    sizes_of,
)

SMALL_KERNEL = 36
"""Elements of a constant matrix that is carried as sums: a rotation, not a layer."""
TOO_LARGE = "Compute this part outside of the policy, and give its result as an input."


def is_carried(steps: tuple[Step, ...]) -> bool:
    """Whether float operators can do what these steps do: none of them is a layer."""
    return all(isinstance(step, Features) or is_behind(step) for step in steps)


def is_behind(step: Step) -> bool:
    """Whether float operators behind the layers can do what this step does."""
    if isinstance(step, Dense):
        return step.kernel.size <= SMALL_KERNEL or _is_selection(step)
    return isinstance(step, Targets | Affine | Clip | Activate)


def _is_selection(step: Dense) -> bool:
    return bool((np.count_nonzero(step.kernel, axis=0) <= 1).all())


class Program:
    """Float operators under construction; the same operator on the same values is there once.

    Values are numbered as in :mod:`policy.spec`: 0 is what it is given, the raw observation alone or
    behind the outputs of layers.
    """

    def __init__(self, size: int) -> None:
        self.steps: list[FloatStep] = []
        self._sizes = [size]
        self._known: dict[FloatStep, int] = {}
        self._together = 0

    def size(self, value: int) -> int:
        """Elements of a value."""
        return self._sizes[value]

    def add(
        self,
        operator: FloatOperator,
        *operands: int,
        constants: np.ndarray | None = None,
        places: np.ndarray | None = None,
    ) -> int:
        """The number of the value that this operator makes.

        Raises:
            ForeignError: the program grows beyond what a bundle holds.
        """
        numbers = () if constants is None else tuple(np.float32(value).item() for value in np.ravel(constants))
        if any(not abs(value) <= LARGEST_FLOAT32 for value in numbers):
            raise ForeignError(f"a float operator ({operator.value}) has a constant that is not finite.")
        chosen = () if places is None else tuple(int(place) for place in places)
        return self._put(FloatStep(operator, operands, numbers, chosen))

    def _put(self, step: FloatStep) -> int:
        if step in self._known:
            return self._known[step]
        size = size_of(step, self._sizes)
        self._together += size
        if len(self.steps) >= MOST_STEPS or size > MOST_ELEMENTS or self._together > MOST_TOGETHER:
            raise ForeignError(
                f"what is computed beside the network takes more than {MOST_STEPS} float operators of "
                f"{MOST_ELEMENTS} elements, or more than {MOST_TOGETHER} in all.",
                TOO_LARGE,
            )
        self.steps.append(step)
        self._sizes.append(size)
        self._known[step] = len(self.steps)
        return len(self.steps)

    def take(self, value: int, places: np.ndarray) -> int:
        """The elements at these places; the value itself where it is all of them in order."""
        if np.array_equal(places, np.arange(self.size(value))):
            return value
        return self.add(FloatOperator.TAKE, value, places=places)

    def follow(self, steps: Sequence[Step], what: str, value: int = 0, observation: int = 0) -> int:
        """Apply a chain's steps to a value; returns the result's number.

        Args:
            steps: none of them a layer.
            what: names the node in messages.
            value: where they begin.
            observation: the raw observation.
        """
        for step in steps:
            if isinstance(step, Features):
                value = self.replayed(step.steps, observation)
            elif isinstance(step, Targets):
                value = self.replayed(step.steps, self.join(value, observation))
            elif isinstance(step, Affine):
                value = self._scaled(value, step.scale, step.offset)
            elif isinstance(step, Clip):
                value = self._cut(value, step)
            elif isinstance(step, Activate):
                value = self._activated(value, step, what)
            elif isinstance(step, Dense) and step.kernel.size <= SMALL_KERNEL:
                columns = step.kernel.astype(np.float64).T
                sums = [
                    self.add(FloatOperator.SUM, self.add(FloatOperator.MULTIPLY, value, constants=column))
                    for column in columns
                ]
                value = sums[0] if len(sums) == 1 else self.add(FloatOperator.JOIN, *sums)
                value = self._scaled(value, np.ones(1), step.bias.astype(np.float64))
            elif isinstance(step, Dense) and _is_selection(step):
                places = np.abs(step.kernel).argmax(axis=0)
                scale = step.kernel[places, np.arange(len(places))].astype(np.float64)
                value = self._scaled(self.take(value, places), scale, step.bias.astype(np.float64))
            else:
                raise ForeignError(
                    f"{what} combines values of different layers.", "Only a chain of layers can be read."
                )
        return value

    def join(self, first: int, second: int) -> int:
        """One value behind another; where both are parts of a third that they make together, that one."""
        parts = [self.steps[number - 1] if number else None for number in (first, second)]
        taken = [part for part in parts if part is not None and part.operator is FloatOperator.TAKE]
        if len(taken) == 2 and taken[0].operands == taken[1].operands:
            (whole,) = taken[0].operands
            if taken[0].places + taken[1].places == tuple(range(self.size(whole))):
                return whole
        return self.add(FloatOperator.JOIN, first, second)

    def until(self, value: int) -> tuple[FloatStep, ...]:
        """The steps that lead to this value, which is their result."""
        if not value:
            return (FloatStep(FloatOperator.ADD, (0,), (0.0,)),)
        needed = {value}
        for number in range(value, 0, -1):
            if number in needed:
                needed |= set(self.steps[number - 1].operands)
        numbers = {old: new for new, old in enumerate(sorted(needed | {0}))}
        kept = [self.steps[number - 1] for number in sorted(needed - {0})]
        return tuple(replace(step, operands=tuple(numbers[each] for each in step.operands)) for step in kept)

    def replayed(self, steps: tuple[FloatStep, ...], given: int) -> int:
        """The number of what another program makes of this value."""
        numbers = [given]
        for step in steps:
            numbers.append(self._put(replace(step, operands=tuple(numbers[operand] for operand in step.operands))))
        return numbers[-1]

    def _scaled(self, value: int, scale: Doubles, offset: Doubles) -> int:
        if (scale != 1).any():
            value = self.add(FloatOperator.MULTIPLY, value, constants=scale)
        if (offset != 0).any():
            value = self.add(FloatOperator.ADD, value, constants=offset)
        return value

    def _cut(self, value: int, step: Clip) -> int:
        if np.isfinite(step.low).any():
            value = self.add(FloatOperator.MAXIMUM, value, constants=np.maximum(step.low, -LARGEST_FLOAT32))
        if np.isfinite(step.high).any():
            value = self.add(FloatOperator.MINIMUM, value, constants=np.minimum(step.high, LARGEST_FLOAT32))
        return value

    def _activated(self, value: int, step: Activate, what: str) -> int:
        if step.activation is Activation.TANH:
            return self.add(FloatOperator.TANH, value)
        if step.activation is Activation.RELU:
            return self.add(FloatOperator.MAXIMUM, value, constants=np.zeros(1))
        if step.activation is Activation.NONE:
            return value
        raise ForeignError(f"{what} combines values behind the activation {step.activation.value}.", TOO_LARGE)


def copies(steps: Sequence[FloatStep], size: int) -> NDArray[np.int64]:
    """For each result of a program, the place in what it is given that it is a copy of; −1 where it is computed."""
    values = [np.arange(size)]
    for step, made in zip(steps, sizes_of(tuple(steps), (size,))[1:], strict=True):
        if step.operator is FloatOperator.TAKE:
            values.append(values[step.operands[0]][list(step.places)])
        elif step.operator is FloatOperator.JOIN:
            values.append(np.concatenate([values[operand] for operand in step.operands]))
        else:
            values.append(np.full(made, -1))
    return values[-1]


def depends(steps: Sequence[FloatStep], size: int) -> NDArray[np.bool_]:
    """Which elements of what it is given each result of a program depends on, (results, size)."""
    values = [np.eye(size, dtype=bool)]
    for step, made in zip(steps, sizes_of(tuple(steps), (size,))[1:], strict=True):
        taken = [values[operand] for operand in step.operands]
        if step.operator is FloatOperator.TAKE:
            values.append(taken[0][list(step.places)])
        elif step.operator is FloatOperator.JOIN:
            values.append(np.concatenate(taken))
        elif step.operator is FloatOperator.SUM:
            values.append(taken[0].any(axis=0, keepdims=True))
        else:
            values.append(np.logical_or.reduce([np.broadcast_to(part, (made, size)) for part in taken]))
    return values[-1]
