"""Small plans, policies and rows for the tests of ActorQ's processes, without the processes."""

from pathlib import Path
from typing import Any

import numpy as np

from quarl.policy.spec import (
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Squash,
    weight_shapes,
)
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.settings import ActorQSettings
from quarl.train.actorq.wire import Pushed
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


ROWS = 200
HEADS: dict[str, DiscreteHead | ContinuousHead] = {
    "discrete": DiscreteHead(("left", "stay", "right")),
    "continuous": ContinuousHead((-2.0, -1.0), (2.0, 3.0), Squash.TANH),
}


def make_spec(head: str = "discrete", hidden: tuple[int, ...] = (16, 12), size: int = 4) -> PolicySpec:
    return PolicySpec(
        name="small", observation=(ObservationField("state", (size,), "1"),),
        normaliser=Normaliser((0.5,) * size, (2.0,) * size, 5.0), network=NetworkSpec(hidden), head=HEADS[head],
        control_period_s=0.02, environment=EnvironmentSpec("Test-v0"),
    )  # fmt: skip


def make_weights(spec: PolicySpec, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: (random.normal(0.0, 1.0, shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }


def make_observations(spec: PolicySpec, seed: int, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 2.0, (rows, spec.observation_size)).astype(np.float32)


def push(spec: PolicySpec, weights: dict[str, np.ndarray], updates: int = 7) -> Pushed:
    return Pushed(updates, spec, weights, make_observations(spec, 1))
