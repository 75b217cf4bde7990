"""Reading the arrays of a bundle, npz files: the wanted members only, and none larger than it may be.

An npz file is a zip archive of npy files, and a few kilobytes of it may claim to be gigabytes. So nothing of an archive
is unpacked before its directory and the header of every member were held against what is wanted: names, types, shapes
and bytes. Only what :func:`policy.bundle_writer.npz` writes is read: no comments, no zip64, no pickles, C order.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

import numpy as np

from policy.errors import BundleError
from policy.json_values import shortened

LARGEST_ARRAYS = 64 * 2**20
"""Bytes of all arrays of a file, in float32: those of 252 images of 84 × 84 × 4 have 28 million."""
LARGEST_NPZ = LARGEST_ARRAYS // 2
"""Bytes of an npz file: grey levels take a quarter of their floats, and records of rollouts deflate."""

_END = struct.Struct("<4s4H2LH")  # end of central directory (APPNOTE.TXT 4.3.16)
_ZIP64_LOCATOR = b"PK\x06\x07"
_LARGEST_DIRECTORY, _BLOCK = 4096, 2**18  # bytes
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
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


class _UnreadableError(Exception):
    """The archive is none that this module reads; says why."""


def read_arrays(data: bytes, wanted: Mapping[str, Wanted], where: str) -> dict[str, np.ndarray]:
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
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _members(archive, wanted, where)
            shapes = {name: _checked_shape(archive, members, name, wanted[name], where) for name in wanted}
            if len({shape[0] for _, shape in shapes.values()}) > 1:
                rows = ", ".join(f"{shape[0]} of {name}" for name, (_, shape) in shapes.items())
                raise BundleError(f"{where}: its rows do not belong together: there are {rows}.")
            size = sum(4 * math.prod(shape) for _, shape in shapes.values())
            if size > LARGEST_ARRAYS:
                raise BundleError(f"{where} holds arrays of {size} bytes in float32; allowed are {LARGEST_ARRAYS}.")
            return {name: _array(archive, members[name], *shapes[name]) for name in wanted}
    except BundleError:
        raise
    except _UnreadableError as error:
        raise BundleError(f"{where} is no readable npz file: {error}.") from None
    except Exception as error:  # zipfile and zlib raise a dozen kinds
        shown = shortened(str(error))
        raise BundleError(f"{where} is no readable npz file: {type(error).__name__} {shown}.") from error


def _check_end(data: bytes) -> None:
    """Refuse a directory that is large, or elsewhere than where a plain archive has it: zipfile reads it whole."""
    if len(data) < _END.size:
        raise _UnreadableError("it is no zip archive")
    signature, *_, size, offset, comment = _END.unpack(data[-_END.size :])
    locator = data[-_END.size - 20 : -_END.size]
    if signature != b"PK\x05\x06" or comment or locator.startswith(_ZIP64_LOCATOR):
        raise _UnreadableError("it is no plain zip archive: it ends with a comment, a zip64 record or in the middle")
    if size > _LARGEST_DIRECTORY or offset + size + _END.size != len(data):
        raise _UnreadableError(f"its directory of {size} bytes at {offset} is too large or not at its end")


def _members(archive: zipfile.ZipFile, wanted: Mapping[str, Wanted], where: str) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name not in wanted or name == info.filename or name in found:
            state = "twice" if name in found else "which nobody wants"
            allowed = ", ".join(wanted)
            raise BundleError(f"{where} holds {shortened(info.filename)}, {state}; allowed are {allowed}, once each.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleError(f"{where}: {name!r} is packed by method {info.compress_type}; allowed is deflate.")
        found[name] = info
    return found


def _checked_shape(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, wanted: Wanted, where: str
) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """Type and shape of a member from its header; the header's size is that of the archive's directory."""
    if name not in members:
        raise BundleError(f"{where}: {name!r} is absent; the spec wants {wanted}.")
    with archive.open(members[name]) as stream:
        header = _header(stream)
    parsed = _NPY_HEADER.fullmatch(header)
    if parsed is None:
        raise _UnreadableError(f"{name!r} has the header {shortened(header)}")
    try:
        dtype = np.dtype(parsed[1].decode())
    except TypeError:
        raise _UnreadableError(f"{name!r} has the type {parsed[1].decode()}") from None
    sides = [side.strip() for side in parsed[3].decode().split(",")]
    shape = tuple(int(side) for side in sides if side)
    columns = () if wanted.width is None else (wanted.width,)
    if dtype.name not in wanted.types or not dtype.isnative or shape[1:] != columns or not shape:
        shown = shortened(f"{dtype.name}{list(shape)}")[1:-1]
        raise BundleError(f"{where}: {name!r} is {shown}; the spec wants {wanted}.")
    if parsed[2] == b"True" and math.prod(shape) > max(shape):
        raise _UnreadableError(f"{name!r} is in Fortran order")
    held = members[name].file_size - len(_NPY_MAGIC) - 2 - len(header)
    if held != math.prod(shape) * dtype.itemsize:
        raise _UnreadableError(f"{name!r} holds {held} bytes, its header says {dtype.name}{list(shape)}")
    return dtype, shape


def _header(stream: IO[bytes]) -> bytes:
    begin = stream.read(len(_NPY_MAGIC) + 2)
    if len(begin) < len(_NPY_MAGIC) + 2 or not begin.startswith(_NPY_MAGIC):
        raise _UnreadableError(f"a member begins with {begin!r}, which is no npy file of version 1.0")
    return stream.read(int.from_bytes(begin[-2:], "little"))


def _array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> np.ndarray:
    array = np.empty(shape, dtype)
    flat, place = array.reshape(-1).view(np.uint8), 0
    with archive.open(info) as stream:
        _header(stream)
        while place < len(flat):
            block = np.frombuffer(stream.read(_BLOCK), np.uint8)
            if not len(block) or place + len(block) > len(flat):
                raise _UnreadableError(f"{info.filename} is shorter or longer than its header says")
            flat[place : place + len(block)] = block
            place += len(block)
        if stream.read(1):  # at the end, zipfile compares the checksum
            raise _UnreadableError(f"{info.filename} is longer than its header says")
    return array
