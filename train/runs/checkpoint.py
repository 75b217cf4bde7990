"""Checkpoints: arrays in one safetensors file, JSON facts in its header, replaced atomically. Never pickle.

A checkpoint holds everything that the next iteration depends on, so that resuming gives the same bits as never
having stopped: weights, optimiser moments, normaliser statistics, the random generator, and for the environments
the episode ids with the actions taken so far (an episode is a pure function of those; see
``train/suites/episodes.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from quarl.policy.errors import QuarlError
from quarl.policy.files import write_atomically

FORMAT_VERSION = 1  # what a part of the program saves may change without it: :meth:`Checkpoint.put_back` then says so
FILE_NAME = "checkpoint.safetensors"
ANEW = "Start over with --fresh, or continue with the version that wrote it."


class CheckpointError(QuarlError, ValueError):
    """A checkpoint is absent, damaged, of another version or of another run."""

    exit_code = 2


class Checkpointed(Protocol):
    """What a run remembers beside its learner: environments in flight, a replay, statistics, the best policy, …"""

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: arrays by name and JSON facts."""

    arrays: dict[str, NDArray[Any]]
    facts: dict[str, Any]

    def group(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays under ``name/``, by the rest of their names."""
        prefix = name + "/"
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}

    def put_back(
        self, learned: Mapping[str, Mapping[str, Any]], checkpointed: Mapping[str, Checkpointed]
    ) -> tuple[dict[str, dict[str, NDArray[Any]]], int, np.random.Generator]:
        """Restore the checkpointed objects to the state in which :func:`gather_state` found them.

        Returns the learner's arrays by group (those of a fresh one, ``learned``, must have the same names and shapes),
        the number of updates it made, and the random generator.

        Raises:
            CheckpointError: a part is not as this program saves it.
        """
        groups = {group: self.group(group) for group in learned}
        for group, arrays in learned.items():
            shapes = {name: value.shape for name, value in groups[group].items()}
            wanted = {name: tuple(value.shape) for name, value in arrays.items()}
            if shapes != wanted:
                names = sorted(name for name in shapes.keys() | wanted.keys() if shapes.get(name) != wanted.get(name))
                raise CheckpointError(_older(f"{group}/{names[0]}"))
        for name, component in checkpointed.items():
            self.restore(name, component)
        generator = np.random.default_rng()
        generator.bit_generator.state = dict(self.facts["generator"])
        return groups, int(self.facts["updates"]), generator

    def restore(self, name: str, of: Checkpointed) -> None:
        """Put one object back as :func:`gather_state` found it.

        Raises:
            CheckpointError: it is not as this program saves it.
        """
        try:
            of.restore(self.group(name))
        except (KeyError, ValueError) as error:
            raise CheckpointError(_older(f"{name} ({type(error).__name__}: {error})")) from error


def _older(part: str) -> str:
    return f"the checkpoint has an older format: its {part} does not match what this version saves. {ANEW}"


def gather_state(
    learned: Mapping[str, Mapping[str, Any]],
    checkpointed: Mapping[str, Checkpointed],
    updates: int,
    generator: np.random.Generator,
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and facts of a checkpoint: all that the next iteration depends on. See :meth:`Checkpoint.put_back`."""
    groups = {group: {name: np.asarray(value) for name, value in arrays.items()} for group, arrays in learned.items()}
    arrays = flatten_groups({**groups, **{name: component.state() for name, component in checkpointed.items()}})
    return arrays, {"updates": updates, "generator": dict(generator.bit_generator.state)}  # its integers are exact


def flatten_groups(groups: Mapping[str, Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """``{"policy": {"head/bias": …}}`` as ``{"policy/head/bias": …}``; the inverse of ``Checkpoint.group``."""
    return {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write to a temporary name, flush to the disk, then rename: a reader sees the old file or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    facts = json.dumps({"format_version": FORMAT_VERSION, **checkpoint.facts})
    data = save({name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}, {"facts": facts})
    write_atomically(path, data)
    return path


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint of a training folder.

    Raises:
        CheckpointError: there is none, it cannot be read, or another version of this program wrote it.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}. Leave --resume out to start from the beginning.")
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}). Start over with --fresh.") from error
    version = facts.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise CheckpointError(f"format_version of {path} must be {FORMAT_VERSION}, got {version!r}. " + ANEW)
    return Checkpoint(arrays, facts)
