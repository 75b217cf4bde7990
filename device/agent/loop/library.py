"""The loop in C (device/engine/loop) in this process: its structures, and where the library is."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from quarl.device.agent.protocol import AgentError, ErrorCode
from quarl.device.engine import SHIPPED_LOOP, find_shipped_library

DECIDE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_int32),
)
ANSWER = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t
)
_TEXT, _INT, _SIZE, _DOUBLE, _POINTER = (
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_double,
    ctypes.c_void_p,
)


class Options(ctypes.Structure):
    """struct loop_options of loop.h."""

    _fields_ = [
        *((name, _TEXT) for name in ("socket", "precision", "runtime", "release", "fallback")),
        *((name, _DOUBLE) for name in ("rate", "deadline_ms", "stale_ms", "hold_for_ms")),
        *((name, _INT) for name in ("pace", "on_miss", "priority", "core", "spin_us", "threads")),
    ]


class Policy(ctypes.Structure):
    """struct loop_policy of loop.h."""

    _fields_ = [
        *((name, _TEXT) for name in ("name", "served", "loaded", "help", "hello")),
        *((name, _SIZE) for name in ("observation_size", "period_size", "output_size", "state_size")),
        *((name, _INT) for name in ("is_discrete", "first", "are_whole", "locks_all")),
        ("period_ns", ctypes.c_uint64),
        *((name, _POINTER) for name in ("golden", "fallback", "bounds", "context", "decide", "answer")),
    ]


class Engine(ctypes.Structure):
    """struct loop_engine of loop.h: a decision without Python."""

    _fields_ = [
        ("decide", _POINTER),
        ("has_moved", _POINTER),
        ("engine", _POINTER),
        ("is_discrete", _INT),
        ("first", _INT),
    ]


def find_library() -> Path:
    """Return the release's library, or in a checkout the one that is compiled now if it is not there yet.

    Raises:
        AgentError: UNAVAILABLE: the release has none, since the loop is not built for its processor.
    """
    if (path := find_shipped_library(SHIPPED_LOOP)) is not None:
        return path
    try:
        from quarl.device.agent import building  # no release has it
    except ImportError:
        raise AgentError(
            ErrorCode.UNAVAILABLE,
            f"this release has no {SHIPPED_LOOP}: the loop is not built for {os.uname().machine}.",
            "Use the agent instead, one JSON line per request: run-agent.",
        ) from None
    return building.loop_library(os.uname().machine)


class Library:
    """The functions of loop.h."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.loop_usage.restype = ctypes.c_char_p

    def usage(self) -> str:
        """Return what ``--help`` prints."""
        text: bytes = self._c.loop_usage()
        return text.decode()

    def read_options(self, words: Sequence[str]) -> Options | None:
        """Return the options that the words name, or None where one of them is ``--help``.

        Raises:
            ValueError: one of the words is wrong; says which, and what is allowed.
        """
        options, is_help, why = Options(), ctypes.c_int(0), ctypes.create_string_buffer(512)
        encoded = (ctypes.c_char_p * len(words))(*(os.fsencode(word) for word in words))
        options.words = encoded  # its members point into them
        if not self._c.loop_read_options(
            len(words), encoded, ctypes.byref(options), ctypes.byref(is_help), why, len(why)
        ):
            raise ValueError(why.value.decode(errors="replace"))
        return None if is_help.value else options

    def serve(self, policy: Policy, options: Options) -> int:
        """Serve until a signal, or until ``--on-miss stop``. Returns the exit status."""
        return int(self._c.loop_serve(ctypes.byref(policy), ctypes.byref(options)))

    @property
    def decide_native(self) -> int:
        """Address of loop_decide_native."""
        return ctypes.cast(self._c.loop_decide_native, ctypes.c_void_p).value or 0
