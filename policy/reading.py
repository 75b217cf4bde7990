"""Reading a bundle, verified, without numpy: all that a device needs of one. Host: :class:`policy.bundle.Bundle`."""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import stat
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from quarl.policy import json_values
from quarl.policy.errors import BundleError, SpecError
from quarl.policy.json_values import (
    OMITTED,
    POLICY_NAMES_ALLOWED,
    JsonValueError,
    abbreviate,
    is_file_name,
    is_policy_name,
    rename_in_json,
)
from quarl.policy.spec import (
    ArtifactFormat,
    PolicySpec,
    Precision,
    Ranges,
    Recipe,
    RuntimeName,
    output_spans,
    weight_shapes,
)

# --- manifest.json --------------------------------------------------------------------------------------------------

MANIFEST_FORMAT_VERSION = 2
WITHOUT_ARTIFACTS = 1
"""The version of which all but the artifacts is read: they passed another gate, and are made again when needed."""
MANIFEST_FILE = "manifest.json"
SMALLEST_STEP = 1e-30
LARGEST_RECORD = 2**30
"""Bytes of any file of a bundle; a policy of 657 MB was measured (``bench/pressure.py``)."""
MOST_FILES = 1000
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and hash of one file of the bundle."""

    size: int = field(metadata=rename_in_json("bytes"))
    sha256: str

    def __post_init__(self) -> None:
        if not 0 <= self.size <= LARGEST_RECORD or not _SHA256.fullmatch(self.sha256):
            size, sha256 = json_values.abbreviate(self.size), json_values.abbreviate(self.sha256)
            raise JsonValueError(
                f"a file record must have 0 … {LARGEST_RECORD} bytes and a sha256 of 64 hexadecimal digits, "
                f"got {size} and {sha256}"
            )

    @classmethod
    def of(cls, data: bytes) -> FileRecord:
        """Return the record of these bytes."""
        import hashlib  # on the host alone

        return cls(len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> FileRecord:
        """Return the record of a file, read a block at a time.

        Raises:
            OSError: it is missing or cannot be read.
        """
        import hashlib

        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            return cls(stream.tell(), sha256)


@dataclass(frozen=True)
class Parity:
    """What one runtime computed from an artifact, compared with the numpy reference on the golden observations.

    Attributes:
        version: the runtime's version.
        max_error: largest |output − expected|, in the unit of the outputs.
        max_error_steps: the same in steps of the output's scale; None for a float artifact.
        agreement: fraction of golden observations on which the chosen action is the reference's.
    """

    version: str
    max_error: float
    max_error_steps: Optional[float]
    agreement: float

    def __post_init__(self) -> None:
        for name in ("max_error", "max_error_steps", "agreement"):
            _require_not_negative(name, getattr(self, name))


@dataclass(frozen=True)
class ArtifactEntry:
    """One exported graph.

    Attributes:
        file: its name in the bundle, e.g. ``"int8.tflite"``.
        precision: what the weights are.
        format: TFLite or ONNX.
        scheme: how the weights were quantized, in words.
        execution: how a device executes it, in words; for n < 8 bits it says that the container is int8.
        record: size and hash.
        golden_file: the file with the reference's outputs of this precision on the golden observations, and how far a
            device's may be from them.
        output_step: one step of each output's scale, in its unit, at most; None for a float artifact.
        runtimes: for each runtime that executes it, what the parity gate measured.
        fp32_agreement: how far it acts as the trained policy on the golden observations, 1 at most
            (``convert.acceptance.agreement``).
        layer_bits: of a mixed artifact, bits of every layer's weights by its name.
        ranges: how an integer artifact's activation ranges were chosen.
        most_off: share of all golden outputs that may be half a step or more off on a device; None: any.
        warnings: sentences on what is suspicious about it, e.g. its calibration.
        not_tried: runtimes of its format that were not installed where it was made; ``runtimes`` does not have them.
    """

    file: str
    precision: Precision
    format: ArtifactFormat
    scheme: str
    execution: str
    record: FileRecord
    golden_file: str
    output_step: Optional[tuple[float, ...]]
    runtimes: Mapping[RuntimeName, Parity]
    fp32_agreement: float = 1.0
    layer_bits: Optional[Mapping[str, int]] = field(default=None, metadata=OMITTED)
    ranges: Ranges = field(default=Ranges.MINMAX, metadata=OMITTED)
    most_off: Optional[float] = field(default=None, metadata=OMITTED)
    warnings: tuple[str, ...] = field(default=(), metadata=OMITTED)
    not_tried: tuple[RuntimeName, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        _require_not_negative("output_step", *(self.output_step or ()))
        if self.output_step is not None and min(self.output_step, default=0.0) < SMALLEST_STEP:
            steps, least = json_values.abbreviate(self.output_step), f"at least {SMALLEST_STEP:g} for each output"
            raise JsonValueError(f"output_step must be {least}, got {steps}")
        if (self.precision is Precision.MIXED) is (self.layer_bits is None):
            raise JsonValueError(
                f"layer_bits of {self.file} must be given for mixed artifacts, and only for them, got {self.layer_bits}"
            )

    @property
    def recipe(self) -> Recipe:
        """How it was made of the weights; of integers."""
        return Recipe(self.layer_bits or self.precision.bits, self.ranges)

    def with_earlier_checks(self, earlier: ArtifactEntry) -> ArtifactEntry:
        """Return this entry with the checks of an earlier one of the same bytes in runtimes that were not tried now."""
        checks = {
            **{name: check for name, check in earlier.runtimes.items() if name in self.not_tried},
            **self.runtimes,
        }
        return replace(
            self,
            runtimes={name: checks[name] for name in RuntimeName if name in checks},
            not_tried=tuple(name for name in self.not_tried if name not in checks),
        )


@dataclass(frozen=True)
class Manifest:
    """All files of a bundle with their hashes, and the artifacts among them.

    Attributes:
        policy: name of the policy.
        files: record of every file other than the artifacts and the manifest itself.
        artifacts: by file name.
        origin: ``"zoo"`` for a working copy of a bundle that comes with the repository, else ``"trained"``.
    """

    policy: str
    files: Mapping[str, FileRecord]
    artifacts: Mapping[str, ArtifactEntry] = field(default_factory=dict)
    origin: str = "trained"

    def records(self) -> dict[str, FileRecord]:
        """Record of every file, artifacts included."""
        return {**self.files, **{name: entry.record for name, entry in self.artifacts.items()}}

    def recipe(self, precision: Precision) -> Optional[Recipe]:
        """Return how the artifacts of an integer precision were made; None where there are none."""
        return next((entry.recipe for entry in self.artifacts.values() if entry.precision is precision), None)

    def with_artifact(self, entry: ArtifactEntry, golden: FileRecord) -> Manifest:
        """Return a manifest that lists this artifact, in place of one of the same name."""
        return replace(
            self,
            files={**self.files, entry.golden_file: golden},
            artifacts={**self.artifacts, entry.file: entry},
        )

    def without_stale(self, newer: Manifest) -> Manifest:
        """Return this manifest without what ``newer`` replaces: records that differ there, and artifacts that rest
        on them."""
        fresh = newer.records()
        files = {name: record for name, record in self.files.items() if fresh.get(name) == record}
        artifacts = {
            name: entry
            for name, entry in self.artifacts.items()
            if fresh.get(name) == entry.record and entry.golden_file in files
        }
        return replace(self, files=files, artifacts=artifacts)

    def to_json(self) -> str:
        """Return an indented JSON document that ends in a newline."""
        data = {
            "format_version": MANIFEST_FORMAT_VERSION,
            "policy": self.policy,
            "origin": self.origin,
            "files": json_values.write(dict(sorted(self.files.items()))),
            "artifacts": [entry_values(entry) for _, entry in sorted(self.artifacts.items())],
        }
        return json.dumps(data, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: bytes, where: Path) -> Manifest:
        """Read what :meth:`to_json` wrote.

        Raises:
            BundleError: no JSON, a future version, a missing field, or a file name that leaves the bundle.
        """
        try:
            data = json_values.parse_object(text)
        except JsonValueError as error:
            raise BundleError(f"{where} cannot be read: {error}; it is truncated or tampered with.") from error
        version = data.get("format_version")
        if type(version) is int and version == WITHOUT_ARTIFACTS:
            data = {**data, "artifacts": []}
        elif type(version) is not int or version != MANIFEST_FORMAT_VERSION:  # True and 1.0 equal 1
            raise BundleError(
                f"format_version of {where} must be {MANIFEST_FORMAT_VERSION}, got {abbreviate(version)}.",
                "Use the quarl version that wrote the bundle, or train and convert the policy again.",
            )
        try:
            files: Mapping[str, FileRecord] = json_values.read(Mapping[str, FileRecord], data["files"], "files")
            artifacts: dict[str, ArtifactEntry] = {}
            for item in json_values.read(tuple[Mapping[str, Any], ...], data["artifacts"], "artifacts"):
                # Size and hash stand beside the other members.
                name = json_values.read(str, item["file"], "artifacts.file")
                _require_plain(name)
                entry = json_values.read(ArtifactEntry, {**item, "record": item}, name)
                if entry.file in artifacts or entry.file in files:
                    raise BundleError(f"{where} lists {entry.file} twice.")
                artifacts[entry.file] = entry
            for name in (*files, *artifacts, *(entry.golden_file for entry in artifacts.values())):
                _require_plain(name)
            if len(files) + len(artifacts) > MOST_FILES:
                raise BundleError(f"{where} must list at most {MOST_FILES} files, got {len(files) + len(artifacts)}.")
            for entry in artifacts.values():
                _require_own_names(entry, files, where)
            policy, origin = (json_values.read(str, data[key], key) for key in ("policy", "origin"))
            if not is_policy_name(policy):
                raise BundleError(f"the policy name in {where} must be {POLICY_NAMES_ALLOWED}, got {policy!r}.")
            return cls(policy, files, artifacts, origin)
        except KeyError as error:
            raise BundleError(f"{where} lacks the field {error.args[0]!r}.") from error
        except JsonValueError as error:
            raise BundleError(f"{where} cannot be read: {error}.") from error


def entry_values(entry: ArtifactEntry) -> dict[str, Any]:
    """Return an artifact's JSON values, those of its record beside the others."""
    values: dict[str, Any] = {}
    for name, value in json_values.write(entry).items():
        values |= value if name == "record" else {name: value}
    return values


