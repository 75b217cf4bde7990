"""Reading the arrays of a bundle, npz files: the wanted members only, and none larger than it may be. Without numpy,
which a device that decides in the native engine needs not have.

An npz file is a zip archive of npy files, and a few kilobytes of it may claim to be gigabytes. So nothing of an archive
is unpacked before its directory and the header of every member were held against what is wanted: names, types, shapes
and bytes. Only what :func:`policy.bundle_writer.npz` writes is read: no comments, no zip64, no pickles, C order.
"""

from __future__ import annotations

import math
import re
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quarl.policy.errors import BundleError
from quarl.policy.json_values import shortened

LARGEST_ARRAYS = 64 * 2**20
"""Bytes of all arrays of a file, in float32: those of 252 images of 84 × 84 × 4 have 28 million."""
LARGEST_NPZ = LARGEST_ARRAYS // 2
"""Bytes of an npz file: grey levels take a quarter of their floats, and records of rollouts deflate."""

# APPNOTE.TXT 4.3.16, 4.3.12, 4.3.7: end of central directory, an entry of it, a local header.
_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ZIP64_LOCATOR = b"PK\x06\x07"
_STORED, _DEFLATED = 0, 8
_LARGEST_DIRECTORY, _BLOCK = 4096, 2**16  # bytes
_LARGEST_HEADER = 1024
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_FOREIGN_ORDER = ">" if sys.byteorder == "little" else "<"
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[A-Za-z]\d{0,4})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,200})\), \} *\n"
)


@dataclass(frozen=True)
class Wanted:
    """What a member must be: one of these types, (n,) without a width, else (n, width)."""

    types: tuple[str, ...]
    width: int | None

    def __str__(self) -> str:
        return f"{self.types[0]}[n]" if self.width is None else f"{self.types[0]}[n, {self.width}]"


