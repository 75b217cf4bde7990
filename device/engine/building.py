"""The engine's library for a processor, compiled by ziglang: the same bytes everywhere, kept until a source changes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from quarl.device.engine import PREBUILT
from quarl.policy.errors import PolicyError
from quarl.policy.files import lock_folder, write_atomically
from quarl.policy.places import ARTIFACTS, IN_CHECKOUT, cache_folder

HERE = Path(__file__).resolve().parent
KEPT = (ARTIFACTS if IN_CHECKOUT else cache_folder()) / "native"
"""Where compiled files stay."""
SOURCES = ("engine.c", "plain.c", "x86.c", "neon.c", "division.c", "python.c")
TARGETS = {
    "x86_64": ("-target", "x86_64-linux-none"),
    "aarch64": ("-target", "aarch64-linux-none", "-mcpu=cortex_a53", "-DNATIVE_DOT"),
    "armv7l": ("-target", "arm-linux-none", "-mcpu=cortex_a7+neon"),
    "armv6l": ("-target", "arm-linux-none", "-mcpu=arm1176jzf_s"),
}
"""By the processor's name as ``platform.machine()`` has it: no C library, no dynamic linker of its own."""
FLAGS = (
    *("-std=c11", "-O3", "-Wall", "-Wextra", "-Werror"),
    # No fused multiply-add, no set of errno: a product and a sum are rounded as numpy rounds them.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing"),
    *("-ffreestanding", "-nostdlib", "-fPIC", "-fno-stack-protector", "-fno-sanitize=undefined"),
    *("-fno-unwind-tables", "-fno-asynchronous-unwind-tables"),
)
SHARED = ("-shared", "-s", "-Wl,--hash-style=gnu", "-Wl,--build-id=none")


class BuildError(PolicyError):
    """The engine cannot be compiled here."""


def library(machine: str | None = None) -> Path:
    """Return the shared library for a processor: the one that a wheel brings, else compiled if it is not there yet.

    Args:
        machine: one of ``TARGETS``; default this one.

    Raises:
        BuildError: an unknown processor, ziglang is missing, or it refuses the sources; says why.
    """
    machine = machine or platform.machine()
    if machine not in TARGETS:
        raise BuildError(f"the native engine is built for {', '.join(TARGETS)}, not for {machine!r}.")
    if (prebuilt := PREBUILT / f"engine-{machine}.so").is_file():
        return prebuilt
    path = KEPT / f"engine-{machine}-{fingerprint()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(path.parent):
            if not path.exists():
                write_atomically(path, compile_engine(machine, SHARED))
    return path


def fingerprint(*more: str) -> str:
    """sha256 of all that a library is made of: sources, options, the compiler's version.

    Args:
        more: patterns of further sources, of a program that the library's sources are a part of.
    """
    digest = hashlib.sha256(repr((TARGETS, FLAGS, SHARED, _compiler_version())).encode())
    for pattern in ("*.[ch]", *more):
        for source in sorted(HERE.glob(pattern)):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()


def compile_engine(machine: str, options: Sequence[str], more_sources: Sequence[Path] = ()) -> bytes:
    """Return what the compiler makes of the sources.

    Args:
        machine: one of ``TARGETS``.
        options: behind ``FLAGS``.
        more_sources: besides ``SOURCES``.

    Raises:
        BuildError: ziglang is missing, or refuses them.
    """
    return compile_in_folder(HERE, [*SOURCES, *map(str, more_sources)], options, machine)


def compile_in_folder(
    folder: Path, sources: Sequence[str], options: Sequence[str], machine: str | None = None
) -> bytes:
    """Return what the compiler makes of sources in a folder.

    Args:
        folder: where they are.
        sources: named relatively, so that no path of this machine gets into what is made.
        options: behind ``FLAGS``.
        machine: one of ``TARGETS``; default this one.

    Raises:
        BuildError: as :func:`compile_engine`.
    """
    machine = machine or platform.machine()
    return compile_with_options(folder, [*TARGETS[machine], *FLAGS, *options], sources, machine)


def compile_with_options(folder: Path, options: Sequence[str], sources: Sequence[str], machine: str) -> bytes:
    """As :func:`compile_in_folder`, with no other options than these."""
    _compiler_version()
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "made"
        command = [sys.executable, "-m", "ziglang", "cc", *options, "-o", str(output), *sources]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the native engine does not compile for {machine}: {done.stderr.strip()[-2000:]}")
        return output.read_bytes()


def _compiler_version() -> str:
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError(
            "the package ziglang, which compiles the native engine, is not installed.",
            'Type: pip install "quarl[export-c]"   (in a checkout: make setup)',
            code="missing_compiler",
        )
    return importlib.metadata.version("ziglang")
