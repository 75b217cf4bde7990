"""Recurrent policies of other programs: their states are fields, and what is proved is proved over sequences."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert.importers import chain, registry
from quarl.convert.importers.__main__ import main
from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Continuous,
    Dense,
    ForeignError,
    ForeignPolicy,
    Input,
    LayerNorm,
    Recurrent,
    state_inputs,
)
from quarl.convert.importers.fold import Folded, fold
from quarl.convert.importers.proof import prove
from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float
from quarl.policy.spec import Activation, Cell, EnvironmentSpec, PolicySpec, Recurrence, Remembered
from tests.convert.conftest import Capture
from tests.convert.importers.test_sb3 import changed, keywords
from tests.refusals import refused

FILES = Path(__file__).parent / "files"
CART = FILES / "sb3/recurrent_cartpole"
OBSERVED, UNITS = 4, 6
ONE = np.ones(1)
TANH = Activate(Activation.TANH)


def cell(kind: Cell, inputs: int, units: int = UNITS, seed: int = 3) -> Recurrent:
    random, gates = np.random.default_rng(seed), Recurrence(kind, units).gate_size
    shapes = (inputs, gates), (gates,), (units, gates), (gates,)
    return Recurrent(kind, *(random.normal(0.0, 0.6, shape).astype(np.float32) for shape in shapes))


def dense(inputs: int, outputs: int, seed: int = 4) -> Dense:
    random = np.random.default_rng(seed)
    kernel, bias = random.normal(0.0, 0.7, (inputs, outputs)), random.normal(0.0, 0.3, outputs)
    return Dense(kernel.astype(np.float32), bias.astype(np.float32))


def policy_of(*steps: chain.Step) -> ForeignPolicy:
    return ForeignPolicy("by hand", state_inputs(steps, (Input("sensed", (OBSERVED,)),)), steps, Continuous())


def rows_of(policy: ForeignPolicy, count: int = 48) -> np.ndarray:
    size = sum(int(np.prod(part.shape)) for part in policy.inputs)
    return np.random.default_rng(5).normal(0.2, 0.8, (count, size)).astype(np.float32)


def spec_of(folded: Folded) -> PolicySpec:
    parts = {name: getattr(folded, name) for name in ("observation", "normaliser", "network", "head")}
    return PolicySpec(name="folded", control_period_s=0.02, environment=EnvironmentSpec("foreign"), **parts)


SCALE = Affine(np.array([2.0, -0.5, 1.0, 3.0]), np.array([0.1, 0.2, -0.3, 0.0]))
BETWEEN = Affine(np.linspace(0.5, 2.0, UNITS), np.linspace(-1.0, 1.0, UNITS))
CHAINS: dict[str, tuple[chain.Step, ...]] = {
    "a GRU behind a normaliser": (SCALE, Clip(-ONE, ONE), cell(Cell.GRU, OBSERVED), dense(UNITS, 3)),
    "an LSTM without one": (cell(Cell.LSTM, OBSERVED), dense(UNITS, 3)),
    "two of them, a map between": (
        *(cell(Cell.LSTM, OBSERVED), BETWEEN, cell(Cell.GRU, UNITS, 5), dense(5, 8), TANH, dense(8, 3)),
        Affine(2 * np.ones(3), np.ones(3)),
    ),
    "behind dense layers": (dense(OBSERVED, 8), TANH, cell(Cell.GRU, 8), BETWEEN, dense(UNITS, 3), TANH),
    "behind one without an activation": (dense(OBSERVED, 2), cell(Cell.GRU, 2), dense(UNITS, 3)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_whatever_is_folded_computes_outputs_and_next_states(name: str) -> None:
    policy = policy_of(*CHAINS[name])
    rows = rows_of(policy)
    folded = fold(policy, rows)
    spec = spec_of(folded)
    assert [field.memory is not None and field.memory.of is Remembered.STATE for field in spec.observation[1:]]
    np.testing.assert_allclose(forward_float(spec, folded.weights, rows), chain.run(policy, rows), atol=2e-6)
    proof = prove(policy, spec, folded.weights, rows)
    assert proof.flown is not None and proof.near < 1e-5


def exchanged(step: chain.Step, order: tuple[int, ...]) -> chain.Step:
    """A recurrent layer with its gates in another order."""
    if not isinstance(step, Recurrent):
        return step
    places = np.arange(step.kernel.shape[1]).reshape(len(order), -1)[list(order)].reshape(-1)
    kernels = [kernel[..., places] for kernel in (step.kernel, step.bias, step.state_kernel, step.state_bias)]
    return Recurrent(step.cell, *kernels)


@pytest.mark.parametrize(
    ("kind", "order"), [(Cell.GRU, (1, 0, 2)), (Cell.LSTM, (0, 3, 1, 2)), (Cell.LSTM, (1, 0, 2, 3))]
)
def test_gates_in_another_order_are_refused(kind: Cell, order: tuple[int, ...]) -> None:
    policy = policy_of(cell(kind, OBSERVED), dense(UNITS, 3))
    misread = policy_of(*(exchanged(step, order) for step in policy.steps))
    rows = rows_of(policy)
    folded = fold(misread, rows)
    with refused(ForeignError, "not_reproduced"):
        prove(policy, spec_of(folded), folded.weights, rows)


def test_a_state_that_is_not_fed_back_is_refused() -> None:
    policy = policy_of(cell(Cell.GRU, OBSERVED), dense(UNITS, 3))
    rows = rows_of(policy)
    folded = fold(policy, rows)

    def forgetful(observations: np.ndarray) -> np.ndarray:
        """It agrees in each period that begins with the state it was given, and hands the wrong one on."""
        made = chain.run(policy, observations)
        if len(observations) == 1:
            made[:, 3:] = 0.0
        return made.astype(np.float32)

    with refused(ForeignError, "state_not_reproduced"):
        prove(replace(policy, original=forgetful), spec_of(folded), folded.weights, rows)


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (TANH, "the activation tanh"),
        (Clip(-ONE, ONE), "a clip between layers"),
        (LayerNorm(np.ones(UNITS, np.float32), np.zeros(UNITS, np.float32), 1e-5), "normalisation must stand"),
    ],
)
def test_what_cannot_follow_a_recurrent_layer_is_refused_by_name(between: chain.Step, message: str) -> None:
    policy = policy_of(cell(Cell.LSTM, OBSERVED), between, dense(UNITS, 3))
    with pytest.raises(ForeignError, match=message):
        fold(policy, rows_of(policy))


def recorded(folder: Path, **changes: np.ndarray) -> Path:
    with np.load(CART / "golden.npz") as golden:
        arrays = {name: golden[name] for name in ("observations", "outputs", "episode_starts")}
    np.savez(folder / "pairs.npz", **{**arrays, **changes})
    return folder / "pairs.npz"


def imported(file: Path, pairs: Path, folder: Path) -> int:
    words = [str(file), "--observations", str(pairs), "--golden", str(pairs), "--period", "0.02", "--name", "imported"]
    return main([*words, "--output-path", str(folder / "imported")])


def test_pairs_of_episodes_with_another_beginning_are_refused(tmp_path: Path, capsys: Capture) -> None:
    for starts, code in ((np.arange(32) % 11 == 0, 0), (np.zeros(32, bool), 1), (np.ones(32, bool), 1)):
        folder = tmp_path / str(starts.sum())
        folder.mkdir()
        assert imported(CART / "policy.zip", recorded(folder, episode_starts=starts), folder) == code
    assert "(on the given pairs)" in capsys.readouterr().err
    assert imported(CART / "policy.zip", recorded(tmp_path, episode_starts=np.zeros(3)), tmp_path) == 1
    assert "'episode_starts'" in capsys.readouterr().err


def test_whole_observations_may_be_recorded_too(tmp_path: Path) -> None:
    policy = registry.read(CART / "policy.zip")
    rows = np.random.default_rng(1).normal(0.0, 0.5, (64, 4 + 24)).astype(np.float32)
    pairs = tmp_path / "pairs.npz"
    np.savez(pairs, observations=rows, outputs=chain.run(policy, rows)[:, :2])
    assert imported(CART / "policy.zip", pairs, tmp_path) == 0


def test_it_flies_a_task_with_its_memory(tmp_path: Path, capsys: Capture) -> None:
    words = [str(CART / "policy.zip"), "--task", "cartpole", "--name", "balance", "--episodes", "3", "--json"]
    assert main([*words, "--output-path", str(tmp_path / "balance")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["returns"]["fp32"]["minus_original"] == 0.0 and answer["proof"]["flown"] is not None
    bundle = Bundle.load(tmp_path / "balance")
    assert [field.name for field in bundle.spec.observation][-2:] == ["pole_angular_velocity", "state_0"]
    assert bundle.spec.network.recurrences == (Recurrence(Cell.LSTM, 12),)
    states = bundle.golden().observations[:, 4:]
    assert np.abs(states).max() > 0.1  # recorded while it flew, each with its own


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lstm_hidden_size": 8, "net_arch": [8]}, "inputs and 12"),
        ({"lstm_hidden_size": 2000}, "LSTM layers of"),
        ({"lstm_hidden_size": 12, "n_lstm_layers": 2, "net_arch": [8]}, "no tensor lstm_actor.weight_ih_l1"),
        ({"lstm_hidden_size": 12, "net_arch": [8], "lstm_kwargs": {"proj_size": 3}}, "proj_size"),
        ({"lstm_hidden_size": 12, "net_arch": [8], "gru": 3}, "gru"),
    ],
)
def test_an_lstm_that_is_not_what_the_zip_says_is_refused(
    given: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ForeignError, match=message) as caught:
        registry.read(changed(tmp_path, "recurrent_cartpole", {"policy_kwargs": given}))
    assert caught.value.next_step


def test_an_lstm_of_an_image_is_refused(tmp_path: Path) -> None:
    extractor = keywords("features_extractor_class", b"cstable_baselines3.common.torch_layers\nNatureCNN\n")
    with pytest.raises(ForeignError, match="space must be"):
        registry.read(changed(tmp_path, "recurrent_cartpole", {"policy_kwargs": extractor}))
