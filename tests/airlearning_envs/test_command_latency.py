"""Command latency: the old command is held until the new one arrives."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.latency import CommandLatency, CommandQueue, LatencyKind
from quarl.airlearning_envs.simulators.embedded.dynamics import CallsInForce, Flight, Integrator
from quarl.airlearning_envs.simulators.simulator import Call
from quarl.airlearning_envs.task import NavigationTask

PERIOD = 0.25
STEPS_S = np.arange(1, 6).astype(np.float32) * np.float32(0.05)
EMPTY = NavigationConfig(static_obstacles=(0, 0), moving_obstacles=(0, 0), arena_m=100.0)


class Followed:
    """What one drone follows when commands come late: the queue's calls, followed without a delay of their own."""

    def __init__(self, longest_s: float) -> None:
        self.queue = CommandQueue(1, longest_s, PERIOD)
        self.queue.clear(np.array([0]))
        flight = Flight.hovering(EMPTY, 1)
        flight.constants[-1] = 0.0
        self.in_force = CallsInForce(Integrator(flight, float(STEPS_S[0])), STEPS_S)


def queue_for(longest: float) -> Followed:
    return Followed(longest)


def push(followed: Followed, value: float, latency: float) -> list[float]:
    """Push a forward command and return the forward command in force in each of five steps."""
    followed.queue.push(np.array([[value], [0.0], [0.0]], np.float32), np.array([latency], np.float32))
    followed.in_force.begin([Call(command, at_s) for command, at_s in followed.queue.arriving()])
    return [float(followed.in_force.goal(k)[0, 0]) for k in range(5)]


def test_latency_of_whole_and_broken_steps() -> None:
    queue = queue_for(0.25)
    assert push(queue, 4.0, 0.10) == pytest.approx([0, 0, 4, 4, 4], abs=1e-5)
    # 0.125 s: half of the third step is still the old command: (4 + 2) / 2 = 3.
    assert push(queue, 2.0, 0.125) == pytest.approx([4, 4, 3, 2, 2], abs=1e-5)
    # 11 ms of 50: 0.22 * 2 + 0.78 * 1 = 1.22.
    assert push(queue, 1.0, 0.011) == pytest.approx([1.22, 1, 1, 1, 1], abs=1e-5)
    assert push(queue, 3.0, 0.25) == pytest.approx([1, 1, 1, 1, 1], abs=1e-5)
    assert push(queue, 5.0, 0.0) == pytest.approx([5, 5, 5, 5, 5], abs=1e-5)


def test_latency_longer_than_the_period() -> None:
    queue = queue_for(0.6)
    assert push(queue, 1.0, 0.6) == pytest.approx([0] * 5, abs=1e-5)
    assert push(queue, 2.0, 0.6) == pytest.approx([0] * 5, abs=1e-5)
    assert push(queue, 3.0, 0.6) == pytest.approx([0, 0, 1, 1, 1], abs=1e-5)  # 0.6 s is 2 periods and 0.1 s
    assert push(queue, 4.0, 0.6) == pytest.approx([1, 1, 2, 2, 2], abs=1e-5)


def test_a_command_overtaken_by_a_newer_one_is_dropped() -> None:
    queue = queue_for(0.6)
    push(queue, 1.0, 0.6)  # would arrive at 0.60
    assert push(queue, 2.0, 0.1) == pytest.approx([0, 0, 2, 2, 2], abs=1e-5)  # arrives at 0.35
    assert push(queue, 3.0, 0.5) == pytest.approx([2] * 5, abs=1e-5)  # at 0.60 the old one must not come back
    assert push(queue, 4.0, 0.5) == pytest.approx([2] * 5, abs=1e-5)


