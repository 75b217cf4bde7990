"""The replay's rows, drawn uniformly or by priority, and the ratio of samples to insertions.

Rows are complete n-step transitions (``train/actorq/stepping.py``): any of them may be drawn at any time, which is what
tells this replay from ``train/algorithms/common/replay.py``, where a return is put together when it is drawn.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.algorithms.common.priorities import SMALLEST_ERROR, SumTree, importance_weights

Columns = dict[str, NDArray[Any]]
WATCHED = ("observation", "greedy", "updates")


class Ratio:
    """Keeps samples near ``samples_per_insert`` × insertions, as Reverb's SampleToInsertRatio does.

    With d = inserted · ratio − sampled, a sample needs d to stay above minimum · ratio − slack and an insertion below
    minimum · ratio + slack; below ``minimum`` rows everybody may insert and nobody sample.
    """

    def __init__(self, samples_per_insert: float, minimum: int, slack: float) -> None:
        """Args:
        samples_per_insert: times that a row is drawn on average; 0 lets everybody go on as they like.
        minimum: rows before the first sample.
        slack: samples by which either side may be ahead; at least what one insertion or one sample moves, or nobody
            could move.
        """
        self._ratio, self._minimum, self._slack = samples_per_insert, minimum, slack
        self.inserted, self.sampled = 0, 0

    @property
    def ahead(self) -> float:
        """Samples that the actors are ahead by, negative where the learner is."""
        return (self.inserted - self._minimum) * self._ratio - self.sampled

    def may_insert(self, rows: int) -> bool:
        """Whether so many rows may be inserted now."""
        below = self.inserted < self._minimum
        return below or self._ratio == 0 or self.ahead + rows * self._ratio <= self._slack

    def may_sample(self, rows: int) -> bool:
        """Whether so many rows may be drawn now."""
        if self.inserted < self._minimum:
            return False
        return self._ratio == 0 or self.ahead - rows >= -self._slack


class Shard:
    """A ring of the newest transitions. Columns get their shapes and types from the first that are inserted."""

    def __init__(self, capacity: int, priority_exponent: float, seed: int) -> None:
        """Args: rows kept; α of the priorities, 0 for uniform draws; the seed of the draws."""
        self._capacity, self._exponent = capacity, priority_exponent
        self._generator = np.random.default_rng(seed)
        self._columns: Columns = {}
        self._tree = SumTree(capacity) if priority_exponent > 0 else None
        self._largest = 1.0  # p^α of new rows: what is new is drawn soon
        self._written = 0
        self._sampled = 0
        self._refused = 0
        self._staleness_sum, self._staleness_rows, self._staleness_largest = 0, 0, 0

    def __len__(self) -> int:
        """Rows held."""
        return min(self._written, self._capacity)

    def insert(self, columns: Columns, newest_updates: int, max_staleness: int) -> int:
        """Remember rows; those that a policy too far behind made are refused.

        Args:
            columns: by name, rows first; ``updates`` says how old the policy was, −1 where none acted.
            newest_updates: of the learner now.
            max_staleness: updates that a policy may be behind.

        Returns:
            The number of rows refused.
        """
        acted = columns["updates"] >= 0
        staleness = np.where(acted, np.maximum(newest_updates - columns["updates"], 0), 0)
        kept = staleness <= max_staleness
        refused = int((~kept).sum())
        self._refused += refused
        if (accepted := kept & acted).any():
            self._staleness_sum += int(staleness[accepted].sum())
            self._staleness_rows += int(accepted.sum())
            self._staleness_largest = max(self._staleness_largest, int(staleness[accepted].max()))
        rows = len(kept) - refused
        if not rows:
            return refused
        if not self._columns:
            self._columns = {
                name: np.zeros((self._capacity, *column.shape[1:]), column.dtype) for name, column in columns.items()
            }
        places = np.arange(self._written, self._written + rows) % self._capacity
        for name, column in columns.items():
            self._columns[name][places] = column[kept]
        if self._tree is not None:
            self._tree[places] = self._largest
        self._written += rows
        return refused

    def sample(self, batches: int, minibatch: int, importance_exponent: float) -> Columns:
        """Minibatches with replacement, (batches, minibatch, …), with ``rows``: the number of each row's insertion.

        Drawn by priority they bring ``weight`` = (N · P(i))^−β / max (Schaul et al. 2016, section 3.4).
        """
        shape = (batches, minibatch)
        weights: Columns = {}
        if self._tree is None:
            places = self._generator.integers(len(self), size=shape)
        else:
            parts = np.arange(minibatch) + self._generator.random(shape)
            places = self._tree.find(parts * (self._tree.total / minibatch))
            weights["weight"] = importance_weights(self._tree[places] / self._tree.total, importance_exponent)
        newest = self._written - 1
        rows = newest - (newest - places) % self._capacity  # the last insertion that went to this place
        self._sampled += places.size
        drawn = {name: column[places] for name, column in self._columns.items() if name not in ("greedy", "updates")}
        return {**drawn, **weights, "rows": rows}

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Priorities |δ|^α of rows that were drawn; of those overwritten since then nothing is changed."""
        if self._tree is None:
            return
        rows, errors = rows.ravel(), errors.ravel()
        there = (rows >= self._written - len(self)) & (rows < self._written)  # of a ring that began anew: none
        values = (np.abs(errors[there]).astype(np.float64) + SMALLEST_ERROR) ** self._exponent
        self._tree[rows[there] % self._capacity] = values
        if len(values):
            self._largest = max(self._largest, float(values.max()))

    def recent(self, count: int) -> Columns:
        """The newest rows, at most so many: observation, greedy and updates."""
        places = np.arange(self._written - min(count, len(self)), self._written) % self._capacity
        return {name: self._columns[name][places] for name in WATCHED if name in self._columns}

    def facts(self) -> dict[str, Any]:
        """Figures: rows held, inserted, sampled and refused; bytes; staleness of what was accepted, in updates."""
        mean = self._staleness_sum / self._staleness_rows if self._staleness_rows else math.nan
        return {
            "size": len(self),
            "inserted": self._written,
            "sampled": self._sampled,
            "refused_stale": self._refused,
            "nbytes": sum(column.nbytes for column in self._columns.values()),
            "mean_staleness": None if math.isnan(mean) else mean,
            "largest_staleness": self._staleness_largest,
        }