def _require_plain(name: str) -> None:
    """Refuse a file name that leaves the bundle or is the manifest's own."""
    if not is_file_name(name) or name == MANIFEST_FILE:
        raise BundleError(
            "file names in the manifest must be plain, printable and at most 255 bytes, got "
            f"{json_values.abbreviate(name)}."
        )


def _require_own_names(entry: ArtifactEntry, files: Mapping[str, FileRecord], where: Path) -> None:
    """Refuse an artifact under another label than its file's: it would be served as what it is not."""
    file, golden = f"{entry.precision.value}.{entry.format.value}", f"{entry.precision.value}.golden.npz"
    if (entry.file, entry.golden_file) != (file, golden):
        raise BundleError(
            f"{where}: the {entry.precision.value} {entry.format.value} artifact must be {file} with the golden_file "
            f"{golden}, got {entry.file} with {entry.golden_file}.",
            f"Convert again: quarl convert --bits {entry.precision.bits_argument}",
        )
    if golden not in files:
        raise BundleError(f"{where} lists {file}, but not its golden_file {golden}.", "Convert again: quarl convert")


def _require_not_negative(name: str, *numbers: float | None) -> None:
    # NaN is refused where JSON is read: no error is greater than it, so that such a tolerance would let all pass.
    for number in numbers:
        if number is not None and number < 0:
            raise JsonValueError(f"{name} must not be negative, got {number}")


