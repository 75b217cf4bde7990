"""A recurrent policy on the agent: its state goes on with each period and is reset; one that was not is noticed."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quarl.airlearning_envs.config import preset
from quarl.airlearning_envs.flights import FlightResults, fly
from quarl.device.agent.flights import TimedPilot
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.history import History
from quarl.policy.pilot import Pilot
from quarl.policy.reference import forward_float
from quarl.policy.spec import Cell, NetworkSpec, PolicySpec, Precision, Recurrence
from quarl.train.deciding import reference
from tests.device_agent.conftest import HIDDEN, AgentProcess, add_artifacts, flying_policy, recorded_observations
from tests.recurrent_policies import state_fields

EPISODES, SEED = 60, 11
NETWORK = NetworkSpec((HIDDEN,), recurrences=(Recurrence(Cell.GRU, HIDDEN, 1),))


def lagging_policy() -> tuple[PolicySpec, dict[str, np.ndarray]]:
    """The policy that turns to the goal, which sees it a fraction of a second late: h' = 0.7 tanh(x / 10) + 0.3 h; the
    units that do nothing for it are a random GRU."""
    spec, weights = flying_policy("lagging")
    rng = np.random.default_rng(7)
    spec = replace(spec, network=NETWORK, observation=(*spec.observation, *state_fields(NETWORK)))
    fed = rng.normal(0.0, 0.3, (HIDDEN, 3 * HIDDEN)).astype(np.float32)
    hidden = rng.normal(0.0, 0.3, (HIDDEN, 3 * HIDDEN)).astype(np.float32)
    bias = np.zeros(3 * HIDDEN, np.float32)
    for unit in (0, 1):
        for gate in range(3):
            fed[:, gate * HIDDEN + unit] = hidden[:, gate * HIDDEN + unit] = 0.0
        fed[unit, 2 * HIDDEN + unit] = 0.1
        bias[HIDDEN + unit] = -0.85
    made = {f"dense_0/{part}": weights[f"dense_0/{part}"] for part in ("kernel", "bias")}
    made |= {"recurrent_0/kernel": fed, "recurrent_0/bias": bias}
    made |= {"state_0/kernel": hidden, "state_0/bias": np.zeros(3 * HIDDEN, np.float32)}
    kernel = weights["head/kernel"].copy()
    kernel[:2] *= 10.0
    kernel[2:] = rng.normal(0.0, 0.003, kernel[2:].shape)
    return spec, made | {"head/kernel": kernel, "head/bias": weights["head/bias"]}


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec, weights = lagging_policy()
    history, rows = History(spec.observation), []
    for index, values in enumerate(recorded_observations(400, 0)):
        if index % 50 == 0:
            history.reset()
        rows.append(np.array(history.observe(values), np.float32))
        history.record_action((), forward_float(spec, weights, rows[-1])[0, spec.output_size :])
    path, seen = tmp_path_factory.mktemp("lagging") / "lagging", np.array(rows)
    made = write_bundle(path, spec, weights, seen[:300], seen[300:])
    return add_artifacts(made)


@pytest.fixture(scope="module")
def agent(lagging: Bundle, start_agent: Callable[..., AgentProcess]) -> AgentProcess:
    process = start_agent(lagging.path)
    process.ask("load", precision="fp32", runtime="litert")
    return process


def outputs_of(agent: AgentProcess, values: np.ndarray, starts: set[int]) -> np.ndarray:
    """Outputs (periods, 25) of an episode, period by period."""
    asked = [
        agent.ask("act", period=row.tolist(), start=period in starts)["outputs"] for period, row in enumerate(values)
    ]
    return np.array(asked, np.float32)


def test_the_state_goes_on_from_period_to_period(lagging: Bundle, agent: AgentProcess) -> None:
    spec, weights, history = lagging.spec, lagging.weights(), History(lagging.spec.observation)
    values = recorded_observations(12, 5)
    made = outputs_of(agent, values, {0, 8})
    for period, row in enumerate(values):
        if period in (0, 8):
            history.reset()
        wanted = forward_float(spec, weights, np.array(history.observe(row), np.float32))[0]
        np.testing.assert_allclose(made[period], wanted[:25], atol=1e-5)
        history.record_action((), wanted[25:])


def test_an_unreset_state_is_noticed(agent: AgentProcess) -> None:
    values = recorded_observations(6, 9)
    first, again, unreset = (outputs_of(agent, values, starts) for starts in ({0}, {0}, set()))
    np.testing.assert_array_equal(first, again)
    assert np.abs(unreset - first)[0].max() > 1e-3


def test_whoever_keeps_the_state_gets_the_next_one(lagging: Bundle, agent: AgentProcess) -> None:
    spec, rows = lagging.spec, lagging.golden().observations[:3]
    reply = agent.ask("act", observation=rows[0].tolist())
    wanted = forward_float(spec, lagging.weights(), rows)
    np.testing.assert_allclose(reply["state"], wanted[0, spec.output_size :], atol=1e-5)
    several = agent.ask("act", observations=rows.tolist())
    np.testing.assert_allclose(several["states"], wanted[:, spec.output_size :], atol=1e-5)
    assert "state" not in agent.ask("act", period=rows[0, :32].tolist())


def successes(reply: dict[str, Any]) -> np.ndarray:
    packed = np.frombuffer(base64.b64decode(reply["success_bits"]), np.uint8)
    return np.unpackbits(packed)[: reply["episodes"]].astype(bool)


def fly_on_the_host(bundle: Bundle, precision: Precision = Precision.FP32) -> FlightResults:
    return fly(preset("hard"), reference(bundle, precision), EPISODES, SEED)


def test_flights_on_the_device_are_those_of_the_host(
    lagging: Bundle, agent: AgentProcess, start_agent: Callable[..., AgentProcess]
) -> None:
    host = fly_on_the_host(lagging)
    assert 0.1 < host.success_rate() < 0.7  # both outcomes occur, so that equality says something
    for batch in (1, 16):
        reply = agent.ask("episodes", preset="hard", episodes=EPISODES, seed=SEED, batch=batch)
        assert np.array_equal(successes(reply), host.success) and reply["causes"] == host.causes()
        assert reply["decisions"] == int(host.steps.sum())  # none for a drone whose episodes have ended
    native = start_agent(lagging.path)
    native.ask("load", precision="int8", runtime="native")
    reply = native.ask("episodes", preset="hard", episodes=EPISODES, seed=SEED)
    assert (successes(reply) == fly_on_the_host(lagging, Precision.INT8).success).mean() > 0.9


def test_flights_whose_state_is_never_reset_are_others(lagging: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    told, fewer = fly_on_the_host(lagging), 20
    weights = lagging.weights()
    pilot = Pilot(lagging.spec, lambda rows: forward_float(lagging.spec, weights, rows))
    begun = pilot.begin
    monkeypatch.setattr(pilot, "begin", lambda mask: begun(mask) if mask.all() else None)  # all at first, then none
    kept = fly(preset("hard"), pilot, EPISODES, SEED, batch=fewer)
    np.testing.assert_array_equal(kept.steps[:fewer], told.steps[:fewer])  # the first ones began afresh
    assert (kept.steps != told.steps)[fewer:].any()


def test_a_timed_pilot_decides_for_drones_that_fly(lagging: Bundle) -> None:
    class Counting:
        decided = 0

        def decide(self, observation: np.ndarray) -> int:
            self.decided += 1
            return 3

        def state(self) -> np.ndarray:
            return np.full(HIDDEN, self.decided, np.float32)

    class Serving:
        bundle, executor = lagging, Counting()

        def finite_outputs(self, where: str) -> None: ...

    pilot = TimedPilot(Serving())  # type: ignore[arg-type]
    pilot.begin(np.ones(3, bool))
    pilot(np.zeros((3, 32), np.float32))
    pilot.end(np.array([False, True, False]))
    assert pilot(np.zeros((3, 32), np.float32)).tolist() == [3, 3, 3] and pilot.decisions == 5
