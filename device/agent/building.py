"""What is compiled of the loop and of the agent without Python: kept until a source, or a shared number, changes."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from quarl.device.agent.constants import header
from quarl.device.engine import PREBUILT, building
from quarl.device.engine.building import SOURCES, TARGETS, BuildError
from quarl.policy.files import lock_folder, write_atomically

FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-O3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-const-variable"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-fno-stack-protector"),
    *("-fno-sanitize=undefined", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables"),
    *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s", "-Wl,--build-id=none"),
)
_SHARED = ("text", "number", "json", "replies")
_AGENT = ("agent", "operations", "pack", "device", "measure", "sha256", "supervise", "ask")
_LOOP = ("options", "connections", "decide", "pacing", "punctuality", "real_time", "requests", "serve", "supervisor")
LOOP_SOURCES = [*(f"agent/{name}.c" for name in _SHARED), *(f"loop/{name}.c" for name in _LOOP)]
AGENT_SOURCES = [*LOOP_SOURCES, *(f"agent/{name}.c" for name in _AGENT)]
"""Below device/engine; the agent has the engine's, too."""
OLDEST_GLIBC = "2.17"
"""What the library asks of the C library of the process that loads it; the agent brings musl."""


def agent(machine: str) -> Path:
    """Return policy-agent for a processor, one program that needs nothing beside it.

    Args:
        machine: one of ``TARGETS``.

    Raises:
        BuildError: as :func:`device.engine.building.library`.
    """
    sources = [*AGENT_SOURCES, *(source for source in SOURCES if source != "python.c")]
    return _ensure_compiled(f"agent-{machine}", machine, "musl", ("-static", "-fno-pie", "-no-pie"), sources)


def loop_library(machine: str) -> Path:
    """Return the robot's loop as a shared library for a processor; raises as :func:`agent`."""
    options = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,--hash-style=gnu")
    return _ensure_compiled(f"loop-{machine}.so", machine, "gnu", options, LOOP_SOURCES)


def _ensure_compiled(name: str, machine: str, library: str, options: tuple[str, ...], sources: list[str]) -> Path:
    """Return a file that a wheel brings, or that is compiled now if it is not there yet."""
    if machine not in TARGETS:
        raise BuildError(f"{name} is built for {', '.join(TARGETS)}, not for {machine!r}.")
    if (prebuilt := PREBUILT / name).is_file():
        return prebuilt
    system = (
        library + ("eabihf" if machine.startswith("arm") else "") + (f".{OLDEST_GLIBC}" if library == "gnu" else "")
    )
    target = [word.replace("linux-none", f"linux-{system}") for word in TARGETS[machine]]
    flags = [*target, *FLAGS, *options, "-I."]
    made_of = building.fingerprint("agent/*.[ch]", "loop/*.[ch]") + header() + repr(flags)
    build = hashlib.sha256(made_of.encode()).hexdigest()
    path = building.KEPT / f"{name}-{build[:16]}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(path.parent), tempfile.TemporaryDirectory() as scratch:
            if not path.exists():
                Path(scratch, "constants.h").write_text(f'{header()}#define BUILD "{build}"\n')
                content = building.compile_with_options(building.HERE, [*flags, f"-I{scratch}"], sources, machine)
                write_atomically(path, content, mode=0o755)
    return path
