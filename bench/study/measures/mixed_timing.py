"""What the study of mixed precision measures: an update, acting, a short training on Pong, and learning Catch.

float32 and the 16-bit type take turns in one process, so that whatever else the machine does meets both alike. Times
are wall time and processor time of this process; of one thread they are the same on a machine that does nothing else.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from quarl.bench.study.measures.catch import catch_task
from quarl.policy.spec import Convolution, NetworkSpec
from quarl.train.algorithms import dqn
from quarl.train.networks.forward import Acting
from quarl.train.networks.weights import Weights
from quarl.train.quantization.mixed_precision import Compute, fresh_loss_scale
from quarl.train.runs.logs import read_curve
from quarl.train.runs.request import RunRequest
from quarl.train.runs.run import Run
from quarl.train.suites.make import make_task
from quarl.train.suites.task import Task

IMAGE, ACTIONS = (84, 84, 4), 6  # Pong
FLOAT32 = Compute.FLOAT32.value


Timed = dict[str, tuple[list[float], dict[str, Any]]]
"""Values and further measures, by number type."""


def prepare(threads: int, kind: str) -> dict[str, Any]:
    """Load TensorFlow with oneDNN on and this many threads, on as many cores; returns what belongs to every row."""
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # as the command does for pictures
    from quarl.train.quantization.mixed_precision import slower_here
    from quarl.train.quiet import suppress_output

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    with suppress_output():
        import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return {"tensorflow": metadata.version("tensorflow-cpu"), "has_unit": slower_here(Compute(kind)) is None}


def time_in_turns(calls: Mapping[str, Callable[[], Any]], rounds: int, pieces: int = 1) -> Timed:
    """Time each call ``rounds`` times, in turns, after one call of each that is not counted.

    Values: processor time of each, ms for each of its ``pieces`` of work. Measures: the median by wall clock, and how
    often it was timed.
    """
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            began, cpu_began = time.perf_counter(), time.process_time()
            calls[name]()
            if number:
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.process_time() - cpu_began)
    per = 1e3 / pieces
    return {
        name: (
            [per * seconds for seconds in cpu[name]],
            {"wall_ms": per * statistics.median(wall[name]), "count": rounds},
        )
        for name in calls
    }


def random_weights(network: NetworkSpec) -> Weights:
    """Return normal weights of the usual size: drawing policy C's orthogonal ones takes longer than timing it."""
    from quarl.policy.spec import network_shapes

    generator, weights = np.random.default_rng(0), {}
    for name, shape in network_shapes(network, IMAGE, ACTIONS).items():
        deviation = np.float32(np.sqrt(2.0 / np.prod(shape[:-1])) if name.endswith("kernel") else 0.0)
        weights[name] = deviation * generator.standard_normal(shape, dtype=np.float32)
    return weights


