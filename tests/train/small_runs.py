"""Small training runs typed as a user types them, for the tests of ``quarl train``."""

from pathlib import Path

import numpy as np

from quarl.policy.bundle import Bundle
from quarl.train import __main__ as command
from quarl.train.runs.logs import read_rows

SMALL = ["--task", "CartPole-v1", "--policy", "I", "--seed", "3", "--quiet"]
PPO = [*SMALL, "--method", "ppo", "--set", "environments=8", "--set", "rollout_steps=32", "--set", "minibatch=64"]
DQN = [*SMALL, "--method", "dqn", "--set", "environments=8", "--set", "learning_starts=256", "--set", "minibatch=32"]
DISTILL = [*SMALL, "--method", "distill", "--set", "environments=8", "--set", "minibatch=32", "--set", "updates=2"]
METHODS = {"ppo": (PPO, 256), "dqn": (DQN, 128), "distill": (DISTILL, 128)}  # with the steps of one iteration
AWARE = ["--quantization-method", "quantization-aware", "--precision"]
TIMES = ("wall_s", "cpu_s")


def train(output: Path, *options: str) -> int:
    few = ["--evaluate-every", "512", "--evaluate-episodes", "3", "--final-episodes", "20"]
    return ended([*options, *few, "--output-path", str(output)])


def ended(words: list[str]) -> int:
    """The exit status, wrong usage included."""
    try:
        return command.main(words)
    except SystemExit as error:
        if error.code is None:  # raised by a test
            raise
        return int(error.code)


def curve(output: Path) -> list[dict[str, str]]:
    rows = read_rows((output / "learning_curve.csv").read_text())
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = Bundle.load(one).weights(), Bundle.load(other).weights()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
