"""A bundle's files, verified, without numpy: all that a device reads of one. Host: :class:`policy.bundle.Bundle`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quarl.policy.errors import BundleError, SpecError
from quarl.policy.json_values import shortened
from quarl.policy.manifest import MANIFEST_FILE, ArtifactEntry, FileRecord, Manifest
from quarl.policy.reading import hashing
from quarl.policy.reading.arrays import LARGEST_NPZ, Stored, Wanted, read_arrays
from quarl.policy.reading.files import (
    LARGEST_MANIFEST,
    LARGEST_OTHER,
    LARGEST_SPEC,
    MIB,
    FileState,
    file_state,
    is_there,
    read_file,
    verified,
    verify,
)
from quarl.policy.spec import ArtifactFormat, PolicySpec, Precision, output_spans, weight_shapes

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
        actions: int64 (n,) of a discrete head, float32 (n, output_size) of a continuous one.
    """

    observations: Stored
    outputs: Stored
    actions: Stored

    def decisions(self) -> Iterable[Any]:
        """The actions, one by one: an index, or float32 (output_size,)."""
        return self.actions.values() if self.actions.width is None else self.actions.floats()


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
    def opened(cls, path: Path | str, require: tuple[str, ...] = DEVICE_FILES, manifest: str = "") -> Self:
        """Open a bundle and verify every file of it that is present.

        Args:
            path: the folder.
            require: files that must be present.
            manifest: sha256 that manifest.json must have; empty: any.

        Raises:
            BundleError: names the file that is missing, truncated, tampered with, of a future version or inconsistent.
        """
        folder = Path(path)
        with named(folder):
            found = read_manifest(folder, manifest)
            records = found.records()
            for name in (*require, SPEC_FILE):
                if name not in records:
                    raise BundleError(f"{folder / MANIFEST_FILE} does not list {name}, which is needed here.")
            bundle = cls(folder, read_spec(folder, found), found)
            used = {GOLDEN_FILE, *{WEIGHTS_FILE, CALIBRATION_FILE}.intersection(require)}
            for name, record in records.items():
                if name in used:
                    bundle._keep(name)
                elif name != SPEC_FILE and (name in require or is_there(folder / name)):
                    verify(folder / name, record, bundle._largest(name))
            bundle.golden_rows()
            return bundle

    def golden_rows(self) -> GoldenRows:
        """The golden vectors; their shapes are checked, and that each action is the one that its outputs choose."""
        return self._made(GOLDEN_FILE, self._golden)

    def _golden(self, data: bytes) -> GoldenRows:
        spec, where = self.spec, self.path / GOLDEN_FILE
        actions = Wanted(("int64",), None) if spec.is_discrete else Wanted(("float32",), spec.output_size)
        wanted = {"observations": self._observations, "outputs": self._results, "actions": actions}
        rows = GoldenRows(**self._arrays(data, GOLDEN_FILE, wanted))
        if not rows.outputs.rows:
            raise BundleError(f"{where} holds no golden vectors.", "Make or fetch the bundle again.")
        outputs = [row[: spec.output_size] for row in rows.outputs.floats()]
        chosen = [row.index(max(row)) if spec.is_discrete else row for row in outputs]
        if list(rows.decisions()) != chosen:
            raise BundleError(f"{where}: an action is not the one that its outputs choose.")
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

    def _made(self, name: str, make: Callable[[bytes], Made]) -> Made:
        """What ``make`` makes of a file, verified: what it made before, unless the file has been written since."""
        state, kept = self._kept.get(name, (None, None))
        if state is None or state != file_state(self.path / name):
            kept = self._keep(name)
        if isinstance(kept, bytes):
            kept = make(kept)
            self._kept[name] = self._kept[name][0], kept
        made: Made = kept
        return made

    def artifact(self, precision: Precision, artifact_format: ArtifactFormat) -> ArtifactEntry:
        """The artifact of this precision and format.

        Raises:
            BundleError: there is none; says which there are and what to type.
        """
        for entry in self.manifest.artifacts.values():
            if entry.precision is precision and entry.format is artifact_format:
                return entry
        raise BundleError(
            f"{self.path} has no {precision.value} {artifact_format.value} artifact; "
            f"it has {', '.join(sorted(self.manifest.artifacts)) or 'none'}.",
            f"Type: make convert BITS={precision.typed} POLICY={self.spec.name}",
        )

    def has_artifact(self, precision: Precision, artifact_format: ArtifactFormat) -> bool:
        """Whether the artifact is listed and its file is there (:meth:`load` verified what is)."""
        return any(
            (entry.precision, entry.format) == (precision, artifact_format) and is_there(self.path / entry.file)
            for entry in self.manifest.artifacts.values()
        )

    def artifact_data(self, entry: ArtifactEntry) -> bytes:
        """The bytes of an artifact, verified against the manifest."""
        return verified(self.path / entry.file, entry.record, self._largest(entry.file))

    def data(self, name: str) -> bytes:
        """The bytes of a file that the manifest lists, verified."""
        return verified(self.path / name, self._record(name), self._largest(name))

    def expected_rows(self, entry: ArtifactEntry) -> ExpectedRows:
        """What this artifact has to compute on the golden observations, float32.

        Raises:
            BundleError: it is of other observations, or its tolerance would let an artifact compute anything.
        """
        if (entry.output_step is None) is entry.precision.is_integer or (
            entry.output_step is not None and len(entry.output_step) != self.spec.result_size
        ):
            raise BundleError(
                f"{self.path / MANIFEST_FILE}: the output_step of {entry.file} is {entry.output_step}; allowed are "
                f"{f'{self.spec.result_size} steps' if entry.precision.is_integer else 'none, of floats'}."
            )
        golden = self.golden_rows().outputs
        wanted = {"outputs": self._results, "tolerance": self._results}
        rows = ExpectedRows(**self._arrays(self.data(entry.golden_file), entry.golden_file, wanted))
        if not rows.outputs.rows == rows.tolerance.rows == golden.rows:
            raise BundleError(f"{self.path / entry.golden_file} does not belong to the bundle's golden observations.")
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
                f"{self.path / entry.golden_file}: the tolerance is {max(shares):.3g} of what output "
                f"{shares.index(max(shares))} spans; allowed are 0 to {LARGEST_TOLERANCE:g}.",
                f"Type: make convert BITS={entry.precision.typed} POLICY={self.spec.name}",
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
        for key, each in arrays.items():
            if not each.is_finite():
                raise BundleError(f"{self.path / name}: {key!r} holds NaN or infinity.")
        return arrays


