"""The observation of a policy whose states are earlier observations and actions: fields that remember."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.convert.importers.chain import (
    Affine,
    Dense,
    Doubles,
    Features,
    ForeignError,
    Input,
    Recurrent,
    Step,
    Targets,
)
from quarl.convert.importers.leapp.description import Description, Tensor
from quarl.convert.importers.leapp.states import Recalled
from quarl.convert.importers.onnx.original import Feed
from quarl.convert.importers.onnx.value import Places, Value
from quarl.convert.importers.program import Program, depends
from quarl.policy.reference import exact_program
from quarl.policy.spec import FloatOperator, Memory, Remembered

MOST_ROWS, MOST_REMEMBERED = 256, 4096
"""Most periods and most numbers that one field holds: a second and more at most control rates."""
LARGEST_INITIAL = 1e18
PREVIOUS_ACTION = "previous_action"
PREVIOUS_ACTIONS = ""
"""Key under which the actions' place is kept: no input has an empty name."""


@dataclass(frozen=True)
class Layout:
    """Where the remembering observation keeps what the file's inputs were.

    Attributes:
        fields: of the observation.
        starts: first place and rows of each, by the input's name; of actions, by :data:`PREVIOUS_ACTIONS`.
        width: elements of the observation.
    """

    fields: tuple[Input, ...]
    starts: dict[str, tuple[int, int]]
    width: int

    def places(self, feed: Feed, age: int) -> Places:
        """An input's elements so many periods before; the oldest that is kept where that is too long ago."""
        start, rows = self.starts[feed.name]
        return start + max(rows - 1 - age, 0) * feed.size + np.arange(feed.size)

    def action(self, age: int, size: int) -> Places:
        """The action's elements so many periods before; 1 is the last one."""
        start, rows = self.starts[PREVIOUS_ACTIONS]
        return start + max(rows - age, 0) * size + np.arange(size)


def remembering(
    described: Description,
    feeds: tuple[Feed, ...],
    inputs: dict[str, Value],
    recalls: dict[str, Recalled],
    chosen: str,
    actions: int,
    spare: Mapping[str, int] | None = None,
) -> tuple[tuple[Input, ...], dict[str, Value]]:
    """The observation's fields, and every input of the file as a value of it.

    Args:
        described, feeds, inputs: the folder, and its inputs as parts of one vector.
        recalls: the states.
        chosen, actions: the policy's output, and its elements.
        spare: oldest rows of a field that the policy does not look at.
    """
    layout = _layout(described, feeds, inputs, recalls, described.outputs[chosen], actions, spare or {})
    size = sum(feed.size for feed in feeds)
    owner = {int(place): (feed, n) for feed in feeds for n, place in enumerate(inputs[feed.name].selection)}

    def old(age: int) -> Places:
        """Where the vector of all inputs stands that was there so many periods before; 0 for what is not kept."""
        found = np.zeros(size, np.int64)
        for feed in feeds:
            if feed.name in layout.starts:
                found[inputs[feed.name].selection] = layout.places(feed, age)
        return found

    values: dict[str, Value] = {}
    for feed in feeds:
        recall = recalls.get(feed.name)
        if recall is None:
            values[feed.name] = _value(layout.places(feed, 0), feed, layout.width)
            continue
        places = np.zeros(feed.size, np.int64)
        for index, (root, age) in enumerate(zip(recall.roots.tolist(), recall.ages.tolist(), strict=True)):
            if recall.of_action[index]:
                places[index] = layout.action(age, actions)[root]
            elif recall.is_copied[index]:
                source, element = owner[root]
                places[index] = layout.places(source, age)[element]
        if recall.program is not None and recall.is_computed.any():
            value = _computed(recall, recall.program, places, old, feed, layout.width)
        else:
            value = _value(places, feed, layout.width)
        values[feed.name] = recall.applied(value)
    return layout.fields, values


