"""The settings of a run's actors, replay and parameters: each is an option of ``quarl actorq``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from quarl.train.runs.presets import SettingsError

BITS = (8, 16, 32)
RUNTIMES = (RuntimeName.LITERT.value, RuntimeName.TFLITE_RUNTIME.value, RuntimeName.NATIVE.value)


@dataclass(frozen=True)
class ActorQSettings:
    """What ActorQ adds to an algorithm's own settings; the defaults are the original's where it has one.

    Attributes:
        n_actors: processes that act, each in one environment of its own
        quantize: bits of the artifact that actors execute: 8, 16 (half weights) or 32
        quantize_communication: bits of weights sent to actors; 0: as --quantize, which sends the artifact itself
        actor_update_period: steps of an actor between two looks for newer parameters
        samples_per_insert: times a transition is learned from: actors and learner wait for each other; 0: no limit
        replay_shards: replay processes; actors are dealt to them, the learner draws from each in turn
        insert_every: transitions that an actor sends at once
        max_staleness: most that an acting policy may be behind: its actor renews or waits, its transitions are refused
        publish_every: updates between two versions of the parameters; 0: a round of updates
        priority_exponent: α: transitions are drawn with a probability ∝ |error|^α, e.g. 0.6; 0: all equally likely
        importance_exponent: β: how much of the bias of priorities weights take back
        correct_mismatch: DQN: a return over several steps ends where the learner would not have chosen as the actor did
        runtime: executes the actors' artifact, as on a device; native: --quantize 8 only
        step_delays_s: seconds that each actor idles a step: a slower simulator, a robot (default: 0)
    """

    n_actors: int = 2
    quantize: Annotated[int, Parameter(metavar="BITS")] = 8
    quantize_communication: Annotated[int, Parameter(metavar="BITS")] = 0
    actor_update_period: Annotated[int, Parameter(metavar="STEPS")] = 30
    samples_per_insert: float = 16.0
    replay_shards: int = 1
    insert_every: int = 16
    max_staleness: Annotated[int, Parameter(metavar="UPDATES")] = 2_000
    publish_every: Annotated[int, Parameter(metavar="UPDATES")] = 0
    priority_exponent: float = 0.0
    importance_exponent: float = 0.2
    correct_mismatch: Annotated[bool, Parameter(negative="--no-correct-mismatch")] = True
    runtime: Literal["litert", "tflite-runtime", "native"] = "litert"
    step_delays_s: Annotated[tuple[float, ...], Parameter(metavar="S", consume_multiple=True)] = ()

    def __post_init__(self) -> None:
        if not self.quantize_communication:
            object.__setattr__(self, "quantize_communication", self.quantize)

        def check(name: str, is_fine: bool, advice: str) -> None:
            if not is_fine:
                raise SettingsError(f"{option(name)} must be {advice}, got {getattr(self, name)}.")

        for name in ("n_actors", "actor_update_period", "replay_shards", "insert_every", "max_staleness"):
            check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("quantize", "quantize_communication"):
            check(name, getattr(self, name) in BITS, "8 (int8), 16 (fp16) or 32 (fp32)")
        check("samples_per_insert", 0.0 <= self.samples_per_insert < math.inf, "a positive number, or 0 for any")
        check("publish_every", self.publish_every >= 0, "at least 1, or 0 for once a round")
        check("priority_exponent", 0.0 <= self.priority_exponent < math.inf, "0 (uniform) or more, such as 0.6")
        check("importance_exponent", 0.0 <= self.importance_exponent <= 1.0, "0 (none) … 1 (all)")
        check("runtime", self.runtime in RUNTIMES, f"{', '.join(RUNTIMES[:-1])} or {RUNTIMES[-1]}")
        fine = all(0.0 <= delay < math.inf for delay in self.step_delays_s)
        check("step_delays_s", fine, "seconds, one number per actor")
        if len(self.step_delays_s) > self.n_actors:
            raise SettingsError(
                f"--step-delays-s must have at most one number per actor, got {len(self.step_delays_s)} for "
                f"--n-actors {self.n_actors}."
            )
        if self.replay_shards > self.n_actors:
            raise SettingsError(
                f"--replay-shards must be at most --n-actors, got {self.replay_shards} for {self.n_actors} actors: a "
                "shard would stay empty."
            )
        if self.publish_every > self.max_staleness:
            raise SettingsError(
                f"--publish-every must be at most --max-staleness, got {self.publish_every} and "
                f"{self.max_staleness}: actors would wait for parameters that are not published yet."
            )

    @property
    def precision(self) -> Precision:
        """The precision that actors act in."""
        return Precision.from_bits(self.quantize)

    @property
    def artifact_format(self) -> ArtifactFormat:
        """Format of the artifacts that actors execute."""
        return RuntimeName(self.runtime).artifact_format

    def delay_s(self, actor: int) -> float:
        """Seconds that an actor idles after each step."""
        return self.step_delays_s[actor] if actor < len(self.step_delays_s) else 0.0


def option(name: str) -> str:
    """Return a setting as it is typed: ``--n-actors``."""
    return f"--{name.replace('_', '-')}"
