"""What a fed-back tensor holds: earlier values of the observation, or the action of the period before.

A state's output is followed from the observation like any other. Where each of its elements is a new value, or a copy
of another element of the state, every element has an age in periods; where it is the network's output, or a scaled one,
it is the last action. Both are fields that remember. Anything else, a hidden layer's memory above all, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quarl.convert.importers.chain import Affine, Clip, Dense, Doubles, Features, ForeignError, Step, Targets
from quarl.convert.importers.onnx.value import Places, Value, affine, clip
from quarl.convert.importers.program import copies, depends

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
        of_action: for each element, whether it is an action.
        program: float operators that made the earlier value, of the observation of that period; its ``computed``
            elements have their root among the program's results.
        computed: for each element, whether the program made it.
    """

    name: str
    roots: Places
    ages: Places
    maps: tuple[Map, ...]
    of_action: NDArray[np.bool_]
    program: Features | None = None
    computed: NDArray[np.bool_] | None = None

    @property
    def is_computed(self) -> NDArray[np.bool_]:
        """For each element, whether a program made it."""
        return np.zeros(len(self.roots), bool) if self.computed is None else self.computed

    @property
    def is_copied(self) -> NDArray[np.bool_]:
        """For each element, whether it is an earlier observation's, only scaled and clipped."""
        return ~(self.of_action | self.is_computed)

    def oldest_read(self, places: Places, size: int) -> int:
        """The largest age in periods at which the program reads one of these places of ``size``; 0 if it does not."""
        if self.program is None or not self.is_computed.any():
            return 0
        reads = depends(self.program.steps, size)[:, places].any(axis=1)
        mine = self.is_computed.copy()
        mine[mine] = reads[self.roots[mine]]
        return int(self.ages[mine].max(initial=0))

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
                nothing = step.first == 0
                if (np.abs(values - step.second)[nothing] > 1e-6 * np.maximum(1.0, np.abs(step.second[nothing]))).any():
                    raise ForeignError(
                        f"the state {self.name!r} begins with what no observation gives: it is multiplied by 0.",
                        "Begin with what an observation of zeros gives.",
                    )
                values = np.where(nothing, 0.0, (values - step.second) / np.where(nothing, 1.0, step.first))
        return values

    def applied(self, value: Value) -> Value:
        """The state's tensor, given the values that it recalls, in its shape."""
        for step in self.maps:
            numbers = [array.reshape(value.shape) for array in (step.first, step.second)]
            value = (affine if step.kind is Affine else clip)(value, numbers[0], numbers[1], f"the state {self.name!r}")
        return value


def recalled(name: str, places: Places, output: Value, action: Value) -> Recalled:
    """Recognise what a state holds.

    Args:
        name: of its input.
        places: of its elements in the observation, in which it is as it comes.
        output: what becomes of it, in terms of that observation.
        action: the policy's output, in terms of the same.

    Raises:
        ForeignError: something else than earlier observations or the last action.
    """
    if output.statistic is None and all(isinstance(step, Features | Affine | Clip) for step in output.steps):
        return _of_observation(name, places, output)
    found = _of_action(name, output, action)
    if found is None:
        raise ForeignError(
            f"the state {name!r} is neither earlier observations nor the last action: the policy is recurrent.", WAY_OUT
        )
    return found


def resolved(recalls: Mapping[str, Recalled], places: Mapping[str, Places]) -> dict[str, Recalled]:
    """The states without one that holds another: what a frame remembers of the last action is an older action.

    Args:
        recalls: by name.
        places: of every state's elements in the observation.

    Raises:
        ForeignError: states that hold each other.
    """
    owner = {int(place): (name, n) for name, own in places.items() for n, place in enumerate(own)}
    found = dict(recalls)
    for _ in range(len(recalls)):
        for name, recall in found.items():
            borrowed = [i for i in np.flatnonzero(recall.is_copied).tolist() if int(recall.roots[i]) in owner]
            if borrowed:
                found[name] = _through(recall, borrowed, [owner[int(recall.roots[i])] for i in borrowed], found)
    if any(int(root) in owner for recall in found.values() for root in recall.roots[recall.is_copied]):
        raise ForeignError(f"the states {', '.join(map(repr, sorted(recalls)))} hold each other.", WAY_OUT)
    return found


def _through(
    recall: Recalled, elements: list[int], sources: list[tuple[str, int]], all_of: dict[str, Recalled]
) -> Recalled:
    """A state of which some elements hold elements of others, with what those hold in their place."""
    roots, ages, of_action = recall.roots.copy(), recall.ages.copy(), recall.of_action.copy()
    maps: list[Map] = []
    for source in dict.fromkeys(name for name, _ in sources):
        other = all_of[source]
        if other.is_computed.any():
            raise ForeignError(f"the state {recall.name!r} holds {source!r}, which is computed.", WAY_OUT)
        pairs = [(i, n) for i, (name, n) in zip(elements, sources, strict=True) if name == source]
        mine, its = (np.array(numbers) for numbers in zip(*pairs, strict=True))
        roots[mine], of_action[mine] = other.roots[its], other.of_action[its]
        ages[mine] += other.ages[its]
        for step in other.maps:
            neutral = (1.0, 0.0) if step.kind is Affine else (-np.inf, np.inf)
            numbers = [np.full(len(roots), value) for value in neutral]
            numbers[0][mine], numbers[1][mine] = step.first[its], step.second[its]
            maps.append(Map(step.kind, numbers[0], numbers[1]))
    return replace(recall, roots=roots, ages=ages, of_action=of_action, maps=(*maps, *recall.maps))


def _of_observation(name: str, places: Places, output: Value) -> Recalled:
    if output.size != len(places):
        raise ForeignError(f"the state {name!r} changes its size.", WAY_OUT)
    own = {int(place): index for index, place in enumerate(places)}
    program = output.steps[0] if output.steps and isinstance(output.steps[0], Features) else None
    origins = np.arange(output.width) if program is None else copies(program.steps, output.observed)
    copied = np.array([own.get(int(place), -1) for place in origins[output.selection]])
    maps = _maps(output.steps[program is not None :], output.width)
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
    computed = origins[roots] < 0
    if program is not None and depends(program.steps, output.observed)[roots[computed]][:, places].any():
        raise ForeignError(f"the state {name!r} is computed from itself: the policy is recurrent.", WAY_OUT)
    roots = np.where(computed, roots, origins[roots])
    return Recalled(name, roots, ages, taken, np.zeros(len(roots), bool), program, computed)


def _of_action(name: str, output: Value, action: Value) -> Recalled | None:
    shared = 0
    pairs = zip(output.steps, action.steps, strict=False)
    while (pair := next(pairs, None)) is not None and pair[0] is pair[1]:
        shared += 1
    here, there = output.steps[shared:], action.steps[shared:]
    if any(isinstance(step, Targets) for step in there) and all(isinstance(step, Affine | Clip) for step in here):
        raise ForeignError(
            f"the state {name!r} is the network's output, of which float operators make the action: no one sees it.",
            "Feed back what the policy gives.",
        )
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
    return Recalled(name, roots, np.ones(len(roots), np.int64), maps, np.ones(len(roots), bool))


def _maps(steps: tuple[Step, ...], width: int) -> list[Map]:
    found = []
    for step in steps:
        assert isinstance(step, Affine | Clip)
        pair = (step.scale, step.offset) if isinstance(step, Affine) else (step.low, step.high)
        first, second = (np.broadcast_to(numbers, (width,)).astype(np.float64) for numbers in pair)
        found.append(Map(type(step), first, second))
    return found
