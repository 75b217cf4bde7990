"""What a policy with fields of earlier periods is fed: the values of this one, behind those that it remembers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from quarl.policy.errors import SpecError
from quarl.policy.spec import Memory, Remembered


class Remembering(Protocol):
    """A field: of a spec, or of a policy that is being imported."""

    @property
    def name(self) -> str:
        """The field's name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all of the field's rows."""

    @property
    def memory(self) -> Memory | None:
        """Which periods the field holds; None: only the present one."""


class History:
    """The whole observation of each period, from this period's values alone.

    ``values`` of a period are those of all fields in their order, of one row each; fields of earlier actions and of
    recurrent layers' states take none: they are filled by :meth:`record_action`.

        history = History(spec.observation)
        while True:
            observation = history.observe(values)
            action, state = …
            history.acted(action, state)

    Attributes:
        brought: names and sizes of what a period brings, in order.
        values_size: numbers of all of it.
    """

    def __init__(self, fields: Sequence[Remembering]) -> None:
        self._fields = [(field, _row_size(field)) for field in fields]
        self.brought = [(field.name, size) for field, size in self._fields if _is_brought(field)]
        self.values_size = sum(size for _, size in self.brought)
        self._rows: list[array[float]] = []
        self.reset()

    def reset(self) -> None:
        """Forget: the next period is an episode's first."""
        self._rows = [
            array("f", bytes(4 * size) if field.memory is None else tuple(field.memory.initial) * field.shape[0])
            for field, size in self._fields
        ]

    def observe(self, values: Iterable[float]) -> array[float]:
        """Return the observation, float32 (observation_size,), of a period, given its values (values_size,).

        Raises:
            SpecError: another number of values.
        """
        step_inputs = array("f", values)
        if len(step_inputs) != self.values_size:
            raise SpecError(f"the inputs of a step must be {self.values_size} values, got {len(step_inputs)}.")
        start = 0
        for index, (field, size) in enumerate(self._fields):
            if _is_brought(field):
                self._push(index, step_inputs[start : start + size])
                start += size
        observation = array("f")
        for rows in self._rows:
            observation += rows
        return observation

    def record_action(self, action: Iterable[float], state: Iterable[float] = ()) -> None:
        """Record what came of the last observation: the action (outputs,) that was taken, and the next states
        (state_size,).

        Raises:
            SpecError: another number of elements.
        """
        row, following = _floats(action), _floats(state)
        for index, (field, size) in enumerate(self._fields):
            if _is_of(field, Remembered.ACTION):
                if len(row) != size:
                    raise SpecError(f"an action must have {size} elements, got {len(row)}.")
                self._push(index, row)
            elif _is_of(field, Remembered.STATE):
                if len(following) < size:
                    raise SpecError(f"a state must have {size} elements, got {len(following)}.")
                self._push(index, following[:size])
                following = following[size:]
        if following:
            raise SpecError(
                f"a state must match its fields, got {len(following)} elements too many.", code="extra_state_elements"
            )

    def _push(self, index: int, row: array[float]) -> None:
        self._rows[index] = self._rows[index][len(row) :] + row


def _floats(values: Any) -> array[float]:
    """Values as an array; of numpy's or another array's float32 bytes, which is faster, and else one by one."""
    if getattr(values, "dtype", None) == "float32" or (isinstance(values, array) and values.typecode == "f"):
        floats = array("f")
        floats.frombytes(values.tobytes())
        return floats
    return array("f", values)


def extract_step_inputs(fields: Sequence[Remembering], observation: Sequence[float]) -> list[float]:
    """Return what the last period of a whole observation brought: the newest row of each field that is brought, in
    order."""
    start = 0
    step_inputs: list[float] = []
    for field in fields:
        end = start + math.prod(field.shape)
        if _is_brought(field):
            step_inputs += observation[end - _row_size(field) : end]
        start = end
    return step_inputs


def remembers(fields: Sequence[Remembering]) -> bool:
    """Return whether one of the fields holds earlier periods."""
    return any(field.memory is not None for field in fields)


def _row_size(field: Remembering) -> int:
    return math.prod(field.shape) if field.memory is None else len(field.memory.initial)


def _is_of(field: Remembering, of: Remembered) -> bool:
    return field.memory is not None and field.memory.of is of


def _is_brought(field: Remembering) -> bool:
    return field.memory is None or _is_of(field, Remembered.OBSERVATION)
