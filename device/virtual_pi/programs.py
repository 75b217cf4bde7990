"""The Debian packages that the virtual Pi is made with, and what to type when some are missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from quarl.device.virtual_pi.errors import MissingProgramsError

RUNNING = {"qemu-system-aarch64": "qemu-system-arm", "qemu-img": "qemu-utils"}
"""Program -> Debian package, to run an image."""
BUILDING = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "depmod": "kmod",
    "cpio": "cpio",
    "ssh-keygen": "openssh-client",
}
"""Program -> Debian package, to build an image."""
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")  # not on every user's PATH


def missing_packages(wanted: Sequence[Mapping[str, str]]) -> list[str]:
    """The packages of the programs that are not there, also not in the system administrator's folders."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
    return [
        package for table in wanted for program, package in table.items() if shutil.which(program, path=path) is None
    ]


def require(*wanted: Mapping[str, str]) -> None:
    """Require every program.

    Raises:
        MissingProgramsError: some are missing; names all missing packages in one command.
    """
    missing = missing_packages(wanted)
    if missing:
        raise MissingProgramsError(
            f"The virtual Pi needs {len(missing)} Debian package{'s' if len(missing) > 1 else ''} that "
            f"{'are' if len(missing) > 1 else 'is'} not installed.",
            f"sudo apt-get install --no-install-recommends {' '.join(missing)}",
        )
