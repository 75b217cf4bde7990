"""A file's program on observations whose fields remember, and recurrent layers as steps of the chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quarl.convert.importers.chain import Floats, ForeignError, Recurrent, Step, through
from quarl.convert.importers.onnx.call import Call, Operand
from quarl.convert.importers.onnx.cells import Found
from quarl.convert.importers.onnx.joining import join_values
from quarl.convert.importers.onnx.original import Feed, Original
from quarl.convert.importers.onnx.value import Places, Value, recurrent


@dataclass(frozen=True)
class Wired:
    """The file's program on observations whose fields remember.

    Attributes:
        original: takes this period's inputs and the states; its tensors are the chain's, the chosen output, and the
            next states.
        states: each input as a value of the remembering observation, by name.
        feeds: parts of that observation.
        following: of the chain's next states, in order: the number of the tensor that holds one, and its places there.
    """

    original: Original
    states: Mapping[str, Value]
    feeds: tuple[Feed, ...]
    following: tuple[tuple[int, Places], ...] = ()

    def __call__(self, observations: Floats) -> Floats:
        """Return the file's output for each observation, its recurrent layers' next states behind it."""
        return self.tensors(observations)[0]

    def tensors(self, observations: Floats) -> list[Floats]:
        """Return all of the file's tensors, a row for each observation; behind the first the recurrent layers' next
        states."""
        rows = np.asarray(observations, np.float64)
        parts = [
            through(value.steps, rows[:, : value.observed])[:, value.selection]
            for value in (self.states[feed.name] for feed in self.original.feeds)
        ]
        first, *others = self.original.tensors(np.concatenate(parts, axis=1).astype(np.float32))
        every = [first, *others]
        return [np.concatenate([first, *(every[at][:, places] for at, places in self.following)], axis=1), *others]


def through_cell(cell: Found, values: Mapping[str, Operand], call: Call) -> dict[str, Value]:
    """Return the tensors that are a recurrent layer's next hidden state.

    Args:
        cell: the layer.
        values: of the tensors that are fed to it, among others.
        call: the node, for messages.

    Raises:
        ForeignError: what is fed to it is none of this observation, or has another size.
    """
    fed = [values.get(name) for name in cell.fed]
    flat = [value.select_elements(np.arange(value.size)) for value in fed if isinstance(value, Value)]
    if len(flat) != len(fed):
        raise call.build_error("is fed what does not depend on the observation")
    ends = np.cumsum([value.size for value in flat])
    numbers = [np.arange(end - value.size, end) for value, end in zip(flat, ends, strict=True)]
    cell_input = flat[0] if len(flat) == 1 else join_values(call, flat, numbers, np.arange(int(ends[-1])))
    outputs: dict[str, Value] = {}
    for name, shape in cell.outputs.items():
        if not outputs:
            outputs[name] = recurrent(cell_input, cell.step, shape)
            continue
        first = next(iter(outputs.values()))
        outputs[name] = first.select_elements(np.arange(first.size).reshape(shape))
    return outputs


def order_cells(found: Iterable[Found], steps: Iterable[Step]) -> list[Found]:
    """Return the recurrent layers as they follow each other in the chain."""
    by_state = {id(cell.step.state_kernel): cell for cell in found}  # which no selection touches
    return [by_state[id(step.state_kernel)] for step in steps if isinstance(step, Recurrent)]


def states_held(found: Iterable[Found]) -> set[str]:
    """Names of the inputs that hold their states."""
    return {name for cell in found for name, _ in cell.states}


def wire_original(
    original: Original,
    inputs: Mapping[str, Value],
    feeds: Sequence[Feed],
    cells: Sequence[Found],
    numbers: Mapping[str, int],
) -> Wired:
    """Return the file's program on the chain's observations, the states of its recurrent layers behind everything else.

    Args:
        original: takes the states, and gives what they become.
        inputs: those that are no states of recurrent layers, as values of the observation before them.
        feeds: parts of the observation before them.
        cells: in the chain's order.
        numbers: of the original's tensors that states of recurrent layers become, by the input.

    Raises:
        ForeignError: an element of a state belongs to no layer, or to several.
    """
    start = sum(feed.size for feed in feeds)
    width = start + sum(cell.step.recurrence.state_size for cell in cells)
    selections = {feed.name: np.full(feed.size, -1) for feed in original.feeds if feed.name in numbers}
    following = []
    for cell in cells:
        for name, places in cell.states:
            selections[name][places] = np.arange(start, start + len(places))
            following.append((numbers[name], places))
            start += len(places)
    held = {name: [places for cell in cells for own, places in cell.states if own == name] for name in selections}
    for name, parts in held.items():
        if sorted(np.concatenate([np.zeros(0, np.int64), *parts]).tolist()) != list(range(len(selections[name]))):
            raise ForeignError(
                f"The recurrent layers before the output must use all {len(selections[name])} elements of the state "
                f"{name!r} once, got {sum(map(len, parts))}.",
                "Export the policy with the states of its own layers alone.",
                code="state_size_mismatch",
            )
    values = dict(inputs)
    for feed in original.feeds:
        if feed.name in selections:
            values[feed.name] = Value((), width, selections[feed.name], feed.shape, None, feed.name, width)
    behind = Feed("states", width - sum(feed.size for feed in feeds), (1,), None, False, np.dtype(np.float32), True)
    return Wired(original, values, (*feeds, behind), tuple(following))
