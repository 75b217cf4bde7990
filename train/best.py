"""The policy of the best greedy evaluation so far: off-policy actors fluctuate, and the last one may be a bad one.

The evaluations that choose are those of the curve; the bundle's own evaluation plays other episodes, so the choice is
not its own estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.networks import Weights


class BestPolicy:
    """Keeps a copy of the weights with the highest greedy return (or success) on the first preset."""

    def __init__(self, preset: str) -> None:
        suffix = f"_{preset}" if preset else ""
        self._names = (f"greedy_success{suffix}", f"greedy_return{suffix}")
        self._weights: Weights | None = None
        self._value = -math.inf
        self._step = 0

    def offer(self, row: Mapping[str, float], weights: Weights, step: int) -> None:
        """Look at a row of the curve; keep the weights if it has an evaluation and none was better. Arrays are kept
        as they are: a learner replaces its arrays and never writes into them."""
        values = [row[name] for name in self._names if not math.isnan(row.get(name, math.nan))]
        if values and values[0] >= self._value:
            self._weights, self._value, self._step = dict(weights), values[0], step

    def forget(self) -> None:
        """Begin anew: what was kept is of another kind than what follows."""
        self._weights, self._value, self._step = None, -math.inf, 0

    def weights(self, last: Weights) -> Weights:
        """The best weights, or ``last`` where nothing was evaluated yet."""
        return last if self._weights is None else self._weights

    def notes(self) -> dict[str, Any]:
        """For the provenance: which evaluation chose the weights."""
        return {} if self._weights is None else {"best_step": self._step, "best_evaluation": round(self._value, 4)}

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        facts = {"value": np.array([self._value]), "step": np.array([self._step], np.int64)}
        return {**{f"weights/{name}": value for name, value in (self._weights or {}).items()}, **facts}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._value, self._step = float(state["value"][0]), int(state["step"][0])
        prefix = "weights/"
        self._weights = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)} or None
