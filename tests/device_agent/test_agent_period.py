"""A policy that remembers, fed period by period: the agent keeps what came before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.history import History
from quarl.policy.reference import forward_float
from quarl.policy.spec import (
    ContinuousHead,
    EnvironmentSpec,
    Memory,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Remembered,
    Squash,
    weight_shapes,
)
from tests.device_agent.conftest import AgentProcess, add_artifacts

SPEC = PolicySpec(
    name="remembering",
    observation=(
        ObservationField("goal", (2,), "m"),
        ObservationField("joints", (3, 2), "rad", ("hip", "knee"), Memory(Remembered.OBSERVATION, (0.5, -0.5))),
        ObservationField("previous_action", (1, 2), "rad", (), Memory(Remembered.ACTION, (0.1, 0.2))),
    ),
    normaliser=Normaliser((0.0,) * 10, (2.0,) * 10),
    network=NetworkSpec((12,)),
    head=ContinuousHead((-1.0, -1.0), (1.0, 1.0), Squash.TANH),
    control_period_s=0.02,
    environment=EnvironmentSpec("Test-v0"),
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    rng = np.random.default_rng(2)
    weights = {name: rng.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in weight_shapes(SPEC).items()}
    rows = rng.normal(0.0, 1.0, (120, SPEC.observation_size)).astype(np.float32)
    made = write_bundle(tmp_path_factory.mktemp("remembering") / "remembering", SPEC, weights, rows[:80], rows[80:])
    return add_artifacts(made)


@pytest.fixture(scope="module")
def agent(bundle: Bundle) -> Iterator[AgentProcess]:
    process = AgentProcess(bundle.path)
    process.ask("load", precision="fp32")
    yield process
    process.end()


def test_periods_are_the_observations_that_a_history_makes(bundle: Bundle, agent: AgentProcess) -> None:
    weights, history = bundle.weights(), History(SPEC.observation)
    values = np.random.default_rng(5).normal(0.0, 1.0, (12, 4)).astype(np.float32)
    for period, row in enumerate(values):
        if period in (0, 8):  # an episode begins
            history.reset()
        observation = np.array(history.observe(row))
        action = agent.ask("act", period=row.tolist(), start=period in (0, 8))["action"]
        np.testing.assert_allclose(action, forward_float(SPEC, weights, observation)[0], atol=1e-6)
        assert agent.ask("act", observation=observation.tolist())["action"] == action  # which it does not remember
        history.record_action(np.array(action))


def test_the_first_period_sees_what_stands_in_for_those_before() -> None:
    wanted = [1.0, 2.0, 0.5, -0.5, 0.5, -0.5, 3.0, 4.0, 0.1, 0.2]
    observed = History(SPEC.observation).observe(np.array([1.0, 2.0, 3.0, 4.0]))
    assert observed.tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"period": [1.0] * 10}, "takes 4 numbers of each: goal (2), joints (2)"),
        ({"period": [1.0, 2.0, 3.0, "x"]}, 'period[3] is "x"'),
        ({"period": [1.0, 2.0, 3.0, 1e39]}, "period[3]"),
        ({"period": [1.0] * 4, "observation": [1.0] * 10}, "act takes one of"),
        ({}, "act takes one of"),
        ({"period": [1.0] * 4, "start": 1}, "start"),
    ],
)
def test_a_period_that_is_none_is_refused(agent: AgentProcess, fields: dict[str, object], words: str) -> None:
    before = agent.ask("act", period=[0.0] * 4, start=True)["action"]
    reply = agent.request("act", **fields)
    assert not reply["ok"] and words in reply["error"]["message"]
    assert agent.ask("act", period=[0.0] * 4, start=True)["action"] == before