def read_manifest(folder: Path, sha256: str = "") -> Manifest:
    """The manifest of a bundle's folder; nothing else of it is looked at.

    Args:
        folder: the bundle's.
        sha256: that the file must have; empty: any.

    Raises:
        BundleError: it is missing, cannot be read, or is another one.
    """
    path = folder / MANIFEST_FILE
    with named(path):
        data = read_file(path, LARGEST_MANIFEST)
        if sha256 not in ("", hashing.sha256(data).hexdigest()):
            raise BundleError(f"{path} is not the one that this release was signed with.", "Deploy the policy again.")
        return Manifest.from_json(data, path)


def read_spec(folder: Path, manifest: Manifest) -> PolicySpec:
    """The spec of a bundle's folder, verified; no other file of it is looked at.

    Raises:
        BundleError: it is not listed, not that of the manifest, or cannot be read.
    """
    with named(folder):
        try:
            record = manifest.records()[SPEC_FILE]
            spec = PolicySpec.from_json(verified(folder / SPEC_FILE, record, LARGEST_SPEC))
        except KeyError:
            raise BundleError(f"{folder / MANIFEST_FILE} does not list {SPEC_FILE}, which is needed here.") from None
        except SpecError as error:
            raise BundleError(f"{folder / SPEC_FILE}: {error}") from error
    if spec.name != manifest.policy:
        raise BundleError(f"{folder}: the manifest is of policy {manifest.policy!r}, policy.json of {spec.name!r}.")
    return spec


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise a BundleError that names what was read, whatever else reading raised: it is the bundle's fault too."""
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        shown = shortened(str(error))
        raise BundleError(f"{path} cannot be read: {type(error).__name__} {shown}.") from error