def time_updates(network: NetworkSpec, half: str, updates: int, in_a_call: int, batch: int, seed: int) -> Timed:
    """DQN's compiled update (double targets, Adam) on random pictures, from the same state in every type."""
    import tensorflow as tf

    generator, count = np.random.default_rng(seed), in_a_call
    columns = {
        "observation": generator.integers(0, 256, (count, batch, *IMAGE), dtype=np.uint8),
        "next_observation": generator.integers(0, 256, (count, batch, *IMAGE), dtype=np.uint8),
        "action": generator.integers(0, ACTIONS, (count, batch)).astype(np.int32),
        "return": generator.choice([-1.0, 0.0, 1.0], (count, batch), p=[0.02, 0.96, 0.02]).astype(np.float32),
        "discount": np.full((count, batch), 0.99, np.float32),
    }
    batches = {name: tf.constant(column) for name, column in columns.items()}
    calls: dict[str, Callable[[], Any]] = {}
    # The tensors are shared: policy C's weights and moments alone are 2 GB.
    drawn = {name: tf.constant(value) for name, value in random_weights(network).items()}
    zeros = {name: tf.zeros_like(value) for name, value in drawn.items()}
    weights = {"online": drawn, "target": drawn, "first": zeros, "second": zeros}
    for kind in (FLOAT32, half):
        scale = {"loss_scale": fresh_loss_scale(Compute(kind))} if Compute(kind).scales_loss else {}
        update = dqn.make_update(dqn.DQNSettings(compute=kind), network)

        def call(update: Any = update, state: Any = {**weights, **scale}) -> None:  # noqa: B006 (read only)
            _, metrics, _ = update(state, batches, np.int32(0), np.float32(1e-4))
            metrics.numpy()

        calls[kind] = call
    return time_in_turns(calls, max(updates // count, 1), count)


def time_acting(network: NetworkSpec, half: str, calls: int, batch: int, seed: int) -> Timed:
    """Return action values of ``batch`` pictures, as every step of a training needs them."""
    weights = random_weights(network)
    images = np.random.default_rng(seed).integers(0, 256, (batch, *IMAGE), dtype=np.uint8)
    acting = {kind: partial(Acting(network, Compute(kind)), weights, images) for kind in (FLOAT32, half)}
    return time_in_turns(acting, calls)


class MeasuredRun(Run):
    """A run that writes no checkpoint: policy C's would be 2 GB a minute."""

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint is due: never."""
        return False

    def save(self, step: int, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Save only the learning curve."""
        self._log.flush()


def train_curve(
    task: Task, network: NetworkSpec, settings: dqn.DQNSettings, steps: int, seed: int, **more: Any
) -> list[dict[str, float]]:
    """Train; the rows of the learning curve."""
    with tempfile.TemporaryDirectory() as folder:
        request = RunRequest(
            task.name, "bench", "dqn", network, steps, seed, Path(folder) / "bench", quiet=True,
            **{"evaluate_every": 0, **more},
        )  # fmt: skip
        with MeasuredRun(request, task) as run:
            dqn.train(run, settings)
            return read_curve(run.curve.read_text(encoding="utf-8"))


def train_on_pong(network: NetworkSpec, half: str, steps: int, rollout_steps: int, batch: int, seed: int) -> Timed:
    """Return a short training in each type, end to end: emulator, acting, replay and one update in four steps as in
    Mnih et al. 2015.

    The first round of updates compiles them and is not counted. Values: steps a second of processor time.
    """
    environments, starts = 8, 256
    iteration = environments * rollout_steps
    timings: Timed = {}
    for kind in (FLOAT32, half):
        settings = dqn.DQNSettings(
            environments=environments, rollout_steps=rollout_steps, updates=iteration // 4, minibatch=batch,
            learning_rate=1e-4, n_step=1, target_period=250, learning_starts=starts, replay_capacity=20_000,
            epsilon_last=0.1, exploration=1.0, compute=kind,
        )  # fmt: skip
        rows = train_curve(make_task("pong"), network, settings, starts + steps, seed)
        learning = [row for row in rows if "loss" in row]
        timed_steps = learning[-1]["step"] - learning[0]["step"]
        wall, cpu = (learning[-1][name] - learning[0][name] for name in ("wall_s", "cpu_s"))
        losses = [round(row["loss"], 7) for row in learning]
        timings[kind] = [timed_steps / cpu], {"steps": int(timed_steps), "wall_s": wall, "losses": losses}
    return timings


CATCH_NETWORK = NetworkSpec((64,), convolutions=(Convolution(32, 4, 2), Convolution(32, 3, 1)))
CATCH_SETTINGS: dict[str, Any] = {
    "environments": 16, "rollout_steps": 8, "updates": 32, "minibatch": 32, "learning_rate": 1e-3, "n_step": 3,
    "discount": 0.9, "learning_starts": 512, "target_period": 50, "replay_capacity": 20_000, "exploration": 0.3,
    "epsilon_last": 0.05,
}  # fmt: skip
CATCH_STEPS, CATCH_EPISODES = 6144, 256


def learn_catch(half: str, seed: int) -> Timed:
    """Learn Catch in each type. Values: mean returns of CATCH_EPISODES greedy episodes along the way.

    Measures: the steps at which, how many episodes, the last loss.
    """
    timings: Timed = {}
    for kind in (FLOAT32, half):
        settings = dqn.DQNSettings(compute=kind, **CATCH_SETTINGS)
        evaluation = {"evaluate_every": 1024, "evaluate_episodes": CATCH_EPISODES}
        rows = train_curve(catch_task(), CATCH_NETWORK, settings, CATCH_STEPS, seed, **evaluation)
        greedy = {int(row["step"]): row["greedy_return"] for row in rows if "greedy_return" in row}
        measures = {"at": list(greedy), "judged": CATCH_EPISODES, "last_loss": rows[-1].get("loss", np.nan)}
        timings[kind] = list(greedy.values()), measures
    return timings
