"""Write small policies as Keras saves them, and what they answer, for test_keras.py: ``make_keras.py FOLDER [NAME …]``.

Each policy is NAME.keras, and NAME.npz beside it:

| array | shape | holds |
| --- | --- | --- |
| observations | (64, n) | raw, flattened in the order of the chain's inputs |
| outputs | (64, m) | of ``model(observations, training=False)``; of a softmax, the logarithms |

``make_keras.py FOLDER keras2`` writes those of Keras 2, where tf_keras is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers, ops

ROWS = 64
MEAN, DEVIATION = np.array([0.5, -2.0, 10.0, 0.0]), np.array([1.0, 0.2, 5.0, 0.05])
Made = tuple[Any, np.ndarray, str | None]


def _unlike(count: int, size: int = 4) -> np.ndarray:
    normal = np.random.default_rng(size).standard_normal((count, size))
    return (np.resize(MEAN, size) + np.resize(DEVIATION, size) * normal).astype(np.float32)


def _normalised(size: int = 4, **settings: Any) -> Any:
    made = layers.Normalization(**settings)
    made.adapt(_unlike(500, size))
    return made


def normalised_tanh() -> Made:
    body = [layers.Dense(16, "tanh"), layers.Dropout(0.1), layers.Dense(16, "tanh"), layers.Dense(3)]
    return keras.Sequential([keras.Input((4,)), _normalised(), *body]), _unlike(ROWS), None


def swish_two_outputs() -> Made:
    seen = keras.Input((6,), name="state")
    x = layers.Dense(16, "swish")(_normalised(6)(seen))
    x = layers.Dense(8, keras.activations.silu)(x)
    mean = layers.Dense(2, "tanh", name="mean")(x)
    deviation = layers.Dense(2, "softplus", name="deviation")(layers.Dense(4, "gelu")(x))
    return keras.Model(seen, {"loc": mean, "scale": deviation}), _unlike(ROWS, 6), "loc"


def image_discrete() -> Made:
    body = [layers.Conv2D(8, 4, strides=2), layers.BatchNormalization(), layers.ReLU(), layers.Conv2D(8, 3)]
    head = [layers.LeakyReLU(), layers.Flatten(), layers.Dense(4, "softmax")]
    model = keras.Sequential([keras.Input((10, 10, 3)), layers.Rescaling(1 / 255), *body, *head])
    rows = np.random.default_rng(2).integers(0, 256, (ROWS, 10 * 10 * 3)).astype(np.float32)
    return model, rows, None


def two_inputs() -> Made:
    goal, ranges = keras.Input((2,), name="goal"), keras.Input((3,), name="ranges")
    joined = layers.Concatenate()([layers.Rescaling([0.5, 2.0], [0.0, 1.0])(goal), layers.GaussianNoise(0.1)(ranges)])
    x = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(8, "sigmoid")], name="body")(joined)
    return keras.Model([ranges, goal], layers.Dense(2)(x)), _unlike(ROWS, 5), None


def elu_leaky() -> Made:
    hidden = [layers.Dense(8), layers.ELU(), layers.Dense(8, keras.activations.leaky_relu), layers.Dense(8)]
    body = [*hidden, layers.LeakyReLU(negative_slope=0.2), layers.Dense(3, activation=layers.ReLU()), layers.Dense(2)]
    return keras.Sequential([keras.Input((4,)), _normalised(invert=False), *body]), _unlike(ROWS), None


def batch_normalised() -> Made:
    first = [layers.Reshape((4,)), layers.BatchNormalization(), layers.Dense(12, use_bias=False)]
    body = [layers.BatchNormalization(scale=False), layers.Activation("relu"), layers.Dense(2, "linear")]
    model = keras.Sequential([keras.Input((2, 2)), layers.Flatten(), *first, *body])
    return model, _unlike(ROWS), None


def layer_normalised() -> Made:
    hidden = [layers.Dense(12), layers.LayerNormalization(epsilon=1e-5), layers.Activation("elu"), layers.Dense(3)]
    return keras.Sequential([keras.Input((4,)), _normalised(), *hidden]), _unlike(ROWS), None


def ddpg_actor() -> Made:
    seen = keras.Input((3,))
    x = layers.Dense(16, "relu")(seen)
    x = layers.Dense(1, "tanh", kernel_initializer=keras.initializers.RandomUniform(-0.3, 0.3))(x)
    return keras.Model(seen, layers.Rescaling(2.0)(x)), _trained_like(3), None


def ddpg_operations() -> Made:
    seen = keras.Input((3,))
    x = ops.tanh(layers.Dense(2)(layers.Dense(16, "relu")(seen)))
    return keras.Model(seen, x * np.array([2.0, 0.5], np.float32) + 0.25), _trained_like(3), None


def _trained_like(size: int) -> np.ndarray:
    return np.random.default_rng(5).normal(0.0, 0.7, (ROWS, size)).astype(np.float32)


POLICIES: dict[str, Callable[[], Made]] = {
    make.__name__: make
    for make in (
        *(normalised_tanh, swish_two_outputs, image_discrete, two_inputs, elu_leaky, batch_normalised),
        *(layer_normalised, ddpg_actor, ddpg_operations),
    )
}


def make(name: str, folder: Path) -> None:
    keras.utils.set_random_seed(7)
    keras.backend.clear_session()
    model, rows, output = POLICIES[name]()
    random = np.random.default_rng(3)
    for layer in model._flatten_layers():
        if not isinstance(layer, layers.Normalization | keras.Model):
            for weight in layer.weights:
                if "kernel" not in weight.path and "seed" not in weight.path:
                    weight.assign(random.uniform(0.2, 0.8, weight.shape))  # as after training: no zeros, no ones
    model.save(folder / f"{name}.keras")
    parts: Any = rows.reshape(ROWS, *model.input_shape[1:]) if isinstance(model.input_shape, tuple) else None
    if parts is None:
        parts = {"goal": rows[:, :2], "ranges": rows[:, 2:]}
    outputs = model(parts, training=False)
    answered = np.asarray(outputs if output is None else outputs[output])
    if name == "image_discrete":
        answered = np.log(answered)
    np.savez_compressed(folder / f"{name}.npz", observations=rows, outputs=answered)


def make_keras2(folder: Path) -> None:
    """dqn.keras and actor.h5, with what they answer, weights.h5 of the actor alone, and a hard_sigmoid.

    Keras 2 computes it as clip(0.2 x + 0.5, 0, 1), Keras 3 as clip(x / 6 + 0.5, 0, 1).
    """
    import tf_keras

    tf_keras.utils.set_random_seed(7)
    dqn = [tf_keras.layers.Dense(16, "relu", input_shape=(4,)), tf_keras.layers.LeakyReLU(alpha=0.1)]
    dqn += [tf_keras.layers.Dropout(0.1), tf_keras.layers.Dense(3, bias_initializer="random_normal")]
    seen = tf_keras.Input((3,))
    x = tf_keras.layers.BatchNormalization(moving_mean_initializer="random_normal")(seen)
    x = tf_keras.layers.Dense(12, "sigmoid")(tf_keras.layers.Dense(16, "tanh")(x))
    actor = tf_keras.Model(seen, tf_keras.layers.Rescaling(2.0)(tf_keras.layers.Dense(1, "tanh")(x)))
    for name, model in (("dqn.keras", tf_keras.Sequential(dqn)), ("actor.h5", actor)):
        model.save(folder / name)
        rows = _trained_like(model.input_shape[1])
        outputs = np.asarray(model(rows, training=False))
        np.savez_compressed(folder / Path(name).with_suffix(".npz"), observations=rows, outputs=outputs)
    actor.save_weights(folder / "weights.h5")
    hard = tf_keras.Sequential([tf_keras.layers.Dense(2, "hard_sigmoid", input_shape=(3,))])
    hard.save(folder / "hard_sigmoid.h5")
    hard.save(folder / "hard_sigmoid.keras")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:] == ["keras2"]:
        make_keras2(folder)
        return
    for name in sys.argv[2:] or POLICIES:
        make(name, folder)


if __name__ == "__main__":
    main()
