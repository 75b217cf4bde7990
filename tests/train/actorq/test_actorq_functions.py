"""Exploration of both algorithms, importance ratios, settings and the plan: by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policy.spec import NetworkSpec, Precision
from tests.train.actorq.small_plans import make_plan
from train.actorq.actor import PARTS
from train.actorq.algorithms import (
    Algorithm,
    Explorer,
    epsilon_greedy_probabilities,
    make_explorer,
    settings_of,
    truncated_ratios,
)
from train.actorq.learner import mismatch
from train.actorq.report import breakdown
from train.actorq.settings import ActorQSettings, Plan
from train.actorq.stepping import UNCOUNTED
from train.runs.checkpoint import Checkpoint, CheckpointError, flattened
from train.suites.make import make_task

# --- importance ratios ----------------------------------------------------------------------------------------------


def test_epsilon_greedy_probabilities_by_hand() -> None:
    values = np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [5.0, 0.0, 5.0], [0.0, 1.0, 2.0]], np.float32)
    actions = np.array([1, 0, 0, 1], np.int32)
    epsilon = np.array([0.3, 0.3, 0.0, 1.0], np.float32)
    # 0.3 / 3 + 0.7;  0.3 / 3;  of two equally good ones the first is taken, surely;  ε = 1: all alike
    expected = [0.8, 0.1, 1.0, 1 / 3]
    np.testing.assert_allclose(epsilon_greedy_probabilities(values, actions, epsilon), expected, rtol=1e-6)


def test_truncated_ratios_by_hand() -> None:
    learner = np.array([[0.9, 0.1], [0.2, 0.9], [0.1, 0.1], [0.5, 0.3]], np.float32)
    actor = np.array([[0.1, 0.2], [0.8, 0.9], [0.8, 0.4], [0.0, 0.6]], np.float32)
    counted = np.array([[True, True], [True, True], [False, False], [False, True]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # where nothing is counted, nothing is divided by
        ratios = truncated_ratios(learner, actor, counted)
    # min(1, 9) · ½;  ¼ · 1;  nothing counts;  only ½ counts
    np.testing.assert_allclose(ratios, [0.5, 0.25, 1.0, 0.5], rtol=1e-6)
    assert ratios.dtype == np.float32


def test_a_learner_that_would_act_the_same_changes_no_weight() -> None:
    probabilities = np.random.default_rng(0).uniform(0.01, 1.0, (50, 4)).astype(np.float32)
    np.testing.assert_array_equal(truncated_ratios(probabilities, probabilities, np.ones((50, 4), np.bool_)), 1.0)


def test_mismatch_by_hand() -> None:
    assert mismatch(np.array([0, 1, 2, 1]), np.array([0, 1, 1, 0])) == {"disagreement": 0.5}
    learner, actors = np.array([[0.5, -1.0], [0.0, 0.25]]), np.array([[0.25, -1.0], [-0.5, 0.5]])
    assert mismatch(learner, actors) == {"distance": pytest.approx((0.25 + 0 + 0.5 + 0.25) / 4)}


# --- exploration ----------------------------------------------------------------------------------------------------


class Scripted:
    """A random generator that says what it is told: chances, then actions and durations in turn."""

    def __init__(self, chances: list[float], actions: list[int], durations: list[int]) -> None:
        self.chances, self.actions, self.durations = iter(chances), iter(actions), iter(durations)

    def random(self, size: int) -> np.ndarray:
        return np.array([next(self.chances)])

    def integers(self, low: int, high: int | None = None, size: int | None = None) -> np.ndarray:
        return np.array([next(self.actions if high is None else self.durations)])


def explorer(generator: Any, **settings: Any) -> Explorer:
    plan = make_plan(algorithm={"epsilon_first": 0.5, "epsilon_last": 0.5, **settings})
    return make_explorer(plan, make_task("CartPole-v1"), generator)


VALUES = np.array([0.0, 1.0], np.float32)  # action 1 is the best


def test_plain_random_actions_carry_their_probability() -> None:
    explore = explorer(Scripted([0.9, 0.1, 0.1], [0, 0, 1], []))
    chosen = [explore.choose(1, VALUES, 0.5) for _ in range(3)]
    assert [(choice.action, choice.greedy) for choice in chosen] == [(1, 1), (0, 1), (1, 1)]
    assert [choice.probability for choice in chosen] == [0.75, 0.25, 0.75]  # ε / 2 + ½ for the best, whoever chose it
    assert [choice.epsilon for choice in chosen] == [0.5, 0.5, 0.5]
    assert [choice.physical.tolist() for choice in chosen] == [[1], [0], [1]]


def test_random_actions_that_are_held_are_not_counted() -> None:
    # Steps 0 … 2: action 0 begins and is held for 3 steps; step 3: nothing begins; step 4: action 0 for one step.
    explore = explorer(Scripted([0.1, 0.1, 0.1, 0.9, 0.1], [0, 1, 1, 1, 0], [3, 3, 3, 3, 1]), exploration_hold=3)
    chosen = [explore.choose(1, VALUES, 0.0) for _ in range(5)]
    assert [choice.action for choice in chosen] == [0, 0, 0, 1, 0]
    assert [choice.greedy for choice in chosen] == [1] * 5
    # Of the counted ones (½ / 3) / (½ + ½ / 3) = ¼ are random: half of these hit the best by chance.
    assert [choice.epsilon for choice in chosen] == pytest.approx([UNCOUNTED, UNCOUNTED, UNCOUNTED, 0.25, 0.25])
    assert [choice.probability for choice in chosen] == pytest.approx([1.0, 1.0, 1.0, 0.875, 0.125])


def test_nothing_is_held_beyond_an_episode() -> None:
    explore = explorer(Scripted([0.1, 0.9], [0, 0], [3, 3]), exploration_hold=3)
    assert explore.choose(1, VALUES, 0.0).action == 0
    explore.ended()
    assert explore.choose(1, VALUES, 0.0).action == 1


def test_without_a_policy_actions_are_uniform_and_not_counted() -> None:
    explore = explorer(np.random.default_rng(0))
    chosen = [explore.start() for _ in range(1000)]
    assert abs(sum(choice.action for choice in chosen) - 500) < 64  # 4 standard deviations
    assert {(choice.probability, choice.epsilon) for choice in chosen} == {(0.5, UNCOUNTED)}


def test_epsilon_falls_with_the_share_of_steps() -> None:
    explore = explorer(np.random.default_rng(0), epsilon_first=1.0, epsilon_last=0.2, exploration=0.5)
    for share, epsilon in ((0.0, 1.0), (0.25, 0.6), (0.5, 0.2), (1.0, 0.2), (1.5, 0.2)):
        assert explore.choose(1, VALUES, share).epsilon == pytest.approx(epsilon)


def noisy(**settings: Any) -> Explorer:
    plan = replace(make_plan(), task="Pendulum-v1", method="d4pg", algorithm=settings)
    return make_explorer(plan, make_task("Pendulum-v1"), np.random.default_rng(0))


def test_continuous_actions_are_kept_in_units_of_their_range() -> None:
    explore = noisy(noise_first=0.0, noise_last=0.0)
    torque = np.array([-1.0], np.float32)  # of −2 … 2 N m
    choice = explore.choose(torque, torque, 0.3)
    np.testing.assert_allclose(choice.action, [-0.5])
    np.testing.assert_allclose(choice.greedy, [-0.5])
    np.testing.assert_allclose(choice.physical, [[-1.0]])
    assert choice.epsilon == UNCOUNTED


def test_noise_is_added_to_the_action_alone_and_cut_at_the_range() -> None:
    explore, torque = noisy(noise_first=5.0, noise_last=5.0), np.array([1.0], np.float32)
    chosen = [explore.choose(torque, torque, 0.0) for _ in range(200)]
    actions = np.array([choice.action for choice in chosen])
    assert len(np.unique(actions)) > 5
    assert actions.min() == -1.0 and actions.max() == 1.0
    for choice in chosen:
        np.testing.assert_allclose(choice.physical, 2.0 * choice.action[None], atol=1e-6)
        np.testing.assert_allclose(choice.greedy, [0.5])


def test_the_start_is_uniform_or_the_noise_alone() -> None:
    for only, spread in ((False, 1 / np.sqrt(3)), (True, 0.1)):
        explore = noisy(noise_first=0.1, noise_only_start=only)
        actions = np.array([explore.start().action for _ in range(2000)])
        assert actions.std() == pytest.approx(spread, rel=0.1)  # 2000 draws: the deviation is known to 1.6 %
        assert np.abs(actions).max() <= 1.0


# --- settings and plan ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_actors": 0}, "--n-actors is 0; take at least 1"),
        ({"actor_update_period": 0}, "--actor-update-period is 0"),
        ({"insert_every": -1}, "--insert-every is -1"),
        ({"max_staleness": 0}, "--max-staleness is 0"),
        ({"quantize": 4}, r"--quantize is 4; take 8 \(int8\), 16 \(fp16\) or 32 \(fp32\)"),
        ({"quantize_communication": 2}, "--quantize-communication is 2; take 8"),
        ({"replay_shards": 3}, "--replay-shards 3 is more than --n-actors 2"),
        ({"samples_per_insert": -1.0}, "--samples-per-insert is -1.0; take a positive number, or 0"),
        ({"samples_per_insert": float("inf")}, "--samples-per-insert is inf"),
        ({"samples_per_insert": float("nan")}, "--samples-per-insert is nan"),
        ({"publish_every": -1}, "--publish-every is -1"),
        ({"publish_every": 11, "max_staleness": 10}, "--publish-every 11 is more than --max-staleness 10"),
        ({"priority_exponent": -0.5}, "--priority-exponent is -0.5"),
        ({"priority_exponent": float("nan")}, "--priority-exponent is nan"),
        ({"importance_exponent": 1.5}, "--importance-exponent is 1.5; take 0"),
        ({"runtime": "onnxruntime"}, "--runtime is onnxruntime; actors execute TFLite"),
        ({"step_delays_s": (0.1, -0.1)}, "--step-delays-s is"),
        ({"step_delays_s": (0.1, 0.1, 0.1)}, "--step-delays-s names 3 actors"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ActorQSettings(**change)


def test_limits_of_the_settings_are_allowed() -> None:
    asked = ActorQSettings(n_actors=3, replay_shards=3, publish_every=10, max_staleness=10, samples_per_insert=0.0)
    assert asked.precision is Precision.INT8
    assert ActorQSettings(quantize=16).precision is Precision.FP16
    assert [replace(asked, step_delays_s=(0.5, 0.0)).delay_s(actor) for actor in range(3)] == [0.5, 0.0, 0.0]


def test_the_plan_survives_its_way() -> None:
    plan = replace(
        make_plan(12_345, quantize=16, step_delays_s=(0.25, 0.0), n_actors=2, replay_shards=1, correct_mismatch=False),
        network=NetworkSpec((32, 16), layer_norm=True),
        preset="hard",
        task_options={"arenas": {"hard": 0.75, "shipped": 0.25}},
    )
    text = plan.to_json()
    assert json.loads(text)["steps"] == 12_345
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    assert settings_of(Plan.from_json(text)) == settings_of(plan)


@pytest.mark.parametrize("method", ["ppo", "ddpg", ""])
def test_a_method_that_is_not_distributed_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="is not distributed; take d4pg or dqn"):
        settings_of(replace(make_plan(), method=method))


def test_arrays_of_another_network_are_refused() -> None:
    plan = make_plan()
    algorithm = Algorithm(plan, make_task(plan.task))
    wanted = algorithm.groups()
    facts = {"updates": 3}
    algorithm.restore(Checkpoint(flattened(wanted), facts))
    assert algorithm.updates == 3
    for other in ({}, {"head/bias": np.zeros(3)}, {"head/kernel": np.zeros(2)}):
        with pytest.raises(CheckpointError, match="target is of another network"):
            algorithm.restore(Checkpoint(flattened({**wanted, "target": other}), facts))


# --- the report -----------------------------------------------------------------------------------------------------


def test_where_the_time_went_by_hand() -> None:
    def told(steps: int, total: float, **seconds: float) -> dict[str, Any]:
        parts = {**dict.fromkeys(PARTS, 0.0), **seconds, "total": total}
        return {"steps": steps, "pulls": 3, "renewals": 2, "seconds": parts}

    found = breakdown([told(100, 0.5, step=0.125, inference=0.25), told(300, 0.5, step=0.375, wait=0.125)])
    assert (found["steps"], found["pulls"], found["renewals"]) == (400, 6, 4)
    # Of 1 s: 0.5 s in the environment, 0.25 s deciding, 0.125 s waiting, the rest is Python; 400 steps.
    expected = {**dict.fromkeys(PARTS, 0.0), "step": 1250.0, "inference": 625.0, "wait": 312.5, "other": 312.5}
    assert found["microseconds_per_step"] == expected
    assert breakdown([])["steps"] == 0


# --- without Ray ----------------------------------------------------------------------------------------------------


def test_neither_an_actor_nor_the_command_line_imports_ray_or_tensorflow_by_itself() -> None:
    # The command must be able to say what to install, and an actor has no use for a framework.
    modules = ("actor", "learner", "service", "parameters", "report", "__main__")
    script = "import sys\n" + "".join(f"import train.actorq.{name}\n" for name in modules)
    script += "print(sorted({'ray', 'tensorflow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
