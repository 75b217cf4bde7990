"""What the study of quantized actors measured: results/actorq/*.json, read and written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.report.store import RESULTS, StoreError
from bench.study.actorq.measuring import Breakdown
from bench.study.actorq.training import Training, read_training
from bench.study.sweep.store import document, read_document, values_of, write_document

FOLDER = RESULTS / "actorq"
BREAKDOWN, TRAININGS = FOLDER / "breakdown.json", FOLDER / "trainings.json"
FORMAT_VERSION = 1
AGAIN = "python -m bench.study actorq --keep"


@dataclass(frozen=True)
class Measured:
    """The breakdown of one run of the command: all its rounds, with the machine and the code."""

    rows: tuple[Breakdown, ...]
    machine: str
    code: str


def write_breakdown(found: Measured) -> None:
    """Put it in the place of the last one."""
    values: dict[str, Any] = {
        "machine": found.machine,
        "code": found.code,
        "rows": [row.values() for row in found.rows],
    }
    write_document(BREAKDOWN, document("actorq-breakdown", FORMAT_VERSION, values, ["rows"]))


def read_breakdown() -> Measured | None:
    """What is kept, or None."""
    if not BREAKDOWN.exists():
        return None
    values = _values(BREAKDOWN, "actorq-breakdown")
    return Measured(tuple(Breakdown.of(row) for row in values["rows"]), values["machine"], values["code"])


def write_trainings(found: Sequence[Training]) -> None:
    """All of them, in the order of their keys."""
    rows = [each.values() for each in sorted(found, key=lambda each: each.key)]
    write_document(TRAININGS, document("actorq-trainings", FORMAT_VERSION, {"trainings": rows}, ["trainings"]))


def read_trainings() -> list[Training]:
    """What is kept."""
    if not TRAININGS.exists():
        return []
    return [read_training(each) for each in _values(TRAININGS, "actorq-trainings")["trainings"]]


def _values(path: Any, kind: str) -> dict[str, Any]:
    try:
        return values_of(read_document(path, AGAIN), kind, FORMAT_VERSION)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}.\n  next: {AGAIN}") from None
