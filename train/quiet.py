"""Keeping quiet what libraries print from C: PyBullet when it connects, MuJoCo and TensorFlow when they load."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Keep everything from the screen, even what is printed from C."""
    _flush()
    backups = [os.dup(stream) for stream in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
    finally:
        _flush()
        for stream, copy in zip((1, 2), backups, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)


def _flush() -> None:
    """Python's buffers and C's: where the output is no terminal, C keeps what was printed until the process ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
