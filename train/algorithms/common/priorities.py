"""Prioritized replay, proportional variant (Schaul et al. 2016): a sum tree over the replay's rows, in plain arrays.

P(i) = pᵢ^α / Σₖ pₖ^α,  pᵢ = |δᵢ| + ε                                                          (equation 1)
wᵢ = (N · P(i))^−β / maxⱼ wⱼ                                                                   (section 3.4)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Doubles = NDArray[np.float64]

SMALLEST_ERROR = 1e-6  # ε: no transition is out of reach for ever


class SumTree:
    """Non-negative leaves under nodes that hold the sum of their two children; all operations take whole batches.

    Node 1 is the root, the children of k are 2k and 2k + 1, and the leaves come last. A node is always the sum of its
    present children, never a running sum: a tree rebuilt from the same leaves has the same bits.
    """

    def __init__(self, leaves: int) -> None:
        self._first = 1 << max(leaves - 1, 1).bit_length()  # node of leaf 0
        self._leaves = leaves
        self._nodes = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._nodes[1])

    def __getitem__(self, rows: Rows) -> Doubles:
        return self._nodes[self._first + rows]

    def __setitem__(self, rows: Rows, values: Doubles | float) -> None:
        """Where a row is named twice, its last value counts."""
        nodes = self._first + rows
        self._nodes[nodes] = values
        while nodes.size and nodes[0] > 1:
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, masses: Doubles) -> Rows:
        """Return the leaf into whose part of 0 … total each mass falls, leaves side by side in order; never an empty
        leaf."""
        nodes, rest = np.ones(masses.shape, np.int64), masses.copy()
        while nodes.flat[0] < self._first:
            left = self._nodes[2 * nodes]
            right = (rest >= left) & (self._nodes[2 * nodes + 1] > 0.0)
            rest -= np.where(right, left, 0.0)
            nodes = 2 * nodes + right
        return nodes - self._first

    def leaves(self) -> Doubles:
        """Return a copy of all leaves."""
        return self._nodes[self._first : self._first + self._leaves].copy()


class Priorities:
    """pᵢ^α of every transition of a replay; zero for those that cannot be drawn."""

    def __init__(self, slots: int, environments: int, exponent: float, n_step: int) -> None:
        """Args: the replay's slots and environments, α, and the n of the n-step returns."""
        self._slots, self._environments = slots, environments
        self._exponent, self._n_step = exponent, n_step
        self._tree = SumTree(slots * environments)
        self._largest = 1.0  # the largest p^α so far; what is new is drawn soon (algorithm 1, line 6)
        self._seen = 0

    def follow(self, written: int) -> None:
        """Look at what was added to the replay, ``written`` steps of every environment in all.

        What has n − 1 followers now can be drawn, what was overwritten cannot.
        """
        self._set(np.arange(max(self._seen, written - self._slots), written), 0.0)
        first = max(self._seen - self._n_step + 1, written - self._slots, 0)
        self._set(np.arange(first, written - self._n_step + 1), self._largest)
        self._seen = written

    def _set(self, times: Rows, value: float) -> None:
        if len(times):
            rows = (times % self._slots)[:, None] * self._environments + np.arange(self._environments)
            self._tree[rows.ravel()] = value

    def draw(self, generator: np.random.Generator, shape: tuple[int, int]) -> tuple[Rows, Doubles]:
        """Rows of the replay and their P(i), both of the shape (minibatches, transitions of each).

        Each minibatch takes one transition from each of as many equal parts of the total (appendix B.2.1).
        """
        parts = np.arange(shape[1]) + generator.random(shape)
        rows = self._tree.find(parts * (self._tree.total / shape[1]))
        return rows, self._tree[rows] / self._tree.total

    def update(self, rows: Rows, errors: NDArray[np.float32]) -> None:
        """Errors δ of drawn rows, arrays of one shape; where a row was drawn twice, the last one counts."""
        values = (np.abs(errors).astype(np.float64).ravel() + SMALLEST_ERROR) ** self._exponent
        self._tree[rows.ravel()] = values
        self._largest = max(self._largest, float(values.max()))

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        return {
            "leaves": self._tree.leaves(),
            "largest": np.array([self._largest]),
            "seen": np.array([self._seen], np.int64),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        leaves = state["leaves"]
        self._tree[np.arange(len(leaves))] = leaves
        self._largest, self._seen = float(state["largest"][0]), int(state["seen"][0])


def importance_weights(probabilities: Doubles, exponent: float) -> NDArray[np.float32]:
    """wᵢ = (N · P(i))^−β / maxⱼ (N · P(j))^−β = (P(i) / minⱼ P(j))^−β, over the last axis (a minibatch)."""
    return ((probabilities / probabilities.min(axis=-1, keepdims=True)) ** -exponent).astype(np.float32)
