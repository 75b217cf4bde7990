"""Several tensors of one observation in one node: joined parts of a vector, or values of one program.

Parts that are only scaled and clipped stay a chain. Everything else becomes float operators: before the first layer, or
behind the layers that all the tensors have in common. Tensors of different layers are refused.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np

from quarl.convert.importers.chain import Affine, Clip, Dense, Doubles, Features, LayerNorm, Recurrent, Step, Targets
from quarl.convert.importers.onnx.call import Call
from quarl.convert.importers.onnx.value import Places, Value, materialised, pair_of, taken
from quarl.convert.importers.program import Program, is_behind, is_carried
from quarl.policy.spec import FloatOperator


class Common:
    """A program of which several tensors are values.

    Attributes:
        program: of float operators; value 0 is the raw observation, behind what the tensors' common layers make, if
            they have any.
    """

    def __init__(self, call: Call, *values: Value) -> None:
        """Raises ForeignError: one of them is an image, or they are of different layers; names the node."""
        self._call, self._observed = call, values[0].observed
        self._base: tuple[Step, ...] = ()
        self._start = self._observation = self._width = 0
        if any(value.image is not None for value in values):
            raise call.refused("computes with an image as a vector")
        layered = [value for value in values if not is_carried(value.steps)]
        if not layered:
            self.program = Program(self._observed)
            return
        self._base = _base(call, layered)
        width = self._width = _width(self._base)
        self.program = Program(width + self._observed)
        self._start = self.program.take(0, np.arange(width))
        self._observation = self.program.take(0, np.arange(width, width + self._observed))

    def number(self, value: Value) -> int:
        """The tensor as a value of the program, flat, in the file's order; raises ForeignError if it is empty."""
        if not value.size:
            raise self._call.refused(f"computes with {value.tensor!r}, which has no elements: {value.shape}")
        if is_carried(value.steps):
            made = self.program.follow(value.steps, self._call.name, self._observation, self._observation)
        else:
            rest = value.steps[len(self._base) :]
            made = self.program.follow(rest, self._call.name, self._start, self._observation)
        return self.program.take(made, value.selection)

    def value(self, number: int, shape: tuple[int, ...]) -> Value:
        """A value of the program as a tensor of this shape."""
        steps, size = self.program.until(number), self.program.size(number)
        step = Targets(steps, self._width, self._call.name) if self._base else Features(steps)
        return Value((*self._base, step), size, np.arange(size), shape, None, "", self._observed)


def _base(call: Call, values: list[Value]) -> tuple[Step, ...]:
    """The steps that all of these have in common, up to the first program behind layers."""
    first, shared = values[0].steps, _shared(values)
    shared = next((at for at, step in enumerate(first[:shared]) if isinstance(step, Targets)), shared)
    if not all(is_behind(step) for value in values for step in value.steps[shared:]):
        raise call.refused("combines values of different layers; only one chain of layers is read")
    return first[:shared]


def _shared(values: list[Value]) -> int:
    """How many steps all of these begin with."""
    together = zip(*(value.steps for value in values), strict=False)
    return sum(1 for _ in takewhile(lambda steps: all(step is steps[0] for step in steps), together))


def _width(steps: tuple[Step, ...]) -> int:
    """Elements that the last layer of these makes."""
    last = next(step for step in reversed(steps) if isinstance(step, Dense | LayerNorm | Recurrent))
    if isinstance(last, Recurrent):
        return len(last.state_kernel)
    return len(last.bias if isinstance(last, Dense) else last.gamma)


def joined(call: Call, values: list[Value], numbers: list[np.ndarray], result: np.ndarray) -> Value:
    """Several tensors as one: parts of the observation, each with elementwise steps of its own.

    Args:
        call: the node.
        values: the tensors.
        numbers: for each, its elements' numbers in ``result``.
        result: the numbers, in the order and shape in which the file joins them.
    """
    shared = _shared(values)
    tails = [list(value.steps[shared:]) for value in values]
    first = values[0]
    if any(value.image is not None for value in values):
        raise call.refused("joins an image with something else", "Give the network one image alone.")
    places = np.concatenate([value.selection for value in values])
    where = np.argsort(np.concatenate([number.reshape(-1) for number in numbers]))
    order = where[result.reshape(-1)]  # of the elements, one tensor's behind another's
    plain = all(isinstance(step, Affine | Clip) for tail in tails for step in tail)
    twice = any(tails) and len(np.unique(places)) < len(places)  # an element that two branches treat differently
    cut_apart = twice and any(isinstance(step, Clip) for tail in tails for step in tail)
    if not plain or (cut_apart and all(is_carried(value.steps) for value in values)):
        common = Common(call, *values)
        parts = [common.number(value) for value in values]
        together = common.program.add(FloatOperator.JOIN, *parts)
        return common.value(common.program.take(together, order), result.shape)
    base = Value(first.steps[:shared], first.width, places, places.shape, None, "", first.observed)
    owners = np.concatenate([np.full(value.size, index) for index, value in enumerate(values)])
    if twice:
        tails = [[taken(step, value.selection) for step in tail] for tail, value in zip(tails, values, strict=True)]
        tails = [
            [_spread_at(step, np.flatnonzero(owners == index), len(places)) for step in tail]
            for index, tail in enumerate(tails)
        ]
        base = materialised(base)
    places = base.selection
    steps: list[Step] = list(base.steps)
    while any(tails):
        kind = next(type(tail[0]) for tail in tails if tail)
        heads = [tail.pop(0) if tail and isinstance(tail[0], kind) else None for tail in tails]
        rows: list[Any] = [_rows(step, kind, base.width) for step in heads]
        whole = [np.array(neutral) for neutral in _rows(None, kind, base.width)]
        for index, own in enumerate(rows):
            mine = places[owners == index]
            for numbers_of, values_of in zip(whole, own, strict=True):
                numbers_of[mine] = values_of[mine]
        steps.append(kind(*whole))  # type: ignore[arg-type]
    return Value(tuple(steps), base.width, places[order], result.shape, None, "", first.observed)


def _rows(step: Step | None, kind: type[Step], width: int) -> tuple[Doubles, Doubles]:
    """A step's numbers, one for each element; without a step those that change nothing."""
    if isinstance(step, Affine | Clip):
        first, second = (np.broadcast_to(numbers, (width,)) for numbers in pair_of(step))
        return first, second
    low, high = (1.0, 0.0) if kind is Affine else (-np.inf, np.inf)
    return np.full(width, low), np.full(width, high)


def _spread_at(step: Step, places: Places, width: int) -> Step:
    """A step over a part, as one over ``width`` elements of which the part has these places."""
    assert isinstance(step, Affine | Clip)
    whole = [np.array(neutral) for neutral in _rows(None, type(step), width)]
    for numbers, own in zip(whole, pair_of(step), strict=True):
        numbers[places] = own
    return type(step)(whole[0], whole[1])
