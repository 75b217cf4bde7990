"""Write small policies of Stable-Baselines3, and what they answer, for test_sb3.py: ``make_sb3.py FOLDER [NAME …]``.

Runs in the environment of ``make peers``, not in the project's. Each policy is a folder: ``policy.zip`` as ``save``
writes it, ``vecnormalize.pkl`` where it was trained with one, and ``golden.npz``. Those of TRAINED have learned their
task, within minutes; the others have only begun.

| array | shape | holds |
| --- | --- | --- |
| observations | (32, n) | raw, flattened in the order of the chain's inputs; images as (height, width, channel) |
| episode_starts | (32,) | of policies with an LSTM, whose rows follow each other: whether an episode begins with it |
| outputs | (32, m) | what the program itself computes: logits, action values, or the action that predict() returns |
| actions | (32,) or (32, m) | of ``model.predict(…, deterministic=True)`` |
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.crossq.policies import CrossQPolicy
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, VecTransposeImage

ROWS = 32
STEPS = 192
torch.set_num_threads(1)

BOUNDS = (np.array([-1.0, 0.0, -20.0], np.float32), np.array([3.0, 0.5, -5.0], np.float32))
IMAGE = spaces.Box(0, 255, (44, 52, 3), np.uint8)  # behind which (2, 3, 64) values are flattened
PARTS = spaces.Dict(
    {
        "wind": spaces.Box(-5.0, 5.0, (2, 2), np.float32),
        "gear": spaces.Discrete(3),
        "angle": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "lamps": spaces.MultiBinary(3),
        "dials": spaces.MultiDiscrete([2, 3]),
    }
)

VECTORS = spaces.Dict({name: PARTS[name] for name in ("angle", "lamps", "wind")})  # an LSTM's sizes are plain numbers


class Noise(gymnasium.Env):
    """Random observations of a space, and a reward that prefers small actions; an episode has 20 steps."""

    def __init__(self, observation: spaces.Space, action: spaces.Space) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return self.observation_space.sample(), -float(np.square(action).mean()), self.steps >= 20, False, {}


def noise(observation: spaces.Space, action: spaces.Space) -> Callable[[], gymnasium.Env]:
    return lambda: Noise(observation, action)


BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
CART, PENDULUM = partial(gymnasium.make, "CartPole-v1"), partial(gymnasium.make, "Pendulum-v1")
THREE = noise(BOX, spaces.Box(*BOUNDS))
SHORT = {"n_steps": 64, "batch_size": 32, "n_epochs": 1}
OFF = {"learning_starts": 32, "batch_size": 16, "buffer_size": 500}
STEADY = {"n_steps": 128, "batch_size": 256, "learning_rate": 5e-4}
STEADY_OFF = {
    "learning_starts": 1000,
    "batch_size": 128,
    "buffer_size": 20_000,
    "learning_rate": 1e-3,
    "target_update_interval": 500,
    "train_freq": 4,
}
TINY: dict[str, Any] = {"net_arch": [8, 8]}
SMALL: dict[str, Any] = {"net_arch": [32, 32]}
TRAINED = {"ppo_cartpole": 490.0, "ppo_pendulum_normalised": -200.0, "dqn_cartpole": 300.0}
"""What some earn, after as many thousands of steps as that takes."""
MOST_STEPS = 400_000
COPIES = {"ppo_cartpole": 8, "ppo_pendulum_normalised": 4}

Recipe = tuple[Any, str, Any, dict, dict | None]


def of(algorithm: Any, environment: Any, settings: dict, normalise: dict | None = None, **policy: Any) -> Recipe:
    """Algorithm, policy, environment, settings of the algorithm, settings of VecNormalize."""
    return algorithm, policy.pop("of", "MlpPolicy"), environment, {**settings, "policy_kwargs": policy}, normalise


LSTM: dict[str, Any] = {"of": "MlpLstmPolicy", "net_arch": [8], "lstm_hidden_size": 12}
SHARED_LSTM: dict[str, Any] = {"net_arch": [], "lstm_hidden_size": 8, "shared_lstm": True, "enable_critic_lstm": False}
ACTING, SDE = spaces.Box(*BOUNDS), {"use_sde": True}
PICTURE = noise(spaces.Box(0, 255, (5, 6, 3), np.uint8), spaces.Discrete(3))
SWING = {"n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3}
UNLIKE: dict[str, Any] = {**TINY, "activation_fn": torch.nn.SiLU, "share_features_extractor": False}
POLICIES: dict[str, Recipe] = {
    "ppo_cartpole": of(PPO, CART, STEADY, **SMALL),
    "ppo_pendulum_normalised": of(PPO, PENDULUM, SWING, {"clip_obs": 2.0, "epsilon": 0.25}, **SMALL),
    "ppo_elu": of(PPO, CART, SHORT, **TINY, activation_fn=torch.nn.ELU),
    "ppo_leaky": of(
        *(PPO, THREE, SHORT, {"norm_reward": False}), net_arch={"pi": [8], "vf": [4]}, activation_fn=torch.nn.LeakyReLU
    ),
    "ppo_silu_unlike_features": of(PPO, CART, SHORT, **UNLIKE),
    "ppo_no_hidden_layer": of(PPO, THREE, SHORT, net_arch=[]),
    "ppo_gsde_squashed": of(PPO, THREE, {**SHORT, **SDE}, {}, **TINY, squash_output=True),
    "ppo_gsde": of(PPO, PENDULUM, {**SHORT, **SDE}, **TINY),
    "a2c_cartpole": of(A2C, CART, {}, {}, **TINY),
    "a2c_discrete_observation": of(A2C, noise(spaces.Discrete(5), spaces.Discrete(3)), {}, **TINY),
    "dqn_cartpole": of(DQN, CART, STEADY_OFF, **SMALL),
    "sac_pendulum": of(SAC, PENDULUM, OFF, {}, **TINY),
    "sac_gsde": of(SAC, THREE, {**OFF, **SDE}, **TINY),
    "td3_three": of(TD3, THREE, OFF, net_arch={"pi": [8, 6], "qf": [4]}),
    "ddpg_pendulum": of(DDPG, PENDULUM, OFF, **TINY),
    "ppo_image": of(
        PPO, noise(IMAGE, spaces.Discrete(3)), SHORT, of="CnnPolicy", features_extractor_kwargs={"features_dim": 8}
    ),
    "dqn_image_without_layers": of(DQN, PICTURE, OFF, **TINY),
    "ppo_parts": of(
        *(PPO, noise(PARTS, spaces.Discrete(4)), SHORT, {"norm_obs_keys": ["angle", "wind"], "clip_obs": 1.5}),
        **{**TINY, "of": "MultiInputPolicy"},
    ),
    "sac_parts": of(SAC, noise(PARTS, ACTING), OFF, **TINY, of="MultiInputPolicy"),
    "recurrent_cartpole": of(RecurrentPPO, CART, SHORT, **LSTM, enable_critic_lstm=False),
    "recurrent_pendulum_normalised": of(
        RecurrentPPO, PENDULUM, SHORT, {"clip_obs": 2.0}, **LSTM, n_lstm_layers=2, activation_fn=torch.nn.ELU
    ),
    "recurrent_parts": of(RecurrentPPO, noise(VECTORS, ACTING), SHORT, of="MultiInputLstmPolicy", **SHARED_LSTM),
    "qrdqn": of(QRDQN, CART, OFF, **TINY, n_quantiles=5, optimizer_kwargs={"eps": 1e-4}),
    "tqc": of(TQC, THREE, OFF, {}, **TINY, n_quantiles=5, n_critics=2),
    "trpo": of(TRPO, PENDULUM, {"n_steps": 64, "batch_size": 32}, {"clip_obs": 2.0}, **TINY),
    "ars": of(ARS, CART, {"n_delta": 2}, of="LinearPolicy"),
    "ars_squashed": of(ARS, THREE, {"n_delta": 2}, {}, **TINY),
    "maskable_ppo": of(MaskablePPO, CART, SHORT, **TINY),
    "crossq": of(CrossQ, THREE, OFF, {}, **TINY, batch_norm_eps=0.01, batch_norm_momentum=0.2),
}
WITH_OPTIMIZERS = {"ppo_cartpole", "sac_pendulum"}


def make(name: str, folder: Path) -> None:
    algorithm, policy, environment, settings, normalise = POLICIES[name]
    venv: Any = DummyVecEnv([environment] * COPIES.get(name, 1))
    if normalise is not None:
        venv = VecNormalize(venv, **normalise)
    model = algorithm(policy, venv, seed=3, device="cpu", **deepcopy(settings))
    if name in TRAINED:
        train(model, venv, TRAINED[name])
    else:
        model.learn(STEPS, **{"use_masking": False} if isinstance(model, MaskablePPO) else {})
        amplify(model.policy)
    model.policy.eval()
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "policy.zip", exclude=["_last_obs", "_last_original_obs", "ep_info_buffer"])
    if name not in WITH_OPTIMIZERS:
        without_optimizers(folder / "policy.zip")
    if normalise is not None:
        venv.save(folder / "vecnormalize.pkl")
    observations = samples(venv.observation_space, np.random.default_rng(7))
    seen = observations if normalise is None else venv.normalize_obs(observations)
    if isinstance(model.env, VecTransposeImage):
        seen = model.env.transpose_observations(seen)
    if isinstance(model, RecurrentPPO):
        starts = np.arange(ROWS) % 11 == 0
        actions, given = answers(model, seen, starts)
        recorded = {"outputs": given, "episode_starts": starts}
    else:
        actions, _ = model.predict(seen, deterministic=True)
        recorded = {"outputs": outputs(model, seen, actions)}
    np.savez_compressed(
        folder / "golden.npz", observations=flat(observations, venv.observation_space), actions=actions, **recorded
    )


def amplify(policy: torch.nn.Module) -> None:
    """Untrained last layers are so small that every output would be about 0."""
    with torch.no_grad():
        for key, parameter in policy.named_parameters():
            is_crossq = isinstance(policy, CrossQPolicy)
            if key.startswith(("action_net.weight", "action_net.0.weight", "actor.mu")):
                parameter.mul_(0.2 if is_crossq else 5.0)  # behind normalised values actions would be at their bounds
            # so that each gate matters, and the state too; and each normalisation's scale and bias
            if key.startswith("lstm_actor.") or (is_crossq and key.startswith("actor.latent_pi.")):
                parameter.add_(torch.randn_like(parameter) * 0.4)
            if isinstance(policy, RecurrentActorCriticPolicy) and key == "action_net.weight":
                parameter.mul_(10.0)


def train(model: Any, venv: Any, enough: float) -> None:
    """Learn until the mean return is enough."""
    mean = -np.inf
    while mean < enough and model.num_timesteps < MOST_STEPS:
        model.learn(20_000, reset_num_timesteps=False)
        if normalised := isinstance(venv, VecNormalize):
            venv.training, venv.norm_reward = False, False
        mean, _ = evaluate_policy(model, venv, 50)
        if normalised:
            venv.training, venv.norm_reward = True, True
        model._last_obs = None  # the evaluation has left the environments elsewhere


def without_optimizers(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if "optimizer" not in name}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def samples(space: spaces.Space, random: np.random.Generator) -> Any:
    """32 observations; of numbers without bounds some lie 5 to 40 standard deviations out."""
    if isinstance(space, spaces.Dict):
        return {key: samples(part, random) for key, part in space.spaces.items()}
    space.seed(5)
    if isinstance(space, spaces.Box) and space.dtype == np.float32:
        values = random.normal(0.0, 1.0, (ROWS, *space.shape))
        values[-12:] *= np.geomspace(5.0, 40.0, 12).reshape(-1, *[1] * len(space.shape))
        return values.astype(np.float32)
    return np.stack([space.sample() for _ in range(ROWS)])


def flat(observations: Any, space: spaces.Space) -> np.ndarray:
    if isinstance(space, spaces.Dict):
        return np.concatenate([flat(observations[key], part) for key, part in space.spaces.items()], axis=1)
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[observations]
    if isinstance(space, spaces.MultiDiscrete):
        parts = [np.eye(int(n), dtype=np.float32)[observations[:, i]] for i, n in enumerate(space.nvec)]
        return np.concatenate(parts, axis=1)
    kind = np.uint8 if observations.dtype == np.uint8 else np.float32
    return observations.reshape(ROWS, -1).astype(kind)


def outputs(model: Any, seen: Any, actions: np.ndarray) -> np.ndarray:
    if isinstance(model.action_space, spaces.Box):
        return np.asarray(actions)
    with torch.no_grad():
        tensor, _ = model.policy.obs_to_tensor(seen)
        if isinstance(model, DQN):
            return model.policy.q_net(tensor).numpy()
        if isinstance(model, QRDQN):
            return model.policy.quantile_net(tensor).mean(dim=1).numpy()
        if isinstance(model, ARS):
            features = model.policy.extract_features(tensor, model.policy.features_extractor)
            return model.policy.action_net(features).numpy()
        # the distribution keeps logits minus their logarithmic sum, so the layer is asked itself
        is_shared = model.policy.share_features_extractor
        extractor = (model.policy.pi_features_extractor,) if is_shared else ()
        features = model.policy.extract_features(tensor, *extractor)
        features = features if is_shared else features[0]
        return model.policy.action_net(model.policy.mlp_extractor.forward_actor(features)).numpy()


def answers(model: RecurrentPPO, seen: Any, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions of predict(), and logits or the same, row after row, the state carried on from row to row."""
    state: Any = None
    actions, given = [], []
    for row, start in enumerate(starts):
        at = slice(row, row + 1)
        one = {key: part[at] for key, part in seen.items()} if isinstance(seen, dict) else seen[at]
        before, begun = state, np.array([start])
        action, state = model.predict(one, state=before, episode_start=begun, deterministic=True)
        actions.append(action[0])
        given.append(action[0] if isinstance(model.action_space, spaces.Box) else logits(model, one, before, begun))
    return np.array(actions), np.array(given)


def logits(model: RecurrentPPO, one: Any, state: Any, start: np.ndarray) -> np.ndarray:
    """What the last layer gives, of which the distribution keeps only differences."""
    policy = model.policy
    with torch.no_grad():
        tensor, _ = policy.obs_to_tensor(one)
        shape = policy.lstm_hidden_state_shape
        before = tuple(torch.zeros(shape) if state is None else torch.tensor(part) for part in (state or (None, None)))
        features = policy.extract_features(tensor)
        latent, _ = policy._process_sequence(features, before, torch.tensor(start).float(), policy.lstm_actor)
        return policy.action_net(policy.mlp_extractor.forward_actor(latent)).numpy()[0]


if __name__ == "__main__":
    for wanted in sys.argv[2:] or POLICIES:
        make(wanted, Path(sys.argv[1]) / wanted)
