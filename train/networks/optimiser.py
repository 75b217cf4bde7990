"""Steps along gradients, and their clipping by their global norm."""

from __future__ import annotations

from typing import Any

from quarl.train.lazily import tf

ADAM_BETA_1 = 0.9  # Kingma & Ba 2015, table in section 2
ADAM_BETA_2 = 0.999  # likewise
ADAM_EPSILON = 1e-5  # 1e-8 in the paper; 1e-5 is what PPO and DQN implementations use (cleanrl, baselines)


def clip_by_global_norm(gradients: dict[str, tf.Tensor], largest: float) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """g · min(1, largest / ‖g‖₂) over all tensors together (Pascanu et al. 2013), and the norm before.

    The squares are added in the order of the names: a resumed run has the same weights in another order, and floats
    added in another order give other bits.
    """
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(gradients[name] ** 2) for name in sorted(gradients)]))
    scale = tf.minimum(1.0, largest / (norm + 1e-8))
    return {name: g * scale for name, g in gradients.items()}, norm


def adam_step(
    weights: dict[str, Any],
    gradients: dict[str, Any],
    first_moment: dict[str, Any],
    second_moment: dict[str, Any],
    count: Any,
    learning_rate: Any,
    epsilon: float = ADAM_EPSILON,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return one step of Adam (Kingma & Ba 2015, algorithm 1): new weights and moments.

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²
    θ ← θ − α · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)

    ``weights`` are θ by name, likewise gradients g and both moments; ``count`` is t, the number of this step as
    float32, 1 for the first; α is the learning rate.
    """
    correction_1 = 1.0 - ADAM_BETA_1**count
    correction_2 = 1.0 - ADAM_BETA_2**count
    new_weights, new_first, new_second = {}, {}, {}
    for name, gradient in gradients.items():
        m = ADAM_BETA_1 * first_moment[name] + (1.0 - ADAM_BETA_1) * gradient
        v = ADAM_BETA_2 * second_moment[name] + (1.0 - ADAM_BETA_2) * gradient * gradient
        new_weights[name] = weights[name] - learning_rate * (m / correction_1) / ((v / correction_2) ** 0.5 + epsilon)
        new_first[name], new_second[name] = m, v
    return new_weights, new_first, new_second


def adam(
    weights: dict[str, Any], gradients: dict[str, Any], moments: dict[str, Any], count: Any, learning_rate: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """:func:`adam_step` on the moments ``first`` and ``second`` by name: new weights and moments."""
    moved, first, second = adam_step(weights, gradients, moments["first"], moments["second"], count, learning_rate)
    return moved, {"first": first, "second": second}
