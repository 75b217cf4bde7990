"""The native engine: quantized policies executed packed, in C without a C library.

Sources: ``format.h`` the artifact, ``engine.c`` checking and deciding, ``norm.h`` layer normalisation, ``plain.c`` the
readable kernels, ``x86.c`` AVX2 and AVX-512, ``neon.c`` and ``neon64.h`` ARMv7 and AArch64. ``device.native.building``
compiles them, ``device.native.engine`` runs an artifact in Python.
"""
