"""One training of PPO with RLtools, judged as ours is; started by bench/study/peers/beside_rltools.py in .venv-rltools.

Reads its job as JSON on standard input and prints its answer as one line of JSON. It imports nothing of the project:
the two environments have different versions of numpy.
"""

from __future__ import annotations

import itertools
import json
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any


def children_cpu_s() -> float:
    """CPU seconds of the programs that this one started and waited for: the compiler."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Judge:
    """Fresh greedy episodes in Gymnasium, and the time that they take."""

    def __init__(self, job: dict[str, Any]) -> None:
        began = time.process_time()
        import gymnasium

        self.environments = [gymnasium.make(job["task"]) for _ in range(job["episodes"])]
        for number, environment in enumerate(self.environments):
            environment.reset(seed=10_000 * (job["seed"] + 1) + number)
        self.cpu_s = time.process_time() - began

    def mean_return(self, state: Any) -> float:
        """Play them; ``state.action`` gives the policy's mean, of which 1 is half the range of an action."""
        import numpy as np

        began = time.process_time()
        returns = []
        for environment in self.environments:
            (observation, _), total, over = environment.reset(), 0.0, False
            space: Any = environment.action_space
            while not over:
                action = (
                    space.low + (space.high - space.low) * (np.clip(state.action(observation), -1.0, 1.0) + 1.0) / 2.0
                )
                observation, reward, terminated, truncated, _ = environment.step(action)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        self.cpu_s += time.process_time() - began
        return float(np.mean(returns))


def of_gymnasium(task: str, seed: int) -> Callable[[], Any]:
    """What makes Gymnasium's environments of a task, each with a seed of its own; actions −1 … 1, as RLtools wants."""
    import gymnasium
    import numpy as np

    count = itertools.count()

    def make() -> Any:
        environment = gymnasium.wrappers.RescaleAction(gymnasium.make(task), np.float32(-1.0), np.float32(1.0))
        environment.reset(seed=1_000 * seed + next(count))
        return environment

    return make


def run(job: dict[str, Any], folder: str) -> dict[str, Any]:
    """Compile, then train until the mean return is reached or all steps are made.

    Args:
        job: ``task``, ``seed``, ``target`` (mean return), ``every`` (steps between two judgements), ``episodes`` (of
            each), ``steps``, ``settings``, and ``environment``: the folder of one in C++, or None for Gymnasium's.
        folder: an empty one, for what is compiled.

    Returns:
        ``reached``, ``steps``, ``mean_return`` of the last judgement, and CPU seconds: ``cpu_s`` of this process since
        its start and ``import_cpu_s`` (up to the compilation) with the judging left out, ``judging_cpu_s``,
        ``compile_cpu_s`` of the compiler; and ``versions``.
    """
    tempfile.tempdir = folder  # where it keeps what it compiles
    import rltools

    made = {"path": job["environment"]} if job["environment"] else of_gymnasium(job["task"], job["seed"])
    import_cpu_s = time.process_time()
    settings = job["settings"]
    each = settings["N_ENVIRONMENTS"] * settings["ON_POLICY_RUNNER_STEPS_PER_ENV"]
    compiled = rltools.PPO(made, enable_evaluation=False, STEP_LIMIT=job["steps"] // each, **settings)
    compile_cpu_s = children_cpu_s()
    state = compiled.State(job["seed"])
    judge, steps, mean_return, reached = Judge(job), 0, float("nan"), False
    while steps + each <= job["steps"] and not reached:
        state.step()
        steps += each
        if steps // job["every"] > (steps - each) // job["every"]:
            mean_return = judge.mean_return(state)
            reached = mean_return >= job["target"]
    return {
        "reached": reached,
        "steps": steps,
        "mean_return": mean_return,
        "cpu_s": time.process_time() - judge.cpu_s,
        "import_cpu_s": import_cpu_s,
        "judging_cpu_s": judge.cpu_s,
        "compile_cpu_s": compile_cpu_s,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("rltools", "mkl", "numpy", "gymnasium")},
        },
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        print(json.dumps(run(json.load(sys.stdin), made_in)))
