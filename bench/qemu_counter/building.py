"""The plugin, compiled once for each state of its source; and how everything here is made once, whole or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from quarl.bench.command_line import BenchError
from quarl.device.virtual_pi.programs import missing_packages
from quarl.policy.files import lock_folder
from quarl.policy.places import cache_folder

HERE = Path(__file__).parent
SOURCES = (HERE / "counter.c", HERE / "cache.h")
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
PROGRAMS = {"qemu-aarch64": "qemu-user", "mmdebstrap": "mmdebstrap", "gcc": "gcc", "ld": "binutils"}
"""Program -> Debian package."""
HEADERS = {"/usr/include/stdio.h": "libc6-dev"}


def require_programs() -> None:
    """Let pass when every program is there.

    Raises:
        BenchError: names all the Debian packages that are missing in one command.
    """
    missing = missing_packages([PROGRAMS]) + [p for file, p in HEADERS.items() if not Path(file).exists()]
    if missing:
        raise BenchError(
            f"counting instructions needs {len(missing)} Debian package(s) that are not installed.",
            f"sudo apt-get install --no-install-recommends {' '.join(missing)}",
        )


def cache_path(name: str) -> Path:
    """Return where something of this package is kept: all of it can be made again."""
    return cache_folder() / "qemu-counter" / name


def make_once(made: Path, make: Callable[[Path], object]) -> Path:
    """Return ``made``; if it is not there yet, ``make`` is given a path to make it at, now."""
    with lock_folder(made.parent), tempfile.TemporaryDirectory(dir=made.parent, prefix=".making-") as temporary:
        if not made.exists():
            make(part := Path(temporary) / "made")
            part.rename(made)
    return made


def plugin() -> Path:
    """Return the compiled plugin; compiled now if its source has changed.

    Raises:
        BenchError: with the compiler's words.
    """
    digest = hashlib.sha256(b"\0".join([*(path.read_bytes() for path in SOURCES), " ".join(FLAGS).encode()]))
    library_path = cache_path(f"counter-{digest.hexdigest()[:12]}.so")
    return make_once(library_path, lambda part: compile_shared(SOURCES[0], part))


def compile_shared(source: Path, made: Path) -> None:
    """Compile a C file to a shared object.

    Raises:
        BenchError: with the compiler's words.
    """
    command = ["gcc", *FLAGS, f"-I{HERE}", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise BenchError(
            f"gcc cannot compile {source.name}: {done.stderr.strip()[-800:]}", "Check the compiler: gcc --version"
        )
