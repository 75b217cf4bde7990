"""What a policy with fields of earlier periods is fed: the values of this one, behind those that it remembers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policy.contract.observation import Memory, Remembered
from policy.errors import SpecError

Floats = NDArray[np.float32]


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

    ``values`` of a period are those of all fields in their order, of one row each; fields of earlier actions take none:
    they are filled by :meth:`acted`.

        history = History(spec.observation)
        while True:
            observation = history.observe(values)
            action = …
            history.acted(action)

    Attributes:
        brought: names and sizes of what a period brings, in order.
        values_size: numbers of all of it.
    """

    def __init__(self, fields: Sequence[Remembering]) -> None:
        self._fields = [(field, _row_size(field)) for field in fields]
        self.brought = [(field.name, size) for field, size in self._fields if not _is_of_actions(field)]
        self.values_size = sum(size for _, size in self.brought)
        self._rows: list[Floats] = []
        self.reset()

    def reset(self) -> None:
        """Forget: the next period is an episode's first."""
        self._rows = []
        for field, size in self._fields:
            row = np.zeros(size, np.float32) if field.memory is None else np.array(field.memory.initial, np.float32)
            self._rows.append(np.tile(row, (field.shape[0] if field.memory is not None else 1, 1)))

    def observe(self, values: np.ndarray) -> Floats:
        """The observation (observation_size,) of a period, given its values (values_size,).

        Raises:
            SpecError: another number of values.
        """
        values = np.asarray(values, np.float32).reshape(-1)
        if len(values) != self.values_size:
            raise SpecError(f"a period brings {self.values_size} values, {len(values)} were given.")
        start = 0
        for index, (field, size) in enumerate(self._fields):
            if not _is_of_actions(field):
                self._push(index, values[start : start + size])
                start += size
        return np.concatenate([rows.reshape(-1) for rows in self._rows])

    def acted(self, action: np.ndarray) -> None:
        """The action (outputs,) that was taken for the last observation.

        Raises:
            SpecError: another number of elements.
        """
        for index, (field, size) in enumerate(self._fields):
            if _is_of_actions(field):
                row = np.asarray(action, np.float32).reshape(-1)
                if len(row) != size:
                    raise SpecError(f"an action has {size} elements, {len(row)} were given.")
                self._push(index, row)

    def _push(self, index: int, row: Floats) -> None:
        self._rows[index] = np.concatenate([self._rows[index][1:], row[None]])


def remembers(fields: Sequence[Remembering]) -> bool:
    """Whether one of the fields holds earlier periods."""
    return any(field.memory is not None for field in fields)


def _row_size(field: Remembering) -> int:
    return int(np.prod(field.shape)) if field.memory is None else len(field.memory.initial)


def _is_of_actions(field: Remembering) -> bool:
    return field.memory is not None and field.memory.of is Remembered.ACTION
