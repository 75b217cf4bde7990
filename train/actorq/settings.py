"""What a distributed run is asked for: the settings of its actors, replay and parameters, and the plan of the whole.

The plan travels to every process as JSON: each makes its own task and networks from it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policy.spec import NetworkSpec, Precision, RuntimeName, network_values, read_network

BITS = (8, 16, 32)


@dataclass(frozen=True)
class ActorQSettings:
    """What ActorQ adds to an algorithm's own settings; the defaults are the original's where it has one."""

    n_actors: int = 2
    """Processes that act, each in one environment of its own."""
    quantize: int = 8
    """Bits of the artifact that actors execute: 8 (int8), 16 (half weights) or 32."""
    quantize_communication: int = 8
    """Bits of the weights on their way to the actors. Equal to ``quantize``: the artifact itself is sent."""
    actor_update_period: int = 30
    """Steps of an actor between two looks for newer parameters."""
    samples_per_insert: float = 16.0
    """Times that a transition is learned from on average: whoever is ahead, actors or learner, waits. 0: none."""
    replay_shards: int = 1
    """Replay processes; actors are dealt to them, the learner draws from each in turn."""
    insert_every: int = 16
    """Transitions that an actor gathers before it sends them."""
    max_staleness: int = 2_000
    """Updates that the acting policy may be behind the learner: an actor further behind renews at once or waits, and
    the replay refuses its transitions."""
    publish_every: int = 0
    """Updates between two versions of the parameters; 0 is once a round of updates."""
    priority_exponent: float = 0.0
    """α: transitions are drawn with a probability ∝ |error|^α; 0 draws all alike."""
    importance_exponent: float = 0.2
    """β: how much of the bias of priorities is taken back by weights."""
    correct_mismatch: bool = True
    """DQN: a return over several steps ends where the learner would have chosen otherwise than the actor did."""
    runtime: str = RuntimeName.LITERT.value
    """What executes the actors' artifact, as on a device: litert or tflite-runtime."""
    step_delays_s: tuple[float, ...] = ()
    """Seconds that actor 0, 1, … idles after each of its steps: stands in for a slower simulator or a robot."""

    def __post_init__(self) -> None:
        for name in ("n_actors", "actor_update_period", "replay_shards", "insert_every", "max_staleness"):
            if getattr(self, name) < 1:
                raise ValueError(f"{option(name)} is {getattr(self, name)}; take at least 1.")
        for name in ("quantize", "quantize_communication"):
            if getattr(self, name) not in BITS:
                raise ValueError(f"{option(name)} is {getattr(self, name)}; take 8 (int8), 16 (fp16) or 32 (fp32).")
        if self.replay_shards > self.n_actors:
            raise ValueError(
                f"--replay-shards {self.replay_shards} is more than --n-actors {self.n_actors}: one would stay empty."
            )
        if not 0.0 <= self.samples_per_insert < math.inf:
            raise ValueError(
                f"--samples-per-insert is {self.samples_per_insert}; take a positive number, or 0 for any."
            )
        if self.publish_every < 0:
            raise ValueError(f"--publish-every is {self.publish_every}; take at least 1, or 0 for once a round.")
        if self.publish_every > self.max_staleness:
            raise ValueError(
                f"--publish-every {self.publish_every} is more than --max-staleness {self.max_staleness}: actors would "
                "wait for parameters that do not come yet. Take at most as many."
            )
        if not 0.0 <= self.priority_exponent < math.inf:
            raise ValueError(f"--priority-exponent is {self.priority_exponent}; take 0 (uniform) or more, such as 0.6.")
        if not 0.0 <= self.importance_exponent <= 1.0:
            raise ValueError(f"--importance-exponent is {self.importance_exponent}; take 0 (none) … 1 (all).")
        if self.runtime not in (RuntimeName.LITERT.value, RuntimeName.TFLITE_RUNTIME.value):
            raise ValueError(f"--runtime is {self.runtime}; actors execute TFLite: take litert or tflite-runtime.")
        if any(not 0.0 <= delay < math.inf for delay in self.step_delays_s):
            raise ValueError(f"--step-delays-s is {self.step_delays_s}; take seconds, one number an actor.")
        if len(self.step_delays_s) > self.n_actors:
            raise ValueError(f"--step-delays-s names {len(self.step_delays_s)} actors of --n-actors {self.n_actors}.")

    @property
    def precision(self) -> Precision:
        """What actors act in."""
        return Precision.from_bits(self.quantize)

    def delay_s(self, actor: int) -> float:
        """Seconds that an actor idles after each step."""
        return self.step_delays_s[actor] if actor < len(self.step_delays_s) else 0.0


def option(name: str) -> str:
    """A setting as it is typed: ``--n-actors``."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Plan:
    """All that a process needs to take its part in a run.

    Attributes:
        task, preset, task_options: as :func:`train.suites.make.make_task` takes them.
        method: ``d4pg`` or ``dqn``.
        policy: the bundle's name for the policy.
        network: of the policy.
        steps: environment steps to make in all.
        seed: everything random follows from it; the order in which processes meet does not.
        algorithm: the algorithm's settings as JSON values.
        actorq: the settings above.
    """

    task: str
    method: str
    policy: str
    network: NetworkSpec
    steps: int
    seed: int
    algorithm: Mapping[str, Any]
    actorq: ActorQSettings
    preset: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """As it is sent."""
        values = {part.name: getattr(self, part.name) for part in dataclasses.fields(self)}
        values |= {"network": network_values(self.network), "actorq": dataclasses.asdict(self.actorq)}
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of :meth:`to_json`."""
        values = json.loads(text)
        actorq = {**values["actorq"], "step_delays_s": tuple(values["actorq"]["step_delays_s"])}
        return cls(**{**values, "network": read_network(values["network"]), "actorq": ActorQSettings(**actorq)})
