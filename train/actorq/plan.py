"""From what was typed to the plan that every process of a run gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quarl.device.agent.runtimes import find_installed_runtimes, import_runtime
from quarl.policy.spec import RuntimeName
from quarl.train.__main__ import make_request
from quarl.train.actorq import METHODS
from quarl.train.actorq.settings import ActorQSettings
from quarl.train.methods import default_method, refuse_mismatch
from quarl.train.runs.models import DEFAULT_POLICY
from quarl.train.runs.presets import SettingsError, load_settings, parse_overrides
from quarl.train.runs.request import RunRequest
from quarl.train.suites.errors import TaskError
from quarl.train.suites.history import HISTORY_LENGTH
from quarl.train.suites.make import make_task
from quarl.train.suites.names import resolve
from quarl.train.suites.navigation_options import with_asked
from quarl.train.suites.task import Task

if TYPE_CHECKING:
    from quarl.train.actorq.__main__ import Options

ELSEWHERE = {
    "priority_exponent": "type --priority-exponent",
    "importance_exponent": "type --importance-exponent",
    "environments": "type --n-actors; each actor has one environment",
    "rollout_steps": "type --insert-every, what an actor sends at once",
    "quantization_bits": "the learner computes in floats",
    "quant_delay": "the learner computes in floats",
}
"""Settings of the algorithms that are not looked at here, and what is."""


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
        """Return the task, again."""
        return make_task(self.request.task, self.preset, self.task_options)


def make_plan(options: Options) -> Plan:
    """Return the plan that the options of ``quarl actorq`` and the settings file describe.

    Raises:
        SettingsError, TaskError: something is refused; they say what to type.
    """
    actorq, typed = options.actorq, options.task or ""
    method = options.method or default_method(resolve(typed), options.policy)
    if method not in METHODS:
        raise SettingsError(
            f"--method {method} cannot be trained with actors. Type --method {' or --method '.join(METHODS)}."
        )
    task_settings = load_settings(typed, method, options.policy or DEFAULT_POLICY)
    task_settings = dataclasses.replace(task_settings, task=with_asked(task_settings.task, options))
    if "curriculum" in task_settings.task:
        raise TaskError(
            "--curriculum is not available in distributed training: each actor flies its own episodes. Leave it out, "
            "or train with quarl train.",
            code="curriculum_not_distributed",
        )
    if task_settings.task.get(HISTORY_LENGTH, 1) != 1:
        raise TaskError(
            "--history-length is not available in distributed training: actors do not stack observations. Leave it out."
        )
    task = make_task(typed, options.preset, task_settings.task)
    refuse_mismatch(method, task)
    if task.is_image:
        raise TaskError(
            f"{task.name} has image observations, but actors send vectors. Train it with quarl train, or choose a "
            "task with vector observations such as --task cartpole."
        )
    for name in parse_overrides(options.set):
        if name in ELSEWHERE:
            raise SettingsError(f"--set {name} is not available in distributed training: {ELSEWHERE[name]}.")
    if (runtime := RuntimeName(actorq.runtime)) not in find_installed_runtimes():
        raise SettingsError(
            f"--runtime {runtime.value} is not installed on this machine. Type make setup, or choose another --runtime."
        )
    if options.batch_size is not None:
        options = dataclasses.replace(options, set=(*options.set, f"minibatch={options.batch_size}"))
    extra = {"actorq": dataclasses.asdict(actorq)}
    request, settings = make_request(options, method, task_settings, task, {}, extra)
    return Plan(request, settings, actorq, options.preset, task_settings.task, task_settings.source)


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
            f"--max-staleness {actorq.max_staleness} cannot be met: versions are {every} updates apart and a round "
            f"has {settings.updates}. Type --max-staleness {smallest} or more, or smaller rounds: --set updates=4."
        )
    if steps <= settings.learning_starts:
        raise SettingsError(
            f"--steps {steps} end before learning begins, which is after {settings.learning_starts} steps of random "
            f"actions. Type --steps {10 * settings.learning_starts}, or --set learning_starts={steps // 10}."
        )
