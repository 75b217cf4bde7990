"""What was measured of single layers' widths: results/study/layers-BUNDLE.json, read and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.intervals import Estimate
from bench.report.store import StoreError
from bench.study.layers.estimate import Damage
from bench.study.sweep.store import STUDY, document, read_document, values_of, write_document

KIND, FORMAT_VERSION = "layer-widths", 1
AGAIN = "python -m bench.study layers --keep"


@dataclass(frozen=True)
class Sensitivity:
    """One layer's kernel at one width, all others at 8 bits.

    Attributes:
        layer, bits: which.
        damage: the cheap measures, on calibration observations.
        relative_error: of the return on the seeds of the sweep, paired with fp32, in percent.
    """

    layer: str
    bits: int
    damage: Damage
    relative_error: Estimate


@dataclass(frozen=True)
class Flown:
    """An assignment, judged on fresh episodes.

    Attributes:
        bits: of every layer.
        total_bits: of all kernels.
        damage: the cheap measures, on calibration observations.
        relative_error: paired with fp32, in percent.
        gain: uniform's relative error minus this one's on the same episodes, in percent of |fp32|; positive where this
            one plays better; None of the uniform assignment itself.
    """

    bits: dict[str, int]
    total_bits: int
    damage: Damage
    relative_error: Estimate
    gain: Estimate | None


@dataclass(frozen=True)
class Budget:
    """A budget and what was made of it.

    Attributes:
        bits: of the uniform assignment that sets the budget.
        total_bits: the budget.
        candidates: assignments that fill it.
        tried: of them, flown to choose ``by_flight``.
        uniform: the same width everywhere.
        by_estimate: the least output error on calibration observations; never flown before.
        by_flight: the best return, on the seeds of the sweep, of the ``tried`` ones with the least output error and the
            uniform one.
    """

    bits: int
    total_bits: int
    candidates: int
    tried: int
    uniform: Flown
    by_estimate: Flown
    by_flight: Flown


@dataclass(frozen=True)
class Layers:
    """One bundle.

    Attributes:
        bundle, task, algorithm, weights_sha256: what was asked.
        preset: that was flown; "" where the task has none.
        seeds: of sensitivities and of choosing by flight.
        fresh_seeds: of judging.
        episodes: of each seed.
        observations: of the calibration set that the estimates are from.
        sizes: weights of every kernel.
        eight: relative error with 8 bits everywhere, on the seeds of the sweep.
        sensitivities: by layer, from many bits to few.
        budgets: those asked for.
        seconds, cpu_seconds, machine, code, date: how it was measured.
    """

    bundle: str
    task: str
    algorithm: str
    weights_sha256: str
    preset: str
    seeds: tuple[int, ...]
    fresh_seeds: tuple[int, ...]
    episodes: int
    observations: int
    sizes: dict[str, int]
    eight: Estimate
    sensitivities: tuple[Sensitivity, ...]
    budgets: tuple[Budget, ...]
    seconds: float
    cpu_seconds: float
    machine: str
    code: str
    date: str

    def sensitivity(self, layer: str, bits: int) -> Sensitivity | None:
        """That one, or None."""
        return next((each for each in self.sensitivities if (each.layer, each.bits) == (layer, bits)), None)

    def budget(self, bits: int) -> Budget | None:
        """That one, or None."""
        return next((each for each in self.budgets if each.bits == bits), None)

    def to_json(self) -> str:
        """A JSON document with one line for each sensitivity and budget; numbers to six significant digits."""
        return document(KIND, FORMAT_VERSION, dataclasses.asdict(self), ("sensitivities", "budgets"))

    @classmethod
    def from_json(cls, text: str, where: Path) -> Layers:
        """Read what :meth:`to_json` wrote.

        Raises:
            StoreError: it is no such document of this version.
        """
        try:
            values = values_of(text, KIND, FORMAT_VERSION)
            values["seeds"], values["fresh_seeds"] = tuple(values["seeds"]), tuple(values["fresh_seeds"])
            values["eight"] = Estimate(**values["eight"])
            values["sensitivities"] = tuple(map(_sensitivity, values["sensitivities"]))
            values["budgets"] = tuple(map(_budget, values["budgets"]))
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{where} is no stored answer of this kind: {error}.\n  next: {AGAIN}") from error


def _sensitivity(values: Mapping[str, Any]) -> Sensitivity:
    found = {"damage": Damage(**values["damage"]), "relative_error": Estimate(**values["relative_error"])}
    return Sensitivity(**{**values, **found})


def _flown(values: Mapping[str, Any]) -> Flown:
    found = {
        "damage": Damage(**values["damage"]),
        "relative_error": Estimate(**values["relative_error"]),
        "gain": None if values["gain"] is None else Estimate(**values["gain"]),
    }
    return Flown(**{**values, **found})


def _budget(values: Mapping[str, Any]) -> Budget:
    return Budget(**{**values, **{name: _flown(values[name]) for name in ("uniform", "by_estimate", "by_flight")}})


def write(layers: Layers, folder: Path | None = None) -> Path:
    """Keep an answer in place of the bundle's last one; returns the file."""
    path = (folder or STUDY) / f"layers-{layers.bundle}.json"
    return write_document(path, layers.to_json())


def read_one(path: Path) -> Layers:
    """One answer.

    Raises:
        StoreError: the file is missing or no answer of this kind.
    """
    return Layers.from_json(read_document(path, AGAIN), path)


def read(folder: Path | None = None) -> list[Layers]:
    """All answers that are kept, by file name.

    Raises:
        StoreError: names the file that is none.
    """
    return [read_one(path) for path in sorted((folder or STUDY).glob("layers-*.json"))]
