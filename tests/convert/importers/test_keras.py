"""Policies that Keras saved (by make_keras.py) compute as ONNX, and as a bundle, what they computed there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from quarl.convert.importers import chain, keras_file, keras_to_onnx
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.onnx.reader import read_onnx
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float
from tests.convert.importers.keras_files import FILES, NAMES, OUTPUTS, built, converted, recorded


@pytest.mark.parametrize("name", NAMES)
def test_the_onnx_and_its_policy_compute_what_keras_computed(name: str, tmp_path: Path) -> None:
    converted(FILES / name, tmp_path, OUTPUTS.get(name))
    policy = read_onnx(tmp_path / "policy.onnx", OUTPUTS.get(name))
    rows, wanted = recorded(name)
    made = chain.run(policy, rows)
    if isinstance(policy.actions, chain.Discrete):
        made, wanted = (each - each.mean(axis=1, keepdims=True) for each in (made, wanted))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6 * np.ptp(wanted))


@pytest.mark.slow  # TensorFlow's start in a process of its own: sandboxed, it loads, writes and answers
def test_a_file_that_no_chain_expresses_is_imported_alone(tmp_path: Path) -> None:
    """Through the process of its own, with golden pairs and without observations."""
    file, pairs = FILES / "keras2/dqn.keras", FILES / "keras2/dqn.npz"
    assert main([str(file), "--golden", str(pairs), "--output-path", str(tmp_path / "dqn"), "--name", "dqn"]) == 0
    bundle, (rows, wanted) = Bundle.load(tmp_path / "dqn"), recorded("keras2/dqn.keras")
    np.testing.assert_allclose(forward_float(bundle.spec, bundle.weights(), rows), wanted, rtol=1e-5, atol=1e-5)
    assert bundle.spec.network.opaque and bundle.spec.provenance["program"] == "Keras"


Build = Callable[[Any, Any, Any], Any]
"""Of (keras, keras.layers, keras.ops)."""


def _model(shape: tuple[int, ...], body: Build, *, kind: str = "float32") -> Build:
    """Layers and Dense(2) behind them."""
    return lambda k, L, o: k.Sequential([k.Input(shape, dtype=kind), *body(k, L, o), L.Dense(2)])


def _functional(shape: tuple[int, ...], body: Callable[[Any, Any, Any], Any]) -> Build:
    def make(k: Any, L: Any, o: Any) -> Any:
        x = k.Input(shape)
        return k.Model(x, body(x, L, o))

    return make


NAMES_OF_ACTIVATIONS = "relu tanh sigmoid elu selu silu gelu leaky_relu softplus softsign hard_sigmoid exponential"
NAMES_OF_ACTIVATIONS += " linear softmax mish relu6 hard_silu log_softmax"
MODELS: dict[str, Build] = {
    "activations": _functional((4,), lambda x, L, o: {n: L.Dense(5, n)(x) for n in NAMES_OF_ACTIVATIONS.split()}),
    "activation layers": _model(
        (4,),
        lambda k, L, o: [
            L.ReLU(6.0, 0.1),
            L.Dense(4, activation=L.LeakyReLU()),
            L.ELU(0.5),
            L.PReLU(alpha_initializer="uniform"),
            L.Softmax(),
        ],
    ),
    "one side": _model(
        (20, 3),
        lambda k, L, o: [
            L.Conv1D(4, 3, dilation_rate=2, activation="relu"),
            L.MaxPooling1D(2),
            L.Conv1D(4, 3, strides=2, padding="same"),
            L.AveragePooling1D(2, padding="same"),
            L.GlobalAveragePooling1D(),
        ],
    ),
    "two sides": _model(
        (12, 11, 3),
        lambda k, L, o: [
            L.Conv2D(4, (3, 2), strides=(2, 1), padding="same"),
            L.MaxPooling2D(2, padding="same"),
            L.Conv2D(6, 2, groups=2),
            L.GlobalMaxPooling2D(),
        ],
    ),
    "grey levels": _model((8, 8, 1), lambda k, L, o: [L.Rescaling(1 / 255), L.Conv2D(3, 3), L.Flatten()], kind="uint8"),
    "shapes": _model(
        (4, 3),
        lambda k, L, o: [
            L.Permute((2, 1)),
            L.Reshape((2, -1)),
            L.LayerNormalization(),
            L.Flatten(),
            L.GaussianNoise(0.1),
        ],
    ),
    "normalised": _model(
        (2,),
        lambda k, L, o: [
            L.Normalization(mean=[1.0, -2.0], variance=[4.0, 0.0]),
            L.Normalization(mean=[0.5, 1.0], variance=[9.0, 16.0], invert=True),
            L.Rescaling([0.5, 2.0], 0.1),
            L.BatchNormalization(moving_mean_initializer="random_normal"),
        ],
    ),
    "GRU behind LSTM": _model(
        (6, 3),
        lambda k, L, o: [
            L.LSTM(5, return_sequences=True, bias_initializer="uniform"),
            L.GRU(4, return_sequences=True, bias_initializer="uniform"),
            L.GRU(4, reset_after=False),
        ],
    ),
    "other types": _model((3,), lambda k, L, o: [L.Dense(8, dtype="float64"), L.Dense(4, dtype="mixed_bfloat16")]),
    "dueling": _functional(
        (4,), lambda x, L, o: L.Dense(1)(x) + (a := L.Dense(3)(x)) - o.mean(a, axis=1, keepdims=True)
    ),
    "merged": _functional(
        (4,), lambda x, L, o: L.Average()([L.Add()([x, x]), L.Multiply()([x, x]), L.Subtract()([x, L.Dense(4)(x)])])
    ),
    "operations": _functional(
        (4,),
        lambda x, L, o: o.concatenate(
            [o.clip(o.tanh(x[:, :2]) * 2 - 0.5, -1, 1) / 3, o.exp(-o.square(x[:, 1:])), o.abs(x[:, 1:2]) ** 2], axis=-1
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_layer_in_onnx_is_what_keras_computes_near_and_far(name: str, tmp_path: Path) -> None:
    import keras

    keras.utils.set_random_seed(1)
    converted(built(tmp_path / "built.keras", MODELS[name](keras, keras.layers, keras.ops)), tmp_path)  # compares them


def test_a_wrong_equation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(keras_to_onnx.EMITS, "tanh", lambda graph, op, x: graph.add("Sin", x))
    with pytest.raises(ForeignError) as caught:
        converted(FILES / "keras/normalised_tanh.keras", tmp_path)
    assert caught.value.__cause__ is None and "report" in str(caught.value.next_step)


def test_states_that_are_inputs_and_outputs(tmp_path: Path) -> None:
    import keras

    seen, h, c = (keras.Input(shape, name=name) for shape, name in (((1, 3), "obs"), ((5,), "h_in"), ((5,), "c_in")))
    made, *states = keras.layers.LSTM(5, return_state=True)(seen, initial_state=[h, c])
    outputs = {"actions": keras.layers.Dense(2)(made), "h_out": states[0], "c_out": states[1]}
    part = converted(built(tmp_path / "built.keras", keras.Model([seen, h, c], outputs)), tmp_path)
    assert {value.name for value in part.graph.input} == {"obs", "h_in", "c_in"}
    assert [value.name for value in part.graph.output] == ["actions", "c_out", "h_out"]


def test_an_output_that_needs_no_refused_layer_is_read(tmp_path: Path) -> None:
    import keras

    seen = keras.Input((6, 3))
    made = {"a": keras.layers.LSTM(2)(seen), "b": keras.layers.Bidirectional(keras.layers.LSTM(2), name="both")(seen)}
    path = built(tmp_path / "built.keras", keras.Model(seen, made))
    assert [value.name for value in converted(path, tmp_path, "a").graph.output] == ["a"]
    for output, named in ((None, "both"), ("b", "both"), ("c", "--output")):
        with pytest.raises(ForeignError) as caught:
            converted(path, tmp_path, output)
        assert named in caught.value.message and caught.value.__cause__ is None


def test_a_sequential_model_of_keras_2_1_keeps_its_input_shape(tmp_path: Path) -> None:
    """Its config is a list of layers, of which the first has the shape with the batch."""
    import keras

    path = built(tmp_path / "built.h5", keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "relu")]))
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layers = [layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense"]
        layers[0]["config"]["batch_input_shape"] = [None, 4]
        file.attrs["model_config"] = json.dumps({**config, "config": layers})
    keras_file.modernise(path)
    model, _ = keras_to_onnx.load(path)
    assert [tuple(x.shape) for x in model.inputs] == [(None, 4)]
