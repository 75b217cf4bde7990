"""The native engine: policies executed in C, from packed integers or floats.

Sources: ``format.h`` the artifact, ``records.h`` what it says, ``engine.c`` checking and
deciding, ``floats.h`` layers of floats, ``norm.h`` layer normalisation, ``team.h``
several threads, ``plain.c`` the readable kernels, all that ARMv6 has (``division.c``), ``x86.c`` AVX2 and AVX-512,
``neon.c`` and ``neon64.h`` ARMv7 and AArch64, with dot products or without. ``device.engine.building`` compiles them,
``device.engine.engine`` runs an artifact in Python, ``device.engine.modes`` measures which rows of weights to take.
``agent/`` is policy-agent, the agent without Python; ``loop/`` the robot's loop, a part of it
and a library for a Python process. A release brings the libraries; a wheel brings them and policy-agent for every
processor, ``prebuilt/``.
"""

from __future__ import annotations

import os
import pkgutil
from importlib.util import find_spec
from pathlib import Path

VERSION = "1"
MACHINES = ("x86_64", "aarch64", "armv7l", "armv6l")
"""Processors that it is compiled for."""
SHIPPED, SHIPPED_LOOP = "libnative.so", "libloop.so"
"""Names of the libraries that a release brings beside this module."""
PREBUILT = Path(__file__).parent / "prebuilt"
"""engine-MACHINE.so, loop-MACHINE.so and agent-MACHINE of every processor; a checkout has none and compiles them."""


def find_shipped_library(name: str) -> Path | None:
    """Return a library that a release brings; out of an archive of verified code it is copied into a file in memory.

    Called once in a process for each: that file stays open until it ends.
    """
    path = Path(__file__).parent / name
    if path.is_file():
        return path
    content = _read_from_archive(name)
    if content is None:
        return None
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(content)
    return Path(f"/proc/self/fd/{descriptor}")


def _read_from_archive(name: str) -> bytes | None:
    try:
        return pkgutil.get_data(__name__, name)
    except OSError:
        return None


def is_here() -> bool:
    """Return whether the engine's library is here, or can be made."""
    machine = os.uname().machine
    is_compiled = _read_from_archive(SHIPPED) is not None or (PREBUILT / f"engine-{machine}.so").is_file()
    return is_compiled or (machine in MACHINES and find_spec("ziglang") is not None)
