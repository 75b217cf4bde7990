"""What an experiment measured: results/study/NAME.jsonl, a line for each cell, seed and preset; read as tidy rows.

A line holds the returns of its episodes in their order; :func:`rows` gives one row for each episode, so that every
statistic can be made again without measuring. Lines are appended as cells end, and put in order at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quarl.bench.report import json_lines
from quarl.bench.report.store import RESULTS
from quarl.policy.files import lock_folder

FOLDER = RESULTS / "study"
Condition = Mapping[str, Any]
"""Values of the factors that a cell sets; the others are the reference's."""
Record = dict[str, Any]
"""subject, identity, condition, preset, seed, returns, successes (or None), measures, and where it was measured.

``cpu_s`` is None where it is not known, ``date`` is ``""``."""


def cell(record: Mapping[str, Any]) -> tuple[str, str]:
    """Key of a record's cell: its subject and its condition, as sorted JSON, as a line has it."""
    return record["subject"], json.dumps(round_numbers(record["condition"]), sort_keys=True)


def read(path: Path) -> list[Record]:
    """Return all records; an empty list where there are none yet.

    Raises:
        StoreError: names the line that is no record.
    """
    try:
        return json_lines.read(path, parse)
    except FileNotFoundError:
        return []


def parse(line: str) -> Record:
    """Return the record of a line.

    Raises:
        ValueError: it is none.
    """
    try:
        record: Record = json.loads(line)
        cell(record)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the line is not a record of an experiment: {error!r}. Remove it.") from None
    return record


def append(path: Path, records: Iterable[Record]) -> None:
    """Add what a cell measured."""
    json_lines.append(path, map(as_line, records))


def rewrite(path: Path, ordered: Callable[[list[Record]], Sequence[Record]]) -> list[Record]:
    """Write the file again, whole or not at all: what another process added to it meanwhile is in it, too."""
    with lock_folder(path.parent):
        records = list(ordered(read(path)))
        json_lines.write(path, map(as_line, records))
    return records


def as_line(record: Record) -> str:
    """Return one line of JSON; numbers of six significant digits."""
    return json.dumps(round_numbers(record), ensure_ascii=False, allow_nan=False)


def round_numbers(value: Any) -> Any:
    """JSON values with numbers of six significant digits, whole ones without a fraction."""
    if isinstance(value, Mapping):
        return {name: round_numbers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [round_numbers(item) for item in value]
    if isinstance(value, float):
        short = float(f"{value:.6g}")
        return int(short) if short.is_integer() and abs(short) < 1e6 else short
    return value


def rows(records: Iterable[Record], factors: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row for each episode: subject, the factors, preset, seed, episode, return, success, and what else was
    kept.

    Factors that a condition does not set are None; so is a measure that a record lacks, and success where a task has
    none.
    """
    records = list(records)
    several = ("condition", "measures", "returns", "successes")
    measures = {name: None for record in records for name in record["measures"]}
    return [
        {
            **{name: value for name, value in record.items() if name not in several},
            **{factor: record["condition"].get(factor) for factor in factors},
            **measures,
            **record["measures"],
            "episode": episode,
            "return": earned,
            "success": None if record["successes"] is None else record["successes"][episode],
        }
        for record in records
        for episode, earned in enumerate(record["returns"])
    ]
