"""The agent without Python, compiled: kept until a source, or a number that it shares with the other one, changes."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from quarl.device.deploy.static_agent.constants import header
from quarl.device.engine import PREBUILT, building
from quarl.device.engine.building import FLAGS, SOURCES, TARGETS, BuildError
from quarl.policy.files import locked, write_atomically

STATIC = ("-static", "-s", "-Wno-unused-function", "-Wl,--build-id=none")


def agent(machine: str) -> Path:
    """The static agent for a processor, one program that needs nothing beside it; brought or compiled as a library is.

    Args:
        machine: one of ``TARGETS``.

    Raises:
        BuildError: as :func:`device.engine.building.library`.
    """
    if machine not in TARGETS:
        raise BuildError(f"the static agent is not built for {machine!r}; known are {', '.join(TARGETS)}.")
    if (prebuilt := PREBUILT / f"agent-{machine}").is_file():
        return prebuilt
    constants = header().encode()
    digest = hashlib.sha256(building.fingerprint("agent/**/*.[ch]").encode() + constants).hexdigest()
    path = building.KEPT / f"agent-{machine}-{digest[:16]}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # As for a machine without a system: what the compiler needs then, long divisions for example, it adds itself.
        system = "freestanding-eabihf" if machine.startswith("arm") else "freestanding"
        target = [word.replace("linux-none", system) for word in TARGETS[machine]]
        flags = [*(flag for flag in FLAGS if flag not in ("-nostdlib", "-fPIC")), *STATIC]
        sources = ["agent/agent.c", *(source for source in SOURCES if source != "python.c")]
        with locked(path.parent), tempfile.TemporaryDirectory() as scratch:
            Path(scratch, "constants.h").write_bytes(constants)
            made = building.compiled_with(building.HERE, [*target, *flags, f"-I{scratch}"], sources, machine)
            write_atomically(path, made, mode=0o755)
    return path
