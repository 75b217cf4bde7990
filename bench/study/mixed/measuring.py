"""What the study measures: an update, acting, a short training on Pong, and learning curves on Catch.

float32 and the 16-bit type take turns in one process, so that whatever else the machine does meets both alike. Times
are wall time and processor time of this process; of one thread they are the same on a machine that does nothing else.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.study.mixed.catch import catch_task
from policy.spec import NATURE_CONVOLUTIONS, Convolution, NetworkSpec
from train.algorithms import dqn
from train.networks.forward import Acting
from train.networks.weights import Weights
from train.quantization.mixed_precision import Compute, fresh_loss_scale
from train.runs.logs import read_rows
from train.runs.request import RunRequest
from train.runs.run import Run
from train.suites.make import make_task
from train.suites.task import Task

IMAGE, ACTIONS = (84, 84, 4), 6  # Pong
FLOAT32 = Compute.FLOAT32.value


@dataclass(frozen=True)
class PongPolicy:
    """A network of the paper's mixed-precision case, and how much of it is measured unless told otherwise.

    Attributes:
        filters: of each of the three convolutions, whose kernels and strides (8/4, 4/2, 3/1) are those of Mnih et al.
            2015: the paper states none.
        hidden: width of the fully connected layer.
        paper_minutes: the paper's training time in float32 and in mixed precision, on hardware it does not name.
        updates: measured in each type.
        in_a_call: updates in one compiled call.
        steps: of the training on Pong, after learning has begun.
        rollout_steps: of each of its environments, between two rounds of updates.
    """

    filters: int
    hidden: int
    paper_minutes: tuple[int, int]
    updates: int
    in_a_call: int
    steps: int
    rollout_steps: int

    @property
    def network(self) -> NetworkSpec:
        """The layers."""
        layers = tuple(Convolution(self.filters, layer.kernel, layer.stride) for layer in NATURE_CONVOLUTIONS)
        return NetworkSpec((self.hidden,), convolutions=layers)


POLICIES = {
    "A": PongPolicy(128, 128, (127, 156), updates=80, in_a_call=8, steps=1024, rollout_steps=8),
    "B": PongPolicy(512, 512, (179, 172), updates=12, in_a_call=2, steps=128, rollout_steps=8),
    "C": PongPolicy(1024, 2048, (391, 242), updates=4, in_a_call=1, steps=48, rollout_steps=2),
}


@dataclass(frozen=True)
class Timing:
    """One thing timed many times, per piece of work; ms.

    Attributes:
        wall_ms, cpu_ms: medians.
        low_ms, high_ms: quartiles of the processor time.
        count: measurements.
    """

    wall_ms: float
    cpu_ms: float
    low_ms: float
    high_ms: float
    count: int

    @classmethod
    def of(cls, wall: list[float], cpu: list[float], pieces: int) -> Timing:
        """From seconds, each of ``pieces`` pieces of work."""
        per = 1e3 / pieces
        low, _, high = statistics.quantiles(cpu, n=4) if len(cpu) > 1 else (cpu[0],) * 3
        return cls(statistics.median(wall) * per, statistics.median(cpu) * per, low * per, high * per, len(wall))


def timed_in_turns(calls: Mapping[str, Callable[[], Any]], rounds: int, pieces: int = 1) -> dict[str, Timing]:
    """Time each call ``rounds`` times, in turns, after one call of each that is not counted."""
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            began, cpu_began = time.perf_counter(), time.process_time()
            calls[name]()
            if number:
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.process_time() - cpu_began)
    return {name: Timing.of(wall[name], cpu[name], pieces) for name in calls}


def parameters(network: NetworkSpec) -> int:
    """Number of weights."""
    from policy.network import network_shapes

    return sum(int(np.prod(shape)) for shape in network_shapes(network, IMAGE, ACTIONS).values())


def random_weights(network: NetworkSpec) -> Weights:
    """Normal weights of the usual size: drawing policy C's orthogonal ones takes longer than timing it."""
    from policy.network import network_shapes

    generator, weights = np.random.default_rng(0), {}
    for name, shape in network_shapes(network, IMAGE, ACTIONS).items():
        deviation = np.float32(np.sqrt(2.0 / np.prod(shape[:-1])) if name.endswith("kernel") else 0.0)
        weights[name] = deviation * generator.standard_normal(shape, dtype=np.float32)
    return weights