# --- hashes ---------------------------------------------------------------------------------------------------------


def _smallest() -> Callable[..., Any]:
    """OpenSSL's, which hashlib loads, takes 3.5 MB, a quarter of an agent without numpy."""
    if "hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):  # of Python 3.12; of those before
            try:
                return import_module(name).sha256
            except ImportError:
                continue
    return import_module("hashlib").sha256


new_sha256 = _smallest()


# --- files ----------------------------------------------------------------------------------------------------------
# A bundle comes from elsewhere. Opening a FIFO would block for ever, a device such as /dev/zero has no end, and a link
# leads anywhere. So only regular files in the bundle's own folder are read, and only at the size that the manifest
# gives.

MIB = 2**20
LARGEST_MANIFEST = MIB
"""Bytes of manifest.json: that of eighteen artifacts has twenty thousand."""
LARGEST_SPEC = 3 * MIB
"""Bytes of policy.json: one of 7,064 normalised elements has 170,000."""
LARGEST_OTHER = 256 * MIB
"""Bytes of a file that is kept with a bundle and that nothing here reads, e.g. a learning curve."""

FileState = tuple[int, ...]
"""Device, inode, size, and when contents and inode were written last."""


def is_there(path: Path) -> bool:
    """Return whether something has that name in the folder, be it a link that leads nowhere.

    Raises:
        BundleError: the folder cannot be looked at.
    """
    try:
        return _status(path) is not None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error


def is_regular(path: Path) -> bool:
    """Return whether it is a regular file, and no link to one."""
    status = _status(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def file_state(path: Path) -> FileState | None:
    """Return what becomes another one when a file is written or replaced; None where there is none to look at."""
    try:
        status = _status(path)
    except OSError:
        return None
    return status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_file(path: Path, largest: int, *, follow_links: bool = False) -> bytes:
    """Return the bytes of a regular file of at most ``largest`` bytes; a link to one counts where ``follow_links`` says
    so.

    Raises:
        BundleError: it is missing, no regular file, too large, or cannot be read.
    """
    with _open_regular(path, follow_links) as (stream, size):
        _refuse_large(path, size, largest)
        return stream.read(size)  # it may have grown


def read_verified(path: Path, record: FileRecord, largest: int) -> bytes:
    """Return the bytes of a file, which are those that the manifest's record is of.

    Raises:
        BundleError: as :func:`read_file`, or its size or hash is another.
    """
    _refuse_large(path, record.size, largest)
    with _open_regular(path) as (stream, size):
        _compare_sizes(path, size, record)
        data = stream.read(record.size + 1)
    _compare_sizes(path, len(data), record)
    _compare_hashes(path, new_sha256(data).hexdigest(), record)
    return data


def map_verified(path: Path, record: FileRecord, largest: int, *, in_place: bool) -> mmap.mmap:
    """Return the bytes of a file as :func:`read_verified` does, at the beginning of a page, in private memory.

    Args:
        path, record, largest: as there.
        in_place: map the file itself, which nobody may write to or cut off from then on: these bytes would change with
            it, and where there are none any more reading them ends the process.

    Raises:
        BundleError: as :func:`read_verified`.
    """
    _refuse_large(path, record.size, largest)
    with _open_regular(path) as (stream, size):
        _compare_sizes(path, size, record)
        if in_place and size:  # nothing cannot be mapped
            # A private mapping that may be written to, though nobody does: ctypes tells the address of no other.
            try:
                data = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_COPY)
            except ValueError:  # it has just been cut off
                _compare_sizes(path, 0, record)
                raise
        else:
            data = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            _compare_sizes(path, stream.readinto(data) if size else 0, record)
    with memoryview(data) as view:
        _compare_hashes(path, new_sha256(view[:size]).hexdigest(), record)
    return data


