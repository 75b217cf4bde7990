"""Exploration of both algorithms, returns that are cut, settings and the plan: by hand."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quarl import cli
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from quarl.train.actorq import plan as planning
from quarl.train.actorq.actor import PARTS
from quarl.train.actorq.algorithms import NoisyActions, RandomActions, cut_at_disagreement, make_explorer, mismatch
from quarl.train.actorq.history import breakdown
from quarl.train.actorq.settings import RUNTIMES, ActorQSettings
from quarl.train.actorq.stepping import NO_CHOICE
from tests.train.actorq.small_plans import make_plan


def four_steps(greedy: list[list[int]], discounts: list[float]) -> dict[str, np.ndarray]:
    """4-step returns of rewards 1, 2, 4, 8 with γ = ½ from s₀; sₖ is [k]."""
    count = len(greedy)
    return {
        "return": np.full(count, 1 + 2 / 2 + 4 / 4 + 8 / 8, np.float32),
        "discount": np.array(discounts, np.float32),
        "next_observation": np.full((count, 1), 4, np.float32),
        "following": np.tile(np.array([[1.0], [2.0], [3.0]], np.float32), (count, 1, 1)),
        "following_greedy": np.array(greedy, np.int32),
        "following_return": np.tile(np.array([1, 1 + 1, 1 + 1 + 1], np.float32), (count, 1)),
    }


def test_a_return_is_cut_at_the_first_exploratory_action_by_hand() -> None:
    no = NO_CHOICE
    columns = four_steps([[0, 1, 0], [0, 1, 0], [2, 1, 0], [no, no, 0], [no, no, no]], [0.0625] * 4 + [0.0])
    learner = np.array([[0, 1, 0], [0, 2, 2], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
    cut, is_cut = cut_at_disagreement(columns, learner, 0.5)
    # None differs; the second; the first; the third, after two of chance; all by chance, with an end: nothing is cut.
    assert is_cut.tolist() == [False, True, True, True, False]
    np.testing.assert_array_equal(cut["return"], [4, 2, 1, 3, 4])
    np.testing.assert_array_equal(cut["discount"], [0.0625, 0.25, 0.5, 0.125, 0.0])
    np.testing.assert_array_equal(cut["next_observation"][:, 0], [4, 2, 1, 3, 4])
    assert {name: column.dtype.name for name, column in cut.items()} == dict.fromkeys(cut, "float32")


def test_a_cut_return_bootstraps_with_the_learners_value() -> None:
    """Under values that are right for the learner's policy every cut return is right, and none is made small.

    A chain of 6 states in which action 1 pays 1 and action 0 nothing, both lead on: Q(s, 1) = the steps that are left,
    Q(s, 0) = one less. Actors choose 0 in a fifth of the states. Uncut, a return of theirs is too small by as many as
    they missed; weighted by the ratio's product, most would not be learned from at all.
    """
    generator, left = np.random.default_rng(0), 6
    greedy = (generator.random((2000, 4)) > 0.2).astype(np.int32)  # of the actors, at the steps 1 … 4
    rewards = np.concatenate([np.ones((2000, 1)), greedy], axis=1)  # the first action pays
    following = np.tile(np.arange(1, 5, dtype=np.float32)[:, None], (2000, 1, 1))
    columns = {
        "return": rewards.sum(axis=1).astype(np.float32),
        "discount": np.ones(2000, np.float32),
        "next_observation": np.full((2000, 1), 5, np.float32),
        "following": following,
        "following_greedy": greedy,
        "following_return": np.cumsum(rewards, axis=1)[:, :-1].astype(np.float32),
    }
    cut, is_cut = cut_at_disagreement(columns, np.ones((2000, 4), np.int64), 1.0)
    best = left - cut["next_observation"][:, 0]  # max Q where the return ends
    np.testing.assert_array_equal(cut["return"] + best, np.full(2000, 6.0))
    assert (columns["return"] + 1).mean() < 5.3
    assert is_cut.mean() == pytest.approx(1 - 0.8**4, abs=0.05)


def test_mismatch_by_hand() -> None:
    assert mismatch(np.array([0, 1, 2, 1]), np.array([0, 1, 1, 0])) == {"disagreement": 0.5}
    learner, actors = np.array([[0.5, -1.0], [0.0, 0.25]]), np.array([[0.25, -1.0], [-0.5, 0.5]])
    assert mismatch(learner, actors) == {"distance": pytest.approx((0.25 + 0 + 0.5 + 0.25) / 4)}


class Scripted:
    """A random generator that says what it is told: chances, then actions and durations in turn."""

    def __init__(self, chances: list[float], actions: list[int], durations: list[int]) -> None:
        self.chances, self.actions, self.durations = iter(chances), iter(actions), iter(durations)

    def random(self, size: int) -> np.ndarray:
        return np.array([next(self.chances)])

    def integers(self, low: int, high: int | None = None, size: int | None = None) -> np.ndarray:
        return np.array([next(self.actions if high is None else self.durations)])


def explorer(generator: Any, **settings: Any) -> NoisyActions | RandomActions:
    plan = make_plan(algorithm={"epsilon_first": 0.5, "epsilon_last": 0.5, **settings})
    return make_explorer(plan, plan.make_task(), generator)


VALUES = np.array([0.0, 1.0], np.float32)  # action 1 is the best


def test_what_chance_did_is_told_from_the_policys_choice() -> None:
    explore = explorer(Scripted([0.9, 0.1, 0.1], [0, 0, 1], []))
    chosen = [explore.choose(1, VALUES, 0.5) for _ in range(3)]
    assert [(choice.action, choice.greedy) for choice in chosen] == [(1, 1), (0, 1), (1, 1)]
    assert [choice.chosen for choice in chosen] == [True, False, True]  # also where chance hit upon the same
    assert [choice.physical.tolist() for choice in chosen] == [[1], [0], [1]]


def test_random_actions_that_are_held_are_nobodys_choice() -> None:
    # Steps 0 … 2: action 0 begins and is held for 3 steps; step 3: nothing begins; step 4: action 0 for one step.
    explore = explorer(Scripted([0.1, 0.1, 0.1, 0.9, 0.1], [0, 1, 1, 1, 0], [3, 3, 3, 3, 1]), exploration_hold=3)
    chosen = [explore.choose(1, VALUES, 0.0) for _ in range(5)]
    assert [choice.action for choice in chosen] == [0, 0, 0, 1, 0]
    assert [choice.greedy for choice in chosen] == [1] * 5
    assert [choice.chosen for choice in chosen] == [False, False, False, True, False]
    explore = explorer(Scripted([0.1, 0.9], [0, 0], [3, 3]), exploration_hold=3)
    assert explore.choose(1, VALUES, 0.0).action == 0
    explore.end_episode()  # beyond which nothing is held
    assert explore.choose(1, VALUES, 0.0).action == 1


def test_without_a_policy_actions_are_uniform_and_nobodys_choice() -> None:
    explore = explorer(np.random.default_rng(0))
    chosen = [explore.start() for _ in range(1000)]
    assert abs(sum(choice.action for choice in chosen) - 500) < 64  # 4 standard deviations
    assert not any(choice.chosen for choice in chosen)


def test_epsilon_falls_with_the_share_of_steps() -> None:
    explore = explorer(np.random.default_rng(0), epsilon_first=1.0, epsilon_last=0.2, exploration=0.5)
    for share, epsilon in ((0.0, 1.0), (0.25, 0.6), (0.5, 0.2), (1.0, 0.2), (1.5, 0.2)):
        chosen = [explore.choose(1, VALUES, share).chosen for _ in range(2000)]
        assert 1.0 - np.mean(chosen) == pytest.approx(epsilon / 2, abs=0.045)  # half of them hit upon it; 4 deviations


def noisy(**settings: Any) -> NoisyActions | RandomActions:
    plan = make_plan(algorithm=settings, pendulum=True)
    return make_explorer(plan, plan.make_task(), np.random.default_rng(0))


def test_continuous_actions_are_kept_in_units_of_their_range() -> None:
    explore = noisy(noise_first=0.0, noise_last=0.0)
    torque = np.array([-1.0], np.float32)  # of −2 … 2 N m
    choice = explore.choose(torque, torque, 0.3)
    np.testing.assert_allclose(choice.action, [-0.5])
    np.testing.assert_allclose(choice.greedy, [-0.5])
    np.testing.assert_allclose(choice.physical, [[-1.0]])


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


@pytest.mark.parametrize(("change", "words"), [
    ({"n_actors": 0}, "--n-actors"),
    ({"actor_update_period": 0}, "--actor-update-period"),
    ({"insert_every": -1}, "--insert-every"),
    ({"max_staleness": 0}, "--max-staleness"),
    ({"quantize": 4}, r"\(int8\), 16 \(fp16\)"),
    ({"quantize_communication": 2}, "--quantize-communication"),
    ({"samples_per_insert": -1.0}, "--samples-per-insert"),
    ({"samples_per_insert": float("inf")}, "--samples-per-insert"),
    ({"samples_per_insert": float("nan")}, "--samples-per-insert"),
    ({"publish_every": -1}, "--publish-every"),
    ({"publish_every": 11, "max_staleness": 10}, "--publish-every"),
    ({"priority_exponent": -0.5}, "--priority-exponent"),
    ({"priority_exponent": float("nan")}, "--priority-exponent"),
    ({"importance_exponent": 1.5}, "--importance-exponent"),
    ({"runtime": "onnxruntime"}, "litert, tflite-runtime or"),
    ({"step_delays_s": (0.1, -0.1)}, "--step-delays-s"),
    ({"step_delays_s": (0.1, 0.1, 0.1)}, "--step-delays-s"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ActorQSettings(**change)


def test_every_setting_is_an_option_and_its_limits_are_allowed() -> None:
    assert cli.options("actorq", ["--task", "cartpole"]).actorq == ActorQSettings()
    words = "--task cartpole --n-actors 3 --quantize 16 --no-correct-mismatch --step-delays-s 0.5 0 --publish-every 7"
    wanted = ActorQSettings(
        3, quantize=16, quantize_communication=16, correct_mismatch=False, step_delays_s=(0.5, 0.0), publish_every=7
    )
    assert cli.options("actorq", words.split()).actorq == wanted
    actorq = ActorQSettings(n_actors=3, replay_shards=3, publish_every=10, max_staleness=10, samples_per_insert=0.0)
    assert actorq.precision is Precision.INT8
    assert ActorQSettings(quantize=16).precision is Precision.FP16
    assert [replace(actorq, step_delays_s=(0.5, 0.0)).delay_s(actor) for actor in range(3)] == [0.5, 0.0, 0.0]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtimes_artifact_and_what_has_to_be_made_first(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    is_native, made = runtime == "native", list[RuntimeName]()
    assert ActorQSettings(runtime=runtime).artifact_format is ArtifactFormat[("TFLITE", "NATIVE")[is_native]]
    monkeypatch.setattr(planning, "import_runtime", lambda name: SimpleNamespace(library=lambda: made.append(name)))
    planning.make_runtime_ready(ActorQSettings(runtime=runtime))
    assert made == [RuntimeName.NATIVE] * is_native


def test_where_the_time_went_by_hand() -> None:
    def facts_of(steps: int, total: float, **seconds: float) -> dict[str, Any]:
        parts = {**dict.fromkeys(PARTS, 0.0), **seconds, "total": total}
        return {"steps": steps, "pulls": 3, "renewals": 2, "seconds": parts}

    found = breakdown([facts_of(100, 0.5, step=0.125, inference=0.25), facts_of(300, 0.5, step=0.375, wait=0.125)])
    assert (found["steps"], found["pulls"], found["renewals"]) == (400, 6, 4)
    # Of 1 s: 0.5 s in the environment, 0.25 s deciding, 0.125 s waiting, the rest is Python; 400 steps.
    expected = {**dict.fromkeys(PARTS, 0.0), "step": 1250.0, "inference": 625.0, "wait": 312.5, "other": 312.5}
    assert found["microseconds_per_step"] == expected
    assert breakdown([])["steps"] == 0


def test_actors_and_the_command_line_import_neither_ray_nor_tensorflow() -> None:
    # The command must be able to say what to install, and an actor has no use for a framework.
    modules = ("actor", "learner", "replay", "parameters", "history", "__main__")
    script = "import sys\n" + "".join(f"import quarl.train.actorq.{name}\n" for name in modules)
    script += "print(sorted({'ray', 'tensorflow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
