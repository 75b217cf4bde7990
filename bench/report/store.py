"""Where measurements are kept: files of JSON lines (:mod:`bench.report.json_lines`), a report each.

results/results.jsonl is what a machine measured and stays on it. results/NAME.jsonl holds the few that a table of the
README or of docs/ stands on, under version control. :func:`results_for` says which of them is meant.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quarl.bench.report import json_lines
from quarl.bench.report.document import Report
from quarl.bench.report.json_lines import StoreError
from quarl.policy.files import write_atomically
from quarl.policy.places import RESULTS

ROOM_BYTES = 2_000_000  # what a command may add
DEFAULT_STORE = RESULTS / "results.jsonl"


def prepare(path: Path) -> None:
    """Make sure that a measurement which takes minutes can be stored here afterwards. No file is made yet.

    Raises:
        StoreError: the file holds something else.
        OSError: none can be made there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path.parent)) from None
    if path.exists():
        read_results(path)


def add(reports: Iterable[Report], path: Path) -> None:
    """Append measurements, all or none.

    Raises:
        InvalidDocumentError: one of them is not a valid document; nothing is stored.
    """
    json_lines.append(path, [report.to_json() for report in reports])


def read_results(path: Path) -> list[Report]:
    """Return the measurements of a file, oldest first, each once.

    Raises:
        StoreError: there is none, or it names the line that is not a valid document.
    """
    try:
        reports = json_lines.read(path, Report.from_json)
    except FileNotFoundError:
        raise StoreError(
            f"{path} does not exist: nothing has been measured yet.\n  next: quarl bench latency --policy I",
            code="nothing_measured",
        ) from None
    reports_by_id: dict[str, Report] = {}
    for report in reports:
        reports_by_id.setdefault(report.id, report)
    return sorted(reports_by_id.values(), key=lambda report: report.time)


def write_lines(reports: Iterable[Report], path: Path) -> None:
    """Write measurements in place of whatever the file holds, whole or not at all."""
    json_lines.write(path, [report.to_json() for report in reports])


def replace_lines(files: Mapping[Path, Sequence[Report]]) -> None:
    """Write measurements in place of older ones, unless something would be lost by it.

    Raises:
        StoreError: one of the older ones has none of its kind among the new, or rests on more episodes or runs than
            that; says which. Nothing is written.
    """
    for path, reports in files.items():
        refuse_less(path, _amounts(read_results(path) if path.exists() else ()), _amounts(reports), "episodes or runs")
    for path, reports in files.items():
        write_lines(reports, path)


def refuse_less(path: Path, old: Mapping[tuple[str, ...], int], new: Mapping[tuple[str, ...], int], unit: str) -> None:
    """Refuse to write a stored answer again where something that it has would be lost, or would rest on less.

    Args:
        path: of the answer.
        old, new: how much of each thing there is, in units.
        unit: its name.

    Raises:
        StoreError: says what would be lost.
    """
    for key, amount in old.items():
        if (new_amount := new.get(key, 0)) < amount:
            less = f"{new_amount:,} instead of {amount:,} {unit}" if new_amount else "none of that"
            raise StoreError(
                f"{path} holds {' '.join(filter(None, key))}, and the new results have {less}; nothing was "
                f"written.\n  next: measure that too; or move {path.name} away to drop it"
            )


def answer_file(name: str) -> Path:
    """Return where ``--keep`` of a command stores what it was answered."""
    return RESULTS / f"{name}.json"


def keep_answer(
    path: Path,
    document: Mapping[str, Any],
    amounts: Callable[[Mapping[str, Any]], Mapping[tuple[str, ...], int]],
    unit: str,
) -> None:
    """Store an answer in place of an older one; see :func:`refuse_less`."""
    if path.exists():
        refuse_less(path, amounts(read_answer(path, "")), amounts(document), unit)
    write_answer(path, document)


def write_answer(path: Path, document: Mapping[str, Any]) -> None:
    """Write an answer in place of whatever the file holds, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


def read_answer(path: Path, command: str) -> dict[str, Any]:
    """Return a stored answer.

    Raises:
        StoreError: nothing is stored; says which command stores one.
    """
    if not path.exists():
        raise StoreError(f"{path} does not exist: this has not been measured yet.\n  next: {command}")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _amounts(reports: Iterable[Report]) -> dict[tuple[str, ...], int]:
    """Episodes or runs of each thing that was measured, the most where it was measured more than once."""
    amounts: dict[tuple[str, ...], int] = {}
    for report in reports:
        success, latency = report.success, report.latency
        flight_settings = [success.preset, _format_settings(success.settings)] if success else []
        key = (report.kind.value, report.policy, report.precision or "", report.runtime, *flight_settings)
        amount = success.episodes if success else latency.runs if latency else 1
        amounts[key] = max(amounts.get(key, 0), amount)
    return amounts


def _format_settings(settings: Mapping[str, Any]) -> str:
    """Return the settings in words; measured latencies are other numbers each time they are measured."""
    latency = settings.get("latency")
    if isinstance(latency, Mapping) and latency.get("kind") == "empirical":
        settings = {**settings, "latency": "as measured"}
    return str(sorted(settings.items())) if settings else ""


def results_for(table: str, folder: Path = RESULTS, own: bool = False) -> Path:
    """Return where a table's measurements are: what was committed, unless there is none or this machine's own are
    meant."""
    committed = folder / f"{table}.jsonl"
    return committed if committed.exists() and not own else folder / DEFAULT_STORE.name