def verify(path: Path, record: FileRecord, largest: int) -> None:
    """Check a file as :func:`read_verified` does, a block at a time: the agent's peak memory is measured."""
    _refuse_large(path, record.size, largest)
    with _open_regular(path) as (stream, size):
        _compare_sizes(path, size, record)
        running, length = new_sha256(), 0
        while length <= record.size and (block := stream.read(min(MIB, record.size + 1 - length))):
            running.update(block)
            length += len(block)
    _compare_sizes(path, length, record)
    _compare_hashes(path, running.hexdigest(), record)


@contextmanager
def _open_regular(path: Path, follow_links: bool = False) -> Iterator[tuple[BufferedReader, int]]:
    """Open a regular file; yield it with its size in bytes."""
    try:
        initial_status = _status(path, follow_links)
        if initial_status is None:
            hint = (
                "Train one (quarl train --task navigation --policy I) or name one that exists."
                if path.name == MANIFEST_FILE
                else ""
            )
            raise BundleError(f"{path} is missing.", hint)
        _refuse_special(path, initial_status)  # opening a device may already do something
        # Should it be another one by now: a link is not followed, and a FIFO does not wait for who writes to it.
        link = 0 if follow_links else os.O_NOFOLLOW
        descriptor = os.open(path, os.O_RDONLY | link | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            _refuse_special(path, status)
            yield stream, status.st_size
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error


def _status(path: Path, follow_links: bool = False) -> os.stat_result | None:
    try:
        return path.stat() if follow_links else path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:  # a NUL or a lone surrogate in a path that was typed
        raise BundleError(f"{str(path)!r} is not a valid path: {error}.") from error


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
        f"{path} must be a regular file, got {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}.",
        "Type the path of the file itself. If it belongs to a bundle, train, import or download the bundle again.",
        code="not_a_regular_file",
    )


def _refuse_large(path: Path, size: int, largest: int) -> None:
    if size > largest:
        raise BundleError(f"{path} must have at most {largest} bytes, got {size}.")


def _compare_sizes(path: Path, size: int, wanted: FileRecord) -> None:
    if size != wanted.size:
        state = "truncated" if size < wanted.size else "too long"
        raise BundleError(f"{path} is {state}: it must have {wanted.size} bytes, got {size}.", code="wrong_size")


def _compare_hashes(path: Path, sha256: str, wanted: FileRecord) -> None:
    if sha256 != wanted.sha256:
        raise BundleError(
            f"{path} was tampered with or damaged: its sha256 differs from the manifest's.",
            "Train, import or download the bundle again.",
            code="wrong_sha256",
        )


