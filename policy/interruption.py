"""Ctrl-C while a command is still loading: one line and exit status 130. For the host.

Nothing was begun by then, so the process ends on the spot. KeyboardInterrupt in the middle of an import would not do:
extension modules turn it into other errors, or lose it, and what is left on the screen is their traceback. A command
that has loaded everything calls :func:`loaded`, and handles KeyboardInterrupt from there on.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

EXIT_INTERRUPTED = 130
SENTENCE = b"interrupted while it was loading; nothing was written.\n"
_screen = 2


def loading() -> None:
    """From now on Ctrl-C ends the process at once; where it is ignored (a background job) it stays so."""
    global _screen
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(OSError):
            _screen = os.dup(2)  # libraries are kept quiet while they load
        signal.signal(signal.SIGINT, _end)


def loaded() -> None:
    """From now on Ctrl-C is KeyboardInterrupt again."""
    if getattr(signal.getsignal(signal.SIGINT), "__name__", "") == _end.__name__:  # a script's own copy, it may be
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(_screen, SENTENCE)
    os._exit(EXIT_INTERRUPTED)
