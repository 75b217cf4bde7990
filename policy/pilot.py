"""A policy that decides for a batch of episodes, and remembers for each of them what it is to remember."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.errors import SpecError
from quarl.policy.exact import Floats
from quarl.policy.history import remembers
from quarl.policy.reference import choose_actions
from quarl.policy.spec import ObservationField, PolicySpec, Remembered

Flags = NDArray[np.bool_]
Decide = Callable[[Any], NDArray[Any]]
"""From what a period brings of each episode, (n, …), to actions."""
Results = Callable[[Any], Floats]
"""From raw observations (n, observation_size) to results (n, result_size)."""


class Histories:
    """As :class:`policy.history.History`, of a batch of episodes at once.

    Args:
        fields: of a spec.
    """

    def __init__(self, fields: Sequence[ObservationField]) -> None:
        ends = np.cumsum([field.size for field in fields])
        self._fields = [
            (field, slice(int(end) - field.size, int(end))) for field, end in zip(fields, ends, strict=True)
        ]
        first = [
            np.zeros(field.size) if field.memory is None else np.tile(field.memory.initial, field.shape[0])
            for field in fields
        ]
        self._first: Floats = np.concatenate(first).astype(np.float32)
        self._rows: Floats = np.zeros((0, len(self._first)), np.float32)

    def begin(self, mask: Flags) -> None:
        """Forget in the episodes (n,) of the mask: their next period is the first."""
        if len(mask) != len(self._rows):
            self._rows = np.tile(self._first, (len(mask), 1))
        self._rows[mask] = self._first

    def observe(self, values: NDArray[Any], mask: Flags | None = None) -> Floats:
        """Observations (n, observation_size), given what this period brings, (n, values_size); a copy.

        With a mask (n,) only its episodes go on, the others are still in the period before.

        Raises:
            SpecError: :meth:`begin` was not given that many episodes.
        """
        if len(values) != len(self._rows):
            raise SpecError(
                f"values must have a row for each of the {len(self._rows)} episodes begun, got {len(values)}.",
                "Call begin(mask) at the start of each episode.",
            )
        start, before = 0, self._rows.copy() if mask is not None else self._rows
        for field, place in self._fields:
            if field.is_brought:
                self._push(field, place, values[:, start : start + field.row_size])
                start += field.row_size
        if mask is not None:
            self._rows[~mask] = before[~mask]
        return self._rows.copy()

    def record_action(self, actions: NDArray[Any], states: Floats) -> None:
        """Record what came of the last observations: continuous actions (n, outputs), and the next states (n,
        state_size)."""
        start = 0
        for field, place in self._fields:
            if field.is_state:
                self._rows[:, place] = states[:, start : start + field.size]
                start += field.size
            elif field.memory is not None and field.memory.of is Remembered.ACTION:
                self._push(field, place, actions)

    def _push(self, field: ObservationField, place: slice, values: NDArray[Any]) -> None:
        rows = self._rows[:, place]
        rows[:, : -field.row_size] = rows[:, field.row_size :].copy()
        rows[:, -field.row_size :] = values


class Pilot:
    """A policy with a memory as a function of what each period brings.

    Whoever flies says where episodes begin: :func:`begin`.

    Args:
        spec: the policy's.
        results: executes it.
    """

    def __init__(self, spec: PolicySpec, results: Results) -> None:
        self.spec, self.results, self._histories = spec, results, Histories(spec.observation)

    def begin(self, mask: Flags) -> None:
        """Episodes begin where the mask (n,) says."""
        self._histories.begin(mask)

    def __call__(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return what this period brings, (n, values_size), to actions: int64 (n,), or float32 (n, outputs)."""
        results = self.results(self._histories.observe(values))
        actions, outputs = choose_actions(self.spec, results), self.spec.output_size
        self._histories.record_action(results[:, :outputs], results[:, outputs:])
        return actions


def deciding(spec: PolicySpec, results: Results) -> Decide:
    """Return a policy as a function of what each period brings, with its memory if it has one."""
    if remembers(spec.observation):
        return Pilot(spec, results)
    return lambda observations: choose_actions(spec, results(observations))


def watch_observations(decide: Decide, watch: Callable[[Any], object]) -> Decide:
    """Return a policy whose whole raw observations, each batch of them, ``watch`` is shown before it decides."""

    def observe_and_decide(observations: Any) -> Any:
        watch(observations)
        return results(observations)

    results = decide.results if isinstance(decide, Pilot) else decide
    return Pilot(decide.spec, observe_and_decide) if isinstance(decide, Pilot) else observe_and_decide


def on_rows(decide: Decide) -> Decide:
    """Return a policy as a function of whole raw observations (n, observation_size), whatever it remembers itself."""
    if isinstance(decide, Pilot):
        return lambda rows: choose_actions(decide.spec, decide.results(rows))
    return decide


def begin(decide: Decide, mask: Flags) -> None:
    """Tell a policy that remembers where episodes begin, (n,)."""
    if (callback := getattr(decide, "begin", None)) is not None:
        callback(mask)


def end(decide: Decide, mask: Flags) -> None:
    """Tell a policy that wants to know in which rows (n,) of its batch episodes have ended and none follows."""
    if (callback := getattr(decide, "end", None)) is not None:
        callback(mask)