# --- arrays ---------------------------------------------------------------------------------------------------------
# An npz file is a zip archive of npy files, and a few kilobytes of it may claim to be gigabytes. So nothing is unpacked
# before the directory and every member's header match the wanted names, types, shapes and sizes. Only what
# :func:`policy.bundle.npz` writes is read: no comments, no zip64, no pickles, C order. A device that runs the native
# engine has no numpy, so this does without.

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
        """Return whether no element is NaN or infinity: as doubles, any number of float32 have a finite sum."""
        return self.type != "float32" or math.isfinite(sum(memoryview(self.data).cast("f")))

    def values(self) -> array[Any]:
        """Return all elements, flat."""
        return array(_CODES[self.type], self.data)

    def floats(self) -> Iterator[array[float]]:
        """Yield the rows as float32, one by one."""
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
    """Return the arrays of an npz file, all with the same number of rows.

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
        shapes = {name: _read_shape(members, name, wanted[name], where) for name in wanted}
        if len({shape[0] for _, shape in shapes.values()}) > 1:
            rows = ", ".join(f"{shape[0]} of {name}" for name, (_, shape) in shapes.items())
            raise BundleError(f"{where}: all arrays must have the same number of rows, got {rows}.")
        size = sum(4 * math.prod(shape) for _, shape in shapes.values())
        if size > LARGEST_ARRAYS:
            raise BundleError(
                f"arrays in {where} must have at most {LARGEST_ARRAYS} bytes in float32, got {size}.",
                code="arrays_too_large",
            )
        return {name: _array(members[name], *shapes[name]) for name in wanted}
    except BundleError:
        raise
    except _UnreadableError as error:
        raise BundleError(f"{where} is not a readable npz file: {error}.") from None
    except Exception as error:  # struct, zlib, and whatever else bytes that nobody wrote may bring about
        reason = abbreviate(str(error))
        raise BundleError(f"{where} is not a readable npz file: {type(error).__name__} {reason}.") from error


@dataclass(frozen=True)
class _Member:
    """A member of the archive, packed."""

    name: str
    method: int
    checksum: int
    size: int
    body: memoryview

    def unpack_bytes(self, most: int) -> bytearray:
        """Its first bytes, at most this many."""
        if self.method == _STORED:
            return bytearray(self.body[:most])
        unpacker, content = zlib.decompressobj(-zlib.MAX_WBITS), bytearray()
        for start in range(0, len(self.body), _BLOCK):
            if len(content) == most:
                break
            content += unpacker.decompress(self.body[start : start + _BLOCK], most - len(content))
        return content


def _check_end(data: bytes) -> tuple[int, int]:
    """Refuse a directory that is large, or elsewhere than where a plain archive has it. Returns place and entries."""
    if len(data) < _END.size:
        raise _UnreadableError("it is not a zip archive")
    signature, _, _, _, entries, size, offset, comment = _END.unpack(data[-_END.size :])
    locator = data[-_END.size - 20 : -_END.size]
    if signature != b"PK\x05\x06" or comment or locator.startswith(_ZIP64_LOCATOR):
        raise _UnreadableError("it is not a plain zip archive: it has a comment or a zip64 record, or is cut off")
    if size > _LARGEST_DIRECTORY or offset + size + _END.size != len(data):
        raise _UnreadableError(f"its directory of {size} bytes at {offset} is too large or not at the end of the file")
    return offset, entries


def _members(data: bytes, wanted: Mapping[str, Wanted], where: str) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    place, entries = _check_end(data)
    for _ in range(entries):
        signature, _, _, flags, method, _, _, checksum, packed, size, name_size, extra, comment, _, _, _, local = (
            _ENTRY.unpack_from(data, place)
        )
        file = data[place + _ENTRY.size : place + _ENTRY.size + name_size].decode()
        place += _ENTRY.size + name_size + extra + comment
        name = file.removesuffix(".npy")
        if name not in wanted or name == file or name in members:
            state = " twice" if name in members else ""
            allowed = ", ".join(wanted)
            raise BundleError(f"{where} must hold only {allowed}, once each, got {abbreviate(file)}{state}.")
        if method not in (_STORED, _DEFLATED):
            raise BundleError(f"{where}: {name!r} must be packed with deflate, got method {method}.")
        begin, *_, its_name, its_extra = _LOCAL.unpack_from(data, local)
        start = local + _LOCAL.size + its_name + its_extra
        its_file = data[local + _LOCAL.size : local + _LOCAL.size + its_name].decode()
        if (signature, begin, its_file) != (b"PK\x01\x02", b"PK\x03\x04", file) or flags & 1:
            raise _UnreadableError(f"the two headers of {name!r} do not match, or it is encrypted")
        members[name] = _Member(name, method, checksum, size, memoryview(data)[start : start + packed])
    return members


def _read_shape(members: Mapping[str, _Member], name: str, wanted: Wanted, where: str) -> tuple[str, tuple[int, ...]]:
    """Type and shape of a member from its header; the header's size is that of the archive's directory."""
    if name not in members:
        raise BundleError(f"{where}: {name!r} is missing; it must be {wanted}.")
    header = _header(members[name])
    parsed = _NPY_HEADER.fullmatch(header)
    if parsed is None:
        raise _UnreadableError(f"{name!r} has the unsupported header {abbreviate(header)}")
    described = parsed[1].decode()
    order, kind, size = _DESCRIBED.match(described).groups()  # type: ignore[union-attr]
    if kind not in _KINDS or int(size or 8) > 16:
        raise _UnreadableError(f"{name!r} has the unsupported type {described}")
    itemsize = int(size or 8)
    of_type = f"{_KINDS[kind]}{8 * itemsize}" if size else _KINDS[kind]
    is_native = itemsize == 1 or order != _FOREIGN_ORDER
    sides = [side.strip() for side in parsed[3].decode().split(",")]
    shape = tuple(int(side) for side in sides if side)
    columns = () if wanted.width is None else (wanted.width,)
    if of_type not in wanted.types or not is_native or shape[1:] != columns or not shape:
        actual = abbreviate(f"{of_type}{list(shape)}")[1:-1]
        raise BundleError(f"{where}: {name!r} must be {wanted}, got {actual}.")
    if parsed[2] == b"True" and math.prod(shape) > max(shape):
        raise _UnreadableError(f"{name!r} must be in C order, got Fortran order")
    held = members[name].size - len(_NPY_MAGIC) - 2 - len(header)
    if held != math.prod(shape) * itemsize:
        raise _UnreadableError(f"{name!r} must hold {of_type}{list(shape)}, as its header says, got {held} bytes")
    return of_type, shape


def _header(member: _Member) -> bytes:
    begin = bytes(member.unpack_bytes(len(_NPY_MAGIC) + 2 + _LARGEST_HEADER))
    if not begin.startswith(_NPY_MAGIC):
        prefix = begin[: len(_NPY_MAGIC) + 2]
        raise _UnreadableError(f"a member must be an npy file of version 1.0, got one that begins with {prefix!r}")
    start = len(_NPY_MAGIC) + 2
    size = int.from_bytes(begin[start - 2 : start], "little")
    if len(begin) < start + size:
        raise _UnreadableError(f"{member.name!r} has the truncated header {abbreviate(begin[start:])}")
    return begin[start : start + size]


def _array(member: _Member, of_type: str, shape: tuple[int, ...]) -> Stored:
    data = member.unpack_bytes(member.size + 1)
    if len(data) != member.size:
        raise _UnreadableError(f"{member.name} is shorter or longer than its header says")
    if zlib.crc32(data) != member.checksum:
        raise _UnreadableError(f"{member.name} is damaged: its checksum does not match")
    del data[: len(data) - math.prod(shape) * array(_CODES[of_type]).itemsize]
    return Stored(of_type, shape[0], shape[1] if len(shape) > 1 else None, data)


# --- a bundle's files -----------------------------------------------------------------------------------------------

SPEC_FILE, WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE = (
    "policy.json",
    "weights.safetensors",
    "calibration.npz",
    "golden.npz",
)
WEIGHTS_HEADER, ARTIFACT_OVERHEAD = MIB, 16 * MIB
"""Bytes that weights.safetensors and an artifact may have beside their parameters."""
DEVICE_FILES = (SPEC_FILE, GOLDEN_FILE)
LARGEST_TOLERANCE = 0.25
HIDDEN_SPAN = 2.0  # a hidden state lies in −1 … 1
"""Largest tolerance, as a share of an output's span, mean over the golden observations: a wider one checks nothing."""

