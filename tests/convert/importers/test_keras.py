"""Policies that Keras saved (by make_keras.py) compute as ONNX, and as a bundle, what they computed there."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from quarl.convert.importers import chain, keras_to_onnx
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.keras import read_keras
from quarl.convert.importers.onnx.reader import read_onnx
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float
from tests.convert.importers.keras_files import FILES, NAMES, OUTPUTS, built, converted, recorded


@pytest.mark.parametrize("name", NAMES)
def test_the_onnx_and_its_chain_compute_what_keras_computed(name: str, tmp_path: Path) -> None:
    _, part = converted(FILES / name, tmp_path, OUTPUTS.get(name))
    rows, wanted = recorded(name)
    if "dqn" in name:  # an activation behind another is none of a chain
        session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
        made = session.run(None, {"observation": rows})[0]
    else:
        (tmp_path / "policy.onnx").write_bytes(part.SerializeToString())
        policy = read_onnx(tmp_path / "policy.onnx", OUTPUTS.get(name))
        made = chain.run(policy, rows)
        if isinstance(policy.actions, chain.Discrete):
            made, wanted = (each - each.mean(axis=1, keepdims=True) for each in (made, wanted))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6 * np.ptp(wanted))


@pytest.mark.slow  # the process is started by the test below, too
def test_an_import_is_compared_with_keras_in_its_process(tmp_path: Path) -> None:
    pairs, path = str(FILES / "keras2/actor.npz"), tmp_path / "imported"
    words = [str(FILES / "keras2/actor.h5"), "--observations", pairs, "--golden", pairs, "--period", "0.02"]
    assert main([*words, "--actions", "as-is", "--name", "imported", "--output-path", str(path)]) == 0
    bundle = Bundle.load(path)
    rows, wanted = recorded("keras2/actor.h5")
    own = forward_float(bundle.spec, bundle.weights(), rows)
    np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=2e-5 * np.ptp(wanted))
    assert bundle.spec.provenance["program"] == "Keras"


def test_keras_itself_answers_what_its_softmax_takes() -> None:
    name = "keras/image_discrete.keras"
    policy = read_keras(FILES / name)
    rows, wanted = recorded(name)
    original: Any = policy.original
    assert policy.actions == chain.Discrete() and policy.inputs == (chain.Input("observation", (10, 10, 3)),)
    for some in (rows, rows[:1]):
        made = original(some)
        made, logits = (each - each.mean(axis=1, keepdims=True) for each in (made, wanted[: len(some)]))
        np.testing.assert_allclose(made, logits, rtol=1e-5, atol=1e-5)
    process, folder = original.process._process, original.process.folder
    assert isinstance(process, subprocess.Popen) and folder.is_dir()
    del policy, original
    assert process.poll() is not None and not folder.exists()


def _models() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Models by the layers in them, of (keras, keras.layers, keras.ops)."""

    def model(shape: tuple[int, ...], *body: Any) -> Callable[[Any, Any, Any], Any]:
        return lambda k, L, o: k.Sequential([k.Input(shape), *(make(L) for make in body), L.Dense(2)])

    def functional(shape: tuple[int, ...], body: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        def make(k: Any, L: Any, o: Any) -> Any:
            x = k.Input(shape)
            return k.Model(x, body(x, L, o))

        return make

    names = "relu tanh sigmoid elu selu silu gelu leaky_relu softplus softsign hard_sigmoid exponential linear softmax"
    names = f"{names} mish relu6 hard_silu log_softmax"
    found = {name: model((4,), lambda L, name=name: L.Dense(5, name)) for name in names.split()}
    return found | {
        "activation layers": model(
            (4,),
            lambda L: L.ReLU(6.0, 0.1),
            lambda L: L.Dense(4, activation=L.LeakyReLU()),
            lambda L: L.ELU(0.5),
            lambda L: L.PReLU(alpha_initializer="uniform"),
            lambda L: L.Softmax(),
        ),
        "one side": model(
            (20, 3),
            lambda L: L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu"),
            lambda L: L.MaxPooling1D(2),
            lambda L: L.Conv1D(4, 3, strides=2, padding="same"),
            lambda L: L.AveragePooling1D(2, padding="same"),
            lambda L: L.GlobalAveragePooling1D(),
        ),
        "two sides": model(
            (12, 11, 3),
            lambda L: L.Conv2D(4, (3, 2), strides=(2, 1), padding="same"),
            lambda L: L.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="relu"),
            lambda L: L.MaxPooling2D(2, padding="same"),
            lambda L: L.Conv2D(6, 2, groups=2),
            lambda L: L.GlobalMaxPooling2D(),
        ),
        "shapes": model(
            (4, 3),
            lambda L: L.Permute((2, 1)),
            lambda L: L.Reshape((2, -1)),
            lambda L: L.LayerNormalization(),
            lambda L: L.Flatten(),
            lambda L: L.GaussianNoise(0.1),
        ),
        "normalised": model(
            (2,),
            lambda L: L.Normalization(mean=[1.0, -2.0], variance=[4.0, 0.0]),
            lambda L: L.Normalization(mean=[0.5, 1.0], variance=[9.0, 16.0], invert=True),
            lambda L: L.Rescaling([0.5, 2.0], 0.1),
            lambda L: L.BatchNormalization(moving_mean_initializer="random_normal"),
        ),
        "GRU behind LSTM": model(
            (6, 3),
            lambda L: L.LSTM(5, return_sequences=True, bias_initializer="uniform"),
            lambda L: L.GRU(4, return_sequences=True, bias_initializer="uniform"),
            lambda L: L.GRU(4, reset_after=False, return_sequences=True),
            lambda L: L.SimpleRNN(4, "relu"),
        ),
        "float64 and bfloat16": model(
            (3,), lambda L: L.Dense(8, dtype="float64"), lambda L: L.Dense(4, dtype="mixed_bfloat16")
        ),
        "dueling": functional(
            (4,), lambda x, L, o: L.Dense(1)(x) + (a := L.Dense(3)(x)) - o.mean(a, axis=1, keepdims=True)
        ),
        "merged": functional(
            (4,),
            lambda x, L, o: L.Average()([L.Add()([x, x]), L.Multiply()([x, x]), L.Subtract()([x, L.Dense(4)(x)])]),
        ),
        "operations": functional(
            (4,),
            lambda x, L, o: o.concatenate(
                [o.clip(o.tanh(x[:, :2]) * 2 - 0.5, -1, 1) / 3, o.exp(-o.square(x[:, -1:])), o.abs(x[:, 1:2]) ** 2],
                axis=-1,
            ),
        ),
    }


