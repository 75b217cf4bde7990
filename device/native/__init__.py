"""The native engine: quantized policies executed packed, in C without a C library.

Sources: ``format.h`` the artifact, ``engine.c`` checking and deciding, ``norm.h`` layer normalisation, ``team.h``
several threads, ``plain.c`` the readable kernels, ``x86.c`` AVX2 and AVX-512, ``neon.c`` and ``neon64.h`` ARMv7 and
AArch64. ``device.native.building`` compiles them, ``device.native.engine`` runs an artifact in Python,
``device.native.modes`` measures which rows of weights to take. A release brings the library: ``libnative.so``.
"""

from importlib.util import find_spec
from pathlib import Path
from platform import machine

VERSION = "1"
MACHINES = ("x86_64", "aarch64", "armv7l")
"""Processors that it is compiled for."""
SHIPPED = Path(__file__).parent / "libnative.so"


def is_here() -> bool:
    """Whether the library is here, or can be made."""
    return SHIPPED.is_file() or (machine() in MACHINES and find_spec("ziglang") is not None)
