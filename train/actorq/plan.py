"""From what was typed to the plan that every process of a run gets."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quarl.device.agent.runtimes import import_runtime, installed_runtimes
from quarl.policy.spec import RuntimeName
from quarl.train.__main__ import make_request
from quarl.train.__main__ import parser as train_parser
from quarl.train.actorq import METHODS
from quarl.train.actorq.settings import ActorQSettings, option
from quarl.train.methods import default_method, refuse_mismatch
from quarl.train.runs.models import DEFAULT_POLICY
from quarl.train.runs.presets import SettingsError, load_settings, parse_overrides
from quarl.train.runs.request import RunRequest
from quarl.train.suites.errors import TaskError
from quarl.train.suites.looks import LOOKS
from quarl.train.suites.make import make_task
from quarl.train.suites.names import resolve
from quarl.train.suites.navigation_options import with_asked
from quarl.train.suites.task import Task

ELSEWHERE = {
    "priority_exponent": "type --priority-exponent",
    "importance_exponent": "type --importance-exponent",
    "environments": "type --n-actors; each actor has one environment",
    "rollout_steps": "type --insert-every, what an actor sends at once",
    "quantization_bits": "the learner computes in floats",
    "quant_delay": "the learner computes in floats",
}
"""Settings of the algorithms that are not looked at here, and what is."""
NOT_HERE = ("precision", "quantization_method", "quant_delay", "teacher")
"""Options of ``python -m train`` that mean nothing here."""


@dataclass(frozen=True)
class Plan:
    """All that a process needs to take its part in a run; each makes its own task and networks from it.

    Attributes:
        request: what was asked for, as of any run.
        settings: the algorithm's, of :class:`train.algorithms.common.settings.ReplaySettings`.
        actorq: of the distribution.
        preset, task_options: as :func:`train.suites.make.make_task` takes them.
        source: of the algorithm's settings, for the provenance.
    """

    request: RunRequest
    settings: Any
    actorq: ActorQSettings
    preset: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def make_task(self) -> Task:
        """The task, anew."""
        return make_task(self.request.task, self.preset, self.task_options)


def make_plan(arguments: argparse.Namespace) -> Plan:
    """The plan that the options of ``python -m train.actorq`` and the settings file describe.

    Raises:
        SettingsError, TaskError: something is refused; they say what to type.
    """
    actorq = actorq_settings(arguments)
    method = arguments.method or default_method(resolve(arguments.task), arguments.policy)
    if method not in METHODS:
        raise SettingsError(f"--method {method} is not distributed. Type --method {' or --method '.join(METHODS)}.")
    found = load_settings(arguments.task, method, arguments.policy or DEFAULT_POLICY)
    found = dataclasses.replace(found, task=with_asked(found.task, arguments))
    if "curriculum" in found.task:
        raise TaskError(
            "--curriculum means nothing to distributed training: each actor flies episodes of its own. Leave it out, "
            "or train with python -m train."
        )
    if arguments.workers != 1:
        raise SettingsError(
            "--workers means nothing to distributed training: each actor has an environment in a process of its own. "
            "Leave it out, or type --n-actors."
        )
    if found.task.get(LOOKS, 1) != 1:
        raise TaskError("--looks means nothing to distributed training, whose actors remember nothing. Leave it out.")
    task = make_task(arguments.task, arguments.preset, found.task)
    refuse_mismatch(method, task)
    if task.is_image:
        raise TaskError(
            f"{task.name} shows images; actors send vectors. Train it with python -m train, or take a task of vectors "
            "such as --task cartpole."
        )
    for name in parse_overrides(arguments.set):
        if name in ELSEWHERE:
            raise SettingsError(f"--set {name} means nothing to distributed training: {ELSEWHERE[name]}.")
    if (runtime := RuntimeName(actorq.runtime)) not in installed_runtimes():
        raise SettingsError(f"--runtime {runtime.value} is not installed here. Type make setup, or take another.")
    if arguments.batch_size is not None:
        arguments.set.append(f"minibatch={arguments.batch_size}")
    more = {"actorq": dataclasses.asdict(actorq)}
    request, settings = make_request(arguments, method, found, task, {}, more)
    return Plan(request, settings, actorq, arguments.preset, found.task, found.source)


def actorq_settings(arguments: argparse.Namespace) -> ActorQSettings:
    """The settings that were typed, the others at their defaults.

    Raises:
        SettingsError: one is refused, or an option of ``python -m train`` was typed that means nothing here.
    """
    for name in NOT_HERE:
        if getattr(arguments, name) != train_parser().get_default(name):
            raise SettingsError(
                f"{option(name)} means nothing to distributed training: the learner computes in 32 bits "
                "and the actors in --quantize bits. Leave it out, or use python -m train."
            )
    values = {part.name: getattr(arguments, part.name) for part in dataclasses.fields(ActorQSettings)}
    if values["quantize_communication"] is None:
        values["quantize_communication"] = values["quantize"]
    try:
        return ActorQSettings(**{**values, "step_delays_s": tuple(values["step_delays_s"])})
    except ValueError as error:
        raise SettingsError(str(error)) from error


def make_runtime_ready(actorq: ActorQSettings) -> None:
    """Before any actor starts: a native engine that is compiled at its first need is compiled here, once.

    Raises:
        BuildError: it cannot be compiled; says why.
    """
    if actorq.runtime == RuntimeName.NATIVE.value:
        import_runtime(RuntimeName.NATIVE).library()


def refuse_fruitless(plan: Plan) -> None:
    """Refuse a staleness that no actor could keep, and steps that are over before learning begins.

    Raises:
        SettingsError: says what to type.
    """
    settings, actorq, steps = plan.settings, plan.actorq, plan.request.steps
    every = actorq.publish_every or settings.updates
    smallest = 2 * max(every, settings.updates)  # one round is learned while the version before it is built
    if actorq.max_staleness < smallest:
        raise SettingsError(
            f"--max-staleness {actorq.max_staleness} cannot be kept: versions are {every} updates apart and a round "
            f"has {settings.updates}. Type --max-staleness {smallest} or more, or smaller rounds: --set updates=4."
        )
    if steps <= settings.learning_starts:
        raise SettingsError(
            f"--steps {steps} are over before learning begins, after {settings.learning_starts} steps of random "
            f"actions. Type --steps {10 * settings.learning_starts}, or --set learning_starts={steps // 10}."
        )
