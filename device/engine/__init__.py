"""The native engine: quantized policies executed packed, in C without a C library.

Sources: ``format.h`` the artifact, ``engine.c`` checking and deciding, ``norm.h`` layer normalisation, ``team.h``
several threads, ``plain.c`` the readable kernels, all that ARMv6 has (``division.c``), ``x86.c`` AVX2 and AVX-512,
``neon.c`` and ``neon64.h`` ARMv7 and AArch64. ``device.engine.building`` compiles them, ``device.engine.engine`` runs
an artifact in Python, ``device.engine.modes`` measures which rows of weights to take. A release brings the library,
``libnative.so``; a wheel brings library and static agent for every processor, ``prebuilt/``.
"""

from __future__ import annotations

import os
import pkgutil
from importlib.util import find_spec
from pathlib import Path

VERSION = "1"
MACHINES = ("x86_64", "aarch64", "armv7l", "armv6l")
"""Processors that it is compiled for."""
SHIPPED = Path(__file__).parent / "libnative.so"
PREBUILT = Path(__file__).parent / "prebuilt"
"""engine-MACHINE.so and agent-MACHINE of every processor; a checkout has none and compiles them."""


def shipped() -> Path | None:
    """The library that a release brings; out of an archive of verified code it is taken into a file in memory.

    Called once in a process: that file stays open until it ends.
    """
    if SHIPPED.is_file():
        return SHIPPED
    content = _shipped_in_archive()
    if content is None:
        return None
    descriptor = os.memfd_create(SHIPPED.name, os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(content)
    return Path(f"/proc/self/fd/{descriptor}")


def _shipped_in_archive() -> bytes | None:
    try:
        return pkgutil.get_data(__name__, SHIPPED.name)
    except OSError:
        return None


def is_here() -> bool:
    """Whether the library is here, or can be made."""
    machine = os.uname().machine
    is_compiled = _shipped_in_archive() is not None or (PREBUILT / f"engine-{machine}.so").is_file()
    return is_compiled or (machine in MACHINES and find_spec("ziglang") is not None)
