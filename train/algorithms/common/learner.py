"""What updates change, and how a run makes them: the arrays of a learner, and many updates in one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.lazily import tf
from quarl.train.networks.weights import Weights

State = dict[str, Any]
"""A learner's groups as an update takes and gives them: arrays or tensors by group and name."""
Update = Callable[..., tuple[Any, ...]]
"""(state, …) → (state, metrics, …): a compiled update, or one of ``train/accelerator``."""
ROWS = -1
"""Width of what a round tells of every row of a minibatch; see :func:`compile_round`."""


@dataclass
class Learner:
    """Arrays by group, such as a network, its target and its optimiser's moments; and the number of updates made.

    Attributes:
        groups: see above.
        updates: made so far.
        as_tensors: whether the groups are kept as tensors: converting those of a convolutional network at every update
            would cost as much as a step.
    """

    groups: dict[str, Weights]
    updates: int = 0
    as_tensors: bool = False

    def put(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the groups by those of a state, which may have further ones that an update passes through."""
        convert = tf.convert_to_tensor if self.as_tensors else np.asarray
        self.groups = {group: {name: convert(value) for name, value in state[group].items()} for group in self.groups}

    def take(self, update: Update, *inputs: Any, quantizer: Mapping[str, Any] | None = None) -> list[NDArray[Any]]:
        """Put in what an update makes of the groups; what it tells beside them, as arrays.

        ``inputs`` are what it takes behind the state, ``quantizer`` the group of scales while quantizers are active.
        """
        state, *metrics = update({**self.groups, **(quantizer or {})}, *inputs)
        self.put(state)
        return [np.asarray(metric) for metric in metrics]


def learn(
    update: Update,
    learner: Learner,
    batches: Mapping[str, NDArray[Any]],
    rate: float,
    quantizer: Mapping[str, Any] | None = None,
) -> list[NDArray[Any]]:
    """Run a round of updates on the learner: its metrics (updates, …), and what else it tells.

    Args:
        update: a round as :func:`compile_round` makes it, of ``learner``.
        batches: columns (updates, minibatch, …).
        rate: the learning rate, or the share of it.
        quantizer: the group of scales, while quantizers are active.
    """
    count = np.int32(learner.updates)
    metrics, *extras = learner.take(update, batches, count, np.float32(rate), quantizer=quantizer)
    learner.updates += len(metrics)
    return [metrics, *extras]


def scan_updates(
    one: Callable[[tf.Tensor, State], tuple[Any, ...]], state: State, updates: int, *widths: int
) -> tuple[Any, ...]:
    """Update after update in one loop of a graph: the last state, and what each reported, (updates, width) each.

    ``one`` is (index, state) → (state, a vector of each width); ``state`` is that before the first.
    """

    def body(index: tf.Tensor, state: State, *metrics: tf.Tensor) -> tuple[Any, ...]:
        state, *rows = one(index, state)
        pairs = zip(metrics, rows, strict=True)
        return index + 1, state, *(tf.tensor_scatter_nd_update(metric, [[index]], row[None]) for metric, row in pairs)

    start = (tf.constant(0), state, *(tf.zeros((updates, width)) for width in widths))
    _, *ended = tf.while_loop(lambda index, *_: index < updates, body, start)
    return tuple(ended)


def compile_round(
    one: Callable[[State, dict[str, tf.Tensor], tf.Tensor, tf.Tensor], tuple[Any, ...]],
    *widths: int,
    compiled: bool = True,
) -> Update:
    """Return a round of updates in one call: (state, batches, updates before, learning rate) → (state, metrics, …).

    Args:
        one: (state, minibatch, updates before, learning rate) → (state, a vector of each width).
        widths: of what one tells; :data:`ROWS` is a number for every row of the minibatch.
        compiled: by XLA; convolutions are not, since on a CPU oneDNN's are faster.
    """

    @tf.function(jit_compile=compiled, autograph=False)
    def update(state: State, batches: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor) -> tuple[Any, ...]:
        updates, minibatch = next(iter(batches.values())).shape[:2]

        def minibatch_of(index: tf.Tensor, state: State) -> tuple[Any, ...]:
            return one(state, {name: column[index] for name, column in batches.items()}, count + index, rate)

        metrics = (minibatch if width == ROWS else width for width in widths)
        return scan_updates(minibatch_of, state, updates, *metrics)

    return update
