"""The benchmark's cells, the paper's and more: which method on which task, and published figures (``cells.json``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.train.suites.names import TaskName, resolve

FILE = Path(__file__).resolve().parent / "cells.json"


@dataclass(frozen=True)
class Cell:
    """One cell of the benchmark: a task and a method.

    Attributes:
        task: the word that is typed after ``--task``.
        method: the algorithm.
        paper: the paper's mean return by precision (``fp32``, ``fp16``, ``int8``), or None where it gives none.
        target: the mean return of 100 greedy episodes to be reached, or None where none is set.
        published: figures of other people to compare with, each with ``name`` (whose), ``what`` (runs, how it was
            evaluated), ``source`` (address of the document) and ``points`` ([environment steps, mean return], …).
        tried: what was tried, in a sentence, for a cell that misses its target.
    """

    task: str
    method: str
    paper: Mapping[str, float] | None = None
    target: float | None = None
    published: tuple[Mapping[str, Any], ...] = ()
    tried: str = ""

    @property
    def name(self) -> TaskName:
        """The task."""
        return resolve(self.task)

    @property
    def bundle_name(self) -> str:
        """Name of the cell's bundle: ``cartpole-dqn``, ``cartpole_balance-d4pg``."""
        return f"{self.name.short_name}-{self.method}"

    @property
    def command(self) -> str:
        """The command that trains the cell."""
        return f"quarl train --task {self.task} --method {self.method}"


def load_cells(path: Path = FILE) -> tuple[Cell, ...]:
    """Return all cells, in the data file's order."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return tuple(Cell(**{**values, "published": tuple(values.get("published", ()))}) for values in cells)