@dataclass(frozen=True)
class Stored:
    """An array of a file: C order, the machine's byte order.

    Attributes:
        type: as numpy names it, e.g. ``float32``.
        rows, width: its shape; a width of None: (rows,).
        data: its bytes.
    """

    type: str
    rows: int
    width: int | None
    data: bytearray

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows,) or (rows, width)."""
        return (self.rows,) if self.width is None else (self.rows, self.width)

    def is_finite(self) -> bool:
        """Whether no element is NaN or infinity: as doubles, so many float32 have a finite sum."""
        return self.type != "float32" or math.isfinite(sum(memoryview(self.data).cast("f")))

    def values(self) -> array[Any]:
        """All elements, flat."""
        return array(_CODES[self.type], self.data)

    def floats(self) -> Iterator[array[float]]:
        """The rows as float32, one by one."""
        width = 1 if self.width is None else self.width
        size = width * array(_CODES[self.type]).itemsize
        for start in range(0, self.rows * size, size):
            yield array("f", array(_CODES[self.type], self.data[start : start + size]))


_CODES = {"float32": "f", "int64": "q", "uint8": "B"}
"""Of the types that bundles have, as the module ``array`` names them."""
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool", "O": "object"}
_DESCRIBED = re.compile(r"([<>|=]?)([A-Za-z])(\d*)")


class _UnreadableError(Exception):
    """The archive is none that this module reads; says why."""


def read_arrays(data: bytes, wanted: Mapping[str, Wanted], where: str) -> dict[str, Stored]:
    """The arrays of an npz file, all with the same number of rows.

    Args:
        data: the file, at most LARGEST_NPZ bytes.
        wanted: what it has to hold, by name; nothing else may be in it.
        where: what messages call the file.

    Raises:
        BundleError: a member is missing, unexpected, of another type or shape, too large, or damaged.
    """
    try:
        _check_end(data)
        members = _members(data, wanted, where)
        shapes = {name: _checked_shape(members, name, wanted[name], where) for name in wanted}
        if len({shape[0] for _, shape in shapes.values()}) > 1:
            rows = ", ".join(f"{shape[0]} of {name}" for name, (_, shape) in shapes.items())
            raise BundleError(f"{where}: its rows do not belong together: there are {rows}.")
        size = sum(4 * math.prod(shape) for _, shape in shapes.values())
        if size > LARGEST_ARRAYS:
            raise BundleError(f"{where} holds arrays of {size} bytes in float32; allowed are {LARGEST_ARRAYS}.")
        return {name: _array(members[name], *shapes[name]) for name in wanted}
    except BundleError:
        raise
    except _UnreadableError as error:
        raise BundleError(f"{where} is no readable npz file: {error}.") from None
    except Exception as error:  # struct, zlib, and whatever else bytes that nobody wrote may bring about
        shown = shortened(str(error))
        raise BundleError(f"{where} is no readable npz file: {type(error).__name__} {shown}.") from error


@dataclass(frozen=True)
class _Member:
    """A member of the archive, packed."""

    name: str
    method: int
    checksum: int
    size: int
    body: memoryview

    def unpacked(self, most: int) -> bytearray:
        """Its first bytes, at most so many."""
        if self.method == _STORED:
            return bytearray(self.body[:most])
        unpacker, made = zlib.decompressobj(-zlib.MAX_WBITS), bytearray()
        for start in range(0, len(self.body), _BLOCK):
            if len(made) == most:
                break
            made += unpacker.decompress(self.body[start : start + _BLOCK], most - len(made))
        return made


def _check_end(data: bytes) -> tuple[int, int]:
    """Refuse a directory that is large, or elsewhere than where a plain archive has it. Returns place and entries."""
    if len(data) < _END.size:
        raise _UnreadableError("it is no zip archive")
    signature, _, _, _, entries, size, offset, comment = _END.unpack(data[-_END.size :])
    locator = data[-_END.size - 20 : -_END.size]
    if signature != b"PK\x05\x06" or comment or locator.startswith(_ZIP64_LOCATOR):
        raise _UnreadableError("it is no plain zip archive: it ends with a comment, a zip64 record or in the middle")
    if size > _LARGEST_DIRECTORY or offset + size + _END.size != len(data):
        raise _UnreadableError(f"its directory of {size} bytes at {offset} is too large or not at its end")
    return offset, entries


def _members(data: bytes, wanted: Mapping[str, Wanted], where: str) -> dict[str, _Member]:
    found: dict[str, _Member] = {}
    place, entries = _check_end(data)
    for _ in range(entries):
        signature, _, _, flags, method, _, _, checksum, packed, size, name_size, extra, comment, _, _, _, local = (
            _ENTRY.unpack_from(data, place)
        )
        file = data[place + _ENTRY.size : place + _ENTRY.size + name_size].decode()
        place += _ENTRY.size + name_size + extra + comment
        name = file.removesuffix(".npy")
        if name not in wanted or name == file or name in found:
            state = "twice" if name in found else "which nobody wants"
            allowed = ", ".join(wanted)
            raise BundleError(f"{where} holds {shortened(file)}, {state}; allowed are {allowed}, once each.")
        if method not in (_STORED, _DEFLATED):
            raise BundleError(f"{where}: {name!r} is packed by method {method}; allowed is deflate.")
        begin, *_, its_name, its_extra = _LOCAL.unpack_from(data, local)
        start = local + _LOCAL.size + its_name + its_extra
        its_file = data[local + _LOCAL.size : local + _LOCAL.size + its_name].decode()
        if (signature, begin, its_file) != (b"PK\x01\x02", b"PK\x03\x04", file) or flags & 1:
            raise _UnreadableError(f"the headers of {name!r} do not belong together")
        found[name] = _Member(name, method, checksum, size, memoryview(data)[start : start + packed])
    return found


def _checked_shape(
    members: Mapping[str, _Member], name: str, wanted: Wanted, where: str
) -> tuple[str, tuple[int, ...]]:
    """Type and shape of a member from its header; the header's size is that of the archive's directory."""
    if name not in members:
        raise BundleError(f"{where}: {name!r} is absent; the spec wants {wanted}.")
    header = _header(members[name])
    parsed = _NPY_HEADER.fullmatch(header)
    if parsed is None:
        raise _UnreadableError(f"{name!r} has the header {shortened(header)}")
    described = parsed[1].decode()
    order, kind, size = _DESCRIBED.match(described).groups()  # type: ignore[union-attr]
    if kind not in _KINDS or int(size or 8) > 16:
        raise _UnreadableError(f"{name!r} has the type {described}")
    itemsize = int(size or 8)
    of_type = f"{_KINDS[kind]}{8 * itemsize}" if size else _KINDS[kind]
    is_native = itemsize == 1 or order != _FOREIGN_ORDER
    sides = [side.strip() for side in parsed[3].decode().split(",")]
    shape = tuple(int(side) for side in sides if side)
    columns = () if wanted.width is None else (wanted.width,)
    if of_type not in wanted.types or not is_native or shape[1:] != columns or not shape:
        shown = shortened(f"{of_type}{list(shape)}")[1:-1]
        raise BundleError(f"{where}: {name!r} is {shown}; the spec wants {wanted}.")
    if parsed[2] == b"True" and math.prod(shape) > max(shape):
        raise _UnreadableError(f"{name!r} is in Fortran order")
    held = members[name].size - len(_NPY_MAGIC) - 2 - len(header)
    if held != math.prod(shape) * itemsize:
        raise _UnreadableError(f"{name!r} holds {held} bytes, its header says {of_type}{list(shape)}")
    return of_type, shape


def _header(member: _Member) -> bytes:
    begin = bytes(member.unpacked(len(_NPY_MAGIC) + 2 + _LARGEST_HEADER))
    if not begin.startswith(_NPY_MAGIC):
        shown = begin[: len(_NPY_MAGIC) + 2]
        raise _UnreadableError(f"a member begins with {shown!r}, which is no npy file of version 1.0")
    start = len(_NPY_MAGIC) + 2
    size = int.from_bytes(begin[start - 2 : start], "little")
    if len(begin) < start + size:
        raise _UnreadableError(f"{member.name!r} has the header {shortened(begin[start:])}")
    return begin[start : start + size]


def _array(member: _Member, of_type: str, shape: tuple[int, ...]) -> Stored:
    data = member.unpacked(member.size + 1)
    if len(data) != member.size:
        raise _UnreadableError(f"{member.name} is shorter or longer than its header says")
    if zlib.crc32(data) != member.checksum:
        raise _UnreadableError(f"{member.name} is damaged: its checksum is another")
    del data[: len(data) - math.prod(shape) * array(_CODES[of_type]).itemsize]
    return Stored(of_type, shape[0], shape[1] if len(shape) > 1 else None, data)
