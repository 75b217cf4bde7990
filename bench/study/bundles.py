"""Flying quantized policies: bundles and their tasks by name, policies simulated at given widths, and their episodes.

Vectors are decided on in numpy, a batch of environments at a time. Images whose activations stay float go through the
compiled graph that training acts with; images with quantized activations through numpy's convolutions, which take about
ten times as long.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl.bench import command_line
from quarl.bench.study.experiment import EpisodePlan, SeedResult
from quarl.policy.bundle import Bundle
from quarl.policy.errors import PolicyError
from quarl.policy.locate import find_shipped, working_bundle
from quarl.policy.pilot import on_rows
from quarl.policy.places import ARTIFACTS
from quarl.policy.reading import MANIFEST_FILE, WEIGHTS_FILE
from quarl.policy.simulate import Widths, simulate
from quarl.policy.spec import ContinuousHead, PolicySpec
from quarl.train.deciding import decide_with, float_decide

if TYPE_CHECKING:
    from quarl.train.suites.episodes import Decide
    from quarl.train.suites.task import Task

SEEDS = (0, 2, 4)
"""The paper's seeds."""
BENCHMARK = (
    "cartpole-ppo", "cartpole-a2c", "cartpole-dqn", "mountaincar-dqn", "acrobot-dqn", "mountaincarcontinuous-ddpg",
    "pendulum-ppo", "pendulum-ddpg", "walker2d-ddpg", "bipedalwalker-ddpg", "cartpole_balance-d4pg",
    "walker_stand-d4pg", "halfcheetah-ddpg",
)  # fmt: skip
"""Perceptrons among zoo/benchmark/, the slow simulators last."""
CONTINUOUS_SHARE = 0.01
"""Share of an action's range: two actions nearer than that count as the same."""


def folder_of(name: str) -> Path:
    """Return the folder of a bundle as typed: a path; a name of the zoo, whatever stands in artifacts/; or
    artifacts/NAME."""
    if "/" in name or name in (".", ".."):
        return Path(name)
    return find_shipped(name) or ARTIFACTS / name


def load(name: str) -> Bundle:
    """Return the bundle that a subject means.

    Raises:
        UsageError: there is none.
    """
    folder = folder_of(name)
    try:
        return Bundle.load(folder) if (folder / MANIFEST_FILE).exists() else working_bundle(name)
    except PolicyError as error:
        raise command_line.UsageError(str(error)) from error


@functools.lru_cache(maxsize=2)
def open_bundle(name: str) -> tuple[Bundle, Task]:
    """Return a bundle and the task that it was trained on; raises as :func:`load` and :func:`task_of` do."""
    bundle = load(name)
    return bundle, task_of(bundle)


def task_of(bundle: Bundle) -> Task:
    """Return the task that a bundle was trained on.

    Raises:
        UsageError: it is not known or not installed here, or its episodes cannot be compared.
    """
    from quarl.train.evaluate import check_task, read_training_task, task_options
    from quarl.train.suites.errors import TaskError
    from quarl.train.suites.make import make_task

    try:
        name = read_training_task(bundle.spec)
        task = make_task(name, options=task_options(bundle.spec, name))
        check_task(bundle.spec, task)
    except (PolicyError, TaskError) as error:
        raise command_line.UsageError(str(error)) from error
    if not task.paired:
        raise command_line.UsageError(
            f"{bundle.path} was trained on {task.name}, whose episodes have no seeds of their own, so that policies "
            f"cannot be compared on the same ones. Evaluate it by itself: quarl evaluate --input-path {bundle.path}",
            code="unseeded_episodes",
        )
    return task


def bundle_identity(name: str) -> str:
    """Hash that returns belong to: of the bundle's weights, and of the navigation task's digests where it flies it."""
    bundle = load(name)
    weights = bundle.manifest.files[WEIGHTS_FILE].sha256
    from quarl.airlearning_envs.config import PRESETS
    from quarl.train.suites.names import NAVIGATION_ID

    if bundle.spec.environment.id != NAVIGATION_ID:
        return weights
    digests = [PRESETS[preset].digest() for preset in ("hard", "shipped")]
    return hashlib.sha256(" ".join([weights, *digests]).encode()).hexdigest()


def quantize_policy(bundle: Bundle, widths: Widths | None) -> tuple[Decide, Mapping[str, Any]]:
    """Return a policy at these widths, None for float, as a function of raw observations; and what it changed.

    Measures: ``other action``, the share of golden observations on which the action is not fp32's.
    """
    if widths is None:
        return float_decide(bundle), {"other action": 0.0}
    golden = bundle.golden()
    decide = decide_with(bundle.spec, simulate(bundle.spec, bundle.weights(), bundle.calibration(), widths))
    return decide, {"other action": share_differing(bundle.spec, on_rows(decide)(golden.observations), golden.actions)}


def fly(task: Task, decide: Decide, episodes: EpisodePlan, measures: Mapping[str, Any]) -> Iterator[SeedResult]:
    """Greedy episodes on every preset that the task is evaluated on.

    Measures: the given ones, ``length`` (mean steps of an episode), and ``starts`` where episodes may repeat others.
    """
    for preset in task.presets:
        for seed in episodes.seeds:
            results = task.evaluate(decide, episodes.count, seed, preset)
            also = {"length": results.mean_length, **({"starts": results.starts} if results.starts else {})}
            yield SeedResult(preset, seed, results.returns, results.successes or None, {**measures, **also})


def share_differing(spec: PolicySpec, actions: np.ndarray, reference: np.ndarray) -> float:
    """Share of observations whose action is another one than the reference's.

    Args:
        spec: the policy.
        actions, reference: (n,) of a discrete head, or (n, components); (n, size) of a continuous one, where an element
            has to differ by more than a hundredth of its range.
    """
    if not isinstance(spec.head, ContinuousHead):
        return float(np.mean((actions != reference).reshape(len(actions), -1).any(axis=1)))
    span = np.asarray(spec.head.high) - np.asarray(spec.head.low)
    return float(np.mean((np.abs(actions - reference) > CONTINUOUS_SHARE * span).any(axis=1)))
