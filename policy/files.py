"""Files that several processes of the host use at once: written whole or not at all; folders that are locked."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PART = ".part"
"""How the name ends of what is still being written."""


def write_atomically(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    Args:
        path: the file.
        data: what it is to hold.
        mode: its permissions, from the first byte on; default those of any new file.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PART}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(descriptor, mode)  # whatever the process's mask takes away
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a new folder so that it is never seen in part; where that fails, there is none.

    Args:
        path: the folder; what is above it is made where it is missing.
        contents: its files by name, also of folders in it.

    Raises:
        FileExistsError: something has that name already; it is left as it was.
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PART}")
    with lock_folder(path.parent):
        try:
            part.mkdir()
            for name, data in contents.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(part / name, data)
            if path.exists() or path.is_symlink():  # a rename would take the place of an empty folder
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            part.rename(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def lock_folder(folder: Path, mode: int = 0o777) -> Iterator[None]:
    """Hold a folder against other processes that change what is in it; readers need no lock.

    The kernel drops the lock when its process ends, however it ends. A file system without locks goes without.

    Args:
        folder: made when it is missing.
        mode: the permissions it is then made with.
    """
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