def test_random_latencies_against_an_event_by_event_account() -> None:
    generator = np.random.default_rng(8)
    periods, fine = 60, 1000
    values, latencies = generator.uniform(-3, 5, periods), generator.uniform(0.0, 0.9, periods)
    queue = queue_for(0.9)
    got = np.concatenate([push(queue, v, s) for v, s in zip(values, latencies, strict=True)])
    # The newest command that has arrived is in force, on a grid of 0.25 ms; averaged over each step.
    moments = (np.arange(periods * fine) + 0.5) * PERIOD / fine
    in_force = np.zeros(len(moments))
    for k in range(periods):  # later decided commands overwrite
        in_force[moments >= k * PERIOD + latencies[k]] = values[k]
    wanted = in_force.reshape(-1, fine // 5).mean(axis=1)
    np.testing.assert_allclose(got, wanted, atol=0.05)


def fly_straight(latency: object, actions: list[int]) -> np.ndarray:
    """Forward speed after each decision."""
    core = NavigationTask(EMPTY.with_settings({"latency": latency}), 1)
    core.reset(np.array([0]), seed=1)
    return np.array([core.step(np.array([a])).observation[0, 26] for a in actions])


def test_one_period_of_latency_is_the_same_flight_one_period_later() -> None:
    actions = [0, 0, 3, 11, 0, 0, 4, 0]
    late, prompt = fly_straight(0.25, actions), fly_straight(None, actions)
    assert late[0] == 0.0
    np.testing.assert_allclose(late[1:], prompt[:-1], atol=1e-5)
    much_later = fly_straight(0.75, actions)
    np.testing.assert_allclose(much_later[3:], prompt[:-3], atol=1e-5)


def test_no_latency_and_a_latency_of_almost_nothing_agree() -> None:
    actions = [0, 5, 15, 0, 10]
    np.testing.assert_allclose(fly_straight(1e-6, actions), fly_straight(None, actions), atol=1e-4)


def test_distributions() -> None:
    uniform = np.linspace(0.0, 1.0, 1000, endpoint=False, dtype=np.float32)
    normal = np.linspace(-6.0, 6.0, 1000, dtype=np.float32)

    def draw(kind: LatencyKind, *values: float) -> np.ndarray:
        return CommandLatency(kind, values).draw(uniform, normal)

    assert (draw(LatencyKind.FIXED, 0.2) == np.float32(0.2)).all()
    spread = draw(LatencyKind.UNIFORM, 0.1, 0.3)
    assert spread.min() >= 0.1 and spread.max() <= 0.3 and spread.mean() == pytest.approx(0.2, abs=1e-3)
    bell = draw(LatencyKind.NORMAL, 0.2, 0.1)
    assert bell.min() == 0.0 and bell.max() == pytest.approx(0.6)  # cut at 0 and at mean + 4 deviations
    samples = draw(LatencyKind.EMPIRICAL, 0.01, 0.02, 0.4)
    values, counts = np.unique(samples, return_counts=True)
    assert values == pytest.approx([0.01, 0.02, 0.4]) and counts.max() - counts.min() <= 2


def test_the_latency_of_a_command_does_not_depend_on_the_batch() -> None:
    config = EMPTY.with_settings({"latency": {"kind": "uniform", "values_s": [0.0, 0.5]}})
    many, one = NavigationTask(config, 5), NavigationTask(config, 1)
    many.reset(np.arange(5), seed=2)
    one.reset(np.array([3]), seed=2)
    for action in (0, 6, 16, 2, 12, 0):
        a, b = many.step(np.full(5, action)), one.step(np.array([action]))
        assert np.array_equal(a.observation[3], b.observation[0])
    assert not np.array_equal(many.simulator.motion.velocity[:, 0], many.simulator.motion.velocity[:, 3])


def test_a_latency_of_an_episode_is_the_same_for_all_its_commands() -> None:
    latency = {"kind": "uniform", "values_s": [0.0, 0.6], "drawn_for": "episode"}
    config = EMPTY.with_settings({"latency": latency})
    assert config.to_settings()["latency"] == latency
    task = NavigationTask(config, 200)
    task.reset(np.arange(200), seed=3)
    arrivals = []
    for _ in range(4):
        task.step(np.zeros(200, np.int64))
        arrivals.append(task._queue._arrivals[-1].copy())  # type: ignore[union-attr]
    assert all(np.array_equal(arrivals[0], later) for later in arrivals[1:])
    assert arrivals[0].std() > 0.1 and arrivals[0].max() <= 0.6
    alone = NavigationTask(config.with_settings({"latency": float(arrivals[0][7])}), 1)
    alone.reset(np.array([7]), seed=3)
    for _ in range(4):
        step = alone.step(np.zeros(1, np.int64))
    assert step.observation[0] == pytest.approx(task.observe()[7], abs=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        "soon",
        {"kind": "poisson", "values_s": [1]},
        {"kind": "uniform", "values_s": [0.2, 0.1]},
        {"kind": "fixed", "values_s": [-0.1]},
        {"kind": "empirical", "values_s": []},
        {"kind": "normal", "values_s": [0.1]},
        {"kind": "fixed", "values_s": [float("nan")]},
        {"values_s": [0.1]},
        {"kind": "fixed", "values_s": [0.1], "drawn_for": "day"},
    ],
)
def test_wrong_latencies_are_refused(wrong: object) -> None:
    with pytest.raises(SettingsError, match="latency"):
        NavigationConfig().with_settings({"latency": wrong})
