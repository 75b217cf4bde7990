"""A line on standard error at least every ten seconds while a command works (host only)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from quarl.policy.hints import as_typed

EVERY_S = 10.0
_last_line = 0.0


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
