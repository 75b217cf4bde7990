"""Recurrent layers: equations worked by hand, what a spec refuses, and what an episode remembers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quarl.policy.errors import SpecError
from quarl.policy.golden import float_tolerance
from quarl.policy.history import History
from quarl.policy.pilot import Pilot, deciding
from quarl.policy.reference import choose_actions, forward_float, forward_integer
from quarl.policy.simulate import Scheme, Widths, calibrate_ranges, forward_simulated, quantize_network, simulate
from quarl.policy.spec import (
    Cell,
    ContinuousHead,
    EnvironmentSpec,
    Memory,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Recurrence,
    Remembered,
    Squash,
    TrainedQuantization,
    weight_shapes,
)
from tests.recurrent_policies import NETWORKS, episodes, recurrent_spec, state_fields, weights_of
from tests.refusals import refused

ONE = PolicySpec(
    name="one",
    observation=(
        ObservationField("x", (1,), "1"),
        *state_fields(NetworkSpec((), recurrences=(Recurrence(Cell.GRU, 1),))),
    ),
    normaliser=Normaliser((0.0,), (1.0,), math.inf),
    network=NetworkSpec((), recurrences=(Recurrence(Cell.GRU, 1),)),
    head=ContinuousHead((-1.0,), (1.0,), Squash.NONE),
    control_period_s=1.0,
    environment=EnvironmentSpec("Test-v0"),
)


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def test_a_gru_of_one_unit_by_hand() -> None:
    # x = 2, h = 0.5;  gates r, z, n.  a = x W + b = (1, −2, 0.5),  c = h U + d = (0.25, 0.5, −1)
    weights = {
        "recurrent_0/kernel": array(0.5, -1.5, 0.25)[None],
        "recurrent_0/bias": array(0.0, 1.0, 0.0),
        "state_0/kernel": array(0.5, 0.0, -4.0)[None],
        "state_0/bias": array(0.0, 0.5, 1.0),
        "head/kernel": array(3.0)[None],
        "head/bias": array(1.0),
    }
    r, z = sigmoid(1.0 + 0.25), sigmoid(-2.0 + 0.5)
    n = math.tanh(0.5 + r * -1.0)
    following = (1 - z) * n + z * 0.5
    result = forward_float(ONE, weights, array(2.0, 0.5))[0]
    np.testing.assert_allclose(result, [3.0 * following + 1.0, following], rtol=1e-6)


def test_an_lstm_of_one_unit_by_hand() -> None:
    # x = 1, h = −0.5, s = 2;  gates i, f, g, o.  sums a + c = (0, 1, −1, 2)
    network = NetworkSpec((), recurrences=(Recurrence(Cell.LSTM, 1),))
    spec = replace(ONE, network=network, observation=(ONE.observation[0], *state_fields(network)))
    weights = {
        "recurrent_0/kernel": array(0.5, 0.5, -1.0, 1.0)[None],
        "recurrent_0/bias": array(0.0, 0.0, 0.0, 0.0),
        "state_0/kernel": array(1.0, -1.0, 0.0, -2.0)[None],
        "state_0/bias": array(0.0, 0.0, 0.0, 0.0),
        "head/kernel": array(1.0)[None],
        "head/bias": array(0.0),
    }
    kept = sigmoid(1.0) * 2.0 + sigmoid(0.0) * math.tanh(-1.0)
    hidden = sigmoid(2.0) * math.tanh(kept)
    result = forward_float(spec, weights, array(1.0, -0.5, 2.0))[0]
    np.testing.assert_allclose(result, [hidden, hidden, kept], rtol=1e-6)


def test_layers_stand_where_they_were_put() -> None:
    assert NETWORKS["three"].hidden_names == (
        *("recurrent_0", "state_0", "recurrent_1", "state_1", "dense_0", "dense_1", "recurrent_2", "state_2"),
    )
    shapes = weight_shapes(recurrent_spec("three"))
    assert shapes["recurrent_0/kernel"] == (7, 24) and shapes["state_0/kernel"] == (8, 24)
    assert shapes["recurrent_1/kernel"] == (8, 24) and shapes["state_1/kernel"] == (6, 24)
    assert shapes["dense_0/kernel"] == (6, 9) and shapes["recurrent_2/kernel"] == (11, 30)
    assert shapes["head/kernel"] == (10, 3)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_spec_is_its_document(name: str) -> None:
    spec = recurrent_spec(name)
    assert PolicySpec.from_json(spec.to_json()) == spec
    assert spec.observation_size == spec.input_size + spec.state_size == 7 + NETWORKS[name].state_size
    assert spec.result_size == 3 + spec.state_size and [field.name for field in spec.step_inputs] == ["sensed"]


@pytest.mark.parametrize(
    "change",
    [
        {"observation": (ObservationField("sensed", (7,), "1"),)},
        {"network": NetworkSpec((24, 20))},
        {"network": NetworkSpec((24, 20), recurrences=(Recurrence(Cell.GRU, 8, 1),))},
    ],
)
def test_states_and_layers_belong_together(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        replace(recurrent_spec("gru"), **change)


def test_states_stand_behind_all_other_fields() -> None:
    spec = recurrent_spec("gru")
    with pytest.raises(SpecError, match="states of"):
        replace(spec, observation=spec.observation[::-1])
    with pytest.raises(SpecError, match="a field"):
        replace(spec, observation=spec.observation[1:], normaliser=Normaliser((0.0,), (1.0,)))
    with pytest.raises(SpecError, match="of state"):
        ObservationField("state_0", (2, 4), "1", memory=Memory(Remembered.STATE, (0.0,) * 4))


def test_quantizers_of_training_are_refused_beside_recurrent_layers() -> None:
    with pytest.raises(SpecError, match="recurrent layers"):
        replace(recurrent_spec("gru"), quantization=TrainedQuantization(8, {"input": (-1.0, 1.0)}))


@pytest.mark.parametrize(
    ("recurrence", "words"),
    [
        ({"units": 0}, "got 0."),
        ({"units": 4096}, "got 4096."),
        ({"units": 4, "behind": 3}, "ascending numbers"),
    ],
)
def test_what_no_recurrent_layer_can_be(recurrence: dict[str, int], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        NetworkSpec((8, 8), recurrences=(Recurrence(Cell.GRU, **recurrence),))
    assert words in str(refused.value)


def test_a_history_gives_each_layer_its_own_state() -> None:
    spec = recurrent_spec("three")
    history = History(spec.observation)
    history.observe(np.zeros(7))
    state = np.arange(30.0)
    history.record_action((), state)
    assert history.observe(np.ones(7)).tolist() == [1.0] * 7 + state.tolist()
    history.reset()
    assert history.observe(np.ones(7)).tolist() == [1.0] * 7 + [0.0] * 30
    with refused(SpecError, "spec", shows=["10"]):
        history.record_action((), state[:-1])
    with refused(SpecError, "extra_state_elements"):
        history.record_action((), np.arange(31.0))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_remembers_what_each_episode_would_alone(name: str) -> None:
    spec = recurrent_spec(name)
    weights, rng = weights_of(spec), np.random.default_rng(3)
    values = rng.standard_normal((12, 3, 7)).astype(np.float32)
    begins = rng.random((12, 3)) < 0.2
    begins[0] = True
    pilot = deciding(spec, lambda rows: forward_float(spec, weights, rows))
    assert isinstance(pilot, Pilot)
    together = []
    for step in range(12):
        pilot.begin(begins[step])
        together.append(pilot(values[step]))
    for drone in range(3):
        history = History(spec.observation)
        for step in range(12):
            if begins[step, drone]:
                history.reset()
            made = forward_float(spec, weights, np.array(history.observe(values[step, drone]), np.float32))
            history.record_action((), made[0, 3:])
            assert choose_actions(spec, made)[0] == together[step][drone]


def test_episodes_that_nobody_began_are_refused() -> None:
    pilot = Pilot(recurrent_spec("gru"), lambda rows: rows)
    with pytest.raises(SpecError, match="values must have"):
        pilot(np.zeros((3, 7), np.float32))


def test_an_unreset_state_is_noticed() -> None:
    """The second episode of a policy that was not told of it differs from the first, with the same observations."""
    spec = recurrent_spec("gru", discrete=False)
    weights = weights_of(spec)
    values = np.random.default_rng(4).standard_normal((8, 1, 7)).astype(np.float32)

    def episode(pilot: Pilot, told: bool) -> np.ndarray:
        if told:
            pilot.begin(np.ones(1, bool))
        return np.concatenate([pilot(row) for row in values])

    pilot = Pilot(spec, lambda rows: forward_float(spec, weights, rows))
    first, again, unreset = episode(pilot, True), episode(pilot, True), episode(pilot, False)
    np.testing.assert_array_equal(first, again)
    assert np.abs(unreset - first)[0].max() > 0.05


@pytest.mark.parametrize("name", NETWORKS)
def test_integers_and_simulation_stay_near_the_floats(name: str) -> None:
    spec = recurrent_spec(name, discrete=False)
    weights = weights_of(spec)
    rows = episodes(spec, weights, 400)
    network = quantize_network(spec, weights, rows[:300])
    wanted, made = forward_float(spec, weights, rows[300:]), forward_integer(spec, network, rows[300:])
    simulated = forward_simulated(spec, simulate(spec, weights, rows[:300], Widths(Scheme.SYMMETRIC, 8, 8)), rows[300:])
    assert made.shape == wanted.shape == (100, spec.result_size)
    span = np.ptp(wanted, axis=0)
    assert (np.abs(made - wanted).mean(axis=0) < 0.03 * span).all()
    assert (np.abs(made - simulated).max(axis=0) < 0.15 * span).all()
    assert (np.abs(made - simulated).mean(axis=0) < 0.01 * span).all()


def test_a_hidden_state_has_a_range_of_its_own() -> None:
    spec = recurrent_spec("gru")
    weights = weights_of(spec)
    rows = episodes(spec, weights, 300)
    ranges = calibrate_ranges(spec, weights, rows)
    following = forward_float(spec, weights, rows)[:, 3:]
    both = np.concatenate([rows[:, 7:], following])
    assert ranges["state_0"] == pytest.approx((both.min(), both.max()), abs=1e-5)
    network = quantize_network(spec, weights, rows)
    (cell,) = (layer.cell for layer in network.layers if layer.cell is not None)
    assert cell.output.scale == 1 / 128 and cell.output.zero_point == 0
    assert {"recurrent_0", "state_0/linear", "dense_0", "dense_1", "input", "head", "state_0"} == ranges.keys()


def test_the_tolerance_covers_another_order_of_sums() -> None:
    spec = recurrent_spec("three")
    weights = weights_of(spec)
    rows = episodes(spec, weights, 200)
    apart = np.abs(forward_float(spec, weights, rows) - forward_float(spec, weights, rows, exact=True))
    tolerance = float_tolerance(spec, weights, rows)
    assert tolerance.shape == (spec.result_size,) and (apart <= tolerance).all() and (tolerance < 1e-4).all()
