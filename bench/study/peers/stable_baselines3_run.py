"""One training with Stable-Baselines3, evaluated as ours is; started by bench/study/speed.py in .venv-peers.

Reads its job as JSON on standard input and prints its answer as one line of JSON. It imports nothing of the project:
the two environments have different versions of numpy.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from typing import Any


def parse_schedule(value: Any) -> Any:
    """``"lin_0.001"`` as the zoo means it: 0.001 × the share of all steps still to be made; others as they are."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    first = float(value.removeprefix("lin_"))
    return lambda remaining: remaining * first


def arguments_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings file's values as keyword arguments of an algorithm's class."""
    arguments = {name: parse_schedule(value) for name, value in settings.items()}
    if isinstance(arguments.get("train_freq"), list):
        arguments["train_freq"] = tuple(arguments["train_freq"])
    return arguments


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train until the mean return is reached or all steps are made.

    Args:
        job: ``task``, ``method``, ``seed``, ``target`` (mean return), ``every`` (steps between two judgements),
            ``episodes`` (of each), ``n_envs``, ``n_timesteps``, ``settings``, and ``noise_std`` or None.

    Returns:
        ``reached``, ``steps``, ``mean_return`` of the last judgement, and CPU seconds of this process: ``cpu_s``
        since its start and ``import_cpu_s`` (up to the first step) with the judging left out, ``judging_cpu_s``;
        and ``versions``.
    """
    import gymnasium
    import numpy as np
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    import_cpu_s = time.process_time()

    class Judge(BaseCallback):
        """Judges the deterministic policy on fresh episodes at fixed intervals, and keeps the time that this takes."""

        def __init__(self) -> None:
            super().__init__()
            began = time.process_time()
            self.mean_return, self.reached = float("nan"), False
            self.environments = make_vec_env(job["task"], job["episodes"], seed=10_000 + job["seed"])
            self.judging_cpu_s = time.process_time() - began
            self.next = job["every"]

        def _on_step(self) -> bool:
            if self.num_timesteps < self.next:
                return True
            began = time.process_time()
            self.next += job["every"]
            returns, _ = evaluate_policy(
                self.model, self.environments, job["episodes"], deterministic=True, return_episode_rewards=True
            )
            self.mean_return = float(np.mean(returns))
            self.reached = self.mean_return >= job["target"]
            self.judging_cpu_s += time.process_time() - began
            return not self.reached

    environments = make_vec_env(job["task"], job["n_envs"], seed=job["seed"])
    arguments = arguments_of(job["settings"])
    if job["noise_std"] is not None:
        size = environments.action_space.shape[0]
        arguments["action_noise"] = NormalActionNoise(np.zeros(size), job["noise_std"] * np.ones(size))
    algorithm = getattr(stable_baselines3, job["method"].upper())
    model = algorithm("MlpPolicy", environments, seed=job["seed"], device="cpu", **arguments)
    judge = Judge()
    model.learn(job["n_timesteps"], callback=judge)
    return {
        "reached": judge.reached,
        "steps": int(model.num_timesteps),
        "mean_return": judge.mean_return,
        "cpu_s": time.process_time() - judge.judging_cpu_s,
        "import_cpu_s": import_cpu_s,
        "judging_cpu_s": judge.judging_cpu_s,
        "versions": {
            "python": platform.python_version(),
            "stable-baselines3": stable_baselines3.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
