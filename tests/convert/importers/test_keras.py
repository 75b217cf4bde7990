"""Policies that Keras saved (by make_keras.py) act as they did there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quarl.convert import pipeline
from quarl.convert.executor import RuntimeProcess
from quarl.convert.importers import chain, sources
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import ForeignError, ForeignPolicy
from quarl.convert.importers.fold import fold
from quarl.convert.importers.keras.reader import read_keras
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float
from quarl.policy.spec import Activation, Precision, RuntimeName, Squash
from tests.convert.importers.keras_files import FILES, NAMES, OUTPUTS, built, recorded


def read(name: str) -> ForeignPolicy:
    return read_keras(FILES / f"{name}.keras", OUTPUTS.get(name))


def centred(policy: ForeignPolicy, outputs: np.ndarray) -> np.ndarray:
    discrete = isinstance(policy.actions, chain.Discrete)
    return outputs - outputs.mean(axis=1, keepdims=True) if discrete else outputs


@pytest.mark.parametrize("name", NAMES)
def test_chain_and_rebuilt_model_compute_what_keras_computed(name: str) -> None:
    policy = read(name)
    observations, wanted = recorded(name)
    assert policy.original is not None
    for ours in (chain.run(policy, observations), policy.original(observations)):
        wanted = centred(policy, wanted)
        np.testing.assert_allclose(centred(policy, ours), wanted, rtol=1e-5, atol=1e-6 * np.ptp(wanted))


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_of_keras_acts_as_the_original(
    name: str, tmp_path: Path, runtimes: dict[RuntimeName, RuntimeProcess]
) -> None:
    pairs, path = str(FILES / f"{name}.npz"), tmp_path / "imported"
    words = [str(FILES / f"{name}.keras"), "--observations", pairs, "--golden", pairs, "--period", "0.02"]
    words += ["--output", OUTPUTS[name]] if name in OUTPUTS else []
    words += [] if "discrete" in name else ["--actions", "as-is"]
    assert main([*words, "--name", "imported", "--output-path", str(path)]) == 0
    bundle = Bundle.load(path)
    observations, wanted = recorded(name)
    wanted = wanted - wanted.mean(axis=1, keepdims=True) if bundle.spec.is_discrete else wanted
    own = forward_float(bundle.spec, bundle.weights(), observations)
    np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=2e-5 * np.ptp(wanted))
    for precision in (Precision.FP32, Precision.INT8):
        for artifact_format in precision.formats:
            pipeline.convert(bundle, precision, artifact_format, runtimes, accept=True)


def test_a_policy_says_what_was_left_out_and_taken_for_granted() -> None:
    policy = read("swish_two_outputs")
    assert policy.source == "Keras 3.15.1"
    assert policy.inputs == (chain.Input("state", (6,)),)
    assert policy.ignored == ("2 layers that the output loc does not need: dense_2 (Dense), deviation (Dense)",)
    assert policy.actions is None
    discrete = read("image_discrete")
    assert discrete.actions == chain.Discrete()
    assert "softmax of dense is left out" in discrete.assumed[0]
    assert [part.name for part in read("two_inputs").inputs] == ["goal", "ranges"]
    assert read("ddpg_actor").inputs == (chain.Input("observation", (3,)),)


def test_tanh_and_its_bound_become_the_squashed_head() -> None:
    policy = sources.with_actions(read("ddpg_operations"), "as-is", ())
    head = fold(policy, recorded("ddpg_operations")[0]).head
    assert (head.squash, head.low, head.high) == (Squash.TANH, (-1.75, -0.25), (2.25, 0.75))  # type: ignore[union-attr]


def test_several_outputs_are_asked_about() -> None:
    with pytest.raises(ForeignError, match="the model has the outputs loc, scale"):
        read_keras(FILES / "swish_two_outputs.keras")
    with pytest.raises(ForeignError, match="the model has the outputs loc, scale"):
        read_keras(FILES / "swish_two_outputs.keras", "value")
    assert read_keras(FILES / "swish_two_outputs.keras", "mean").ignored
    with pytest.raises(ForeignError, match=r"dense_2 \(Dense\) has activation = gelu"):
        read_keras(FILES / "swish_two_outputs.keras", "scale")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_dtype_policies_are_read_as_float32_and_said(policy: str, tmp_path: Path) -> None:
    import keras

    body = [keras.layers.Dense(8, "tanh", dtype=policy), keras.layers.Dense(2, dtype=policy)]
    found = read_keras(built(tmp_path, keras.Sequential([keras.Input((3,)), *body])))
    assert found.assumed == (f"Layers compute in {policy}; they are read as float32.",)


def test_defaults_of_leaky_relu_as_a_layer_and_as_a_function(tmp_path: Path) -> None:
    import keras
    from keras import layers

    body = [layers.Dense(3), layers.LeakyReLU(), layers.Dense(3, "leaky_relu"), layers.Dense(3, layers.LeakyReLU())]
    steps = read_keras(built(tmp_path, keras.Sequential([keras.Input((3,)), *body]))).steps
    leaky = [step for step in steps if isinstance(step, chain.Activate) and step.activation is Activation.LEAKY_RELU]
    assert [step.negative_slope for step in leaky] == pytest.approx([0.3, 0.2, 0.3])


def test_inverted_and_given_normalisations_and_a_model_inside_the_model(tmp_path: Path) -> None:
    import keras
    from keras import layers

    seen = keras.Input((2,), name="x")
    given = layers.Normalization(mean=[1.0, -2.0], variance=[4.0, 0.0])(seen)
    body = keras.Sequential([layers.Dense(4, "silu"), keras.Sequential([layers.Dense(4, "elu")]), layers.Dense(2)])
    inverted = layers.Normalization(mean=[0.5, 1.0], variance=[9.0, 16.0], invert=True)
    model = keras.Model(seen, inverted(body(given)))
    policy = read_keras(built(tmp_path, model))
    rows = np.random.default_rng(0).normal(1.0, 0.5, (16, 2)).astype(np.float32)
    rows[:, 1] = -2.0 + rows[:, 1] * 1e-7
    wanted = np.asarray(model(rows))
    assert policy.original is not None
    np.testing.assert_allclose(chain.run(policy, rows), wanted, rtol=1e-4)
    np.testing.assert_allclose(policy.original(rows), wanted, rtol=1e-6)


def test_rows_of_two_sides_are_normalised_before_they_are_flattened(tmp_path: Path) -> None:
    import keras
    from keras import layers

    before = [layers.Normalization(mean=[1.0, -2.0], variance=[4.0, 9.0]), layers.Rescaling([0.5, 3.0], [0.0, 1.0])]
    model = keras.Sequential([keras.Input((3, 2)), *before, layers.BatchNormalization(), layers.Flatten()])
    model.add(layers.Dense(2))
    policy = read_keras(built(tmp_path, model))
    rows = np.random.default_rng(0).normal(1.0, 3.0, (16, 6)).astype(np.float32)
    wanted = np.asarray(model(rows.reshape(16, 3, 2)))
    assert policy.inputs == (chain.Input("observation", (6,)),) and policy.original is not None
    np.testing.assert_allclose(chain.run(policy, rows), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.original(rows), wanted, rtol=1e-6)
