"""Addresses of Unix sockets whose path is longer than the kernel's 107 bytes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Provide an address of the socket that is short enough for the kernel, however long the path is."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
