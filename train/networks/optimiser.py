"""Clipping gradients by their global norm, in TensorFlow."""

from __future__ import annotations

from train.lazily import tf


def clipped_by_norm(gradients: dict[str, tf.Tensor], largest: float) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """g · min(1, largest / ‖g‖₂) over all tensors together (Pascanu et al. 2013), and the norm before.

    The squares are added in the order of the names: a resumed run has the same weights in another order, and floats
    added in another order give other bits.
    """
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(gradients[name] ** 2) for name in sorted(gradients)]))
    scale = tf.minimum(1.0, largest / (norm + 1e-8))
    return {name: g * scale for name, g in gradients.items()}, norm
