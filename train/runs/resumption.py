"""The run that a command goes on with: the one asked for, or the last one of the same options if it did not end."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from quarl.train.algorithms.common.settings import about
from quarl.train.methods import settings_class
from quarl.train.runs.checkpoint import FILE_NAME, Checkpoint, CheckpointError, load_checkpoint
from quarl.train.runs.request import UNFINISHED, RunRequest
from quarl.train.suites.names import resolve


@dataclass(frozen=True)
class ResumedRun:
    """The point where a run begins.

    Attributes:
        checkpoint: the one that the run goes on from; None: it starts over.
        replanned: where it was given another number of steps: for the provenance.
        sentence: what was decided without being asked for, or "".
    """

    checkpoint: Checkpoint | None = None
    replanned: dict[str, Any] = field(default_factory=dict)
    sentence: str = ""


def resume_or_begin(request: RunRequest) -> ResumedRun:
    """Decide where the requested run begins.

    Raises:
        CheckpointError: with ``resume``: there is none, or it is of other options; or it cannot be read.
    """
    folder = request.training_folder
    is_unfinished = (folder / UNFINISHED).is_dir() and (folder / FILE_NAME).is_file()
    if not request.resume and (request.fresh or not is_unfinished):
        return ResumedRun()
    checkpoint = load_checkpoint(folder)
    facts, identity, saved = checkpoint.facts, request.identity(), dict(checkpoint.facts["identity"])
    step, replanned = int(facts["step"]), facts.get("replanned", {})
    saved["task"] = resolve(str(saved.get("task"))).canonical  # a task has several names
    kind = settings_class(request.method)
    past = {entry.name: about(kind, entry.name) for entry in fields(kind) if entry.name in identity["settings"]}
    saved["settings"] = {n: entry["before"] for n, entry in past.items() if "before" in entry} | saved["settings"]
    if request.resume and saved.get("steps") != request.steps:  # the schedules follow the new number from here on
        replanned = {"at_step": step, "from_steps": saved.get("steps"), "to_steps": request.steps}
        saved["steps"] = request.steps
    changed = [different(name, saved.get(name), now) for name, now in identity.items() if saved.get(name) != now]
    if not changed:
        sentence = f"Going on with the run that was interrupted at step {step:,}; --fresh starts over."
        return ResumedRun(checkpoint, replanned, "" if request.resume else sentence)
    key, before, now = changed[0]
    if request.resume:
        raise CheckpointError(
            f"the checkpoint in {folder} was written with {key} = {before!r}, but this run has {now!r}. Resume with "
            "the options it was started with, or type --fresh instead of --resume."
        )
    return ResumedRun(
        sentence=f"Starting over: the run that was interrupted at step {step:,} has {key} = {before!r}, this one has "
        f"{now!r}. The old run is kept in {folder}.previous."
    )


def put_aside(folder: Path) -> None:
    """Keep the last run of the same name: whoever starts over by mistake has not lost it."""
    if (folder / FILE_NAME).is_file():
        previous = folder.with_name(folder.name + ".previous")
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    elif folder.exists():  # it never got as far as a checkpoint
        shutil.rmtree(folder)


def different(name: str, before: Any, now: Any) -> tuple[str, Any, Any]:
    """Return the name and the two values of what differs: of two mappings the first member that does."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                return f"{name}.{key}", before.get(key), now.get(key)
    return name, before, now
