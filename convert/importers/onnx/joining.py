"""Several tensors of one observation in one node: parts of a vector, each only scaled and clipped."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np

from quarl.convert.importers.chain import Affine, Clip, Doubles, Step
from quarl.convert.importers.onnx.call import Call
from quarl.convert.importers.onnx.value import Value, pair_of


def _count_shared_steps(values: list[Value]) -> int:
    """Return how many steps all of these begin with."""
    together = zip(*(value.steps for value in values), strict=False)
    return sum(1 for _ in takewhile(lambda steps: all(step is steps[0] for step in steps), together))


def join_values(call: Call, values: list[Value], numbers: list[np.ndarray], result: np.ndarray) -> Value:
    """Several tensors as one: parts of the observation, each with elementwise steps of its own.

    Args:
        call: the node.
        values: the tensors.
        numbers: for each, its elements' numbers in ``result``.
        result: the numbers, in the order and shape in which the file joins them.
    """
    shared = _count_shared_steps(values)
    tails = [list(value.steps[shared:]) for value in values]
    first = values[0]
    if any(value.image is not None for value in values):
        raise call.build_error("joins an image with something else", "Give the network one image alone.")
    places = np.concatenate([value.selection for value in values])
    where = np.argsort(np.concatenate([number.reshape(-1) for number in numbers]))
    order = where[result.reshape(-1)]  # of the elements, one tensor's behind another's
    plain = all(isinstance(step, Affine | Clip) for tail in tails for step in tail)
    twice = any(tails) and len(np.unique(places)) < len(places)  # an element that two branches treat differently
    if not plain or twice:
        raise call.build_error("combines values of different layers; only one chain of layers is read")
    base = Value(first.steps[:shared], first.width, places, places.shape, None, "", first.observed)
    owners = np.concatenate([np.full(value.size, index) for index, value in enumerate(values)])
    places = base.selection
    steps: list[Step] = list(base.steps)
    while any(tails):
        kind = next(type(tail[0]) for tail in tails if tail)
        heads = [tail.pop(0) if tail and isinstance(tail[0], kind) else None for tail in tails]
        rows: list[Any] = [_rows(step, kind, base.width) for step in heads]
        parameters = [np.array(neutral) for neutral in _rows(None, kind, base.width)]
        for index, own in enumerate(rows):
            mine = places[owners == index]
            for numbers_of, values_of in zip(parameters, own, strict=True):
                numbers_of[mine] = values_of[mine]
        steps.append(kind(*parameters))  # type: ignore[arg-type]
    return Value(tuple(steps), base.width, places[order], result.shape, None, "", first.observed)


def _rows(step: Step | None, kind: type[Step], width: int) -> tuple[Doubles, Doubles]:
    """Return a step's numbers, one for each element; without a step those that change nothing."""
    if isinstance(step, Affine | Clip):
        first, second = (np.broadcast_to(numbers, (width,)) for numbers in pair_of(step))
        return first, second
    low, high = (1.0, 0.0) if kind is Affine else (-np.inf, np.inf)
    return np.full(width, low), np.full(width, high)
