"""Files of JSON lines, a document each: several processes append, whole lines or none, and malformed ones are named."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from quarl.policy.errors import BundleError, QuarlError
from quarl.policy.files import lock_folder, write_atomically
from quarl.policy.reading import LARGEST_RECORD, read_file

T = TypeVar("T")
_BEGINNING = b'{"'  # of a document


class StoreError(QuarlError, ValueError):
    """A results file is missing or damaged; the message says which and what to do."""


def read(path: Path, parsed: Callable[[str], T]) -> list[T]:
    """Return the documents in the order of their lines, without the half line that a killed writer left at the end.

    Args:
        path: of the file.
        parsed: makes a document of a line; its ValueError says what is wrong.

    Raises:
        FileNotFoundError: there is no file.
        StoreError: it cannot be read, or names the line that is not a valid document.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        text = read_file(path, LARGEST_RECORD, follow_links=True)
        start, last = _repair_last_line(text)
        lines = (text[:start] + last).decode().split("\n")
    except BundleError as error:
        raise StoreError(error.message, "If the file is damaged, move it away.") from None
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{path} cannot be read: {error}. If the file is damaged, move it away.", code="unreadable_results"
        ) from None
    documents = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                documents.append(parsed(line))
            except ValueError as error:
                raise StoreError(f"{path}, line {number}: {error}") from None
    return documents


def append(path: Path, lines: Iterable[str]) -> None:
    """Add these lines at the end, all or none; the file and its folder are made where they are missing.

    Raises:
        OSError: the disk is full; nothing is added.
    """
    added = encode(lines)
    with lock_folder(path.parent):
        if not path.exists():
            write_atomically(path, added)
            return
        with path.open("r+b", buffering=0) as file:
            start, last = _repair_last_line(file.readall())
            file.seek(start)
            file.truncate()
            if file.write(last + added) < len(last + added):
                file.seek(start)
                file.truncate()
                file.write(last)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())


def write(path: Path, lines: Iterable[str]) -> None:
    """Write these lines in place of whatever the file holds, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, encode(lines))


def encode(lines: Iterable[str]) -> bytes:
    """Return the bytes of a file of these lines."""
    return "".join(f"{line}\n" for line in lines).encode()


def _repair_last_line(text: bytes) -> tuple[int, bytes]:
    """Return where a last line without an end begins, and what of it stays: nothing where it is half a document, as a
    writer that was killed leaves it; else all, with an end."""
    start = text.rfind(b"\n") + 1
    last = text[start:]
    try:
        json.loads(last)
    except ValueError:
        if not last or last.startswith(_BEGINNING):
            return start, b""
    return start, last + b"\n"