Made = TypeVar("Made")

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class GoldenRows:
    """Real observations with what the float policy makes of them, as they are stored.

    Attributes:
        observations: float32, or of an image uint8, (n, observation_size), raw.
        outputs: float32 (n, result_size): next states stand behind the outputs.
        actions: the choices: int64 (n,), or of several components (n, components); float32 (n, output_size) of a
            continuous head.
    """

    observations: Stored
    outputs: Stored
    actions: Stored

    def decisions(self) -> Iterable[Any]:
        """Return the choices, one by one: an index, a list of one a component, or float32 (output_size,)."""
        if self.actions.type == "float32":
            return self.actions.floats()
        numbers, width = self.actions.values().tolist(), self.actions.width
        return numbers if width is None else [numbers[at : at + width] for at in range(0, len(numbers), width)]


@dataclass(frozen=True)
class ExpectedRows:
    """What an artifact has to compute on the golden observations: see :class:`policy.bundle.Expected`."""

    outputs: Stored
    tolerance: Stored


@dataclass(frozen=True)
class BundleFiles:
    """A bundle whose files were verified. Make one with :meth:`load`.

    What is read is kept, and read once more where its file has been written since.
    """

    path: Path
    spec: PolicySpec
    manifest: Manifest
    _kept: dict[str, tuple[FileState | None, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def open_verified(cls, path: Path | str, require: tuple[str, ...] = DEVICE_FILES, manifest: str = "") -> Self:
        """Open a bundle and verify every file of it that is present.

        Args:
            path: the folder.
            require: files that must be present.
            manifest: sha256 that manifest.json must have; empty: any.

        Raises:
            BundleError: names the file that is missing, truncated, tampered with, of a future version or inconsistent.
        """
        folder = Path(path)
        with wrap_read_errors(folder):
            parsed_manifest = read_manifest(folder, manifest)
            records = parsed_manifest.records()
            for name in (*require, SPEC_FILE):
                if name not in records:
                    raise BundleError(f"{folder / MANIFEST_FILE} does not list {name}, which is needed here.")
            bundle = cls(folder, read_spec(folder, parsed_manifest), parsed_manifest)
            used = {GOLDEN_FILE, *{WEIGHTS_FILE, CALIBRATION_FILE}.intersection(require)}
            for name, record in records.items():
                if name in used:
                    bundle._keep(name)
                elif name != SPEC_FILE and (name in require or is_there(folder / name)):
                    verify(folder / name, record, bundle._largest(name))
            bundle.golden_rows()
            return bundle

    def golden_rows(self) -> GoldenRows:
        """Return the golden vectors; their shapes are checked, and that each action is the one that its outputs
        choose."""
        return self._load_cached(GOLDEN_FILE, self._golden)

    def _golden(self, data: bytes) -> GoldenRows:
        spec, where = self.spec, self.path / GOLDEN_FILE
        width = spec.head.action_shape[0] if spec.head.action_shape else None
        actions = Wanted(("int64" if spec.is_discrete else "float32",), width)
        wanted = {"observations": self._observations, "outputs": self._results, "actions": actions}
        rows = GoldenRows(**self._arrays(data, GOLDEN_FILE, wanted))
        if not rows.outputs.rows:
            raise BundleError(f"{where} holds no golden vectors.", "Train, import or download the bundle again.")
        outputs = (row[: spec.output_size] for row in rows.outputs.floats())
        chosen = [spec.head.choose(row) for row in outputs]
        if list(rows.decisions()) != chosen:
            raise BundleError(f"{where}: each action must be the one that its outputs choose, got another one.")
        return rows

    def forget(self) -> None:
        """Keep nothing of what was read, where memory is scarce; whoever asks next reads it again."""
        self._kept.clear()

    def _keep(self, name: str) -> Any:
        """Read a file of the bundle, verified, and keep its bytes until something is made of them."""
        state = file_state(self.path / name)  # before it is read: one that is written meanwhile is read again
        data = self.data(name)
        self._kept[name] = state, data
        return data

    def _load_cached(self, name: str, make: Callable[[bytes], Made]) -> Made:
        """Return what ``make`` makes of a file, verified: what it made before, unless the file has been written
        since."""
        state, cached = self._kept.get(name, (None, None))
        if state is None or state != file_state(self.path / name):
            cached = self._keep(name)
        if isinstance(cached, bytes):
            cached = make(cached)
            self._kept[name] = self._kept[name][0], cached
        result: Made = cached
        return result

    def artifact(self, precision: Precision, artifact_format: ArtifactFormat) -> ArtifactEntry:
        """Return the artifact of this precision and format.

        Raises:
            BundleError: there is none; says which there are and what to type.
        """
        for entry in self.manifest.artifacts.values():
            if entry.precision is precision and entry.format is artifact_format:
                return entry
        if self.spec.network.opaque and artifact_format is not ArtifactFormat.ONNX:
            raise BundleError(
                f"policy {self.spec.name!r} is an opaque program, which only onnxruntime executes: "
                f"{self.spec.network.opaque.reason}",
                "Type --runtime onnxruntime (make: RUNTIME=onnxruntime), without --agent native.",
            )
        raise BundleError(
            f"{self.path} has no {precision.value} {artifact_format.value} artifact; "
            f"it has {', '.join(sorted(self.manifest.artifacts)) or 'none'}.",
            f"Type: quarl convert --bits {precision.bits_argument} --policy {self.spec.name}",
        )

    def has_artifact(self, precision: Precision, artifact_format: ArtifactFormat) -> bool:
        """Return whether the artifact is listed and its file is there (:meth:`load` verified what is)."""
        return any(
            (entry.precision, entry.format) == (precision, artifact_format) and is_there(self.path / entry.file)
            for entry in self.manifest.artifacts.values()
        )

    def artifact_data(self, entry: ArtifactEntry) -> bytes:
        """Return the bytes of an artifact, verified against the manifest."""
        return read_verified(self.path / entry.file, entry.record, self._largest(entry.file))

    def map_artifact(self, entry: ArtifactEntry, *, in_place: bool) -> mmap.mmap:
        """Return the bytes of an artifact, verified, as :func:`map_verified` does."""
        return map_verified(self.path / entry.file, entry.record, self._largest(entry.file), in_place=in_place)

    def data(self, name: str) -> bytes:
        """Return the bytes of a file that the manifest lists, verified."""
        return read_verified(self.path / name, self._record(name), self._largest(name))

    def read_expected_rows(self, entry: ArtifactEntry) -> ExpectedRows:
        """Return what this artifact has to compute on the golden observations, float32.

        Raises:
            BundleError: it is of other observations, or its tolerance would let an artifact compute anything.
        """
        if (entry.output_step is None) is entry.precision.is_integer or (
            entry.output_step is not None and len(entry.output_step) != self.spec.result_size
        ):
            raise BundleError(
                f"{self.path / MANIFEST_FILE}: the output_step of {entry.file} must be "
                f"{f'{self.spec.result_size} steps' if entry.precision.is_integer else 'null for floats'}, "
                f"got {entry.output_step}."
            )
        golden = self.golden_rows().outputs
        wanted = {"outputs": self._results, "tolerance": self._results}
        rows = ExpectedRows(**self._arrays(self.data(entry.golden_file), entry.golden_file, wanted))
        if not rows.outputs.rows == rows.tolerance.rows == golden.rows:
            raise BundleError(f"{self.path / entry.golden_file} must have one row for each golden observation.")
        self._check_tolerance(entry, rows.tolerance, golden)
        return rows

    def _check_tolerance(self, entry: ArtifactEntry, tolerance: Stored, golden: Stored) -> None:
        outputs, allowed, size = golden.values(), tolerance.values(), self.spec.result_size
        columns = [outputs[index::size] for index in range(size)]
        heads, states = columns[: self.spec.output_size], columns[self.spec.output_size :]
        spans = output_spans(self.spec, min(map(min, heads)), max(map(max, heads)))
        spans += [max(HIDDEN_SPAN, max(column) - min(column)) for column in states]
        shares = [math.fsum(allowed[index::size]) / tolerance.rows / span for index, span in enumerate(spans)]
        if min(allowed) < 0 or max(shares) > LARGEST_TOLERANCE:
            raise BundleError(
                f"{self.path / entry.golden_file}: the tolerance of output {shares.index(max(shares))} must be "
                f"0 to {LARGEST_TOLERANCE:g} of its span, got {max(shares):.3g}.",
                f"Type: quarl convert --bits {entry.precision.bits_argument} --policy {self.spec.name}",
            )

    @property
    def _observations(self) -> Wanted:
        return Wanted(("float32", "uint8") if self.spec.is_image else ("float32",), self.spec.observation_size)

    @property
    def _results(self) -> Wanted:
        return Wanted(("float32",), self.spec.result_size)

    def _record(self, name: str) -> FileRecord:
        try:
            return self.manifest.records()[name]
        except KeyError:
            raise BundleError(f"{self.path / MANIFEST_FILE} does not list {name}, which is needed here.") from None

    def _largest(self, name: str) -> int:
        """Bytes that a file of this policy may have at most."""
        if name == SPEC_FILE:
            return LARGEST_SPEC
        if name == WEIGHTS_FILE:
            return 4 * self._parameters + WEIGHTS_HEADER
        if name in self.manifest.artifacts:
            return 8 * self._parameters + ARTIFACT_OVERHEAD
        return LARGEST_NPZ if name.endswith(".npz") else LARGEST_OTHER

    @property
    def _parameters(self) -> int:
        return sum(math.prod(shape) for shape in weight_shapes(self.spec).values())

    def _arrays(self, data: bytes, name: str, wanted: dict[str, Wanted]) -> dict[str, Stored]:
        arrays = read_arrays(data, wanted, str(self.path / name))
        for key, stored in arrays.items():
            if not stored.is_finite():
                raise BundleError(f"{self.path / name}: {key!r} holds NaN or infinity.")
        return arrays


def read_manifest(folder: Path, sha256: str = "") -> Manifest:
    """Return the manifest of a bundle's folder; nothing else of it is looked at.

    Args:
        folder: the bundle's.
        sha256: that the file must have; empty: any.

    Raises:
        BundleError: it is missing, cannot be read, or is another one.
    """
    path = folder / MANIFEST_FILE
    with wrap_read_errors(path):
        data = read_file(path, LARGEST_MANIFEST)
        if sha256 not in ("", new_sha256(data).hexdigest()):
            raise BundleError(f"{path} is not the signed manifest of this release.", "Deploy the policy again.")
        return Manifest.from_json(data, path)


def read_spec(folder: Path, manifest: Manifest) -> PolicySpec:
    """Return the spec of a bundle's folder, verified; no other file of it is looked at.

    Raises:
        BundleError: it is not listed, not that of the manifest, or cannot be read.
    """
    with wrap_read_errors(folder):
        try:
            record = manifest.records()[SPEC_FILE]
            spec = PolicySpec.from_json(read_verified(folder / SPEC_FILE, record, LARGEST_SPEC))
        except KeyError:
            raise BundleError(f"{folder / MANIFEST_FILE} does not list {SPEC_FILE}, which is needed here.") from None
        except SpecError as error:
            raise BundleError(f"{folder / SPEC_FILE}: {error}") from error
    if spec.name != manifest.policy:
        raise BundleError(
            f"{folder}: manifest and policy.json must name the same policy, got {manifest.policy!r} and {spec.name!r}."
        )
    return spec


@contextmanager
def wrap_read_errors(path: Path) -> Iterator[None]:
    """Raise a BundleError that names what was read, whatever else reading raised: it is the bundle's fault too."""
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        reason = abbreviate(str(error))
        raise BundleError(f"{path} cannot be read: {type(error).__name__} {reason}.") from error
