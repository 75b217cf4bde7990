"""Reading the files of a bundle: regular ones in its own folder, no larger than they may be, as the manifest says.

A bundle comes from elsewhere. A FIFO in the place of a file would be waited for for ever, a device such as /dev/zero
has no end, and a link leads to whatever it likes: all three are refused before a byte is read, and so is a file of
another size than the manifest's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from quarl.policy.errors import BundleError
from quarl.policy.manifest import MANIFEST_FILE, FileRecord
from quarl.policy.reading.hashing import sha256

MIB = 2**20
LARGEST_MANIFEST = MIB
"""Bytes of manifest.json: that of eighteen artifacts has twenty thousand."""
LARGEST_SPEC = 3 * MIB
"""Bytes of policy.json: one of 7,064 normalised elements has 170,000."""
LARGEST_OTHER = 256 * MIB
"""Bytes of a file that is kept with a bundle and that nothing here reads, e.g. a learning curve."""
_BLOCK = MIB

FileState = tuple[int, ...]
"""Device, inode, size, and when contents and inode were written last."""


def is_there(path: Path) -> bool:
    """Whether something has that name in the folder, be it a link that leads nowhere.

    Raises:
        BundleError: the folder cannot be looked at.
    """
    try:
        return _status(path) is not None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error


def is_regular(path: Path) -> bool:
    """Whether it is a regular file, and no link to one."""
    found = _status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def file_state(path: Path) -> FileState | None:
    """What becomes another one when a file is written or replaced; None where there is none to look at."""
    try:
        found = _status(path)
    except OSError:
        return None
    return found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read_file(path: Path, largest: int) -> bytes:
    """The bytes of a regular file of at most ``largest`` bytes.

    Raises:
        BundleError: it is missing, no regular file, too large, or cannot be read.
    """
    with _opened(path) as (stream, size):
        _refuse_large(path, size, largest)
        data = stream.read(largest + 1)  # it may have grown
        _refuse_large(path, len(data), largest)
        return data


def verified(path: Path, record: FileRecord, largest: int) -> bytes:
    """The bytes of a file, which are those that the manifest's record is of.

    Raises:
        BundleError: as :func:`read_file`, or its size or hash is another.
    """
    _refuse_large(path, record.size, largest)
    with _opened(path) as (stream, size):
        _compare_sizes(path, size, record)
        data = stream.read(record.size + 1)
    _compare_sizes(path, len(data), record)
    _compare_hashes(path, sha256(data).hexdigest(), record)
    return data


def verify(path: Path, record: FileRecord, largest: int) -> None:
    """Check a file as :func:`verified` does, a block at a time: memory is little, and the agent's peak is measured."""
    _refuse_large(path, record.size, largest)
    with _opened(path) as (stream, size):
        _compare_sizes(path, size, record)
        running, length = sha256(), 0
        while length <= record.size and (block := stream.read(min(_BLOCK, record.size + 1 - length))):
            running.update(block)
            length += len(block)
    _compare_sizes(path, length, record)
    _compare_hashes(path, running.hexdigest(), record)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file that is no link, and its size in bytes."""
    try:
        found = _status(path)
        if found is None:
            hint = "Train one (make train POLICY=I) or name one that exists." if path.name == MANIFEST_FILE else ""
            raise BundleError(f"{path} is missing.", hint)
        _refuse_special(path, found)  # opening a device may already do something
        # Should it be another one by now: a link is not followed, and a FIFO does not wait for who writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            _refuse_special(path, status)
            yield stream, status.st_size
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:  # a NUL or a lone surrogate in a path that was typed
        raise BundleError(f"{str(path)!r} is no path: {error}.") from error


def _refuse_special(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    raise BundleError(
        f"{path} is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}; a bundle holds regular files only.",
        "Make or fetch the bundle again, with its files in its folder.",
    )


def _refuse_large(path: Path, size: int, largest: int) -> None:
    if size > largest:
        raise BundleError(f"{path} has {size} bytes; allowed are at most {largest}.")


def _compare_sizes(path: Path, size: int, wanted: FileRecord) -> None:
    if size != wanted.size:
        state = "truncated" if size < wanted.size else "longer than it was written"
        raise BundleError(f"{path} is {state}: {size} bytes, the manifest says {wanted.size}.")


def _compare_hashes(path: Path, sha256: str, wanted: FileRecord) -> None:
    if sha256 != wanted.sha256:
        raise BundleError(
            f"{path} was tampered with or damaged: its sha256 is not the manifest's.", "Make or fetch the bundle again."
        )