def time_updates(policy: PongPolicy, types: list[str], updates: int, batch: int) -> dict[str, Timing]:
    """DQN's compiled update (double targets, Adam) on random pictures, from the same state in every type."""
    import tensorflow as tf

    generator, count = np.random.default_rng(0), policy.in_a_call
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
    drawn = {name: tf.constant(value) for name, value in random_weights(policy.network).items()}
    zeros = {name: tf.zeros_like(value) for name, value in drawn.items()}
    weights = {"online": drawn, "target": drawn, "first": zeros, "second": zeros}
    for kind in types:
        scale = {"loss_scale": fresh_loss_scale(Compute(kind))} if Compute(kind).scales_loss else {}
        update = dqn.make_update(dqn.DQNSettings(compute=kind), policy.network)

        def call(update: Any = update, state: Any = {**weights, **scale}) -> None:  # noqa: B006 (read only)
            _, metrics, _ = update(state, batches, np.int32(0), np.float32(1e-4))
            metrics.numpy()

        calls[kind] = call
    return timed_in_turns(calls, max(updates // count, 1), count)


def time_acting(policy: PongPolicy, types: list[str], calls: int, batch: int) -> dict[str, Timing]:
    """Action values of ``batch`` pictures, as every step of a training needs them."""
    generator = np.random.default_rng(0)
    weights = random_weights(policy.network)
    images = generator.integers(0, 256, (batch, *IMAGE), dtype=np.uint8)
    acting = {kind: partial(Acting(policy.network, Compute(kind)), weights, images) for kind in types}
    return timed_in_turns(acting, calls)


class MeasuredRun(Run):
    """A run that writes no checkpoint: policy C's would be 2 GB a minute."""

    @property
    def wants_checkpoint(self) -> bool:
        """Never."""
        return False

    def save(self, step: int, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Only the learning curve."""
        self._log.flush()


def trained(task: Task, network: NetworkSpec, settings: dqn.DQNSettings, steps: int, seed: int, **more: Any) -> Any:
    """Train; the rows of the learning curve as numbers, and the weights."""
    with tempfile.TemporaryDirectory() as folder:
        request = RunRequest(
            task.name, "bench", "dqn", network, steps, seed, Path(folder) / "bench", quiet=True,
            **{"evaluate_every": 0, **more},
        )  # fmt: skip
        with MeasuredRun(request, task) as run:
            result = dqn.train(run, settings)
            text = run.curve.read_text(encoding="utf-8")
    rows = [{name: float(value or "nan") for name, value in row.items()} for row in read_rows(text)]
    return rows, result


def train_on_pong(policy: PongPolicy, kind: str, steps: int, batch: int, seed: int = 0) -> dict[str, Any]:
    """A short training, end to end: emulator, acting, replay and one update in four steps as in Mnih et al. 2015.

    The first round of updates compiles them and is not counted.
    """
    environments, starts = 8, 256
    iteration = environments * policy.rollout_steps
    settings = dqn.DQNSettings(
        environments=environments, rollout_steps=policy.rollout_steps, updates=iteration // 4, minibatch=batch,
        learning_rate=1e-4, n_step=1, target_period=250, learning_starts=starts, replay_capacity=20_000,
        epsilon_last=0.1, exploration=1.0, compute=kind,
    )  # fmt: skip
    rows, _ = trained(make_task("pong"), policy.network, settings, starts + steps, seed)
    learning = [row for row in rows if row["loss"] == row["loss"]]
    made = learning[-1]["step"] - learning[0]["step"]
    wall, cpu = (learning[-1][name] - learning[0][name] for name in ("wall_s", "cpu_s"))
    return {
        "steps": int(made),
        "updates": int(made) // 4,
        "wall_s": wall,
        "cpu_s": cpu,
        "steps_per_s": made / wall,
        "steps_per_cpu_s": made / cpu,
        "losses": [round(row["loss"], 7) for row in learning],
    }


CATCH_NETWORK = NetworkSpec((64,), convolutions=(Convolution(32, 4, 2), Convolution(32, 3, 1)))
CATCH_SETTINGS: dict[str, Any] = {
    "environments": 16, "rollout_steps": 8, "updates": 32, "minibatch": 32, "learning_rate": 1e-3, "n_step": 3,
    "discount": 0.9, "learning_starts": 512, "target_period": 50, "replay_capacity": 20_000, "exploration": 0.3,
    "epsilon_last": 0.05,
}  # fmt: skip
CATCH_STEPS, CATCH_EPISODES = 6144, 256


def learn_catch(kind: str, seed: int) -> dict[str, Any]:
    """Greedy returns while Catch is learned: [(step, mean return of CATCH_EPISODES)], the last with its losses."""
    settings = dqn.DQNSettings(compute=kind, **CATCH_SETTINGS)
    more = {"evaluate_every": 1024, "evaluate_episodes": CATCH_EPISODES}
    rows, _ = trained(catch_task(), CATCH_NETWORK, settings, CATCH_STEPS, seed, **more)
    greedy = [(int(row["step"]), row["greedy_return"]) for row in rows]
    judged = [(step, round(value, 4)) for step, value in greedy if value == value]
    return {"seed": seed, "returns": judged, "last_loss": rows[-1]["loss"]}


# Student's t, two-sided 95 %, by degrees of freedom (Abramowitz & Stegun 1964, table 26.10)
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
MOST_SEEDS = len(STUDENT) + 1


def paired(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Mean of b − a with its 95 % interval by Student's t; values at one place are of one seed, 2 to 10 of them."""
    differences = np.subtract(b, a)
    half = STUDENT[len(differences) - 1] * float(differences.std(ddof=1)) / float(np.sqrt(len(differences)))
    return float(differences.mean()), float(differences.mean()) - half, float(differences.mean()) + half
