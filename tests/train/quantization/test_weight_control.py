"""Weight decay and weight clipping: the equations by hand, whose kernels they hold, and that without them nothing does.

That both engines agree is in ``test_by_hand.py``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.bundle import Bundle
from quarl.policy.spec import Convolution, NetworkSpec
from quarl.train import __main__ as command
from quarl.train.accelerator.layers import Learning, arrays_of
from quarl.train.algorithms import a2c, d4pg, ddpg, dqn, ppo, sac
from quarl.train.algorithms.common.actor_critic import ActorCritic
from quarl.train.algorithms.common.deterministic import fresh_learner
from quarl.train.algorithms.common.distributions import Categorical
from quarl.train.quantization.weight_control import OFF, WeightControl
from quarl.train.runs.presets import SettingsError, build
from tests.refusals import refused

NETWORK = NetworkSpec((8,))
GENERATOR = np.random.default_rng(0)


@pytest.fixture
def eagerly() -> Iterator[None]:
    """What TensorFlow would compile runs step by step."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def arrays() -> dict[str, np.ndarray]:
    """A kernel of four inputs, one of 2 × 2 pixels and a channel, and what is no kernel."""
    dense = np.array([[3.0, -1.5], [0.5, 1.0], [-0.25, 0.0], [2.0, -9.0]], np.float32)
    convolution = np.array([4.0, -0.5, -4.0, 0.5], np.float32).reshape(2, 2, 1, 1)
    others = {name: np.array([7.0], np.float32) for name in ("dense_0/bias", "dense_0/gamma", "dense_0/beta")}
    return {"dense_0/kernel": dense, "conv_0/kernel": convolution, "log_std": np.array([-8.0], np.float32), **others}


def others(weights: dict[str, Any]) -> list[float]:
    return [float(np.asarray(value)[0]) for name, value in sorted(weights.items()) if not name.endswith("kernel")]


def test_clipping_by_hand() -> None:
    # Both kernels have four inputs: ±κ / √4 = ±1 for κ = 2.
    in_place, tensors = arrays(), {name: tf.constant(value) for name, value in arrays().items()}
    control = WeightControl(clip=2.0)
    control.clip_in_place(in_place)
    for weights in (in_place, control.clip_weights(tensors)):
        wanted = [[1.0, -1.0], [0.5, 1.0], [-0.25, 0.0], [1.0, -1.0]]
        assert np.asarray(weights["dense_0/kernel"]).tolist() == wanted
        assert np.asarray(weights["conv_0/kernel"]).ravel().tolist() == [1.0, -0.5, -1.0, 0.5]
        assert others(weights) == [7.0, 7.0, 7.0, -8.0]
    assert control.compute_clip_bound((9, 4)) == pytest.approx(2 / 3)


def test_decay_by_hand() -> None:
    # 1 − α λ = 1 − 0.1 · 2.5 = 0.75
    in_place, tensors = arrays(), {name: tf.constant(value) for name, value in arrays().items()}
    control = WeightControl(decay=2.5)
    control.decay_in_place(in_place, 0.1)
    for weights in (in_place, control.decay_weights(tensors, tf.constant(0.1))):
        wanted = [[2.25, -1.125], [0.375, 0.75], [-0.1875, 0.0], [1.5, -6.75]]
        np.testing.assert_allclose(weights["dense_0/kernel"], wanted, rtol=1e-6)
        np.testing.assert_allclose(np.ravel(weights["conv_0/kernel"]), [3.0, -0.375, -3.0, 0.375], rtol=1e-6)
        assert others(weights) == [7.0, 7.0, 7.0, -8.0]


def test_a_step_of_adam_with_both_by_hand() -> None:
    """Adam's first step has the length α = 0.1 whatever the gradient: decay is no part of it, and no moment sees it.

    1 · (1 − 0.1 · 0.5) + 0.1 = 1.05, which κ = 1.02 and one input cut to 1.02; the bias goes from 1 to 1.1.
    """
    one = {"head/kernel": np.ones((1, 1), np.float32), "head/bias": np.ones(1, np.float32)}
    zero = {name: np.zeros_like(value) for name, value in one.items()}
    state = {"policy": one, "policy_first": zero, "policy_second": zero}
    for control, wanted in ((OFF, 1.1), (WeightControl(decay=0.5), 1.05), (WeightControl(0.5, 1.02), 1.02)):
        learning = Learning(state, "policy", control=control)
        learning.network.gradient.all[:] = -4.0
        learning.descend(1.0, 0.1)
        moved = arrays_of(learning)
        assert float(moved["policy"]["head/kernel"][0, 0]) == pytest.approx(wanted, rel=1e-5)
        assert float(moved["policy"]["head/bias"][0]) == pytest.approx(1.1, rel=1e-5)
        assert float(moved["policy_first"]["head/kernel"][0, 0]) == pytest.approx(-0.4)  # (1 − β₁) g


def test_without_them_nothing_is_touched() -> None:
    weights = arrays()
    assert OFF.decay_weights(weights, 0.1) is weights and OFF.clip_weights(weights) is weights
    OFF.decay_in_place(weights, 0.1)
    OFF.clip_in_place(weights)
    assert all(np.array_equal(weights[name], value) for name, value in arrays().items())


