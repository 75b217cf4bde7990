"""What a fed-back tensor holds: earlier values of the observation, or the action of the period before.

A state's output is followed from the observation like any other. Where each of its elements is a new value, or a copy
of another element of the state, every element has an age in periods; where it is the network's output, or a scaled one,
it is the last action. Both are fields that remember. Anything else, a hidden layer's memory above all, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convert.foreign.chain import Affine, Clip, Dense, Doubles, Features, ForeignError, Step
from convert.foreign.onnx.value import Places, Value, affine, clip

WAY_OUT = "Train a policy without memory; stack the last observations, or feed back the last action."


@dataclass(frozen=True)
class Map:
    """A step of single elements, with numbers for each element of a state: Affine, or a Clip."""

    kind: type[Affine] | type[Clip]
    first: Doubles
    second: Doubles


@dataclass(frozen=True)
class Recalled:
    """A state as what it is made of.

    Attributes:
        name: of the input.
        roots: for each element, the place in the observation whose earlier value it holds; of an action, the number of
            the action.
        ages: in periods.
        maps: what was made of that value.
        of_action: whether it holds actions.
    """

    name: str
    roots: Places
    ages: Places
    maps: tuple[Map, ...]
    of_action: bool

    def before(self, initial: Doubles) -> Doubles:
        """The values (n,) from which the maps make these initial ones.

        Raises:
            ForeignError: there are none.
        """
        values = initial.copy()
        for step in reversed(self.maps):
            if step.kind is Clip:
                if ((values < step.first) | (values > step.second)).any():
                    raise ForeignError(f"the state {self.name!r} begins outside of what it is clipped to.", WAY_OUT)
            else:
                scale = np.where(step.first == 0, 1.0, step.first)
                values = np.where(step.first == 0, 0.0, (values - step.second) / scale)
        return values

    def applied(self, value: Value) -> Value:
        """The state's tensor, given the values that it recalls, in its shape."""
        for step in self.maps:
            numbers = [array.reshape(value.shape) for array in (step.first, step.second)]
            value = (affine if step.kind is Affine else clip)(value, numbers[0], numbers[1], f"the state {self.name!r}")
        return value


def recalled(name: str, places: Places, output: Value, action: Value) -> Recalled:
    """What a state holds.

    Args:
        name: of its input.
        places: of its elements in the observation, in which it is as it comes.
        output: what becomes of it, in terms of that observation.
        action: the policy's output, in terms of the same.

    Raises:
        ForeignError: something else than earlier observations or the last action.
    """
    of_network = any(isinstance(step, Dense) for step in output.steps)
    if output.steps and isinstance(output.steps[0], Features) and not of_network:
        raise ForeignError(
            f"the state {name!r} remembers what float operators computed; only observations, scaled and clipped one by "
            "one, and the last action are read.",
            "Stack the raw observations, and compute behind the stack.",
        )
    if output.statistic is None and all(isinstance(step, Affine | Clip) for step in output.steps):
        return _of_observation(name, places, output)
    found = _of_action(name, output, action)
    if found is None:
        raise ForeignError(
            f"the state {name!r} is neither earlier observations nor the last action: the policy is recurrent.", WAY_OUT
        )
    return found


def _of_observation(name: str, places: Places, output: Value) -> Recalled:
    if output.size != len(places):
        raise ForeignError(f"the state {name!r} changes its size.", WAY_OUT)
    own = {int(place): index for index, place in enumerate(places)}
    copied = np.array([own.get(int(place), -1) for place in output.selection])
    maps = _maps(output.steps, output.width)
    for step in maps:
        neutral = (1.0, 0.0) if step.kind is Affine else (-np.inf, np.inf)
        kept = output.selection[copied >= 0]
        if (step.first[kept] != neutral[0]).any() or (step.second[kept] != neutral[1]).any():
            raise ForeignError(f"the state {name!r} is scaled or cut from period to period.", WAY_OUT)
    roots, ages = np.where(copied < 0, output.selection, -1), np.where(copied < 0, 1, 0)
    for _ in range(len(places)):
        waiting = (ages == 0) & (ages[copied] > 0)
        if not waiting.any():
            break
        roots[waiting], ages[waiting] = roots[copied[waiting]], ages[copied[waiting]] + 1
    if (ages == 0).any():
        raise ForeignError(f"the state {name!r} keeps some of its elements for ever.", WAY_OUT)
    taken = tuple(Map(step.kind, step.first[roots], step.second[roots]) for step in maps)
    return Recalled(name, roots, ages, taken, of_action=False)


def _of_action(name: str, output: Value, action: Value) -> Recalled | None:
    shared = 0
    pairs = zip(output.steps, action.steps, strict=False)
    while (pair := next(pairs, None)) is not None and pair[0] is pair[1]:
        shared += 1
    here, there = output.steps[shared:], action.steps[shared:]
    plain = all(isinstance(step, Affine | Clip) for step in (*here, *there))
    if not plain or output.width != action.width or not any(isinstance(s, Dense) for s in output.steps[:shared]):
        return None
    if any(isinstance(step, Clip) for step in there):
        raise ForeignError(
            f"the state {name!r} is the network's output before it is clipped, which no one sees.",
            "Feed back the clipped action.",
        )
    numbers = {int(place): index for index, place in enumerate(action.selection)}
    if not all(int(place) in numbers for place in output.selection):
        return None
    inverse = []
    for step in reversed(_maps(there, output.width)):
        if (step.first == 0).any():
            return None
        inverse.append(Map(Affine, 1.0 / step.first, -step.second / step.first))
    maps = tuple(
        Map(step.kind, step.first[output.selection], step.second[output.selection])
        for step in (*inverse, *_maps(here, output.width))
    )
    roots = np.array([numbers[int(place)] for place in output.selection])
    return Recalled(name, roots, np.ones(len(roots), np.int64), maps, of_action=True)


def _maps(steps: tuple[Step, ...], width: int) -> list[Map]:
    found = []
    for step in steps:
        assert isinstance(step, Affine | Clip)
        pair = (step.scale, step.offset) if isinstance(step, Affine) else (step.low, step.high)
        first, second = (np.broadcast_to(numbers, (width,)).astype(np.float64) for numbers in pair)
        found.append(Map(type(step), first, second))
    return found
