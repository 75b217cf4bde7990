"""The observation of a policy whose states are earlier observations and actions: fields that remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convert.foreign.chain import Dense, Doubles, Features, ForeignError, Input, Step
from convert.foreign.leapp.description import Description
from convert.foreign.leapp.states import Recalled
from convert.foreign.onnx.original import Feed
from convert.foreign.onnx.value import Value
from policy.contract.features import FloatOperator
from policy.spec import Memory, Remembered

PREVIOUS_ACTION = "previous_action"


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
    initial = initial_values(described, recalls)
    fields, starts = [], {}
    width = 0
    for feed in feeds:
        if feed.name in recalls:
            continue
        tensor, places = described.inputs[feed.name], inputs[feed.name].selection
        rows, memory = 1, None
        of_feed = {name: np.isin(recall.roots, places) & (not recall.of_action) for name, recall in recalls.items()}
        if any(mask.any() for mask in of_feed.values()):
            rows = 1 + max(int(recalls[name].ages[mask].max(initial=0)) for name, mask in of_feed.items())
            rows -= (spare or {}).get(feed.name, 0)
            first = [(recalls[n].roots[m] - places[0], recalls[n].before(initial[n])[m]) for n, m in of_feed.items()]
            memory = Memory(Remembered.OBSERVATION, _agreed(feed.name, feed.size, first))
        shape = feed.shape[1:] if memory is None else (rows, feed.size)
        fields.append(Input(feed.name, shape or (1,), tensor.unit, tensor.element_names, memory))
        starts[feed.name] = (width, rows)
        width += rows * feed.size
    of_actions = [recall for recall in recalls.values() if recall.of_action]
    if of_actions:
        first = [(recall.roots, recall.before(initial[recall.name])) for recall in of_actions]
        memory = Memory(Remembered.ACTION, _agreed("the last action", actions, first))
        name = PREVIOUS_ACTION if PREVIOUS_ACTION not in starts else f"{PREVIOUS_ACTION}_of_the_policy"
        target = described.outputs[chosen]
        names = target.element_names if len(target.element_names) == actions else ()
        fields.append(Input(name, (1, actions), target.unit, names, memory))
        action_start, width = width, width + actions
    values: dict[str, Value] = {}
    owner = {int(place): (feed, n) for feed in feeds for n, place in enumerate(inputs[feed.name].selection)}
    for feed in feeds:
        recall = recalls.get(feed.name)
        if recall is None:
            start, rows = starts[feed.name]
            places = start + (rows - 1) * feed.size + np.arange(feed.size)
        elif recall.of_action:
            places = action_start + recall.roots
        else:
            places = np.empty(feed.size, np.int64)
            for index, (root, age) in enumerate(zip(recall.roots, recall.ages, strict=True)):
                source, element = owner[int(root)]
                if source.name in recalls:
                    raise ForeignError(f"the state {feed.name!r} is made of another state, {source.name!r}.")
                start, rows = starts[source.name]
                places[index] = start + max(rows - 1 - age, 0) * source.size + element
        value = Value((), width, places, feed.shape, None, feed.name, width)
        values[feed.name] = value if recall is None else recall.applied(value)
    return tuple(fields), values


def used(steps: tuple[Step, ...], size: int) -> np.ndarray:
    """Which elements of the observation a chain looks at, (size,) of bool."""
    reads = np.eye(size, dtype=bool)  # of each value behind the steps, what it depends on
    for step in steps:
        if isinstance(step, Features):
            values = [reads]
            for each in step.steps:
                taken = [values[operand] for operand in each.operands]
                if each.operator is FloatOperator.TAKE:
                    values.append(taken[0][list(each.places)])
                elif each.operator is FloatOperator.JOIN:
                    values.append(np.concatenate(taken))
                elif each.operator is FloatOperator.SUM:
                    values.append(taken[0].any(axis=0, keepdims=True))
                else:
                    both = [np.broadcast_to(part, (max(map(len, taken)), size)) for part in taken]
                    whole = np.logical_or.reduce(both)
                    values.append(np.broadcast_to(whole, (max(len(whole), len(each.constants)), size)))
            reads = values[-1]
        elif isinstance(step, Dense):
            found: np.ndarray = reads[(step.kernel != 0).any(axis=1)].any(axis=0)
            return found
    return reads.any(axis=0)


def spare_rows(fields: tuple[Input, ...], used: np.ndarray) -> dict[str, int]:
    """How many of the oldest rows of each remembering field nobody looks at."""
    spare, start = {}, 0
    for field in fields:
        part = used[start : start + size_of(field)]
        start += size_of(field)
        if field.memory is not None and field.memory.of is Remembered.OBSERVATION:
            rows = part.reshape(field.shape[0], -1).any(axis=1)
            if unused := int(rows[:-1].argmax() if rows[:-1].any() else len(rows) - 1):
                spare[field.name] = unused
    return spare


def size_of(field: Input) -> int:
    """Elements of a part."""
    return int(np.prod(field.shape))


def initial_values(described: Description, recalls: dict[str, Recalled]) -> dict[str, Doubles]:
    """Of each state before the first period, flat; zeros where the folder says nothing."""
    stored: dict[str, Any] = {}
    if described.initial_values is not None:
        from convert.foreign.weights import tensors_of

        stored = dict(tensors_of(described.initial_values))
    found = {}
    for name, recall in recalls.items():
        values = stored.get(f"{described.node}/{name}")
        values = np.zeros(len(recall.roots)) if values is None else np.asarray(values, np.float64).reshape(-1)
        if len(values) != len(recall.roots) or not np.isfinite(values).all():
            raise ForeignError(f"the initial value of the state {name!r} does not fit: {len(values)} elements.")
        found[name] = values
    return found


def _agreed(name: str, size: int, parts: list[tuple[np.ndarray, Doubles]]) -> tuple[float, ...]:
    """One initial value for each element, if all who recall it say the same; 0 for those that nobody recalls."""
    values: dict[int, float] = {}
    for elements, initial in parts:
        for element, value in zip(elements.tolist(), initial.tolist(), strict=True):
            if abs(values.setdefault(element, value) - value) > 1e-6 * max(1.0, abs(value)):
                raise ForeignError(f"the states begin with different values of {name!r} in different periods.")
    return tuple(float(np.float32(values.get(element, 0.0))) for element in range(size))
