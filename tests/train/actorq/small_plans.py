"""Small plans and rows for the tests of ActorQ's processes, without the processes."""

from pathlib import Path
from typing import Any

import numpy as np

from quarl.policy.spec import NetworkSpec
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.settings import ActorQSettings
from quarl.train.methods import settings_class
from quarl.train.runs.presets import build
from quarl.train.runs.request import RunRequest

DQN = {
    "environments": 1, "rollout_steps": 1, "updates": 2, "minibatch": 4, "n_step": 1, "learning_starts": 10,
    "replay_capacity": 100, "engine": "numpy",
}  # fmt: skip
FACTS = {"actor": 0, "life": 0}


def make_plan(
    steps: int = 1000, algorithm: dict[str, Any] | None = None, seed: int = 3, pendulum: bool = False, **actorq: Any
) -> Plan:
    """DQN on CartPole, or D4PG on Pendulum: one actor sends 4 rows at a time, each learned from twice on average."""
    distribution = ActorQSettings(**{"n_actors": 1, "insert_every": 4, "samples_per_insert": 2.0, **actorq})
    task, method = ("Pendulum-v1", "d4pg") if pendulum else ("CartPole-v1", "dqn")
    request = RunRequest(task, "small", method, NetworkSpec((8,)), steps, seed, Path("small"))
    values = {**({} if pendulum else DQN), **(algorithm or {})}
    return Plan(request, build(settings_class(method), values), distribution)


def make_rows(count: int, updates: int = 0, first: int = 0) -> dict[str, np.ndarray]:
    """One-step rows of CartPole; the first element of an observation is the row's number."""
    numbers = np.arange(first, first + count, dtype=np.float32)
    observation = np.random.default_rng(first).normal(size=(count, 4)).astype(np.float32)
    observation[:, 0] = numbers
    return {
        "observation": observation, "action": (np.arange(count) % 2).astype(np.int32),
        "return": np.ones(count, np.float32), "discount": np.full(count, 0.99, np.float32),
        "next_observation": observation + np.float32(0.1), "updates": np.full(count, updates, np.int64),
        "greedy": np.zeros(count, np.int32),
    }  # fmt: skip
