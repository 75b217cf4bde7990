"""Where measurements are kept: SQLite, append-only, for as many writers as like; JSON lines to carry them elsewhere.

results/results.sqlite is what a machine measured and stays on it. A JSON-lines file of a few of its documents is what a
table of the README or of docs/ stands on: small, readable, under version control. Both are read by
:func:`read_results`; which of them is meant, by every table and by the report, says :func:`results_for`.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench.report.document import Kind, Report
from bench.report.validation import InvalidDocumentError
from policy.locate import PROJECT_ROOT

STORE_VERSION = 1
BUSY_SECONDS = 30.0
ROOM_BYTES = 2_000_000  # what a command may add, with the journal
RESULTS = PROJECT_ROOT / "results"
DEFAULT_STORE = RESULTS / "results.sqlite"
_SQLITE_MAGIC = b"SQLite format 3\0"

# The columns repeat what queries ask for; the document is the truth. No row is ever changed or deleted.
_TABLES = """
CREATE TABLE measurements (
    id TEXT PRIMARY KEY NOT NULL,
    time TEXT NOT NULL,
    run TEXT NOT NULL,
    kind TEXT NOT NULL,
    policy TEXT NOT NULL,
    precision TEXT,
    runtime TEXT NOT NULL,
    target TEXT NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE INDEX measurements_by_time ON measurements (kind, policy, time);
CREATE TRIGGER never_changed BEFORE UPDATE ON measurements
    BEGIN SELECT RAISE(ABORT, 'measurements are append-only'); END;
CREATE TRIGGER never_deleted BEFORE DELETE ON measurements
    BEGIN SELECT RAISE(ABORT, 'measurements are append-only'); END;
"""


class StoreError(ValueError):
    """A results file is missing, damaged or of another version; the message says which and what to do."""


def prepare(path: Path = DEFAULT_STORE) -> None:
    """Make sure that a measurement which takes minutes can be stored here afterwards. No store is made yet.

    Raises:
        StoreError: the file is no store of this version.
        OSError: none can be made there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path.parent)) from None
    if path.exists():
        with _opened(path):
            return


def add(reports: Iterable[Report], path: Path = DEFAULT_STORE) -> int:
    """Store measurements, all or none; those that are already there (by id) are left alone.

    Returns:
        How many are new.

    Raises:
        InvalidDocumentError: one of them is not a valid document; nothing is stored.
        StoreError: the file is no store of this version.
    """
    rows = [
        (r.id, r.time, r.run, r.kind.value, r.policy, r.precision, r.runtime, r.target, r.to_json()) for r in reports
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as connection, _transaction(connection):
        before = connection.total_changes
        connection.executemany("INSERT OR IGNORE INTO measurements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return connection.total_changes - before


def read_store(path: Path = DEFAULT_STORE, kind: Kind | None = None, policy: str | None = None) -> list[Report]:
    """The stored measurements, oldest first.

    Raises:
        StoreError: there is no store, or it is damaged or of another version.
    """
    if not path.exists():
        raise StoreError(
            f"{path} does not exist: nothing was measured yet.\n  next: python bench/latency.py --policy I"
        )
    query = "SELECT document FROM measurements WHERE (?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR policy = ?2)"
    with _opened(path) as connection:
        try:
            values = (kind.value if kind else None, policy)
            rows = connection.execute(f"{query} ORDER BY time, rowid", values).fetchall()
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path} is damaged: {error}. Move it away; a new one is made by itself.") from None
    return [Report.from_json(row[0]) for row in rows]


def write_lines(reports: Iterable[Report], path: Path) -> int:
    """Write measurements as JSON lines, whole or not at all; returns how many."""
    lines = [report.to_json() + "\n" for report in reports]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text("".join(lines), encoding="utf-8")
    part.replace(path)
    return len(lines)


def read_lines(path: Path) -> list[Report]:
    """Measurements from JSON lines.

    Raises:
        StoreError: names the line that is not a valid document.
    """
    reports = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                reports.append(Report.from_json(line))
            except InvalidDocumentError as error:
                raise StoreError(f"{path}, line {number}: {error}") from None
    return reports


def read_results(path: Path) -> list[Report]:
    """Measurements from a store or a JSON-lines file, told apart by content; oldest first."""
    if not path.is_file():
        return read_store(path)  # says what is wrong with it
    with path.open("rb") as stream:
        is_store = stream.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    return read_store(path) if is_store else sorted(read_lines(path), key=lambda report: report.time)


def replace_lines(files: Mapping[Path, Sequence[Report]]) -> None:
    """Write measurements as JSON lines in place of older ones, unless something would be lost by it.

    Raises:
        StoreError: one of the older ones has none of its kind among the new, or rests on more episodes or runs than
            that; says which. Nothing is written.
    """
    for path, reports in files.items():
        refuse_less(path, _amounts(read_lines(path) if path.exists() else ()), _amounts(reports), "episodes or runs")
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


def _amounts(reports: Iterable[Report]) -> dict[tuple[str, ...], int]:
    """Episodes or runs of each thing that was measured, the most where it was measured more than once."""
    found: dict[tuple[str, ...], int] = {}
    for report in reports:
        success, latency = report.success, report.latency
        more = [success.preset, str(sorted(success.settings.items())) if success.settings else ""] if success else []
        what = (report.kind.value, report.policy, report.precision or "", report.runtime, *more)
        amount = success.episodes if success else latency.runs if latency else 1
        found[what] = max(found.get(what, 0), amount)
    return found


def results_for(table: str, folder: Path = RESULTS, own: bool = False) -> Path:
    """Where a table's measurements are: what was committed, unless there is none or this machine's own are meant."""
    committed = folder / f"{table}.jsonl"
    return committed if committed.exists() and not own else folder / DEFAULT_STORE.name


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            _prepare(connection, path)
            yield connection
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}. If it is damaged, move it away; a new one is made by itself.") from None


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file; refuse one of another version."""
    _use_write_ahead_log(connection)
    if _version(connection) == 0:
        with _transaction(connection):
            if _version(connection) == 0:  # nobody was faster
                for statement in _statements(_TABLES):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {STORE_VERSION}")
    if (version := _version(connection)) != STORE_VERSION:
        raise StoreError(
            f"{path} is of version {version}; this program reads {STORE_VERSION}. Use the program that wrote it."
        )


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # Switching the journal needs the file for itself for a moment, and does not wait for the busy timeout.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: executescript() would commit the transaction around it."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
