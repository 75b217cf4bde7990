"""What the study of wide weights measured: results/study/wide-weights.json, read and written here.

One answer is one training: a cell, a means against wide weights, a seed. It holds how wide the policy's kernels are,
the return of its float policy, and that of the policy quantized after training, on the same episodes. Raw episodes are
not kept.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.intervals import Estimate
from bench.report.store import StoreError
from bench.study.older import STUDY, dumped, rounded
from policy.files import locked, write_atomically
from policy.quantization import Scheme
from policy.spec_parts import parse_enum

FILE = STUDY / "wide-weights.json"
KIND = "wide-weights"
FORMAT_VERSION = 1
AGAIN = "python -m bench.study wide --keep"


@dataclass(frozen=True)
class Kernel:
    """Width of one layer's weights: smallest, largest, standard deviation of all of them, and how many there are."""

    layer: str
    low: float
    high: float
    deviation: float
    weights: int

    @property
    def range(self) -> float:
        """Largest minus smallest."""
        return self.high - self.low

    @property
    def ratio(self) -> float:
        """Range in standard deviations: 2ⁿ levels over the range leave a step of ratio / 2ⁿ deviations."""
        return self.range / self.deviation


@dataclass(frozen=True)
class Quantized:
    """A policy quantized after training.

    Attributes:
        scheme, bits: ``quarl`` with activations left float, or ``symmetric`` with those of devices.
        mean_return: with its interval over episodes.
        change: minus the float policy, episode by episode.
    """

    scheme: Scheme
    bits: int
    mean_return: Estimate
    change: Estimate


@dataclass(frozen=True)
class Answer:
    """One training.

    Attributes:
        cell, variant, seed: which.
        task, method: what was trained, how.
        steps: of the training.
        engine: that computed its updates.
        settings_sha256: of settings, steps and network, which the seeds share.
        episodes: flown with each policy.
        weights_sha256: of the float policy's weights.
        cpu_s: of the training, s.
        kernels: widths of the layers' weights.
        low, high, deviation: of the weights of all layers together, as bench.study.width.command measures them.
        mean_return: of the float policy.
        quantized: every scheme and width.
        machine, code, date: where, with which code, when.
    """

    cell: str
    variant: str
    seed: int
    task: str
    method: str
    steps: int
    engine: str
    settings_sha256: str
    episodes: int
    weights_sha256: str
    cpu_s: float
    kernels: tuple[Kernel, ...]
    low: float
    high: float
    deviation: float
    mean_return: Estimate
    quantized: tuple[Quantized, ...]
    machine: str
    code: str
    date: str

    @property
    def key(self) -> tuple[str, str, int]:
        """An answer takes the place of the last one of its key."""
        return self.cell, self.variant, self.seed

    @property
    def range(self) -> float:
        """Largest minus smallest weight."""
        return self.high - self.low

    @property
    def ratio(self) -> float:
        """Mean over the layers of a layer's range in its own standard deviations."""
        return sum(kernel.ratio for kernel in self.kernels) / len(self.kernels)

    def at(self, scheme: Scheme, bits: int) -> Quantized:
        """The policy of that scheme and width.

        Raises:
            KeyError: it was not flown.
        """
        for each in self.quantized:
            if (each.scheme, each.bits) == (scheme, bits):
                return each
        raise KeyError(f"{scheme.value} at {bits} bits")

    def agrees(self, other: Answer) -> bool:
        """Whether both may stand in one table: the seeds of a cell's variant share settings, all of a cell episodes."""
        if self.cell != other.cell:
            return True
        same = self.variant != other.variant or self.settings_sha256 == other.settings_sha256
        return same and self.episodes == other.episodes


def to_json(answers: Sequence[Answer]) -> str:
    """A JSON document with one line for each answer, by cell, variant and seed; numbers to six significant digits."""
    from bench.study.wide.training import CELLS, VARIANTS

    cells, variants = [cell.name for cell in CELLS], [variant.name for variant in VARIANTS]
    stored = sorted(answers, key=lambda each: (_place(cells, each.cell), _place(variants, each.variant), each.seed))
    lines = ",\n  ".join(dumped(rounded(_plain(answer))) for answer in stored)
    return f'{{\n "kind": "{KIND}",\n "format_version": {FORMAT_VERSION},\n "answers": [\n  {lines}\n ]\n}}\n'


def read(path: Path = FILE) -> list[Answer]:
    """All answers that are kept; none where the file does not exist.

    Raises:
        StoreError: the file is no such document of this version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}.\n  next: {AGAIN}") from error
    try:
        kind, version = values["kind"], values["format_version"]
        if (kind, version) != (KIND, FORMAT_VERSION):
            raise ValueError(f"it is a {kind!r} of version {version!r}, not a {KIND!r} of {FORMAT_VERSION}")
        return [_answer(item) for item in values["answers"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} holds no answers of this kind: {error}.\n  next: {AGAIN}") from error


def keep(answer: Answer, path: Path = FILE) -> list[Answer]:
    """Store an answer at once, the file whole or not at all; returns those that it made stale, which are gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):  # commands that train other cells keep theirs too
        others = [other for other in read(path) if other.key != answer.key]
        stale = [other for other in others if not other.agrees(answer)]
        write_atomically(path, to_json([*(other for other in others if other not in stale), answer]).encode())
    return stale


def _place(names: Sequence[str], name: str) -> tuple[int, str]:
    return names.index(name) if name in names else len(names), name


def _plain(answer: Answer) -> dict[str, Any]:
    values = {**dataclasses.asdict(answer), "mean_return": _three(answer.mean_return)}
    values["quantized"] = [
        {
            "scheme": each.scheme.value,
            "bits": each.bits,
            "mean_return": _three(each.mean_return),
            "change": _three(each.change),
        }
        for each in answer.quantized
    ]
    return values


def _three(estimate: Estimate) -> list[float | None]:
    """Value, low, high: a third of the characters that their names would take."""
    return [estimate.value, estimate.low, estimate.high]


def _answer(values: Mapping[str, Any]) -> Answer:
    return Answer(
        **{
            **values,
            "kernels": tuple(Kernel(**item) for item in values["kernels"]),
            "mean_return": Estimate(*values["mean_return"]),
            "quantized": tuple(map(_quantized, values["quantized"])),
        }
    )


def _quantized(values: Mapping[str, Any]) -> Quantized:
    estimates = (Estimate(*values[name]) for name in ("mean_return", "change"))
    return Quantized(parse_enum(Scheme, values["scheme"], "scheme"), values["bits"], *estimates)
