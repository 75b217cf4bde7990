"""Files that nobody vouches for, and the members of zips: names and sizes are checked before they are used."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.nodes import printable
from quarl.policy.errors import BundleError
from quarl.policy.reading import read_file

MOST_MEMBERS = 10_000
MOST_BYTES = 2**30
"""Most bytes of a file, and of all members together, unpacked."""

NEXT_STEP = "Save the file again with the program that wrote it, or take an undamaged copy."
_STORED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_untrusted(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file that a command was given.

    Raises:
        ForeignError: it is missing, no regular file, larger than ``most_bytes``, or cannot be read.
    """
    try:
        return read_file(path, most_bytes, follow_links=True)
    except BundleError as error:
        raise ForeignError(error.message, error.next_step) from None


@dataclass(frozen=True)
class Members:
    """An open zip file in memory.

    Attributes:
        what: its name in messages.
        names: of its members, in order, without folders.
    """

    what: str
    names: tuple[str, ...]
    archive: zipfile.ZipFile

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        """Return a member's bytes, whose checksum holds.

        Raises:
            ForeignError: there is none of this name, or it is damaged, or has more bytes than ``most_bytes``.
        """
        with self._open_member(name) as (member, size):
            if size > most_bytes:
                raise _refusal(self.what, f"must have at most {most_bytes} bytes in the member {printable(name)}")
            data = member.read(size + 1)
            if len(data) != size:
                raise _refusal(self.what, f"has the truncated member {printable(name)}")
            return data

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays of an npz file."""
        return tuple(name.removesuffix(".npy") for name in self.names)

    def array(self, name: str, most_bytes: int = MOST_BYTES) -> np.ndarray:
        """Return an array of an npz file, allocated once its header matches the member's size.

        Raises:
            ForeignError: as :meth:`read`, or it is no array, holds objects, or has more bytes than ``most_bytes``,
                with at least four (a float32's) for each element.
        """
        with self._open_member(f"{name}.npy") as (member, size):
            shape, _, kind = _HEADERS[np.lib.format.read_magic(member)](member)
            count = math.prod(shape)
            if min(shape, default=0) < 0 or kind.hasobject or member.tell() + count * kind.itemsize != size:
                fault = f"must hold an array of numbers that fills it, got {kind}{list(shape)} in {size} bytes"
                raise _refusal(self.what, f"has a member {printable(name)} that {fault}")
            if count * max(kind.itemsize, 4) > most_bytes:
                message = f"the array {printable(name)} of {self.what} must have at most {most_bytes} bytes."
                raise ForeignError(message, "Save fewer rows.")
            member.seek(0)
            values: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
            return values

    @contextmanager
    def _open_member(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """Open a member whose bytes must all be read, and how many it says that it has."""
        if name not in self.names:
            raise _refusal(self.what, f"has no member {printable(name)}")
        try:
            with self.archive.open(name) as member:
                yield member, self.archive.getinfo(name).file_size
                if member.read(1):  # at its end, the checksum is compared
                    raise _refusal(self.what, f"has the member {printable(name)}, which is longer than its header says")
        except ForeignError:
            raise
        # A damaged member raises BadZipFile, zlib.error, EOFError, struct.error, RuntimeError (encrypted) …
        except Exception as error:
            raise _refusal(self.what, f"has a damaged member {printable(name)} ({type(error).__name__})") from error


def open_zip(data: bytes, what: str) -> Members:
    """Return the members of a zip file in memory; none is unpacked yet.

    Raises:
        ForeignError: it is no zip file; has two members of one name, a name that leads out of a folder, more than
            MOST_MEMBERS members, more than MOST_BYTES bytes unpacked, or a compression that is not plain deflate.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:  # BadZipFile, struct.error, NotImplementedError, UnicodeDecodeError, ValueError …
        raise _refusal(what, f"is not a readable zip file ({type(error).__name__})") from error
    members = [member for member in archive.infolist() if not member.filename.endswith("/")]
    if len(archive.infolist()) > MOST_MEMBERS:
        raise _refusal(what, f"must have at most {MOST_MEMBERS} members")
    names: set[str] = set()
    for member in archive.infolist():
        name = member.filename
        parts = name.rstrip("/").split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in name or name[1:2] == ":" or not name.isprintable():
            raise _refusal(what, f"has a member with the invalid name {printable(name)!r}")
        if name in names:
            raise _refusal(what, f"has two members with the name {printable(name)}")
        names.add(name)
        if member.compress_type not in _STORED or member.flag_bits & 1:
            raise _refusal(what, f"has the member {printable(name)}, which is encrypted or not deflated")
    if sum(member.file_size for member in members) > MOST_BYTES:
        raise _refusal(what, f"must have at most {MOST_BYTES} bytes unpacked")
    return Members(what, tuple(member.filename for member in members), archive)


def _refusal(what: str, reason: str) -> ForeignError:
    return ForeignError(f"{what} {reason}.", NEXT_STEP)
