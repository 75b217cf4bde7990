"""Write small policies as plain weights, and what they answer, for test_import.py: ``make_weights.py FOLDER [NAME …]``.

Runs in the environment of ``make peers``, not in the project's. The networks are CleanRL's, by its names of modules and
buffers, trained for a minute each; the one with Brax's names is drawn at random, and numpy answers for it. Each policy
is a folder: ``policy`` with the ending that its program gives it, ``spec.json``, and ``golden.npz``: ``observations``
(32, n), raw, and ``outputs`` (32, m): action values, or the action that the environment gets.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from cleanrl_agents import Actor, Agent, QNetwork, train_dqn, train_ppo, train_sac
from gymnasium.wrappers import NormalizeObservation
from safetensors.torch import save_file

ROWS, FAR = 32, 12


def observed(inputs: int, deviation: Sequence[float] | float = 1.0) -> np.ndarray:
    """32 observations, of which 12 lie 5 to 40 standard deviations out."""
    rows = np.random.default_rng(7).normal(0.0, 1.0, (ROWS, inputs)) * deviation
    rows[-FAR:] *= np.geomspace(5.0, 40.0, FAR)[:, None]
    return rows.astype(np.float32)


def dense(*names: str, activation: str) -> list[dict[str, Any]]:
    """Layers with an activation behind each but the last."""
    steps = [step for name in names for step in ({"dense": name}, {"activation": activation})]
    return steps[:-1]


def write(folder: Path, rows: np.ndarray, outputs: Any, **spec: Any) -> None:
    np.savez_compressed(folder / "golden.npz", observations=rows, outputs=np.asarray(outputs, np.float32))
    lines = ",\n           ".join(json.dumps(step) for step in spec.pop("steps"))
    head = json.dumps(spec)[:-1]
    (folder / "spec.json").write_text(f'{head},\n "steps": [{lines}]}}\n')


@torch.no_grad()
def answers(program: Callable[[torch.Tensor], torch.Tensor], rows: np.ndarray) -> np.ndarray:
    return np.asarray(program(torch.as_tensor(rows)))


def cleanrl_ppo(folder: Path) -> None:
    agent = Agent(3, 1)
    mean, variance = (torch.as_tensor(part, dtype=torch.float64) for part in train_ppo(agent))
    tensors = {**agent.state_dict(), "obs_rms.mean": mean, "obs_rms.var": variance}
    torch.save(tensors, folder / "policy.pt")
    wrapped = NormalizeObservation(gymnasium.make("Pendulum-v1"))
    wrapped.update_running_mean = False
    wrapped.obs_rms.mean, wrapped.obs_rms.var = mean.numpy(), variance.numpy()

    def act(rows: np.ndarray) -> np.ndarray:
        seen = (rows - wrapped.obs_rms.mean) / np.sqrt(wrapped.obs_rms.var + wrapped.epsilon)
        return np.clip(answers(agent.actor_mean, np.clip(seen, -10.0, 10.0).astype(np.float32)), -2.0, 2.0)

    rows = observed(3, (0.7, 0.7, 2.0))
    task = {"layout": "torch", "actions": "continuous", "period_s": 0.05, "observation": [["observation", 3, "1"]]}
    steps = [
        {"normalise": {"mean": "obs_rms.mean", "variance": "obs_rms.var", "epsilon": wrapped.epsilon}},
        {"clip": [-10, 10]},
        *dense("actor_mean.0", "actor_mean.2", "actor_mean.4", activation="tanh"),
        {"clip": [-2, 2]},
    ]
    write(folder, rows, act(rows), source="CleanRL ppo_continuous_action", **task, steps=steps)


def cleanrl_dqn(folder: Path) -> None:
    network = QNetwork(4, 2)
    train_dqn(network)
    torch.save(network.state_dict(), folder / "policy.cleanrl_model")
    rows = observed(4, (0.5, 0.5, 0.1, 0.5))
    task = {"layout": "torch", "actions": "discrete", "period_s": 0.02, "observation": [["observation", 4, "1"]]}
    write(
        folder,
        rows,
        answers(network, rows),
        source="CleanRL dqn",
        **task,
        steps=dense("network.0", "network.2", "network.4", activation="relu"),
    )


def cleanrl_sac(folder: Path) -> None:
    actor = Actor(3, gymnasium.make("Pendulum-v1").action_space)
    train_sac(actor)
    save_file(actor.state_dict(), folder / "policy.safetensors")
    rows = observed(3, (0.7, 0.7, 2.0))
    task = {"layout": "torch", "actions": "continuous", "period_s": 0.05, "observation": [["observation", 3, "1"]]}
    steps = [
        *dense("fc1", "fc2", "fc_mean", activation="relu"),
        {"activation": "tanh"},
        {"affine": {"scale": "action_scale", "offset": "action_bias"}},
    ]
    write(folder, rows, answers(actor.best, rows), source="CleanRL sac_continuous_action", **task, steps=steps)


def brax_ppo(folder: Path) -> None:
    random = np.random.default_rng(3)
    sizes = (11, 32, 24, 2 * 4)
    tensors: dict[str, np.ndarray] = {"normalizer/mean": random.normal(0.0, 1.0, 11)}
    tensors["normalizer/std"] = random.uniform(0.3, 2.0, 11)
    for index, (taken, given) in enumerate(itertools.pairwise(sizes)):
        reach = np.sqrt(3.0 / taken)  # flax's lecun_uniform
        tensors[f"policy/params/hidden_{index}/kernel"] = random.uniform(-reach, reach, (taken, given))
        tensors[f"policy/params/hidden_{index}/bias"] = random.normal(0.0, 0.1, given)
    tensors = {name: values.astype(np.float32) for name, values in tensors.items()}
    np.savez(folder / "policy.npz", **{**tensors, "normalizer/count": np.array(1e6, np.float32)})
    rows = observed(11) + np.float32(tensors["normalizer/mean"])
    x = (rows - tensors["normalizer/mean"]) / tensors["normalizer/std"]
    names = [f"policy/params/hidden_{index}" for index in range(3)]
    for name in names:
        x = x @ tensors[f"{name}/kernel"] + tensors[f"{name}/bias"]
        x = x if name == names[-1] else x / (1.0 + np.exp(-x))
    loc, _scale = np.split(x, 2, axis=-1)
    task = {"layout": "jax", "actions": "continuous", "period_s": 0.02, "observation": [["state", 11, "1"]]}
    steps = [
        {"normalise": {"mean": "normalizer/mean", "deviation": "normalizer/std"}},
        *dense(*names, activation="silu"),
        *({"take": 4}, {"activation": "tanh"}),
    ]
    write(folder, rows, np.tanh(loc), source="Brax PPO", **task, steps=steps)


POLICIES = {each.__name__: each for each in (cleanrl_ppo, cleanrl_dqn, cleanrl_sac, brax_ppo)}


if __name__ == "__main__":
    for wanted in sys.argv[2:] or POLICIES:
        torch.manual_seed(1)
        place = Path(sys.argv[1]) / wanted
        place.mkdir(parents=True, exist_ok=True)
        POLICIES[wanted](place)
