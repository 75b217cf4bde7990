"""Flights on the device: the same successes as on the host."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.airlearning_envs.config import preset
from quarl.airlearning_envs.flights import FlightResults, depth_observation, fly, wilson_interval
from quarl.airlearning_envs.rules import ACTION_NAMES, depth_fields
from quarl.airlearning_envs.task import CONTROL_PERIOD_S, NavigationTask
from quarl.device.agent.flights import TimedPilot
from quarl.device.agent.serving import check_simulator
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.errors import SpecError
from quarl.policy.reference import choose_actions, forward_float
from quarl.policy.spec import (
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    PolicySpec,
    RuntimeName,
    weight_shapes,
)

EPISODES, SEED = 150, 11


def fly_on_the_host(bundle: Bundle, name: str, **settings: Any) -> FlightResults:
    weights = bundle.weights()

    def decide(observations: np.ndarray) -> np.ndarray:
        return choose_actions(bundle.spec, forward_float(bundle.spec, weights, observations))

    return fly(preset(name).with_settings(settings), decide, EPISODES, SEED)


def successes(reply: dict[str, Any]) -> np.ndarray:
    packed = np.frombuffer(base64.b64decode(reply["success_bits"]), np.uint8)
    return np.unpackbits(packed)[: reply["episodes"]].astype(bool)


@pytest.fixture(scope="module")
def agent(pilot: Bundle, start_agent: Callable[..., Any]) -> Any:
    """An agent that serves the float policy in LiteRT."""
    process = start_agent(pilot.path)
    process.ask("load", precision="fp32", runtime="litert")
    return process


@pytest.mark.parametrize("runtime", [name.value for name in RuntimeName])
def test_every_runtime_flies_as_the_numpy_reference_does(
    runtime: str, pilot: Bundle, start_agent: Callable[..., Any]
) -> None:
    agent = start_agent(pilot.path)
    agent.ask("load", precision="fp32", runtime=runtime)
    reply = agent.ask("episodes", preset="hard", episodes=EPISODES, seed=SEED)
    host = fly_on_the_host(pilot, "hard")
    assert 0.2 < host.success_rate() < 0.6  # both outcomes occur, so that equality says something
    assert np.array_equal(successes(reply), host.success)
    assert reply["causes"] == host.causes()
    assert reply["task"] == preset("hard").digest()
    assert reply["success"]["count"] == int(host.success.sum())
    assert reply["success"]["interval"] == list(wilson_interval(reply["success"]["count"], EPISODES))
    assert reply["mean"]["flight_time_s"] == pytest.approx(float(host.flight_time_s.mean()), rel=1e-5)
    assert reply["mean_of_successes"]["distance_m"] == pytest.approx(float(host.distance_m[host.success].mean()), 1e-5)
    assert reply["mean"]["return"] == pytest.approx(float(host.episode_return.mean()), rel=1e-4)
    assert reply["decision_ns"]["runs"] == reply["decisions"] >= int(host.steps.sum())


def test_a_command_latency_is_flown(agent: Any, pilot: Bundle) -> None:
    latency = {"latency": {"kind": "fixed", "values_s": [0.4]}}
    reply = agent.ask("episodes", episodes=EPISODES, seed=SEED, settings=latency)
    assert reply["settings"] == latency and reply["task"] == preset("hard").digest()
    assert np.array_equal(successes(reply), fly_on_the_host(pilot, "hard", **latency).success)
    assert not np.array_equal(successes(reply), fly_on_the_host(pilot, "hard").success)


def test_the_batch_changes_no_result(agent: Any) -> None:
    replies = [agent.ask("episodes", episodes=20, seed=3, batch=batch) for batch in (1, 7, 64)]
    assert len({reply["success_bits"] for reply in replies}) == 1
    assert len({reply["mean"]["energy_j"] for reply in replies}) == 1


def test_progress_precedes_the_reply(agent: Any) -> None:
    agent.progress.clear()
    agent.ask("episodes", episodes=40)
    assert agent.progress and agent.progress[0]["op"] == "episodes" and agent.progress[0]["total"] == 40
    assert [p["done"] for p in agent.progress] == sorted(p["done"] for p in agent.progress)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"preset": "moon"}, "bad_field", "easy, medium, shipped, hard"),
        ({"settings": {"wind": 3}}, "bad_field", "'wind'"),
        ({"settings": {"wind_m_s": 1e300}}, "bad_field", "wind_m_s"),
        ({"settings": {"wind_m_s": "strong"}}, "bad_field", "wind_m_s"),
        ({"settings": {"latency": {"kind": "fixed", "values_s": [-1]}}}, "bad_field", "latency"),
        ({"settings": {"latency": [[]]}}, "bad_field", "latency"),
        ({"settings": {"static_obstacles": [{}, 1]}}, "bad_field", "static_obstacles"),
        ({"settings": {"ray_count": 10}}, "spec", "'ranges' of shape (10,)"),
        ({"episodes": 0}, "bad_field", "from 1"),
        ({"batch": 100000}, "bad_field", "from 1 to 4096"),
        ({"seed": 2**63}, "bad_field", "seed"),
    ],
)
def test_wrong_flights_are_refused(agent: Any, fields: dict[str, Any], code: str, message: str) -> None:
    reply = agent.request("episodes", **{"episodes": 2, **fields})
    assert reply["ok"] is False and reply["error"]["code"] == code and message in reply["error"]["message"]


def test_the_largest_seed_is_flown(agent: Any) -> None:
    assert agent.ask("episodes", episodes=2, seed=2**63 - 1)["episodes"] == 2


def test_a_continuous_policy_flies(gliding: Bundle, start_agent: Callable[..., Any]) -> None:
    agent = start_agent(gliding.path)
    agent.ask("load", precision="fp32")
    reply = agent.ask("episodes", episodes=EPISODES, seed=SEED)
    # Near the end of a long flight a float32 rounding may have grown, so not every episode has to end alike.
    assert (successes(reply) == fly_on_the_host(gliding, "hard").success).mean() > 0.98


def test_a_policy_of_depth_pictures_flies(
    tmp_path: Path, start_agent: Callable[..., Any], make_artifacts: Callable[[Bundle], Bundle]
) -> None:
    config, random = preset("hard"), np.random.default_rng(4)
    fields = depth_fields(config)
    scale = (20.0,) * fields[0].size + (1.0, 20.0) + (5.0,) * 6
    spec = PolicySpec(
        name="seeing",
        observation=fields,
        normaliser=Normaliser((0.0,) * len(scale), scale),
        network=NetworkSpec((8,), convolutions=(Convolution(4, 8, 8), Convolution(4, 3, 2))),
        head=DiscreteHead(ACTION_NAMES),
        control_period_s=CONTROL_PERIOD_S,
        environment=EnvironmentSpec("AirLearning/NavigationDepth-v0", {"preset": "hard"}),
    )
    weights = {
        name: random.normal(0.0, 1.0 / np.sqrt(np.prod(shape[:-1]) or 1), shape).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }
    core = NavigationTask(config, 60)
    seen = depth_observation(core, core.reset(np.arange(60), 1))
    bundle = make_artifacts(write_bundle(tmp_path / "seeing", spec, weights, seen[:40], seen[40:]))
    agent = start_agent(bundle.path)
    agent.ask("load", precision="fp32")
    reply = agent.ask("episodes", episodes=6, seed=SEED, batch=3)

    def decide(observations: np.ndarray) -> np.ndarray:
        return choose_actions(spec, forward_float(spec, weights, observations))

    host = fly(config, decide, 6, SEED, observe=depth_observation)
    assert successes(reply).tolist() == host.success.tolist() and reply["causes"] == host.causes()
    assert reply["mean"]["distance_m"] == pytest.approx(float(host.distance_m.mean()), rel=1e-3)
    wrong = replace(spec, observation=(replace(fields[0], unit="mm"), *fields[1:]))
    with pytest.raises(SpecError, match="'depth' of shape"):
        check_simulator(wrong)


def test_a_drone_whose_episodes_have_ended_is_not_decided_again(pilot: Bundle) -> None:
    class Executor:
        calls = 0

        def decide(self, observation: np.ndarray) -> int:
            self.calls += 1
            return int(observation[0, 0])

        def state(self) -> np.ndarray:
            return np.zeros(0, np.float32)

    class Serving:
        executor, bundle = Executor(), pilot

        def finite_outputs(self, where: str) -> list[float]:
            return []

    timed = TimedPilot(Serving())  # type: ignore[arg-type]
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], np.float32)
    timed.begin(np.ones(3, bool))
    assert timed(rows).tolist() == [1, 2, 3] and Serving.executor.calls == 3
    timed.end(np.array([True, False, True]))
    rows[:] = 9.0
    assert timed(rows).tolist() == [1, 9, 3] and Serving.executor.calls == 4
    assert timed.decisions == len(timed.times_ns) == 4
