"""manifest.json: what a bundle holds, and what was checked about each artifact before it was listed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from policy import json_values
from policy.errors import BundleError, SpecError
from policy.spec import ArtifactFormat, Precision, RuntimeName, parse_enum

MANIFEST_FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and hash of one file of the bundle."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> FileRecord:
        """The record of these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> FileRecord:
        """The record of a file, read a block at a time.

        Raises:
            OSError: it is missing or cannot be read.
        """
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
    max_error_steps: float | None
    agreement: float


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
        golden_file: the file with the reference's outputs of this precision on the golden observations.
        tolerance: largest allowed |output − expected| on the golden observations.
        output_step: one step of the output's scale; None for a float artifact.
        runtimes: for each runtime that executes it, what the parity gate measured.
    """

    file: str
    precision: Precision
    format: ArtifactFormat
    scheme: str
    execution: str
    record: FileRecord
    golden_file: str
    tolerance: float
    output_step: float | None
    runtimes: Mapping[RuntimeName, Parity]


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

    def with_artifact(self, entry: ArtifactEntry, golden: FileRecord) -> Manifest:
        """A manifest that lists this artifact, in place of one of the same name."""
        return replace(
            self,
            files={**self.files, entry.golden_file: golden},
            artifacts={**self.artifacts, entry.file: entry},
        )

    def without_stale(self, newer: Manifest) -> Manifest:
        """This manifest without what ``newer`` replaces: records that differ there, and artifacts that rest on them."""
        fresh = newer.records()
        files = {name: record for name, record in self.files.items() if fresh.get(name) == record}
        artifacts = {
            name: entry
            for name, entry in self.artifacts.items()
            if fresh.get(name) == entry.record and entry.golden_file in files
        }
        return replace(self, files=files, artifacts=artifacts)

    def to_json(self) -> str:
        """An indented JSON document that ends in a newline."""
        data = {
            "format_version": MANIFEST_FORMAT_VERSION,
            "policy": self.policy,
            "origin": self.origin,
            "files": {name: _record_to_dict(record) for name, record in sorted(self.files.items())},
            "artifacts": [_entry_to_dict(entry) for _, entry in sorted(self.artifacts.items())],
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
        except json_values.JsonValueError as error:
            raise BundleError(f"{where} cannot be read: {error}; it is truncated or tampered with.") from error
        version = data.get("format_version")
        if version != MANIFEST_FORMAT_VERSION:
            raise BundleError(
                f"{where} has format_version {version!r}; this program reads {MANIFEST_FORMAT_VERSION}.",
                "Use the program version that wrote the bundle, or train and convert it again.",
            )
        try:
            listed = json_values.members(data["files"], "files")
            files = {_plain(name): _record(json_values.members(item, name)) for name, item in listed.items()}
            artifacts: dict[str, ArtifactEntry] = {}
            for item in json_values.items(data["artifacts"], "artifacts"):
                entry = _entry_from_dict(json_values.members(item, "artifacts"))
                if entry.file in artifacts or entry.file in files:
                    raise BundleError(f"{where} lists {entry.file} twice.")
                artifacts[entry.file] = entry
            policy, origin = (json_values.text(data[key], key) for key in ("policy", "origin"))
            return cls(policy, files, artifacts, origin)
        except KeyError as error:
            raise BundleError(f"{where} lacks the field {error.args[0]!r}.") from error
        except json_values.JsonValueError as error:
            raise BundleError(f"{where} cannot be read: {error}.") from error


def _record_to_dict(record: FileRecord) -> dict[str, Any]:
    return {"bytes": record.size, "sha256": record.sha256}


def _record(data: Mapping[str, Any]) -> FileRecord:
    size, sha256 = json_values.integer(data["bytes"], "bytes"), json_values.text(data["sha256"], "sha256")
    if size < 0 or not _SHA256.fullmatch(sha256):
        raise json_values.JsonValueError(f"a record has {size} bytes and the sha256 {sha256[:80]!r}")
    return FileRecord(size, sha256)


def _plain(value: object) -> str:
    """A file name that stays inside the bundle and is not the manifest's own."""
    name = json_values.text(value, "a file name")
    if not name or name != Path(name).name or name in (".", "..", MANIFEST_FILE) or "\\" in name or "\0" in name:
        raise BundleError(f"the manifest names the file {name!r}; only plain names inside the bundle are allowed.")
    return name


def _entry_to_dict(entry: ArtifactEntry) -> dict[str, Any]:
    return {
        "file": entry.file,
        "precision": entry.precision.value,
        "format": entry.format.value,
        "scheme": entry.scheme,
        "execution": entry.execution,
        **_record_to_dict(entry.record),
        "golden_file": entry.golden_file,
        "tolerance": entry.tolerance,
        "output_step": entry.output_step,
        "runtimes": {name.value: vars(parity) for name, parity in entry.runtimes.items()},
    }


def _entry_from_dict(data: Mapping[str, Any]) -> ArtifactEntry:
    try:
        return ArtifactEntry(
            file=_plain(data["file"]),
            precision=parse_enum(Precision, data["precision"], "precision"),
            format=parse_enum(ArtifactFormat, data["format"], "format"),
            scheme=json_values.text(data["scheme"], "scheme"),
            execution=json_values.text(data["execution"], "execution"),
            record=_record(data),
            golden_file=_plain(data["golden_file"]),
            tolerance=_not_negative(data["tolerance"], "tolerance"),
            output_step=_optional(data["output_step"], "output_step"),
            runtimes={
                parse_enum(RuntimeName, name, "runtime"): _parity(json_values.members(item, name))
                for name, item in json_values.members(data["runtimes"], "runtimes").items()
            },
        )
    except SpecError as error:
        raise BundleError(f"{MANIFEST_FILE}: {error}") from error


def _parity(data: Mapping[str, Any]) -> Parity:
    return Parity(
        version=json_values.text(data["version"], "version"),
        max_error=_not_negative(data["max_error"], "max_error"),
        max_error_steps=_optional(data["max_error_steps"], "max_error_steps"),
        agreement=_not_negative(data["agreement"], "agreement"),
    )


def _not_negative(value: object, name: str) -> float:
    # A tolerance of NaN would let every output pass: no error is greater.
    number = json_values.number(value, name)
    if number < 0:
        raise json_values.JsonValueError(f"{name} is {number}; it must not be negative")
    return number


def _optional(value: object, name: str) -> float | None:
    return None if value is None else _not_negative(value, name)
