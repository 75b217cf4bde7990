"""Ctrl-C, from a command's first line to its last: told as what it is, with exit status 130. For the host.

While a command loads (:func:`loading`) nothing has begun, so the process ends on the spot: KeyboardInterrupt in the
middle of an import would be turned into another error, or lost, by an extension module. Afterwards the command works
within :func:`heard`. There, too, libraries in whose middle KeyboardInterrupt falls make errors of their own of it: an
SFTP file that is closed in the middle of a packet makes the server hang up, which reads like a network fault. So
whatever error comes out after Ctrl-C was pressed is KeyboardInterrupt again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

EXIT_INTERRUPTED = 130
LOADING = "interrupted while it was loading; nothing was written."
AGAIN = "interrupted again: ended at once; what had been finished is kept."
STUCK = "interrupted; cleaning up did not end, so it was left; what had been finished is kept."
DONE = "interrupted at its end; what it did is kept."
RESEND_S = 0.05
CLEANUP_S = 30.0
"""A library in whose middle KeyboardInterrupt falls may keep a lock for ever, which cleaning up then waits for."""
_screen = 2


def loading() -> None:
    """Let Ctrl-C end the process at once from now on; where it is ignored (a background job) it stays so.

    The Makefile starts commands with the signal blocked: pressed before this line, it counts here.
    """
    global _screen
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(OSError):
            _screen = os.dup(2)  # libraries are kept quiet while they load
        signal.signal(signal.SIGINT, _end_while_loading)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def interruptible(*others: signal.Signals) -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within the block, once; pressed again it ends the process at once.

    Whatever error leaves the block after Ctrl-C was pressed is KeyboardInterrupt, also where the block ends as if
    nothing had happened; where it has not been left after 30 s, the process ends. In another thread than the
    main one, where no handler can be set, nothing changes.

    Args:
        others: signals that count as Ctrl-C does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    press = _Press()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *others)}
    typed = _is(before[signal.SIGINT], _end_while_loading)
    if not typed and before[signal.SIGINT] is not signal.default_int_handler:
        del before[signal.SIGINT]  # ignored in a background job, or somebody else's
    unraisable = sys.unraisablehook
    try:
        sys.unraisablehook = press.unraisable
        for number in before:
            signal.signal(number, press)
        yield
        if press.happened:
            raise KeyboardInterrupt
    except Exception as error:
        if press.happened or interruption_in(error) is not None:
            raise interruption_in(error) or KeyboardInterrupt from None
        raise
    finally:
        press.stuck.cancel()
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            end = _EndAtOnce(AGAIN if press.happened else DONE)
            signal.signal(number, end if typed and number == signal.SIGINT else handler)


def interruption_in(error: BaseException | None) -> KeyboardInterrupt | None:
    """The KeyboardInterrupt in whose handling an error was raised, over any number of steps; None: there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return error
        seen.add(id(error))
        error = error.__context__ or error.__cause__
    return None


def end_at_once(sentence: str = AGAIN) -> NoReturn:
    """End the process with a sentence and no cleaning up: files are written whole or not at all, and processes that
    were started end with their input."""
    with suppress(Exception):  # it may be what was interrupted
        sys.stdout.flush()
    show_cursor = b"\x1b[?25h" if os.isatty(_screen) else b""  # a progress bar hides it
    with suppress(OSError):
        os.write(_screen, show_cursor + sentence.encode() + b"\n")
    os._exit(EXIT_INTERRUPTED)


class _Press:
    """A signal handler that raises KeyboardInterrupt the first time and ends the process the second time."""

    def __init__(self) -> None:
        self.happened = False
        self.stuck = _later(CLEANUP_S, end_at_once, STUCK)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.happened:
            end_at_once()
        self.happened = True
        with suppress(RuntimeError):  # it runs already: this is what was sent again
            self.stuck.start()
        raise KeyboardInterrupt

    def unraisable(self, lost: Any) -> None:
        """KeyboardInterrupt where Python drops every error, in a finaliser or a callback: it is sent again."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(lost)
            return
        self.happened = False
        _later(RESEND_S, os.kill, os.getpid(), signal.SIGINT).start()


def _later(seconds: float, function: Callable[..., object], *arguments: object) -> threading.Timer:
    """A timer that keeps no process alive."""
    timer = threading.Timer(seconds, function, arguments)
    timer.daemon = True
    return timer


class _EndAtOnce:
    """A signal handler that ends the process with a sentence."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def __call__(self, number: int, frame: FrameType | None) -> None:
        end_at_once(self.sentence)


def _end_while_loading(number: int, frame: FrameType | None) -> None:
    end_at_once(LOADING)


def _is(handler: Any, function: Any) -> bool:
    """Whether a handler is this function, or that of a copy of this module: a script has one of its own."""
    return getattr(handler, "__name__", "") == function.__name__