def _layout(
    described: Description,
    feeds: tuple[Feed, ...],
    inputs: dict[str, Value],
    recalls: dict[str, Recalled],
    target: Tensor,
    actions: int,
    spare: Mapping[str, int],
) -> Layout:
    """A field for each input that is no state, of as many rows as the states look back; then the actions, if any do."""
    initial = initial_values(described, recalls)
    fields: list[Input] = []
    starts: dict[str, tuple[int, int]] = {}
    width, size = 0, sum(feed.size for feed in feeds)
    for feed in feeds:
        if feed.name in recalls:
            continue
        tensor, places = described.inputs[feed.name], inputs[feed.name].selection
        masks = {name: np.isin(recall.roots, places) & recall.is_copied for name, recall in recalls.items()}
        ages = [int(recalls[name].ages[mask].max(initial=0)) for name, mask in masks.items()]
        ages += [recall.oldest_read(places, size) for recall in recalls.values()]
        rows, memory, shape = 1, None, feed.shape[1:] or (1,)
        if any(ages):
            rows = 1 + max(ages) - spare.get(feed.name, 0)
            _check_length(feed.name, rows, rows * feed.size)
            first = [(recalls[n].roots[m] - places[0], recalls[n].before(initial[n])[m]) for n, m in masks.items()]
            memory, shape = Memory(Remembered.OBSERVATION, _agreed(feed.name, feed.size, first)), (rows, feed.size)
        fields.append(Input(feed.name, shape, tensor.unit, tensor.element_names, memory))
        starts[feed.name] = (width, rows)
        width += rows * feed.size
    masks = {name: recall.of_action for name, recall in recalls.items() if recall.of_action.any()}
    if masks:
        rows = max(int(recalls[name].ages[mask].max()) for name, mask in masks.items()) - spare.get(PREVIOUS_ACTIONS, 0)
        _check_length("the last action", rows, rows * actions)
        first = [(recalls[n].roots[m], recalls[n].before(initial[n])[m]) for n, m in masks.items()]
        memory = Memory(Remembered.ACTION, _agreed("the last action", actions, first))
        names = target.element_names if len(target.element_names) == actions else ()
        name = PREVIOUS_ACTION if PREVIOUS_ACTION not in starts else f"{PREVIOUS_ACTION}_of_the_policy"
        fields.append(Input(name, (rows, actions), target.unit, names, memory))
        starts[PREVIOUS_ACTIONS] = (width, rows)
        width += rows * actions
    return Layout(tuple(fields), starts, width)


def _value(places: Places, feed: Feed, width: int) -> Value:
    return Value((), width, places, feed.shape, None, feed.name, width)


def _computed(
    recall: Recalled,
    program: Features,
    places: Places,
    old: Callable[[int], Places],
    feed: Feed,
    width: int,
) -> Value:
    """A state that a program made of earlier observations: the program once for each age, on what stood there then."""
    made = Program(width)
    parts, order = [], []
    for age in np.unique(recall.ages[recall.is_computed]):
        mine = np.flatnonzero(recall.is_computed & (recall.ages == age))
        parts.append(made.take(made.replayed(program.steps, made.take(0, old(int(age)))), recall.roots[mine]))
        order += mine.tolist()
    if others := np.flatnonzero(~recall.is_computed).tolist():
        parts.append(made.take(0, places[others]))
        order += others
    joined = parts[0] if len(parts) == 1 else made.add(FloatOperator.JOIN, *parts)
    whole = made.take(joined, np.argsort(order))
    return Value((Features(made.until(whole)),), feed.size, np.arange(feed.size), feed.shape, None, feed.name, width)


def used(steps: tuple[Step, ...], size: int) -> np.ndarray:
    """Which elements of the observation a chain looks at, (size,) of bool."""
    opening = steps[0] if steps and isinstance(steps[0], Features) else None
    reads = np.eye(size, dtype=bool) if opening is None else depends(opening.steps, size)
    first = next((step for step in steps if isinstance(step, Dense | Recurrent)), None)
    seen: np.ndarray = (reads if first is None else reads[(first.kernel != 0).any(axis=1)]).any(axis=0)
    for step in steps:
        if isinstance(step, Targets):
            seen |= depends(step.steps, step.outputs + size)[:, step.outputs :].any(axis=0)
    return seen


