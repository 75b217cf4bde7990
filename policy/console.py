"""What is said while a command works, and how it names the project's command (host only)."""

from __future__ import annotations

import errno
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

EVERY_S = 10.0
_last_line = 0.0
_COMMAND = re.compile(r"(?<![\w./-])quarl(?= (?:[a-z]+(?:-[a-z]+)*|--help)\b)")


def as_typed(text: str) -> str:
    """Return the text with ``quarl`` as it works in this shell: with its path where it is not on PATH."""
    beside = Path(sys.executable).with_name("quarl")
    if shutil.which("quarl") is not None or not beside.exists():
        return text
    here = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    return _COMMAND.sub(shlex.quote(str(here)), text)


def say(text: str) -> None:
    """Print a line about what is being done on standard error: standard output is for answers."""
    global _last_line
    print(as_typed(text), file=sys.stderr, flush=True)
    _last_line = time.monotonic()


@contextmanager
def heartbeat() -> Iterator[None]:
    """Print the seconds that have passed whenever :func:`say` was silent for ten; nothing while a bar is drawn."""
    began, ended = time.monotonic(), threading.Event()

    def beat() -> None:
        while not ended.wait(1.0):
            now = time.monotonic()
            if now - max(began, _last_line) >= EVERY_S and not _is_bar_drawn():
                say(f"  … {now - began:.0f} s")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _is_bar_drawn() -> bool:
    """Rich stands in for standard error while it draws."""
    return type(sys.stderr).__module__ == "rich.file_proxy"


def disk_full_hint(error: OSError, otherwise: str = "") -> str:
    """Return what to do where an error means that the disk is full, and where it means something else."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "The disk is full: make room, then type the same command again." if is_full else otherwise


def columns(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Return rows of cells as lines, with these columns aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [line.rstrip() for line in lines]
