"""What the guest's Python imports: the agent's code as it is deployed, and the very wheels that a Pi gets."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from quarl.bench.command_line import BenchError, say
from quarl.bench.qemu_counter.building import cache_path, make_once
from quarl.bench.qemu_counter.sysroot import SERIES
from quarl.device.deploy.payload import code_files, library_files
from quarl.device.deploy.wheels import NUMPY, Wheel, fetch, load_pins
from quarl.policy.spec import RuntimeName

MACHINE = "aarch64"


def wheels_for(runtime: RuntimeName) -> list[Wheel]:
    """Return the pinned wheels: numpy and the runtime.

    Raises:
        BenchError: there is none for this runtime.
    """
    wheels = []
    for distribution in (NUMPY, *([runtime.distribution] if runtime.distribution else [])):
        pins = [p for p in load_pins() if (p.distribution, p.machine, p.python) == (distribution, MACHINE, SERIES)]
        if not pins:
            raise BenchError(f"no wheel is pinned for {distribution} with Python {SERIES} on {MACHINE}.")
        wheels.append(pins[0])
    return wheels


def import_path(runtime: RuntimeName) -> list[Path]:
    """Return the folders for PYTHONPATH, made now where they are missing.

    Raises:
        BenchError, WheelError.
    """
    files = fetch(wheels_for(runtime), progress=lambda wheel: say(f"Fetching {wheel} for {MACHINE} …"))
    sent = [*code_files(), *library_files(MACHINE, runtime is RuntimeName.NATIVE)]
    code = {file.path: file.data for file in sent}
    digest = hashlib.sha256()
    for name, data in code.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    code_folder = make_once(cache_path("code") / digest.hexdigest()[:12], lambda part: _write(code, part))
    return [
        code_folder,
        *(
            make_once(cache_path("wheels") / wheel.folder, zipfile.ZipFile(file).extractall)
            for wheel, file in files.items()
        ),
    ]


def _write(files: dict[str, bytes], folder: Path) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