def spare_rows(fields: tuple[Input, ...], used: np.ndarray) -> dict[str, int]:
    """How many of the oldest rows of each remembering field nobody looks at."""
    spare, start = {}, 0
    for field in fields:
        part = used[start : start + size_of(field)]
        start += size_of(field)
        if field.memory is not None:
            rows = part.reshape(field.shape[0], -1).any(axis=1)
            name = field.name if field.memory.of is Remembered.OBSERVATION else PREVIOUS_ACTIONS
            if unused := int(rows[:-1].argmax() if rows[:-1].any() else len(rows) - 1):
                spare[name] = unused
    return spare


def size_of(field: Input) -> int:
    """Number of elements of a part."""
    return int(np.prod(field.shape))


def _stored(described: Description) -> dict[str, Any]:
    if described.initial_values is None:
        return {}
    from quarl.convert.importers.weights import tensors_of

    return dict(tensors_of(described.initial_values))


def initial_names(described: Description) -> set[str]:
    """Inputs whose first value the folder says."""
    return {name.removeprefix(f"{described.node}/") for name in _stored(described)}


def initial_values(described: Description, recalls: dict[str, Recalled]) -> dict[str, Doubles]:
    """Values of each state before the first period, flat; zeros where the folder says nothing."""
    return initial_of(described, {name: len(recall.roots) for name, recall in recalls.items()})


def initial_of(described: Description, sizes: Mapping[str, int]) -> dict[str, Doubles]:
    """As :func:`initial_values`, of states of these sizes."""
    stored = _stored(described)
    found = {}
    for name, size in sizes.items():
        values = stored.get(f"{described.node}/{name}")
        values = np.zeros(size) if values is None else np.asarray(values, np.float64).reshape(-1)
        if len(values) != size:
            raise ForeignError(f"the initial value of the state {name!r} has {len(values)} elements, the state {size}.")
        if not (np.abs(values) < LARGEST_INITIAL).all():
            raise ForeignError(f"the initial value of the state {name!r} is not finite, or beyond {LARGEST_INITIAL:g}.")
        found[name] = values
    return found


def check_beginnings(
    recalls: dict[str, Recalled], initial: dict[str, Doubles], feeds: tuple[Feed, ...], fields: tuple[Input, ...]
) -> None:
    """Refuse a computed state that begins with what no earlier observation would have given."""
    begun = {field.name: field.memory.initial for field in fields if field.memory is not None}
    first = np.concatenate([np.array(begun.get(feed.name, (0.0,) * feed.size)) for feed in feeds])
    for name, recall in recalls.items():
        if recall.program is None or not recall.is_computed.any():
            continue
        mine = recall.is_computed
        made = exact_program(recall.program.steps, first[None])[0][recall.roots[mine]]
        for step in recall.maps:
            own, other = step.first[mine], step.second[mine]
            made = made * own + other if step.kind is Affine else np.clip(made, own, other)
        if not np.allclose(made, initial[name][mine], rtol=1e-5, atol=1e-6):
            raise ForeignError(
                f"the state {name!r}, which float operators compute, begins with {initial[name][mine][:4].tolist()} …, "
                f"where earlier observations of zeros give {made[:4].tolist()} ….",
                "Begin with what an observation of zeros gives.",
            )


def _check_length(name: str, rows: int, elements: int) -> None:
    if rows > MOST_ROWS or elements > MOST_REMEMBERED:
        raise ForeignError(
            f"the policy looks back {rows} periods at {name!r}, {elements} numbers; at most {MOST_ROWS} periods and "
            f"{MOST_REMEMBERED} numbers are remembered."
        )


def _agreed(name: str, size: int, parts: list[tuple[np.ndarray, Doubles]]) -> tuple[float, ...]:
    """One initial value for each element, if all who recall it say the same; 0 for those that nobody recalls."""
    values: dict[int, float] = {}
    for elements, initial in parts:
        for element, value in zip(elements.tolist(), initial.tolist(), strict=True):
            if abs(values.setdefault(element, value) - value) > 1e-6 * max(1.0, abs(value)):
                raise ForeignError(f"the states begin with different values of {name!r} in different periods.")
    return tuple(float(np.float32(values.get(element, 0.0))) for element in range(size))