def largest(weights: dict[str, Any]) -> dict[str, float]:
    """|W|'s largest of every kernel, in units of 1 / √fan_in."""
    return {
        name: float(np.abs(np.asarray(value)).max() * np.sqrt(np.prod(value.shape[:-1])))
        for name, value in weights.items()
        if name.endswith("/kernel")
    }


def transitions(actions: np.ndarray) -> dict[str, Any]:
    shape = actions.shape[:2]
    columns = {name: GENERATOR.standard_normal((*shape, 3), np.float32) for name in ("observation", "next_observation")}
    numbers = {"return": GENERATOR.standard_normal(shape, np.float32), "discount": np.full(shape, 0.9, np.float32)}
    return {name: tf.constant(value) for name, value in {**columns, **numbers, "action": actions}.items()}


@pytest.mark.parametrize("method", ["d4pg", "sac"])
def test_the_actor_is_held_but_for_log_std_and_no_critic(eagerly: None, method: str) -> None:
    batches, generator = (
        transitions(GENERATOR.standard_normal((2, 4, 2), np.float32).clip(-1, 1)),
        np.random.default_rng(1),
    )
    if method == "d4pg":
        settings: Any = d4pg.D4PGSettings(weight_clip=0.5)
        learner = fresh_learner(generator, NETWORK, NETWORK, (3,), 2, critic_outputs=settings.atoms)
    else:
        settings = sac.SACSettings(weight_clip=0.5, actor_learning_rate=10.0, critic_hidden=(8,))
        learner = sac.fresh_learner(generator, NETWORK, (3,), 2, settings)
        batches |= {name: tf.constant(value) for name, value in sac.draws(GENERATOR, (2, 4, 2)).items()}
    groups = {name: {key: tf.constant(value) for key, value in group.items()} for name, group in learner.groups.items()}
    update = (d4pg if method == "d4pg" else sac).make_update(settings)
    state, _ = update(groups, batches, tf.constant(0), tf.constant(1.0))
    assert largest(learner.groups["actor"])["dense_0/kernel"] > 0.6
    assert max(largest(state["actor"]).values()) == pytest.approx(0.5)
    assert method == "d4pg" or np.abs(state["actor"][sac.LOG_STD_WEIGHTS]).max() > 1.0
    assert largest(state["critic"])["0/dense_0/kernel"] > 0.6


def test_of_a_shared_trunk_the_value_is_not_held(eagerly: None) -> None:
    network = NetworkSpec((8,), convolutions=(Convolution(2, 3, 1),))
    learner = ActorCritic.fresh(np.random.default_rng(2), network, (5, 5, 1), 2)
    columns: dict[str, Any] = {"observation": GENERATOR.integers(0, 255, (8, 5, 5, 1)).astype(np.uint8)}
    columns |= {name: GENERATOR.standard_normal(8, np.float32) for name in ("advantage", "return", "log_probability")}
    columns |= {"action": GENERATOR.integers(0, 2, 8).astype(np.int32)}
    small: dict[str, Any] = {"environments": 2, "rollout_steps": 4, "minibatch": 8, "weight_clip": 0.4}
    update = ppo.make_update(ppo.PPOSettings(**small), network, Categorical())
    order = np.arange(8, dtype=np.int32)[None]
    state, _ = update(learner.groups, columns, order, np.float32(0), np.float32(1e-3), np.float32(0.0))
    held = largest(state["policy"])
    assert held["conv_0/kernel"] == pytest.approx(0.4) and held["dense_0/kernel"] == pytest.approx(0.4)
    assert largest(state["value"])["head/kernel"] > 0.6


def test_as_settings_they_are_off_typed_and_checked() -> None:
    kinds = ppo.PPOSettings, a2c.A2CSettings, dqn.DQNSettings, ddpg.DDPGSettings, d4pg.D4PGSettings, sac.SACSettings
    for kind in kinds:
        assert kind().weight_control == OFF
        assert build(kind, {"weight_decay": 1, "weight_clip": 2.5}).weight_control == WeightControl(1.0, 2.5)
    with refused(SettingsError, "settings", shows=["weight_decay", "'1'"]):
        build(dqn.DQNSettings, {"weight_decay": "1"})


def test_weight_clipping_holds(tmp_path: Path) -> None:
    few = ["--task", "CartPole-v1", "--method", "dqn", "--quiet", "--steps", "2048", "--final-episodes", "1"]
    plain, held = ([*few, "--output-path", str(tmp_path / name)] for name in ("plain", "held"))
    assert command.main(plain) == 0
    assert command.main([*held, "--set", "weight_clip=1", "--set", "weight_decay=0.5"]) == 0
    assert max(largest(Bundle.load(tmp_path / "plain").weights()).values()) > 1.5
    bundle = Bundle.load(tmp_path / "held")
    assert max(largest(bundle.weights()).values()) == pytest.approx(1.0)
    settings = bundle.spec.provenance["settings"]
    assert (settings["weight_clip"], settings["weight_decay"]) == (1.0, 0.5)
