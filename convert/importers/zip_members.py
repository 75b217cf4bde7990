"""The members of a zip file that nobody vouches for: names and sizes are checked before they are used."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.nodes import printable

MOST_MEMBERS = 10_000
MOST_BYTES = 2**30
"""Most bytes of all members together, unpacked."""

NEXT_STEP = "Save the policy again with the program that wrote it, or take an undamaged copy."
_STORED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


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
        """A member's bytes, whose checksum holds.

        Raises:
            ForeignError: there is none of this name, or it is damaged, or has more bytes than ``most_bytes``.
        """
        if name not in self.names:
            raise _refusal(self.what, f"has no member {printable(name)}")
        if self.archive.getinfo(name).file_size > most_bytes:
            raise _refusal(self.what, f"has a member {printable(name)} of more than {most_bytes} bytes")
        try:
            with self.archive.open(name) as member:
                data = member.read(most_bytes + 1)
                if member.read(1):
                    raise _refusal(self.what, f"has a member {printable(name)} that is longer than it says")
        except ForeignError:
            raise
        # A damaged member raises BadZipFile, zlib.error, EOFError, struct.error, RuntimeError (encrypted) …
        except Exception as error:
            raise _refusal(self.what, f"has a damaged member {printable(name)} ({type(error).__name__})") from error
        if len(data) != self.archive.getinfo(name).file_size:
            raise _refusal(self.what, f"has a member {printable(name)} that is cut off")
        return data


def open_zip(data: bytes, what: str) -> Members:
    """The members of a zip file in memory; none is unpacked yet.

    Raises:
        ForeignError: it is no zip file; has two members of one name, a name that leads out of a folder, more than
            MOST_MEMBERS members, more than MOST_BYTES bytes unpacked, or a compression that is not plain deflate.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:  # BadZipFile, struct.error, NotImplementedError, UnicodeDecodeError, ValueError …
        raise _refusal(what, f"is no zip file that can be read ({type(error).__name__})") from error
    members = [member for member in archive.infolist() if not member.filename.endswith("/")]
    if len(archive.infolist()) > MOST_MEMBERS:
        raise _refusal(what, f"has more than {MOST_MEMBERS} members")
    names: set[str] = set()
    for member in archive.infolist():
        name = member.filename
        parts = name.rstrip("/").split("/")
        if any(part in ("", ".", "..") for part in parts) or "\\" in name or ":" in name or not name.isprintable():
            raise _refusal(what, f"has a member with the name {printable(name)!r}")
        if name in names:
            raise _refusal(what, f"has two members with the name {printable(name)}")
        names.add(name)
        if member.compress_type not in _STORED or member.flag_bits & 1:
            raise _refusal(what, f"has a member {printable(name)} that is encrypted or packed in an unusual way")
    if sum(member.file_size for member in members) > MOST_BYTES:
        raise _refusal(what, f"would have more than {MOST_BYTES} bytes unpacked")
    return Members(what, tuple(member.filename for member in members), archive)


def _refusal(what: str, reason: str) -> ForeignError:
    return ForeignError(f"{what} {reason}.", NEXT_STEP)
