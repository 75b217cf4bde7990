"""What a run was asked for, and what an algorithm gives back.

A run's folder is ``artifacts/.training/NAME``, beside its bundle: checkpoint, learning curve and TensorBoard file, and
:data:`UNFINISHED` for as long as it has not ended. A run that was killed has not ended either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl.policy.spec import NetworkSpec, Squash, network_values
from quarl.train.networks.policy import Policy

TRAINING_FOLDER = ".training"
UNFINISHED = "unfinished"
"""Folder in that of a run, there until the run has ended and its bundle is written. Of a run that was interrupted it
holds the bundle of what had been learned."""


@dataclass(frozen=True)
class RunRequest:
    """The requested run, under the names of the command line's options (``quarl train --help``).

    Attributes:
        task, policy, method: their names.
        steps: environment steps to make in all.
        output_path: the bundle's folder.
        minutes: of wall time: of the whole run, but with ``resume`` of this process.
        stop_preset: the preset on which the two goals are evaluated; "" for the first.
        evaluate_every: steps between two greedy evaluations; 0 is never.
        final_episodes: on each preset.
        settings: the algorithm's settings as JSON values, to recognise a checkpoint of another run.
        command: as it was typed, but for the bundle's folder; "" where no command was.
    """

    task: str
    policy: str
    method: str
    network: NetworkSpec
    steps: int
    seed: int
    output_path: Path
    resume: bool = False
    fresh: bool = False
    minutes: float | None = None
    stop_at_success: float | None = None
    stop_at_return: float | None = None
    stop_preset: str = ""
    evaluate_every: int = 500_000
    evaluate_episodes: int = 400
    final_episodes: int = 100
    settings: Mapping[str, Any] = field(default_factory=dict)
    quiet: bool = False
    command: str = ""

    @property
    def training_folder(self) -> Path:
        """Where checkpoint and logs lie: beside the bundle, since a bundle is replaced as a whole."""
        return self.output_path.parent / TRAINING_FOLDER / self.output_path.name

    def identity(self) -> dict[str, Any]:
        """Return the facts that a checkpoint must agree on to be resumed to the same curve."""
        plain = ("task", "policy", "method", "steps", "seed", "evaluate_every", "evaluate_episodes")
        values = {name: getattr(self, name) for name in plain}
        return {**values, "network": network_values(self.network), "settings": dict(self.settings)}


@dataclass(frozen=True)
class Trained:
    """The result of an algorithm's training.

    Attributes:
        policy: its weights as the bundle names them, and what else decides what it computes.
        steps: environment steps made.
        notes: how it was trained, for the provenance.
        squash: of the policy's outputs where the task is continuous.
    """

    policy: Policy
    steps: int
    notes: Mapping[str, Any] = field(default_factory=dict)
    squash: Squash = Squash.TANH