MODELS = _models()


@pytest.mark.parametrize("name", MODELS)
def test_each_layer_in_onnx_is_what_keras_computes_near_and_far(name: str, tmp_path: Path) -> None:
    import keras

    keras.utils.set_random_seed(1)
    model = MODELS[name](keras, keras.layers, keras.ops)
    converted(built(tmp_path / "built.keras", model), tmp_path)  # compares them


def test_a_wrong_equation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(keras_to_onnx.FUNCTIONS, "tanh", lambda graph, x: graph.add("Sin", x))
    with pytest.raises(ForeignError):
        converted(FILES / "keras/normalised_tanh.keras", tmp_path)


def test_states_that_are_inputs_and_outputs(tmp_path: Path) -> None:
    import keras

    seen, h, c = (keras.Input(shape, name=name) for shape, name in (((1, 3), "obs"), ((5,), "h_in"), ((5,), "c_in")))
    made, *states = keras.layers.LSTM(5, return_state=True)(seen, initial_state=[h, c])
    outputs = {"actions": keras.layers.Dense(2)(made), "h_out": states[0], "c_out": states[1]}
    path = built(tmp_path / "built.keras", keras.Model([seen, h, c], outputs))
    _, part = converted(path, tmp_path)
    assert {value.name for value in part.graph.input} == {"obs", "h_in", "c_in"}
    assert [value.name for value in part.graph.output] == ["actions", "c_out", "h_out"]


def test_an_output_that_needs_no_refused_layer_is_read(tmp_path: Path) -> None:
    import keras

    seen = keras.Input((6, 3))
    made = {"a": keras.layers.LSTM(2)(seen), "b": keras.layers.Bidirectional(keras.layers.LSTM(2))(seen)}
    path = built(tmp_path / "built.keras", keras.Model(seen, made))
    assert [value.name for value in converted(path, tmp_path, "a")[1].graph.output] == ["a"]
    for output in (None, "b", "c"):
        with pytest.raises(ForeignError):
            converted(path, tmp_path, output)


def test_an_image_of_grey_levels_is_an_input_of_uint8(tmp_path: Path) -> None:
    import keras

    body = [keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((8, 8, 1), dtype="uint8"), *body])
    _, part = converted(built(tmp_path / "built.keras", model), tmp_path)
    (tmp_path / "policy.onnx").write_bytes(part.SerializeToString())
    policy = read_onnx(tmp_path / "policy.onnx")
    assert math.prod(policy.inputs[0].shape) == 64 and len(policy.inputs[0].shape) == 3
