"""The algorithms by name, and which tasks each can learn. Imports none of them, and no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quarl.policy.spec import ContinuousHead, DiscreteHead, MultiDiscreteHead, NetworkSpec
from quarl.train.runs.presets import settings_path
from quarl.train.suites.errors import TaskError
from quarl.train.suites.names import NAVIGATION_DEPTH_NAME, Suite, TaskName

if TYPE_CHECKING:
    from quarl.train.runs.request import Trained
    from quarl.train.runs.run import Run
    from quarl.train.suites.task import Task

DISCRETE, MULTI, CONTINUOUS = DiscreteHead.KIND, MultiDiscreteHead.KIND, ContinuousHead.KIND
RECURRENT = "recurrent_ppo"


@dataclass(frozen=True)
class Method:
    """One algorithm, the module ``train.algorithms.NAME``.

    Attributes:
        settings: name of its settings dataclass.
        actions: the kinds of action it takes.
        about: one line for the help.
    """

    settings: str
    actions: tuple[str, ...]
    about: str


METHODS = {
    "ppo": Method("PPOSettings", (DISCRETE, MULTI, CONTINUOUS), "proximal policy optimization (Schulman et al. 2017)"),
    "recurrent_ppo": Method(
        "RecurrentPPOSettings", (DISCRETE, MULTI, CONTINUOUS), "PPO with a memory: --model 128,gru-128 (a GRU)"
    ),
    "dqn": Method("DQNSettings", (DISCRETE,), "deep Q-network, double, n-step, prioritized if set (Mnih et al. 2015)"),
    "a2c": Method("A2CSettings", (DISCRETE, MULTI, CONTINUOUS), "advantage actor-critic (Mnih et al. 2016)"),
    "ddpg": Method("DDPGSettings", (CONTINUOUS,), "deep deterministic policy gradient (Lillicrap et al. 2016)"),
    "d4pg": Method("D4PGSettings", (CONTINUOUS,), "distributional DDPG (Barth-Maron et al. 2018)"),
    "td3": Method("TD3Settings", (CONTINUOUS,), "twin delayed DDPG (Fujimoto et al. 2018)"),
    "sac": Method("SACSettings", (CONTINUOUS,), "soft actor-critic, temperature learned (Haarnoja et al. 2018)"),
    "distill": Method("DistillSettings", (DISCRETE,), "a network learns from a trained one (--teacher)"),
}


def default_method(name: TaskName, policy: str | None) -> str:
    """Return the method when none is asked for: the first that has a settings file for the task, else PPO.

    Policy III of the navigation task is distilled, which takes a third of the time of training it again; one that sees
    pictures and vectors is always.
    """
    if name == NAVIGATION_DEPTH_NAME or (name.suite is Suite.NAVIGATION and policy == "III"):
        return "distill"
    return next((method for method in METHODS if settings_path(name, method) is not None), "ppo")


def kind_of(task: Task) -> str:
    """Return the kind of actions that a task takes."""
    return task.head.KIND


def refuse_mismatch(method: str, task: Task) -> None:
    """Refuse a method that cannot learn the task's kind of actions or of observation.

    Raises:
        TaskError: says which methods can.
    """
    kind = kind_of(task)
    if kind not in METHODS[method].actions:
        able = ", ".join(name for name, other in METHODS.items() if kind in other.actions)
        raise TaskError(
            f"--method {method} requires {' or '.join(METHODS[method].actions)} actions, but {task.name} has {kind} "
            f"ones. Type --method {able}."
        )
    if task.vector_size and method != "distill":
        raise TaskError(
            f"--method {method} learns from images or from vectors, but {task.name} observes both. Type --method "
            "distill."
        )


def refuse_memory(method: str, network: NetworkSpec) -> None:
    """Refuse recurrent layers where the method has no gradient through time, and a method that has one without them.

    Raises:
        TaskError: says what to type.
    """
    if bool(network.recurrences) == (method == RECURRENT):
        return
    if network.recurrences:
        raise TaskError(
            f"--method {method} cannot train recurrent layers. Type --method {RECURRENT}.",
            code="method_not_recurrent",
        )
    raise TaskError(
        f"--method {RECURRENT} requires a network with GRUs. Type --model 128,gru-128, for example.",
        code="method_needs_recurrence",
    )


def settings_class(method: str) -> Any:
    """Return the settings dataclass of an algorithm; imports it."""
    return getattr(import_module(f"quarl.train.algorithms.{method}"), METHODS[method].settings)


def run_method(method: str, run: Run, settings: Any, teacher: str) -> Trained:
    """Run the algorithm, with an update of ``train/accelerator`` where the settings want one.

    ``teacher`` is the bundle that a distillation learns from.
    """
    from quarl.train.accelerator.table import UPDATES, build_accelerated_update

    train = import_module(f"quarl.train.algorithms.{method}").train
    arguments: dict[str, Any] = {"teacher_name": teacher} if method == "distill" else {}
    if method in UPDATES:
        arguments = {"accelerated": build_accelerated_update(method, settings, run.request.network, run.task.head)}
    return train(run, settings, **arguments)
