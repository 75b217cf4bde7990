"""The policy of the best greedy evaluation so far: off-policy actors fluctuate, and the last one may be a bad one.

The whole policy is kept: what was evaluated is what the bundle computes. The evaluations that choose are those of
the curve; the bundle's own evaluation plays other episodes, so the choice is not its own estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.networks.policy import Policy


class BestPolicy:
    """Keeps the policy with the highest greedy return (or success) on the first preset."""

    def __init__(self, preset: str) -> None:
        suffix = f"_{preset}" if preset else ""
        self._names = (f"greedy_success{suffix}", f"greedy_return{suffix}")
        self._policy: Policy | None = None
        self._value, self._step = -math.inf, 0

    def offer(self, row: Mapping[str, float], policy: Callable[[], Policy], step: int) -> None:
        """Look at a row of the curve; keep the policy if the row has an evaluation of it and none was better."""
        values = [row[name] for name in self._names if not math.isnan(row.get(name, math.nan))]
        if values and values[0] >= self._value:
            self._policy, self._value, self._step = policy(), values[0], step

    def forget(self) -> None:
        """Start over: what was kept is of another kind than what follows."""
        self._policy, self._value, self._step = None, -math.inf, 0

    def policy(self, last: Callable[[], Policy]) -> Policy:
        """Return the best policy, or the ``last`` where none was offered yet."""
        return self._policy or last()

    def notes(self) -> dict[str, Any]:
        """Facts for the provenance: which evaluation chose the policy."""
        return {} if self._policy is None else {"best_step": self._step, "best_evaluation": round(self._value, 4)}

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        facts = {"value": np.array([self._value]), "step": np.array([self._step], np.int64)}
        return {**({} if self._policy is None else self._policy.state()), **facts}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._value, self._step = float(state["value"][0]), int(state["step"][0])
        self._policy = None if math.isinf(self._value) else Policy.from_state(state)
