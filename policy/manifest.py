"""manifest.json: what a bundle holds, and what was checked about each artifact before it was listed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from quarl.policy import json_values
from quarl.policy.contract.enums import ArtifactFormat, Precision, RuntimeName
from quarl.policy.errors import BundleError
from quarl.policy.json_values import OMITTED, JsonValueError, called
from quarl.policy.reading.names import POLICY_NAMES_ALLOWED, is_file_name, is_policy_name

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

    size: int = field(metadata=called("bytes"))
    sha256: str

    def __post_init__(self) -> None:
        if not 0 <= self.size <= LARGEST_RECORD or not _SHA256.fullmatch(self.sha256):
            size, sha256 = json_values.shortened(self.size), json_values.shortened(self.sha256)
            raise JsonValueError(
                f"a record has {size} bytes and the sha256 {sha256}; "
                f"allowed are 0 … {LARGEST_RECORD} bytes and 64 hexadecimal digits"
            )

    @classmethod
    def of(cls, data: bytes) -> FileRecord:
        """The record of these bytes."""
        import hashlib  # on the host alone

        return cls(len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> FileRecord:
        """The record of a file, read a block at a time.

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
    most_off: Optional[float] = field(default=None, metadata=OMITTED)
    warnings: tuple[str, ...] = field(default=(), metadata=OMITTED)
    not_tried: tuple[RuntimeName, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        _require_not_negative("output_step", *(self.output_step or ()))
        if self.output_step is not None and min(self.output_step, default=0.0) < SMALLEST_STEP:
            raise JsonValueError(f"output_step is {min(self.output_step)}; it must be at least {SMALLEST_STEP:g}")
        if (self.precision is Precision.MIXED) is (self.layer_bits is None):
            raise JsonValueError(
                f"layer_bits of {self.file} is {self.layer_bits}; mixed artifacts have them, others not"
            )

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

    @property
    def layer_bits(self) -> Mapping[str, int] | None:
        """Bits by layer of the mixed artifacts; None where there are none."""
        return next((entry.layer_bits for entry in self.artifacts.values() if entry.layer_bits is not None), None)

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
        if version == WITHOUT_ARTIFACTS:
            data = {**data, "artifacts": []}
        elif version != MANIFEST_FORMAT_VERSION:
            raise BundleError(
                f"{where} has format_version {version!r}; this program reads {MANIFEST_FORMAT_VERSION}.",
                "Use the program version that wrote the bundle, or train and convert it again.",
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
                raise BundleError(f"{where} lists {len(files) + len(artifacts)} files; allowed are {MOST_FILES}.")
            for entry in artifacts.values():
                _require_own_names(entry, files, where)
            policy, origin = (json_values.read(str, data[key], key) for key in ("policy", "origin"))
            if not is_policy_name(policy):
                raise BundleError(f"{where} is of policy {policy!r}; allowed are {POLICY_NAMES_ALLOWED}.")
            return cls(policy, files, artifacts, origin)
        except KeyError as error:
            raise BundleError(f"{where} lacks the field {error.args[0]!r}.") from error
        except JsonValueError as error:
            raise BundleError(f"{where} cannot be read: {error}.") from error


def entry_values(entry: ArtifactEntry) -> dict[str, Any]:
    """An artifact's JSON values, those of its record beside the others."""
    values: dict[str, Any] = {}
    for name, value in json_values.write(entry).items():
        values |= value if name == "record" else {name: value}
    return values


def _require_plain(name: str) -> None:
    """Refuse a file name that leaves the bundle or is the manifest's own."""
    if not is_file_name(name) or name == MANIFEST_FILE:
        raise BundleError(
            f"the manifest names the file {json_values.shortened(name)}; "
            "only plain names inside the bundle are allowed, printable and of at most 255 bytes."
        )


def _require_own_names(entry: ArtifactEntry, files: Mapping[str, FileRecord], where: Path) -> None:
    """Refuse an artifact under another label than its file's: it would be served as what it is not."""
    file, golden = f"{entry.precision.value}.{entry.format.value}", f"{entry.precision.value}.golden.npz"
    if (entry.file, entry.golden_file) != (file, golden):
        raise BundleError(
            f"{where} calls {entry.file}, with {entry.golden_file}, the {entry.precision.value} {entry.format.value} "
            f"artifact; the file of that one is {file}, its golden_file {golden}.",
            f"Convert again: make convert BITS={entry.precision.typed}",
        )
    if golden not in files:
        raise BundleError(f"{where} lists {file}, but not its golden_file {golden}.", "Convert again: make convert")


def _require_not_negative(name: str, *numbers: float | None) -> None:
    # NaN is refused where JSON is read: no error is greater than it, so that such a tolerance would let all pass.
    for number in numbers:
        if number is not None and number < 0:
            raise JsonValueError(f"{name} is {number}; it must not be negative")
