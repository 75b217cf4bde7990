"""What quantization-aware training reached against quantization after training: results/study/qat.json, read, written.

One answer is one seed of one cell at one width: a float training and a quantization-aware training of the same
settings, seed and steps, and the same episodes flown with the float policy, with that policy quantized after training
(PTQ) and with the policy that learned with quantizers (QAT). Raw episodes are not kept.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report.store import StoreError
from bench.study.older import STUDY, Change, Outcome, change_from, dumped, outcome_from, rounded
from policy.files import locked, write_atomically

FILE = STUDY / "qat.json"
FORMAT_VERSION = 1
AGAIN = "python -m bench.study qat --keep"


@dataclass(frozen=True)
class Answer:
    """One seed of a cell at one width. Outcomes and changes have one entry for each preset of the task.

    Attributes:
        cell: its name, e.g. ``cartpole-dqn``.
        task, method: what was trained, how.
        steps: of either training.
        settings_sha256: of settings, steps and network, which all trainings share (the bits left out).
        seed: of both trainings.
        bits: of weights and hidden activations.
        episodes: flown on each preset.
        float_sha256: of the float policy's weights.
        quantized_updates: that QAT made with quantizers.
        cpu_s: of both trainings together, s.
        reference: what the float policy reached.
        ptq: the float policy quantized after training: symmetric, weights and hidden activations of ``bits``.
        qat: the policy that learned with quantizers, with these.
        ptq_change, qat_change: minus the float policy, episode by episode.
        gain: QAT minus PTQ, episode by episode; its relative error is that of QAT to PTQ.
        machine, code, date: where, with which code, when.
        quant_delay: share of the steps that QAT learned in floats first.
    """

    cell: str
    task: str
    method: str
    steps: int
    settings_sha256: str
    seed: int
    bits: int
    episodes: int
    float_sha256: str
    quantized_updates: int
    cpu_s: float
    reference: tuple[Outcome, ...]
    ptq: tuple[Outcome, ...]
    qat: tuple[Outcome, ...]
    ptq_change: tuple[Change, ...]
    qat_change: tuple[Change, ...]
    gain: tuple[Change, ...]
    machine: str
    code: str
    date: str
    quant_delay: float = 0.5

    @property
    def key(self) -> tuple[str, int, int]:
        """An answer takes the place of the last one of its key."""
        return self.cell, self.seed, self.bits

    def agrees(self, other: Answer) -> bool:
        """Whether both may stand in one table: not where one cell or one float training is another."""
        if self.cell != other.cell:
            return True
        same = (self.settings_sha256, self.episodes) == (other.settings_sha256, other.episodes)
        return same and (self.seed != other.seed or self.float_sha256 == other.float_sha256)


def to_json(answers: Sequence[Answer]) -> str:
    """A JSON document with one line for each answer, by cell, seed and width; numbers to six significant digits."""
    order = list(dict.fromkeys(answer.cell for answer in answers))
    stored = sorted(answers, key=lambda answer: (order.index(answer.cell), answer.seed, -answer.bits))
    lines = ",\n  ".join(dumped(rounded(dataclasses.asdict(answer))) for answer in stored)
    return f'{{\n "kind": "qat",\n "format_version": {FORMAT_VERSION},\n "answers": [\n  {lines}\n ]\n}}\n'


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
        if (kind, version) != ("qat", FORMAT_VERSION):
            raise ValueError(f"it is a {kind!r} of version {version!r}, not a 'qat' of {FORMAT_VERSION}")
        return [_answer(item) for item in values["answers"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} holds no answers of this kind: {error}.\n  next: {AGAIN}") from error


def keep(answer: Answer, path: Path = FILE) -> list[Answer]:
    """Store an answer at once, the file whole or not at all; returns those that it made stale, which are gone."""
    with locked(path.parent):  # commands that train other cells keep theirs too
        others = [other for other in read(path) if other.key != answer.key]
        stale = [other for other in others if not other.agrees(answer)]
        write_atomically(path, to_json([*(other for other in others if other not in stale), answer]).encode())
    return stale


def _answer(values: Mapping[str, Any]) -> Answer:
    outcomes = {name: tuple(map(outcome_from, values[name])) for name in ("reference", "ptq", "qat")}
    changes = {name: tuple(map(change_from, values[name])) for name in ("ptq_change", "qat_change", "gain")}
    return Answer(**{**values, **outcomes, **changes})
