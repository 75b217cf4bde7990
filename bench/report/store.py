"""Where measurements are kept: JSON lines, a document each, appended by as many writers as like.

results/results.jsonl is what a machine measured and stays on it. results/NAME.jsonl holds the few that a table of the
README or of docs/ stands on, under version control. :func:`results_for` says which of them is meant.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.report.document import InvalidDocumentError, Report
from policy.files import locked, write_atomically
from policy.locate import PROJECT_ROOT

ROOM_BYTES = 2_000_000  # what a command may add
RESULTS = PROJECT_ROOT / "results"
DEFAULT_STORE = RESULTS / "results.jsonl"
_SQLITE_MAGIC = b"SQLite format 3\0"
_BEGINNING = b'{"'  # of a document


class StoreError(ValueError):
    """A results file is missing or damaged; the message says which and what to do."""


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
    if path.exists() and is_sqlite(path):
        raise StoreError(
            f"{path} is a store of an earlier version, which is read but not added to.\n"
            f"  next: the command with --results {path.with_suffix('.jsonl')}, which goes on with what is in it"
        )
    if kept_in(path).exists():
        read_results(path)


def add(reports: Iterable[Report], path: Path) -> None:
    """Append measurements, all or none; to a new file first those of an earlier version's store of its name.

    Raises:
        InvalidDocumentError: one of them is not a valid document; nothing is stored.
    """
    lines = _as_lines(reports)
    with locked(path.parent):
        if not path.exists():
            old = kept_in(path)
            write_atomically(path, (_as_lines(read_results(old)) if old.exists() else b"") + lines)
            return
        with path.open("r+b", buffering=0) as file:
            start, last = _torn(file.readall())
            file.seek(start)
            file.truncate()
            if file.write(last + lines) < len(last + lines):
                file.seek(start)
                file.truncate()
                file.write(last)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())


def _torn(text: bytes) -> tuple[int, bytes]:
    """Where a last line without an end begins, and what of it stays: nothing where it is half a document, as a writer
    that was killed leaves it; else all, with an end."""
    start = text.rfind(b"\n") + 1
    last = text[start:]
    try:
        json.loads(last)
    except ValueError:
        if not last or last.startswith(_BEGINNING):
            return start, b""
    return start, last + b"\n"


def kept_in(path: Path) -> Path:
    """The file, or where there is none yet, the store of its name that an earlier version kept."""
    return path if path.exists() else path.with_suffix(".sqlite")


def is_sqlite(path: Path) -> bool:
    """Whether it is what earlier versions kept measurements in."""
    with path.open("rb") as stream:
        return stream.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC


def read_results(path: Path) -> list[Report]:
    """The measurements of a file, or of an earlier version's store, oldest first, each once.

    Raises:
        StoreError: there is none, or it names the line that is not a valid document.
    """
    found: dict[str, Report] = {}
    kept = kept_in(path)
    try:
        lines = _of_sqlite(kept) if is_sqlite(kept) else _whole_lines(kept.read_bytes())
    except FileNotFoundError:
        raise StoreError(
            f"{path} does not exist: nothing was measured yet.\n  next: python bench/latency.py --policy I"
        ) from None
    except (OSError, UnicodeDecodeError, sqlite3.DatabaseError) as error:
        raise StoreError(f"{path} cannot be read: {error}. If it is damaged, move it away.") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                report = Report.from_json(line)
            except InvalidDocumentError as error:
                raise StoreError(f"{path}, line {number}: {error}") from None
            found.setdefault(report.id, report)
    return sorted(found.values(), key=lambda report: report.time)


def _whole_lines(text: bytes) -> list[str]:
    start, last = _torn(text)
    return (text[:start] + last).decode().split("\n")


def _of_sqlite(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT document FROM measurements ORDER BY time, rowid")]


def _as_lines(reports: Iterable[Report]) -> bytes:
    return "".join(report.to_json() + "\n" for report in reports).encode()


def write_lines(reports: Iterable[Report], path: Path) -> None:
    """Write measurements in place of whatever the file holds, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _as_lines(reports))


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
    """Refuse to write a stored answer anew where something that it has would be lost, or would rest on less.

    Args:
        path: of the answer.
        old, new: how much of each thing there is, in units.
        unit: its name.

    Raises:
        StoreError: says what would be lost.
    """
    for what, amount in old.items():
        if (found := new.get(what, 0)) < amount:
            less = f"{found:,} instead of {amount:,} {unit}" if found else "none of that"
            raise StoreError(
                f"{path} has {' '.join(filter(None, what))}, and what would replace it has {less}; nothing was "
                f"written.\n  next: measure that, too; or move {path.name} away if it is to go"
            )


def answer_file(name: str) -> Path:
    """Where ``--keep`` of a command stores what it was answered."""
    return RESULTS / f"{name}.json"


def keep_answer(
    path: Path,
    document: Mapping[str, Any],
    amounts: Callable[[Mapping[str, Any]], Mapping[tuple[str, ...], int]],
    unit: str,
) -> None:
    """Store an answer in place of an older one; see :func:`refuse_less`."""
    if path.exists():
        refuse_less(path, amounts(json.loads(path.read_text(encoding="utf-8"))), amounts(document), unit)
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


def kept_answer(path: Path, command: str) -> dict[str, Any]:
    """A stored answer.

    Raises:
        StoreError: nothing is stored; says which command stores one.
    """
    if not path.exists():
        raise StoreError(f"{path} does not exist: nothing was asked yet.\n  next: {command}")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _amounts(reports: Iterable[Report]) -> dict[tuple[str, ...], int]:
    """Episodes or runs of each thing that was measured, the most where it was measured more than once."""
    found: dict[tuple[str, ...], int] = {}
    for report in reports:
        success, latency = report.success, report.latency
        more = [success.preset, _changed(success.settings)] if success else []
        what = (report.kind.value, report.policy, report.precision or "", report.runtime, *more)
        amount = success.episodes if success else latency.runs if latency else 1
        found[what] = max(found.get(what, 0), amount)
    return found


def _changed(settings: Mapping[str, Any]) -> str:
    """Settings in words; measured latencies are other numbers each time they are measured."""
    latency = settings.get("latency")
    if isinstance(latency, Mapping) and latency.get("kind") == "empirical":
        settings = {**settings, "latency": "as measured"}
    return str(sorted(settings.items())) if settings else ""


def results_for(table: str, folder: Path = RESULTS, own: bool = False) -> Path:
    """Where a table's measurements are: what was committed, unless there is none or this machine's own are meant."""
    committed = folder / f"{table}.jsonl"
    return committed if committed.exists() and not own else folder / DEFAULT_STORE.name
