"""Where an actor's time goes: one actor on its own, with parameters that change as if a learner were at work.

The actor, the replay and the parameter server are the processes of a real run (``train/actorq/cluster.py``); only the
learner is left out: in its place the same policy, a little changed, is handed over every so often, so that every
precision gets as many versions and no update competes for the cores. What is measured is therefore what an actor
costs where it has a core of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PARTS = ("step", "inference", "pull", "deserialize", "load", "insert", "other")
"""Parts of a step, in the order in which they are drawn; ``other`` is the actor's own Python, exploration included."""
PERIODS = (30, 300)
BITS = (32, 16, 8)
HAND_OVER_EVERY_S = 0.25
CALIBRATION_ROWS = 256
SCATTER = 1e-3  # relative change of the weights from one version to the next


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        task, model: as they are typed.
        bits: of the artifact that the actor executes and of the weights on their way.
        period: steps between two pulls.
    """

    task: str
    model: str
    bits: int
    period: int


@dataclass(frozen=True)
class Breakdown:
    """One actor's time in one setting.

    Attributes:
        setting: what was measured.
        steps: of the environment.
        pulls, renewals: looks for newer parameters, and those that found some.
        microseconds: per step, by :data:`PARTS`.
        bytes_each: of one version on its way.
        build_s: seconds that the parameter server took for one version.
        repetition: number of the round, from 0.
    """

    setting: Setting
    steps: int
    pulls: int
    renewals: int
    microseconds: dict[str, float]
    bytes_each: int
    build_s: float
    repetition: int

    @property
    def total(self) -> float:
        """Microseconds per step."""
        return sum(self.microseconds.values())

    @property
    def renewing(self) -> float:
        """Microseconds per step for parameters: pull, deserialize and load."""
        return sum(self.microseconds[part] for part in ("pull", "deserialize", "load"))

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Breakdown:
        """The inverse of :meth:`values`."""
        return cls(**{**values, "setting": Setting(**values["setting"])})


def settings_of(tasks: Sequence[tuple[str, str]]) -> list[Setting]:
    """Every precision at every period for each (task, model)."""
    return [Setting(task, model, bits, period) for task, model in tasks for period in PERIODS for bits in BITS]


def measure(settings: Sequence[Setting], steps: int, repetitions: int, say: Callable[[str], None]) -> list[Breakdown]:
    """Measure every setting so many times, in turn, so that what else the machine does falls on all alike.

    Args:
        settings: what to measure.
        steps: of the environment in each measurement.
        repetitions: rounds.
        say: gets a line for each measurement.
    """
    from train.actorq import cluster

    found = []
    with cluster.connected(plan_of(settings[0], steps).actorq, None):
        for repetition in range(repetitions):
            for setting in settings:
                one = measured(setting, steps, repetition)
                say(
                    f"{setting.task} {setting.model} {setting.bits} bits, every {setting.period}: "
                    f"{one.total:,.0f} µs a step, {one.microseconds['inference']:,.0f} of them inference, "
                    f"{one.renewing:,.0f} for parameters"
                )
                found.append(one)
    return found


def plan_of(setting: Setting, steps: int) -> Any:
    """A run of one actor, nobody waiting for anybody."""
    from train.__main__ import make_request
    from train.actorq.__main__ import actorq_settings, make_plan, parser
    from train.runs.presets import load_settings
    from train.suites.make import make_task

    task = make_task(setting.task)
    method = "dqn" if task.is_discrete else "d4pg"
    typed = ["--task", setting.task, "--model", setting.model, "--method", method, "--steps", str(steps)]
    typed += ["--n-actors", "1", "--quantize", str(setting.bits), "--actor-update-period", str(setting.period)]
    arguments = parser().parse_args([*typed, "--samples-per-insert", "0"])
    asked, found = actorq_settings(arguments), load_settings(setting.task, method, "")
    request, algorithm = make_request(arguments, method, found, task, {})
    return make_plan(request, None, found.task, asdict(algorithm), asked)


def measured(setting: Setting, steps: int, repetition: int) -> Breakdown:
    """One actor's life in one setting; Ray runs already."""
    import numpy as np

    from train.actorq import cluster
    from train.actorq.processes import called
    from train.suites.make import make_task

    plan = plan_of(setting, steps)
    with cluster.Cluster(plan, True, 0) as processes:
        version = versions(plan, make_task(plan.task, plan.preset, plan.task_options), np.random.default_rng(0))
        called(processes.server.put, *next(version))
        called(processes.server.latest, 0)  # built before the actor asks
        acting = processes.actor(0, 0).run.remote()
        while not cluster.ready([acting], HAND_OVER_EVERY_S):
            called(processes.server.put, *next(version))
        facts, server = cluster.outcome(acting), called(processes.server.facts)
    seconds = facts["seconds"]
    known = {part: seconds[part] for part in PARTS if part != "other"}
    other = seconds["total"] - seconds["wait"] - seconds["idle"] - sum(known.values())
    return Breakdown(
        setting,
        facts["steps"],
        facts["pulls"],
        facts["renewals"],
        {part: 1e6 * value / facts["steps"] for part, value in {**known, "other": max(other, 0.0)}.items()},
        server["bytes_each"],
        server["build_s"] / max(server["versions_built"], 1),
        repetition,
    )


def versions(plan: Any, task: Any, generator: Any) -> Any:
    """Parameters as a learner hands them over, endlessly, each a little other than the last."""
    import numpy as np
    from safetensors.numpy import save

    from policy.spec import Normaliser, PolicySpec
    from train.actorq.algorithms import head_of
    from train.networks.weights import initial_weights
    from train.suites.episodes import EpisodeStream

    weights = initial_weights(generator, plan.network, task.observation_shape, task.outputs, 0.01)
    stream, rows = EpisodeStream(task.make(1, 1)), []
    for _ in range(CALIBRATION_ROWS):
        rows.append(stream.observation[0].copy())
        head = task.head
        random = generator.integers(head.size, size=1) if task.is_discrete else generator.uniform(head.low, head.high)
        stream.step(random if task.is_discrete else random[None].astype(np.float32))
    size = task.observation_size
    spec = PolicySpec(
        plan.policy, task.observation, Normaliser((0.0,) * size, (1.0,) * size, 5.0), plan.network, head_of(task),
        task.control_period_s, task.environment,
    ).to_json()  # fmt: skip
    updates = 0
    while True:
        changed = {name: value * np.float32(1.0 + SCATTER * updates) for name, value in weights.items()}
        yield updates, spec, save(changed), np.stack(rows)
        updates += 1
